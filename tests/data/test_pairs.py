"""Operations on columns of pairs agree with those on lists."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from mtformer.data.store.pairs import count_id, flat, id_column, join, lengths, make_pairs, prefix, swap, text_of

ROWS = [[Random(n).randint(0, 9) for _ in range(Random(-n).randint(0, 5))] for n in range(40)]


@pytest.mark.parametrize("rows", [ROWS, [[]], [], [[], [], [1]]])
def test_operations_agree_with_those_on_lists(rows: list[list[int]]) -> None:
    column = id_column(rows, vocab_size=10)
    assert column.to_pylist() == rows
    assert lengths(column).tolist() == list(map(len, rows))
    order = np.random.default_rng(1).integers(0, max(1, len(rows)), size=len(rows))
    assert flat(column.take(order))[0].tolist() == [number for index in order for number in rows[index]]
    for some, expected in ((column, rows), (column.slice(2), rows[2:])):
        assert flat(some)[0].tolist() == [number for row in expected for number in row]
        assert count_id(some, 1).tolist() == [row.count(1) for row in expected]
        assert prefix(some, [7, 8]).to_pylist() == [[7, 8, *row] for row in expected]
        assert prefix(some, []).to_pylist() == expected


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), (70_000, np.int32), (None, np.int32)])
def test_the_vocabulary_size_determines_the_type_of_ids(vocab_size: int | None, dtype: type) -> None:
    assert flat(id_column([[1, 65_535]], vocab_size))[0].dtype == dtype


def test_text_is_swapped_and_joined_with_the_ids() -> None:
    lines = ["", "ä 漢 😀", "a\u2028b\x00", "x"]
    ids, no = id_column([[n] for n in range(4)]), id_column([])
    text = pa.array(lines, pa.string())
    pairs = make_pairs(ids, id_column([[]] * 4), text, pa.array(["y"] * 4))
    assert text_of(swap(pairs)) == (["y"] * 4, lines)
    assert text_of(join([pairs, pairs.slice(1, 2)])) == (lines + lines[1:3], ["y"] * 6)
    assert swap(pairs)["tgt"] == ids
    assert flat(text)[0].tobytes() == "".join(lines).encode()
    assert len(flat(pa.array([], pa.string()))[0]) == 0
    assert join([make_pairs(no, no), make_pairs(ids, ids)])["tgt"] == ids

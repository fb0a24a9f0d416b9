"""Ragged arrays agree with lists of lists."""

from random import Random

import numpy as np
import pytest

from mtformer.data.store.ragged import Ragged, bytes_of, text_of

ROWS = [[Random(n).randint(0, 9) for _ in range(Random(-n).randint(0, 5))] for n in range(40)]


def lists(side: Ragged) -> list[list[int]]:
    return [row.tolist() for row in side.rows()]


@pytest.mark.parametrize("rows", [ROWS, [[]], [], [[], [], [1]]])
def test_operations_agree_with_those_on_lists(rows: list[list[int]]) -> None:
    side = Ragged.of(rows, np.uint16)
    assert len(side) == len(rows)
    assert lists(side) == rows
    order = np.random.default_rng(1).integers(0, max(1, len(rows)), size=len(rows))
    assert lists(side.take(order)) == [rows[index] for index in order]
    assert lists(side.prefixed([7, 8])) == [[7, 8, *row] for row in rows]
    assert lists(side.prefixed([])) == rows
    assert lists(side.shortened(2)) == [row[:2] for row in rows]
    assert [row for piece in side.cut(3) for row in lists(piece)] == rows
    assert lists(Ragged.joined([side, side])) == rows * 2
    assert all(len(piece) == 15 for piece in list(side.cut(15))[:-1])


def test_encoding_and_decoding_text() -> None:
    lines = ["", "ä 漢 😀", "a\u2028b\x00", "x"]
    assert text_of(bytes_of(lines)) == lines
    assert text_of(bytes_of([])) == []
    assert text_of(bytes_of(lines).take(np.array([3, 1]))) == ["x", "ä 漢 😀"]

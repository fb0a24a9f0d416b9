"""A store on disk: any block in any order, and files that are not as they were written are told."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mtformer.config.data import DataConfig
from mtformer.data.store import prepare as preparing
from mtformer.data.store import store
from mtformer.data.store.prepare import prepare
from mtformer.data.store.store import BLOCK_PAIRS, Pairs, Store
from mtformer.errors import DataError
from mtformer.text.tokenizer import TokenizerPair

Lines = list[tuple[str, str]]
SHARD_PAIRS = 2 * BLOCK_PAIRS - 50
"""So that each part ends with a block that is not full."""


@pytest.fixture
def made(
    corpus: Callable[..., DataConfig], pairs: Lines, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> Store:
    monkeypatch.setattr(preparing, "SHARD_PAIRS", SHARD_PAIRS)
    data = corpus(pairs)
    return prepare(data.train, data, tokenizers, is_training=True)


def test_blocks_in_any_order(made: Store, pairs: Lines) -> None:
    sizes = made.block_sizes(np.arange(made.num_blocks))
    assert sizes.tolist() == [256, 206, 256, 206, 256, 20]
    ends = np.cumsum(sizes)
    for order in (np.arange(6), np.array([5, 0, 3, 3])):
        expected = [pair for block in order for pair in pairs[ends[block] - sizes[block] : ends[block]]]
        found = made.read(order)
        assert list(zip(*found.text(), strict=True)) == expected
        assert made.block_sizes(order).sum() == len(found)


def test_more_files_than_are_kept_open(made: Store, pairs: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "OPEN_FILES", 1)
    assert list(zip(*made.read([0, 5, 1, 3, 0]).text(), strict=True))[256] == pairs[2 * SHARD_PAIRS + 256]
    assert len(made._readers) == 1


def test_ids_take_two_bytes(made: Store) -> None:
    assert made.read([0]).src.ids_N.dtype == np.uint16


def test_what_was_read_long_ago_holds_no_memory(made: Store) -> None:
    made.read_all()
    before = pa.total_allocated_bytes()
    for _ in range(20):
        made.read([0, 2, 4])
    assert pa.total_allocated_bytes() - before < 100_000


def test_swapped_pairs(made: Store) -> None:
    plain, swapped = made.read([1]), made.read([1]).swapped()
    assert swapped.text() == plain.text()[::-1]
    assert swapped.src.ids_N.tolist() == plain.tgt.ids_N.tolist()


def damaged(made: Store, change: Callable[[Path], None]) -> Store:
    change(made.folder / "shard-00001.arrow")
    return Store(made.folder)


def test_a_file_that_was_cut(made: Store) -> None:
    def cut(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(
        DataError, match=r"not as it was written \(shard-00001.arrow has changed its size\); delete the"
    ):
        damaged(made, cut)


def test_a_file_that_is_gone(made: Store) -> None:
    with pytest.raises(DataError, match=r"not as it was written .*No such file.*prepared again"):
        damaged(made, Path.unlink)


def test_any_flipped_bit_of_the_data_is_found(made: Store) -> None:
    path = made.folder / "shard-00001.arrow"
    whole = path.read_bytes()
    expected, messages = made.read([2, 3]), []
    for place in range(0, len(whole), 1009):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        try:
            found = Store(made.folder).read([2, 3])
        except DataError as error:
            messages.append(str(error))
            continue
        # What is neither checked nor an error is padding or a name.
        assert all(map(np.array_equal, (c.ids_N for c in found.columns()), (c.ids_N for c in expected.columns())))
    assert len(messages) > 10
    assert all("shard-00001.arrow: not as it was written" in message for message in messages)


def test_a_store_json_that_is_none(made: Store) -> None:
    (made.folder / "store.json").write_text("{}")
    with pytest.raises(DataError, match=r"store.json: not as it was written"):
        Store(made.folder)
    shutil.rmtree(made.folder)
    with pytest.raises(DataError, match=r"store.json: not as it was written .*No such file"):
        Store(made.folder)


def test_pairs_without_text() -> None:
    nothing = Pairs.joined([made_of([]), made_of([([5], [6, 7])])])
    assert (len(nothing), nothing.tgt.rows()[0].tolist()) == (1, [6, 7])


def made_of(rows: list[tuple[list[int], list[int]]]) -> Pairs:
    from mtformer.data.store.ragged import Ragged

    return Pairs(Ragged.of([row[0] for row in rows]), Ragged.of([row[1] for row in rows]))

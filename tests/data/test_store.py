"""Stores: blocks can be read in any order; damaged files raise errors."""

import errno
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mtformer.config.data import DataConfig
from mtformer.data.store import prepare as preparing
from mtformer.data.store import store
from mtformer.data.store.pairs import flat, swap, text_of
from mtformer.data.store.prepare import prepare
from mtformer.data.store.store import BLOCK_PAIRS, Store
from mtformer.errors import DataError
from mtformer.text.tokenizer import TokenizerPair

Lines = list[tuple[str, str]]
SHARD_PAIRS = 2 * BLOCK_PAIRS - 50
"""Chosen so that each part ends with an incomplete block."""


@pytest.fixture
def made(
    corpus: Callable[..., DataConfig], pairs: Lines, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> Store:
    monkeypatch.setattr(preparing, "SHARD_PAIRS", SHARD_PAIRS)
    data = corpus(pairs)
    return prepare(data.train, data, tokenizers, is_training=True)


def test_blocks_in_any_order(made: Store, pairs: Lines) -> None:
    sizes = made.block_sizes
    assert sizes.tolist() == [256, 206, 256, 206, 256, 20]
    ends = np.cumsum(sizes)
    for order in (np.arange(6), np.array([5, 0, 3, 3])):
        expected = [pair for block in order for pair in pairs[ends[block] - sizes[block] : ends[block]]]
        found = made.read(order)
        assert list(zip(*text_of(found), strict=True)) == expected
        assert made.block_sizes[order].sum() == len(found)
        assert flat(found["src"])[0].dtype == np.uint16
        assert text_of(swap(found)) == text_of(found)[::-1]
        assert swap(found)["src"] == found["tgt"]


def test_stores_may_have_more_files_than_can_be_open(
    made: Store, pairs: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = lru_cache(1)(store._open.__wrapped__)
    monkeypatch.setattr(store, "_open", shared)
    for one in (made, Store(made.folder)):
        assert list(zip(*text_of(one.read([0, 5, 1, 3, 0])), strict=True))[256] == pairs[2 * SHARD_PAIRS + 256]
    assert shared.cache_info().currsize == 1


def test_a_file_that_cannot_be_opened_is_not_called_damaged(made: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, inode: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(store, "_open", refuse)
    with pytest.raises(DataError, match=r"shard-00000.arrow: cannot be read: .* Too many open files; "):
        made.read([0])


def test_blocks_that_were_read_do_not_stay_in_memory(made: Store) -> None:
    made.read(range(made.num_blocks))
    before = pa.total_allocated_bytes()
    for _ in range(20):
        made.read([0, 2, 4])
    assert pa.total_allocated_bytes() - before < 100_000


@pytest.mark.parametrize(("change", "message"), [
    (lambda path: path.write_bytes(path.read_bytes()[:-100]), r"\(shard-00001.arrow has changed in size\); delete"),
    (Path.unlink, r".*No such file.*prepare the corpus again"),
])  # fmt: skip
def test_a_damaged_file_raises_an_error(made: Store, change: Callable[[Path], None], message: str) -> None:
    change(made.folder / "shard-00001.arrow")
    with pytest.raises(DataError, match=rf"damaged or changed {message}"):
        Store(made.folder)


def test_any_flipped_bit_of_the_data_is_detected(made: Store) -> None:
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
        # If there is no error, the bit is in padding or a name, which the checksum does not cover.
        assert found.columns == expected.columns
    assert len(messages) > 10
    assert all("shard-00001.arrow: damaged or changed" in message for message in messages)


@pytest.mark.parametrize("bit", [4, 64])
def test_a_flipped_bit_in_the_row_numbers_of_duplicates_is_detected(
    corpus: Callable[..., DataConfig], pairs: Lines, tokenizers: TokenizerPair, bit: int
) -> None:
    data = corpus([*pairs, *pairs[:9]])
    made = prepare(data.train, data, tokenizers, is_training=True)
    path = made.folder / "duplicates.bin"
    data = bytearray(path.read_bytes())
    data[-8] ^= bit
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"duplicates.bin: damaged or changed \(the checksum does not match\)"):
        Store(made.folder)


def test_a_damaged_store_json_raises_an_error(made: Store) -> None:
    (made.folder / "store.json").write_text("{}")
    with pytest.raises(DataError, match=r"store.json: damaged or changed"):
        Store(made.folder)
    shutil.rmtree(made.folder)
    with pytest.raises(DataError, match=r"store.json: damaged or changed .*No such file"):
        Store(made.folder)

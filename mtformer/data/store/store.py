"""Prepared corpora on disk: blocks of tokenized pairs, which can be read in any order.

    CACHE/FINGERPRINT/shard-00000.arrow   record batches of `BLOCK_PAIRS` rows; the last one may be shorter
    CACHE/FINGERPRINT/duplicates.bin      row numbers of duplicates (int64, ascending), if any
    CACHE/FINGERPRINT/store.json          rows, pairs and bytes of each shard, the longest pair, and the data report

A record batch has the columns src and tgt (lists of ids without bos and eos), optionally src_text and tgt_text, and a
checksum. Rows are numbered across all shards. A block has the pairs of one record batch without duplicates. Shards are
not memory-mapped, so that blocks that were read do not stay in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mtformer.data.data_report import DataReport
from mtformer.data.store.cache import STORE
from mtformer.data.store.ragged import Ints, Ragged, text_of
from mtformer.errors import DataError
from mtformer.files import FORMAT, read_json, require_format

BLOCK_PAIRS = 256
"""Number of pairs that are read together. An epoch shuffles blocks, and then the pairs of many blocks."""
OPEN_FILES = 64
DUPLICATES = "duplicates.bin"
CHECKSUM = "crc32"
WRITE_BYTES = 1 << 20
"""Size of the write buffer in bytes; a block is written in many small pieces."""


@dataclass(frozen=True)
class Shard:
    """One file of a store; `pairs` is the number of rows that are not duplicates."""

    name: str
    rows: int
    pairs: int
    bytes: int


@dataclass(frozen=True)
class Pairs:
    """Tokenized pairs, optionally with their text as rows of UTF-8 bytes."""

    src: Ragged
    tgt: Ragged
    src_text: Ragged | None = None
    tgt_text: Ragged | None = None

    def __len__(self) -> int:
        return len(self.src)

    def cut(self, size: int) -> Iterator[Pairs]:
        """Yield slices of up to `size` pairs."""
        columns = [column.cut(size) for column in self.columns()]
        return (Pairs(*some) for some in zip(*columns, strict=True))

    def columns(self) -> list[Ragged]:
        """Return the columns that are present."""
        return [column for column in (self.src, self.tgt, self.src_text, self.tgt_text) if column is not None]

    def take(self, indices: Ints) -> Pairs:
        """Return these pairs, in this order."""
        return Pairs(*(column.take(indices) for column in self.columns()))

    @classmethod
    def joined(cls, parts: Iterable[Pairs]) -> Pairs:
        """Concatenate one or more sequences of pairs."""
        columns = zip(*(part.columns() for part in parts), strict=True)
        return cls(*(Ragged.joined(column) for column in columns))

    def swapped(self) -> Pairs:
        """Return the pairs with sources and targets exchanged."""
        return Pairs(self.tgt, self.src, self.tgt_text, self.src_text)

    def text(self) -> tuple[list[str], list[str]]:
        """Return the source and target lines."""
        assert self.src_text is not None, "prepared without keep_text"
        assert self.tgt_text is not None
        return text_of(self.src_text), text_of(self.tgt_text)


class Store:
    """A prepared corpus; opening and reading raise DataError if a file is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fingerprint = folder.name
        with self._reading(folder / STORE):
            self._lock = open(folder / STORE, encoding="utf-8")  # noqa: SIM115  # closed with the store
            with suppress(ImportError, OSError):  # not supported on Windows and some file systems
                import fcntl

                fcntl.flock(self._lock, fcntl.LOCK_SH)  # see `cache.delete_unused`
            contents = read_json(folder / STORE)
            require_format(folder / STORE, contents.get("format", FORMAT), DataError)
            self.report = DataReport.from_dict(contents["report"])
            self.has_text: bool = contents["has_text"]
            self.longest: tuple[int, int] = tuple(contents["longest"])
            """Number of tokens of the longest source and of the longest target, excluding eos."""
            self._shards = [Shard(**shard) for shard in contents["shards"]]
            for shard in self._shards:
                if (folder / shard.name).stat().st_size != shard.bytes:
                    raise ValueError(f"{shard.name} has changed in size")
        self._duplicates = self._open_duplicates(sum(shard.rows - shard.pairs for shard in self._shards))
        self._open = lru_cache(OPEN_FILES)(_open_shard)
        rows = np.array([shard.rows for shard in self._shards], dtype=np.int64)
        self._end_block = np.cumsum(-(-rows // BLOCK_PAIRS))
        first_rows = [
            end - size + np.arange(0, size, BLOCK_PAIRS) for size, end in zip(rows, np.cumsum(rows), strict=True)
        ]
        self._row = np.concatenate([*first_rows, [rows.sum()]])
        """First row of each block, and number of rows."""
        self._sizes = np.diff(self._row) - np.diff(np.searchsorted(self._duplicates, self._row))
        self.num_blocks = len(self._sizes)

    def __len__(self) -> int:
        return int(self._sizes.sum())

    def block_sizes(self, blocks: Ints) -> Ints:
        """Return the number of pairs in each of these blocks."""
        return self._sizes[blocks]

    def read(self, numbers: Sequence[int]) -> Pairs:
        """Return the pairs of one or more blocks, in this order."""
        return Pairs.joined(self._read(block) for block in numbers)

    def read_all(self) -> Pairs:
        """Return all pairs; the corpus must fit in memory."""
        return self.read(range(self.num_blocks))

    def _open_duplicates(self, count: int) -> Ints:
        if not count:
            return np.zeros(0, dtype=np.int64)
        path = self.folder / DUPLICATES
        with self._reading(path):
            if path.stat().st_size != 8 * count:
                raise ValueError("it has changed in size")
            return np.memmap(path, dtype="<i8", mode="r")

    def _read(self, block: int) -> Pairs:
        shard = int(np.searchsorted(self._end_block, block, side="right"))
        number = block - (int(self._end_block[shard - 1]) if shard else 0)
        path = self.folder / self._shards[shard].name
        with self._reading(path):
            batch, metadata = self._open(path).get_batch_with_custom_metadata(number)
            pairs = from_arrow(batch)
            if metadata is None or int(metadata[CHECKSUM]) != checksum(pairs):
                raise ValueError(f"the checksum of block {number} does not match")
        if self._sizes[block] == len(pairs):
            return pairs
        first, last = np.searchsorted(self._duplicates, self._row[block : block + 2])
        duplicates = self._duplicates[first:last] - self._row[block]
        return pairs.take(np.delete(np.arange(len(pairs)), duplicates))

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        """Convert errors caused by a damaged file to DataError."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: damaged or changed ({' '.join(str(error).split()):.200}); delete the folder "
                f"{self.folder} to prepare the corpus again"
            ) from error


def _open_shard(path: Path) -> Any:
    return pa.ipc.open_file(pa.OSFile(str(path)))


def to_arrow(pairs: Pairs) -> Any:
    """Convert pairs to a record batch."""
    names = ["src", "tgt", "src_text", "tgt_text"]
    columns = []
    for side in pairs.columns():
        offsets = np.zeros(len(side) + 1, dtype=np.int32)
        np.cumsum(side.lengths_B, out=offsets[1:])
        if side.ids_N.dtype == np.uint8:
            buffers = [pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(side.ids_N))]
            columns.append(pa.StringArray.from_buffers(len(side), *buffers))
        else:
            columns.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(side.ids_N)))
    return pa.record_batch(columns, names=names[: len(columns)])


def from_arrow(batch: Any) -> Pairs:
    """Convert a record batch from `to_arrow` to pairs without copying."""
    sides = []
    for column in batch.columns:
        offsets = np.frombuffer(column.buffers()[1], np.int32, count=len(column) + 1)
        if pa.types.is_string(column.type):
            values = np.frombuffer(column.buffers()[2] or b"", np.uint8)
        else:
            values = column.values.to_numpy(zero_copy_only=True)
        sides.append(Ragged(values[offsets[0] : offsets[-1]], np.diff(offsets)))
    return Pairs(*sides)


def checksum(pairs: Pairs) -> int:
    """Return the CRC-32 checksum of all columns."""
    crc = 0
    for column in pairs.columns():
        for array in (column.lengths_B, column.ids_N):
            crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return crc


def write_shard(path: Path, pairs: Pairs) -> None:
    """Write one or more pairs to a file."""
    writer = None
    with pa.output_stream(str(path), compression=None, buffer_size=WRITE_BYTES) as sink:
        for block in pairs.cut(BLOCK_PAIRS):
            batch = to_arrow(block)
            writer = writer or pa.ipc.new_file(sink, batch.schema)
            writer.write_batch(batch, custom_metadata={CHECKSUM: str(checksum(block))})
        assert writer is not None, "a shard must have pairs"
        writer.close()

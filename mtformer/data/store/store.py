"""Prepared corpora on disk: blocks of tokenized pairs, which can be read in any order.

    CACHE/FINGERPRINT/shard-00000.arrow   record batches of `BLOCK_PAIRS` rows; the last one may be shorter
    CACHE/FINGERPRINT/duplicates.bin      row numbers of duplicates (int64, ascending), if any
    CACHE/FINGERPRINT/store.json          rows, pairs and bytes of each shard, longest pair, data report, checksum

A record batch has the columns src and tgt (lists of ids without bos and eos), optionally src_text and tgt_text, and a
checksum. Rows are numbered across all shards. A block has the pairs of one record batch without duplicates. Shards are
not memory-mapped, so that blocks that were read do not stay in memory.
"""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import ENOENT
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mtformer.data.data_report import DataReport
from mtformer.data.store.cache import STORE
from mtformer.data.store.pairs import Ints, Pairs, flat, join
from mtformer.errors import DataError
from mtformer.files import FORMAT, read_json, require_file, require_format, unsealed

BLOCK_PAIRS = 256
"""Number of pairs that are read together; an epoch shuffles blocks, and then the pairs of many blocks."""

OPEN_FILES = 64
"""Maximum number of open shards."""

DUPLICATES = "duplicates.bin"
"""File with the row numbers of duplicates."""

CHECKSUM = "crc32"
"""Metadata of a record batch: its checksum."""

WRITE_BYTES = 1 << 20
"""Size of the write buffer in bytes; a block is written in many small pieces."""


@dataclass(frozen=True)
class Shard:
    """One file of a store."""

    name: str
    rows: int
    """Number of rows, including duplicates."""
    pairs: int
    """Number of rows that are not duplicates."""
    bytes: int
    """Size of the file."""


class Store:
    """A prepared corpus; opening and reading raise DataError if a file is damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fingerprint = folder.name
        with self._reading(folder / STORE):
            require_file(folder / STORE)
            self._lock = open(folder / STORE, encoding="utf-8")  # noqa: SIM115  # closed with the store
            with suppress(ImportError, OSError):  # not supported on Windows and some file systems
                import fcntl

                fcntl.flock(self._lock, fcntl.LOCK_SH)  # see `cache.delete_unused`
            value = read_json(folder / STORE)
            require_format(folder / STORE, value.get("format", FORMAT), DataError)
            contents = unsealed(value)
            self.report = DataReport.from_dict(contents["report"])
            self.longest: tuple[int, int] = tuple(contents["longest"])
            """Number of tokens of the longest source and of the longest target, excluding eos."""
            self._shards = [Shard(**shard) for shard in contents["shards"]]
            for shard in self._shards:
                if (folder / shard.name).stat().st_size != shard.bytes:
                    raise ValueError(f"{shard.name} has changed in size")

        self._duplicates = self._read_duplicates(contents)
        """Row numbers of duplicates, in ascending order."""

        shard_rows = [shard.rows for shard in self._shards]
        num_blocks = -(-np.array(shard_rows, dtype=np.int64) // BLOCK_PAIRS)  # rounded up
        self._end_blocks = np.cumsum(num_blocks)
        """For each shard, the number of blocks up to its end."""
        first_rows: list[Ints] = []
        num_rows = 0
        for num_shard_rows in shard_rows:
            end = num_rows + num_shard_rows
            shard_first_rows = np.arange(num_rows, end, BLOCK_PAIRS, dtype=np.int64)
            first_rows.append(shard_first_rows)
            num_rows = end
        self._first_rows = np.concatenate([*first_rows, [num_rows]])
        """First row of each block, and number of rows."""
        duplicates_before = np.searchsorted(self._duplicates, self._first_rows)
        rows_of_blocks = np.diff(self._first_rows)
        duplicates_of_blocks = np.diff(duplicates_before)
        self.block_sizes = rows_of_blocks - duplicates_of_blocks
        """Number of pairs in each block."""
        self.num_blocks = len(self.block_sizes)

    def __len__(self) -> int:
        return int(self.block_sizes.sum())

    def read(self, numbers: Sequence[int]) -> Pairs:
        """Return the pairs of one or more blocks, in this order."""
        return join(self._read(block) for block in numbers)

    def _read_duplicates(self, contents: dict[str, Any]) -> Ints:
        num_rows = sum(shard.rows for shard in self._shards)
        num_pairs = sum(shard.pairs for shard in self._shards)
        num_duplicates = num_rows - num_pairs
        if not num_duplicates:
            return np.zeros(0, dtype=np.int64)
        path = self.folder / DUPLICATES
        with self._reading(path):
            require_file(path)
            duplicates = np.memmap(path, "<i8", "r", shape=(num_duplicates,))
            if zlib.crc32(duplicates.data) != contents["duplicates_crc32"]:
                raise ValueError("the checksum does not match")
        return duplicates

    def _read(self, block: int) -> Pairs:
        """Return the pairs of a block, without duplicates."""
        shard = int(np.searchsorted(self._end_blocks, block, side="right"))
        first_block = int(self._end_blocks[shard - 1]) if shard else 0
        number = block - first_block
        path = self.folder / self._shards[shard].name
        with self._reading(path):
            require_file(path)
            reader = _open(path, path.stat().st_ino)
            pairs, metadata = reader.get_batch_with_custom_metadata(number)
            if metadata is None or int(metadata[CHECKSUM]) != checksum(pairs):
                raise ValueError(f"the checksum of block {number} does not match")
        if self.block_sizes[block] == len(pairs):
            return pairs

        first_row = self._first_rows[block]
        end_row = self._first_rows[block + 1]
        first, end = np.searchsorted(self._duplicates, [first_row, end_row])
        duplicates = self._duplicates[first:end] - first_row
        rows = np.delete(np.arange(len(pairs)), duplicates)
        return pairs.take(rows)

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        """Convert errors caused by a damaged file to DataError."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            if isinstance(error, OSError) and error.errno not in (None, ENOENT):  # too many open files, for example
                raise DataError(
                    f"{path}: cannot be read: {reason}; fix the cause, and run the command again"
                ) from error
            remedy = f"delete the folder {self.folder} to prepare the corpus again"
            raise DataError(f"{path}: damaged or changed ({reason:.200}); {remedy}") from error


@lru_cache(OPEN_FILES)
def _open(path: Path, inode: int) -> pa.ipc.RecordBatchFileReader:
    """Open a shard; the inode number is part of the key, because another file may replace a damaged one."""
    return pa.ipc.open_file(pa.OSFile(str(path)))


def checksum(pairs: Pairs) -> int:
    """Return the CRC-32 checksum of all columns."""
    crc = 0
    for column in pairs.columns:
        values_N, lengths_B = flat(column)
        crc = zlib.crc32(lengths_B.data, crc)
        crc = zlib.crc32(np.ascontiguousarray(values_N).data, crc)
    return crc


def write_shard(path: Path, pairs: Pairs) -> None:
    """Write one or more pairs to a file."""
    assert len(pairs), "a shard must have pairs"
    with (
        pa.output_stream(str(path), compression=None, buffer_size=WRITE_BYTES) as sink,
        pa.ipc.new_file(sink, pairs.schema) as writer,
    ):
        for start in range(0, len(pairs), BLOCK_PAIRS):
            block = pairs.slice(start, BLOCK_PAIRS)
            writer.write_batch(block, custom_metadata={CHECKSUM: str(checksum(block))})

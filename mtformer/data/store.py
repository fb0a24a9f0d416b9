"""Tokenised corpora on disk: blocks of pairs that are read one by one, in any order, and nothing else of them.

    CACHE/FINGERPRINT/part-00000.arrow   blocks (record batches) of `BLOCK_PAIRS` pairs, the last one of fewer
    CACHE/FINGERPRINT/store.json         pairs and bytes of each part, the longest pair, what was read and left out

A block has the columns src and tgt (lists of ids without bos or eos) and, if asked for, src_text and tgt_text, and a
checksum. Files are read and not mapped, so that what was read long ago holds no memory. `parts.py` writes them.
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from mtformer.data.ragged import Ints, Ragged, text_of
from mtformer.data.report import DataReport
from mtformer.errors import DataError

BLOCK_PAIRS = 256
"""Read together. An epoch's order is one of blocks, and then of the pairs of many blocks (see `order.py`)."""
OPEN_FILES = 64
STORE = "store.json"
CHECKSUM = "crc32"
BLOCKS_AT_ONCE = 32
"""Laid out for Arrow together, which takes half the time of each alone."""
WRITE_BYTES = 1 << 20
"""At once, for a block is written in many small pieces."""


@dataclass(frozen=True)
class Part:
    """What is known of one file of a store."""

    name: str
    pairs: int
    bytes: int


@dataclass(frozen=True)
class Contents:
    """store.json."""

    parts: list[Part]
    longest: tuple[int, int]
    """Tokens of the longest source and of the longest target, eos not counted."""
    has_text: bool
    report: DataReport

    def to_json(self) -> str:
        """As a JSON text."""
        return json.dumps({**asdict(self), "report": self.report.to_dict()}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Contents:
        """What `to_json` wrote."""
        values = json.loads(text)
        report = DataReport.from_dict(values["report"])
        parts = [Part(**part) for part in values["parts"]]
        return cls(parts, tuple(values["longest"]), values["has_text"], report)


@dataclass(frozen=True)
class Pairs:
    """Tokenised pairs; text, as rows of UTF-8 bytes, where the store keeps it."""

    src: Ragged
    tgt: Ragged
    src_text: Ragged | None = None
    tgt_text: Ragged | None = None

    def __len__(self) -> int:
        return len(self.src)

    def cut(self, size: int) -> Iterator[Pairs]:
        """So many at a time."""
        columns = [column.cut(size) for column in self.columns()]
        return (Pairs(*some) for some in zip(*columns, strict=True))

    def columns(self) -> list[Ragged]:
        """Those there are."""
        return [column for column in (self.src, self.tgt, self.src_text, self.tgt_text) if column is not None]

    def take(self, indices: Ints) -> Pairs:
        """These pairs, in this order."""
        return Pairs(*(column.take(indices) for column in self.columns()))

    @classmethod
    def joined(cls, parts: Iterable[Pairs]) -> Pairs:
        """All pairs of all parts, in order; at least one part."""
        columns = zip(*(part.columns() for part in parts), strict=True)
        return cls(*(Ragged.joined(column) for column in columns))

    def swapped(self) -> Pairs:
        """Targets as sources, and sources as targets."""
        return Pairs(self.tgt, self.src, self.tgt_text, self.src_text)

    def text(self) -> tuple[list[str], list[str]]:
        """Source and target lines as they were read."""
        assert self.src_text is not None, "prepared without keep_text"
        assert self.tgt_text is not None
        return text_of(self.src_text), text_of(self.tgt_text)


class Store:
    """A tokenised corpus.

    Raises:
        DataError: when its files are not as they were written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fingerprint = folder.name
        with self._told(folder / STORE):
            contents = Contents.from_json((folder / STORE).read_text(encoding="utf-8"))
            for part in contents.parts:
                if (folder / part.name).stat().st_size != part.bytes:
                    raise ValueError(f"{part.name} has changed its size")
        self.report, self.has_text, self.longest = contents.report, contents.has_text, contents.longest
        self._parts = contents.parts
        self._pairs_of_part = np.array([part.pairs for part in contents.parts], dtype=np.int64)
        blocks_of_part = -(-self._pairs_of_part // BLOCK_PAIRS)
        self._end_of_part = np.cumsum(blocks_of_part)
        self._readers: OrderedDict[int, Any] = OrderedDict()
        self.num_blocks = int(blocks_of_part.sum())

    def __len__(self) -> int:
        return int(self._pairs_of_part.sum())

    def block_sizes(self, blocks: Ints) -> Ints:
        """Pairs of each of these blocks."""
        part = np.searchsorted(self._end_of_part, blocks, side="right")
        is_last = blocks == self._end_of_part[part] - 1
        return np.where(is_last, (self._pairs_of_part[part] - 1) % BLOCK_PAIRS + 1, BLOCK_PAIRS)

    def read(self, numbers: Sequence[int]) -> Pairs:
        """The pairs of these blocks, one block after the other; at least one."""
        return Pairs.joined(self._read(block) for block in numbers)

    def read_all(self) -> Pairs:
        """For a corpus that fits the memory."""
        return self.read(range(self.num_blocks))

    def _read(self, block: int) -> Pairs:
        part = int(np.searchsorted(self._end_of_part, block, side="right"))
        start = int(self._end_of_part[part - 1]) if part else 0
        path = self.folder / self._parts[part].name
        with self._told(path):
            batch, metadata = self._reader(part).get_batch_with_custom_metadata(block - start)
            pairs = from_arrow(batch)
            if metadata is None or int(metadata[CHECKSUM]) != checksum(pairs):
                raise ValueError(f"its block {block - start} has another checksum")
        return pairs

    def _reader(self, part: int) -> Any:
        if part in self._readers:
            self._readers.move_to_end(part)
        else:
            self._readers[part] = pa.ipc.open_file(pa.OSFile(str(self.folder / self._parts[part].name)))
            if len(self._readers) > OPEN_FILES:
                self._readers.popitem(last=False)
        return self._readers[part]

    @contextmanager
    def _told(self, path: Path) -> Iterator[None]:
        """Turns what can be wrong with a file of the store into one line."""
        try:
            yield
        except (ValueError, KeyError, TypeError, pa.ArrowException, OSError) as error:
            raise DataError(
                f"{path}: not as it was written ({' '.join(str(error).split()):.200}); delete the folder "
                f"{self.folder}, and it is made anew"
            ) from error


def to_arrow(pairs: Pairs) -> Any:
    """One record batch."""
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
    """What `to_arrow` made, without copying."""
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
    """CRC-32 of all columns."""
    crc = 0
    for column in pairs.columns():
        for array in (column.lengths_B, column.ids_N):
            crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return crc


def write_part(path: Path, pairs: Pairs) -> None:
    """Writes pairs, at least one, as one file."""
    writer = None
    with pa.output_stream(str(path), compression=None, buffer_size=WRITE_BYTES) as sink:
        for some in pairs.cut(BLOCKS_AT_ONCE * BLOCK_PAIRS):
            batch = to_arrow(some)
            writer = writer or pa.ipc.new_file(sink, batch.schema)
            for number, block in enumerate(some.cut(BLOCK_PAIRS)):
                rows = batch.slice(number * BLOCK_PAIRS, BLOCK_PAIRS)
                writer.write_batch(rows, custom_metadata={CHECKSUM: str(checksum(block))})
        assert writer is not None, "a part without a pair"
        writer.close()

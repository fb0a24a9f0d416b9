"""Records as they stand in files: taken from there one after the other here, made text of anywhere.

A record is a line, or two lines of two files. To find where lines end costs little, to make text of them more, so that
the latter can be left to other processes. A line ends at \\n and nowhere else; a \\r before it (files from Windows) and
a byte order mark at the start of a file are taken off.
"""

import contextlib
import gzip
import io
import lzma
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType

from mtformer.config.data import DataConfig, JsonlFile, TextFiles, TsvFile
from mtformer.data.compressed import open_bytes, position
from mtformer.data.report import Sides
from mtformer.data.rows import Fields, RowError, parse_row
from mtformer.errors import DataError

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Unparsed:
    """Neighbouring records as they were read; it can be pickled.

    Args:
        size: how many.
        parse: makes text of them; raises DataError, with their number, for those that cannot be parsed. Given
            `Faults`, it records them there instead.
    """

    size: int
    parse: Callable[..., Sides]


@dataclass
class Faults:
    """Faulty records among some neighboring ones, by their number from 0.

    The keys of `invalid` and `crlf` are src and tgt, or "pair" for lines that hold both.
    """

    invalid: dict[str, list[int]] = field(default_factory=dict)
    """Lines that are not UTF-8; invalid bytes become U+FFFD."""
    crlf: dict[str, list[int]] = field(default_factory=dict)
    """Lines that end with \\r\\n."""
    short: list[int] = field(default_factory=list)
    """Lines that lack a column; it becomes empty."""
    broken: dict[int, str] = field(default_factory=dict)
    """Error messages of rows without both texts; both become empty."""


def _nothing(faults: Faults | None = None) -> Sides:
    return [], []


NOTHING = Unparsed(0, _nothing)


class Records(ABC):
    """Those of a source, in their order."""

    @property
    @abstractmethod
    def number(self) -> int:
        """Of the next one, from 0; at the end so many there are."""

    @property
    @abstractmethod
    def position(self) -> int:
        """How many bytes of what lies on the disk are read; 0 where that is not known."""

    @abstractmethod
    def take(self, count: int) -> Unparsed:
        """The next ones, at most so many; none at the end.

        Raises:
            DataError: when the source is damaged, or its files are of unequal length.
        """

    @property
    def num_lines(self) -> list[int]:
        """Number of lines read from each file; empty for a data set."""
        return []


class Lines:
    """Lines of a file, which is open as long as the context.

    Args:
        path: of the file, plain or packed.

    Raises:
        DataError: on entering and while reading, when the file is missing or its packing damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.number = 0

    def __enter__(self) -> "Lines":
        with told(self.path):
            self._file = open_bytes(self.path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        """How many bytes of the file on the disk are read."""
        return position(self._file)

    def take(self, count: int) -> bytes:
        """The next ones, ends included; at most so many."""
        with told(self.path):
            lines = list(islice(self._file, count))
        self.number += len(lines)
        return b"".join(lines)

    def count_rest(self) -> None:
        """Read to the end."""
        with told(self.path):
            self.number += sum(1 for _ in self._file)


def read_lines(path: str | Path) -> list[str]:
    """Return all lines of a text file, plain or compressed; raises DataError if it cannot be read or is not UTF-8."""
    with Lines(str(path)) as lines:
        return _decode(lines.path, 0, lines.take(sys.maxsize))


class FileRecords(Records):
    """Lines of files that are read side by side."""

    def __init__(self, *files: Lines) -> None:
        self._files = files

    @property
    def number(self) -> int:
        return self._files[0].number

    @property
    def position(self) -> int:
        return sum(file.position for file in self._files)

    @property
    def num_lines(self) -> list[int]:
        return [file.number for file in self._files]


class TextRecords(FileRecords):
    """Two parallel files; with `is_lenient`, the records end with the shorter one."""

    def __init__(self, source: TextFiles, src: Lines, tgt: Lines, *, is_lenient: bool) -> None:
        super().__init__(src, tgt)
        self._source, self._is_lenient = source, is_lenient

    def take(self, count: int) -> Unparsed:
        src, tgt = self._files
        first, sides = self.number, (src.take(count), tgt.take(count))
        if src.number != tgt.number:
            num_common = max(0, min(src.number, tgt.number) - first)
            src.count_rest()
            tgt.count_rest()
            if self._is_lenient:
                common = [b"".join(islice(io.BytesIO(lines), num_common)) for lines in sides]
                return Unparsed(num_common, partial(_parse_text, self._source, first, common[0], common[1]))
            raise DataError(
                f"{src.path} has {src.number:,} lines but {tgt.path} has {tgt.number:,}; parallel files need as many "
                "lines, which end at \\n alone"
            )
        return Unparsed(self.number - first, partial(_parse_text, self._source, first, *sides))


class TsvRecords(FileRecords):
    """A file with both sides in columns of each line."""

    def __init__(self, source: TsvFile, lines: Lines) -> None:
        super().__init__(lines)
        self._source = source

    def take(self, count: int) -> Unparsed:
        first, lines = self.number, self._files[0].take(count)
        return Unparsed(self.number - first, partial(_parse_tsv, self._source, first, lines))


class JsonlRecords(FileRecords):
    """A file with a JSON object in each line; the first one taken tells where the texts stand in it.

    With `is_lenient`, lines before the first one that holds a JSON object are skipped for that.
    """

    def __init__(self, source: JsonlFile, data: DataConfig, lines: Lines, *, is_lenient: bool) -> None:
        super().__init__(lines)
        self._source, self._data, self._is_lenient = source, data, is_lenient
        self._fields: Fields | None = None

    def take(self, count: int) -> Unparsed:
        path, first, lines = self._source.jsonl, self.number, self._files[0].take(count)
        if not lines:
            return NOTHING
        if self._fields is None and self._is_lenient:
            self._fields = self._first_fields(_decode(path, first, lines, "pair", Faults()))
        elif self._fields is None:
            (line,) = _decode(path, first, b"".join(lines.partition(b"\n")[:2]))
            try:
                self._fields = Fields.of(self._source, self._data, parse_row(line))
            except RowError as error:
                raise DataError(f"{path}:{first + 1}: {error}") from error
        fields = self._fields or Fields.of(self._source, self._data, {})
        return Unparsed(self.number - first, partial(_parse_jsonl, path, first, lines, fields))

    def _first_fields(self, lines: list[str]) -> Fields | None:
        for line in lines:
            with contextlib.suppress(RowError):
                return Fields.of(self._source, self._data, parse_row(line))
        return None


def _parse_text(source: TextFiles, first: int, src: bytes, tgt: bytes, faults: Faults | None = None) -> Sides:
    return _decode(source.src, first, src, "src", faults), _decode(source.tgt, first, tgt, "tgt", faults)


def _parse_tsv(source: TsvFile, first: int, lines: bytes, faults: Faults | None = None) -> Sides:
    src, tgt = source.src_column, source.tgt_column
    rows = [line.split("\t") for line in _decode(source.tsv, first, lines, "pair", faults)]
    for number, row in enumerate(rows):
        if len(row) < max(src, tgt):
            asked = "src_column" if src > len(row) else "tgt_column"
            if faults is None:
                raise DataError(
                    f"{source.tsv}:{first + number + 1}: {asked} asks for column {getattr(source, asked)}, but the "
                    f"line has {len(row)} (split at tabs, counted from 1)"
                )
            faults.short.append(number)
            row += [""] * (max(src, tgt) - len(row))
    return [row[src - 1] for row in rows], [row[tgt - 1] for row in rows]


def _parse_jsonl(path: str, first: int, lines: bytes, fields: Fields, faults: Faults | None = None) -> Sides:
    sides: Sides = [], []
    for number, line in enumerate(_decode(path, first, lines, "pair", faults)):
        try:
            src, tgt = fields.pair(parse_row(line))
        except RowError as error:
            if faults is None:
                raise DataError(f"{path}:{first + number + 1}: {error}") from error
            faults.broken[number] = str(error)
            src = tgt = ""
        sides[0].append(src)
        sides[1].append(tgt)
    return sides


def _decode(path: str, first: int, lines: bytes, side: str = "", faults: Faults | None = None) -> list[str]:
    """Lines, of which the first has this number from 0, as text without their ends; `side` is their key in `faults`."""
    if not lines:
        return []
    lines = lines.removeprefix(BOM) if first == 0 else lines
    try:
        text = lines.decode("utf-8")
    except UnicodeDecodeError as error:
        if faults is None:
            number = first + 1 + error.object.count(b"\n", 0, error.start)
            column = error.start - error.object.rfind(b"\n", 0, error.start)
            raise DataError(
                f"{path}:{number}: not UTF-8 (byte {error.object[error.start]:#04x} at column {column}); convert the "
                "file with iconv, or mend the line"
            ) from error
        text = lines.decode("utf-8", "replace")
        faults.invalid[side] = [number for number, line in enumerate(lines.split(b"\n")) if not _is_utf8(line)]
    found = text.split("\n")
    if text.endswith("\n"):
        found.pop()
    if "\r" not in text:
        return found
    if faults is not None and (crlf := [number for number, line in enumerate(found) if line.endswith("\r")]):
        faults.crlf[side] = crlf
    return [line.removesuffix("\r") for line in found]


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """Turns what goes wrong in reading a file into one line."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except IsADirectoryError as error:
        raise DataError(
            f"{path}: is a folder, not a file; for a Hugging Face data set use `dataset: {path}`"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path}: the compressed file is damaged or cut short ({error}); copy it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error

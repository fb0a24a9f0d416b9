r"""Readers of pairs, which split a source into raw records; the records are parsed elsewhere.

A record is a line, two lines of parallel files, or a row of a dataset. Finding newlines is cheap and decoding is not,
so raw records can be sent to other processes to be parsed, which read lines of plain files themselves. Only \n ends a
line; a \r before it (files from Windows) and a byte order mark at the start of a file are removed.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

from mtformer.config.data import HubDataset, JsonlFile, TextFiles, TsvFile
from mtformer.data.corpus.formats import BOM, COMPRESSION_OF, HEAD_BYTES, Content, require_compression, require_content
from mtformer.data.data_report import Columns
from mtformer.enums import StrEnum
from mtformer.errors import DataError
from mtformer.files import parse_json, require_file
from mtformer.formatting import printable

BLOCK_BYTES = 1 << 17
"""Size of the read buffer of a file."""

LONGEST_LINE = 1 << 26
"""Maximum line length in bytes; a file with longer lines is not text."""

SUFFIXES = tuple(COMPRESSION_OF)
"""Suffixes of compressed files."""

TEXT = (Content.CSV,)
"""Contents that readers of lines accept: plain text, in which each line may have a comma."""

LINES_AT_ONCE = 1000
"""Number of lines that are read together."""

NAMES_LENGTH = 100
"""Maximum number of characters of the names of fields in a message."""

TSV_BREAKS = re.compile("[\t\n\r]+")
"""Characters that a cell of a TSV file cannot contain."""


class FaultKind(StrEnum):
    """Kind of a fault in a record."""

    INVALID = "invalid UTF-8"
    """Invalid bytes, which become U+FFFD."""
    SHORT = "missing column"
    """A missing column, which is read as empty."""
    BROKEN = "broken row"
    """A row without text for a side; both sides are read as empty."""
    CRLF = "line end \\r\\n"
    """A Windows line end, which is removed."""


# ---- bytes of plain and compressed files ----------------------------------------------------------------------------


def suffixes(path: str | Path) -> tuple[str, str]:
    """Return the suffixes of a file name in lower case: that of its format and that of its compression, or ""."""
    last = Path(path).suffix.lower()
    if last not in SUFFIXES:
        return last, ""
    before = Path(Path(path).stem).suffix.lower()
    return before, last


def open_bytes(path: str | Path) -> IO[bytes]:
    """Open a plain or compressed file, or a pipe, for reading.

    Opening and reading raise EOFError, OSError, zlib.error or lzma.LZMAError if the file is missing, damaged or
    truncated; for damaged files, the error has no `strerror`. Raise DataError if a file is compressed in another way
    than its name says.
    """
    require_file(path, or_pipe=True)
    suffix = suffixes(path)[1]
    if os.path.isfile(path):
        with open(path, "rb") as start:
            require_compression(str(path), suffix, start.read(HEAD_BYTES))

    if suffix == ".gz":
        return io.BufferedReader(gzip.open(path, "rb"), BLOCK_BYTES)
    if suffix == ".xz":
        return lzma.open(path, "rb")
    if suffix == ".bz2":
        return bz2.open(path, "rb")
    file = open(path, "rb", buffering=BLOCK_BYTES)  # noqa: SIM115
    if suffix == ".zst":
        import pyarrow as pa

        return io.BufferedReader(pa.CompressedInputStream(file, "zstd"), BLOCK_BYTES)
    return file


def open_text(path: str | Path, accepted: Collection[Content] = TEXT) -> IO[bytes]:
    """Open a file like `open_bytes`; raise DataError if it contains something else than text.

    A pipe is not read here, because its writer may first wait for another one to be opened; its first line is checked
    by `require_text`.

    Args:
        path: the file.
        accepted: contents other than plain text that the caller understands.
    """
    file = open_bytes(path)
    if os.path.isfile(path):
        try:
            require_content(str(path), head_of(file), accepted)
        except BaseException:
            file.close()
            raise
    return file


def head_of(file: Any) -> bytes:
    """Return the next bytes of a file that `open_bytes` opened, without reading past them."""
    head: bytes = file.peek(HEAD_BYTES)
    return head[:HEAD_BYTES]


def require_text(name: str, first_line: bytes, accepted: Collection[Content] = TEXT) -> None:
    """Raise DataError if the first line of a pipe or stdin is not text; see `open_text`.

    A line with a JSON object is accepted, because the other lines are unknown.
    """
    require_content(name, first_line, (*accepted, Content.JSON_LINES, Content.JSON_ARRAY))


def read_line(file: IO[bytes], name: str) -> bytes:
    """Return the next line with its line ending, or b"" at the end of the file; raise DataError if it is too long."""
    line = file.readline(LONGEST_LINE)
    if len(line) - line.endswith(b"\n") >= LONGEST_LINE:
        raise DataError(
            f"{name}: has a line of more than {LONGEST_LINE:,} bytes, so it is not a text file; give another file, or "
            "break its lines"
        )
    return line


@contextmanager
def create_bytes(path: str | Path, name: str | Path | None = None) -> Iterator[IO[bytes]]:
    """Open a plain or compressed file for writing; the same contents always produce the same bytes.

    The suffix of `name` determines the format if `path` is a temporary file.
    """
    suffix = suffixes(path if name is None else name)[1]
    with ExitStack() as stack:
        file: Any = stack.enter_context(open(path, "wb"))
        if suffix == ".gz":
            file = stack.enter_context(gzip.GzipFile("", "wb", 6, file, mtime=0))
        elif suffix == ".xz":
            file = stack.enter_context(lzma.open(file, "wb"))
        elif suffix == ".bz2":
            file = stack.enter_context(bz2.open(file, "wb"))
        elif suffix == ".zst":
            import pyarrow as pa

            file = stack.enter_context(pa.CompressedOutputStream(file, "zstd"))
        yield file


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Convert errors on reading a file to DataError."""
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a folder, not a file; for a Hugging Face dataset use `dataset: {path}`") from error
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{path}: cannot be read: {error.strerror}; give a file that you can read") from error
        raise DataError(f"{path}: the compressed file is damaged or truncated ({error}); copy it again") from error


# ---- raw records ----------------------------------------------------------------------------------------------------


@dataclass
class Faults:
    """Faulty records of a block."""

    notes: dict[tuple[FaultKind, str], dict[int, str]] = field(default_factory=dict)
    """Details by index; the keys are a kind and a side, or "pair" if the record contains both sides."""
    errors: dict[int, str] = field(default_factory=dict)
    """Error message for each faulty record."""

    def add(self, kind: FaultKind, side: str, number: int, error: str, note: str = "") -> None:
        """Add a faulty record.

        Args:
            kind: kind of the fault.
            side: src or tgt; "pair" if the record contains both sides.
            number: index of the record.
            error: message for commands that do not accept faults; the first one of a record is kept.
            note: details for `data check`.
        """
        self.notes.setdefault((kind, side), {})[number] = note
        self.errors.setdefault(number, error)

    def require_none(self) -> None:
        """Raise DataError for the first record with an error."""
        if self.errors:
            raise DataError(self.errors[min(self.errors)])


@dataclass(frozen=True)
class RawRecords:
    """Consecutive unparsed records, which can be pickled."""

    size: int
    parse: Callable[[Faults], Columns]
    """Function that returns the text of the records, and adds faulty records to its argument."""

    def texts(self) -> Columns:
        """Return the text; raise DataError for the first record that cannot be parsed."""
        faults = Faults()
        texts = self.parse(faults)
        faults.require_none()
        return texts


# ---- files of lines -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRange:
    """Part of a plain file."""

    path: str
    start: int
    size: int
    version: tuple[int, int]
    """Size and modification time of the file."""

    def read(self) -> bytes:
        """Return the bytes; raise DataError if the file is missing, or has changed."""
        with reading(self.path), open(self.path, "rb") as file:
            file.seek(self.start)
            data = file.read(self.size)
            if _version(file) != self.version:
                raise DataError(f"{self.path} changed while it was being read; run the command again")
        return data


def _version(file: IO[bytes]) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


class Lines(AbstractContextManager["Lines"]):
    """Lines of a file, which a `with` statement closes; raises DataError if the file is missing, damaged or not text.

    Args:
        path: name of the file.
        accepted: contents other than plain text that are accepted.
    """

    def __init__(self, path: str, accepted: Collection[Content] = TEXT) -> None:
        self.path = path
        self._accepted = accepted
        self.number = 0
        """Number of lines returned."""
        self._num_bytes = 0
        with reading(self.path):
            self._file = open_text(self.path, accepted)
            self.head = head_of(self._file) if os.path.isfile(self.path) else b""
            """First bytes, after decompression; empty for a pipe."""
        _, compression = suffixes(self.path)
        is_plain = os.path.isfile(self.path) and not compression
        self._version = _version(self._file) if is_plain else None
        next_line = partial(read_line, self._file, self.path)
        self._lines: Iterator[bytes] = iter(next_line, b"")

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        """Number of (compressed) bytes read from disk; 0 if unknown."""
        try:
            return os.lseek(self._file.fileno(), 0, os.SEEK_CUR)
        except OSError:
            return 0

    def take(self, count: int) -> list[bytes]:
        """Return the next lines, at most `count`, with their line endings."""
        with reading(self.path):
            lines = list(islice(self._lines, count))
        if not self.number and lines and not os.path.isfile(self.path):
            require_text(self.path, lines[0], self._accepted)
        self.number += len(lines)
        self._num_bytes += sum(map(len, lines))
        return lines

    def take_block(self, count: int) -> tuple[int, bytes | FileRange]:
        """Return the number of the next lines, at most `count`, and their bytes, or their range in a plain file."""
        start = self._num_bytes
        lines = self.take(count)
        if self._version is None:
            return len(lines), b"".join(lines)
        num_bytes = self._num_bytes - start
        file_range = FileRange(self.path, start, num_bytes, self._version)
        return len(lines), file_range


Block = bytes | FileRange
"""Consecutive lines."""


class FileReader:
    """Reader of parallel lines.

    Args:
        parse: function of (index of the first line, block of each file, faults) that returns the text.
        files: the open files, of which each record takes one line.
    """

    def __init__(self, parse: Callable[..., Columns], *files: Lines) -> None:
        self._parse = parse
        self._files = files

    @property
    def position(self) -> int:
        """Number of (compressed) bytes read from disk; 0 if unknown."""
        return sum(file.position for file in self._files)

    def take(self, count: int) -> RawRecords:
        """Return the next lines of all files, at most `count`; size 0 at the end.

        Raises DataError if a file is damaged, or the files have different numbers of lines.
        """
        first = self._files[0].number
        taken = [file.take_block(count) for file in self._files]
        sizes = [size for size, _ in taken]
        blocks = [block for _, block in taken]
        if min(sizes) < max(sizes):
            raise self._unequal_error()
        parse = partial(self._parse, first, *blocks)
        return RawRecords(sizes[0], parse)

    def _unequal_error(self) -> DataError:
        """Return the error for files of unequal length, which are read to the end to count their lines."""
        for file in self._files:
            while file.take(LINES_AT_ONCE):
                pass
        src, tgt = self._files
        src_count = f"{src.path} has {src.number:,} lines"
        tgt_count = f"{tgt.path} has {tgt.number:,}"
        counts = f"{src_count} but {tgt_count}"
        return DataError(f"{counts}; parallel files must have the same number of lines (only \\n ends a line)")


def parse_text(source: TextFiles, first: int, src: Block, tgt: Block, faults: Faults) -> Columns:
    """Parse lines of two parallel files.

    Args:
        source: the two files.
        first: index of the first line in the files, starting at 0.
        src: lines of the source file.
        tgt: lines of the target file.
        faults: object in which faulty lines are recorded.
    """
    src_lines = decode(source.src, first, src, "src", faults)
    tgt_lines = decode(source.tgt, first, tgt, "tgt", faults)
    return src_lines, tgt_lines


def parse_tsv(source: TsvFile, first: int, lines: Block, faults: Faults) -> Columns:
    """Parse two columns of tab-separated lines.

    Args:
        source: the file and its columns.
        first: index of the first line in the file, starting at 0.
        lines: the lines.
        faults: object in which faulty lines are recorded.
    """
    num_columns = max(source.src_column, source.tgt_column)
    decoded = decode(source.tsv, first, lines, "pair", faults)
    rows = [line.split("\t") for line in decoded]
    for number, row in enumerate(rows):
        if len(row) < num_columns:
            place = f"{source.tsv}:{first + number + 1}"
            error = _missing_column(source, place, len(row))
            faults.add(FaultKind.SHORT, "pair", number, error)
            row += [""] * (num_columns - len(row))

    src_index = source.src_column - 1
    tgt_index = source.tgt_column - 1
    src_lines = [row[src_index] for row in rows]
    tgt_lines = [row[tgt_index] for row in rows]
    return src_lines, tgt_lines


def _missing_column(source: TsvFile, place: str, num_columns: int) -> str:
    key = "src_column" if source.src_column > num_columns else "tgt_column"
    column = getattr(source, key)
    problem = f"{key} is {column}, but the number of columns is {num_columns} (separated by tabs, counted from 1)"
    return f"{place}: {problem}; complete the line, or change {key}"


def parse_jsonl(source: JsonlFile, languages: tuple[str, str], first: int, lines: Block, faults: Faults) -> Columns:
    """Parse two fields of lines with JSON objects.

    Args:
        source: the file and the names of its fields.
        languages: see `parse_rows`.
        first: index of the first line in the file, starting at 0.
        lines: the lines.
        faults: object in which faulty lines are recorded.
    """
    rows = decode(source.jsonl, first, lines, "pair", faults)
    return parse_rows(source, languages, rows, f"{source.jsonl}:", first, faults)


def decode(path: str, first: int, lines: Block, side: str, faults: Faults) -> list[str]:
    r"""Decode lines and remove line endings.

    Args:
        path: name of the file, for messages.
        first: index of the first line in the file, starting at 0.
        lines: the lines, or their range in a plain file.
        side: key in `faults`.
        faults: object in which lines that are not UTF-8 or end with \r\n are recorded.
    """
    if isinstance(lines, FileRange):
        lines = lines.read()
    if not lines:
        return []
    if first == 0:
        lines = lines.removeprefix(BOM)

    try:
        text = lines.decode("utf-8")
    except UnicodeDecodeError:
        text = lines.decode("utf-8", "replace")
        _add_invalid_lines(path, first, lines, side, faults)
    decoded = text.removesuffix("\n").split("\n")
    if "\r" not in text:
        return decoded

    crlf_lines = [number for number, line in enumerate(decoded) if line.endswith("\r")]
    if crlf_lines:
        faults.notes[FaultKind.CRLF, side] = dict.fromkeys(crlf_lines, "")
    return [line.removesuffix("\r") for line in decoded]


def _add_invalid_lines(path: str, first: int, lines: bytes, side: str, faults: Faults) -> None:
    """Record the lines that are not UTF-8; see `decode`."""
    for number, line in enumerate(lines.split(b"\n")):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            place = f"{path}:{first + number + 1}"
            column = error.start + 1
            byte = f"byte {line[error.start]:#04x} at column {column}"
            message = f"{place}: not UTF-8 ({byte}); convert the file with iconv, or fix the line"
            faults.add(FaultKind.INVALID, side, number, message)


def read_lines(path: str | Path) -> list[str]:
    """Return all lines of a plain or compressed text file; raise DataError if it cannot be read or is not UTF-8."""
    with Lines(str(path)) as lines:
        return decode_valid(lines.path, 0, lines.take(sys.maxsize))


def tsv_cell(text: str) -> str:
    """Return the text for a cell of a TSV file: tabs and line ends become spaces, everything else stays as it is."""
    if not text.strip():
        return ""
    return TSV_BREAKS.sub(" ", text).strip(" ")


def decode_valid(path: str, first: int, lines: list[bytes]) -> list[str]:
    """Decode lines like `decode`; raise DataError if one is not UTF-8.

    Args:
        path: name of the file, for messages.
        first: index of the first line in the file, starting at 0.
        lines: the lines, with their line endings.
    """
    faults = Faults()
    decoded = decode(path, first, b"".join(lines), "", faults)
    faults.require_none()
    return decoded


# ---- rows with fields: lines of JSONL files and rows of datasets -----------------------------------------------------


class RowError(Exception):
    """Raised for a row that cannot be used; the caller adds the row number to the message."""


def parse_row(line: str) -> dict[str, Any]:
    """Parse a line with a JSON object; raise RowError if it is something else."""
    try:
        row = parse_json(line)
        if isinstance(row, dict):
            return row
        reason = f"not a JSON object but {line[:40]!r}"
    except json.JSONDecodeError as error:
        reason = f"not JSON ({error.msg}: column {error.colno})"
    except ValueError as error:  # a number with too many digits, or too deeply nested brackets
        reason = f"unsupported JSON ({error})"
    raise RowError(f"{reason}; each line must be one JSON object")


def parse_rows(
    source: JsonlFile | HubDataset, languages: tuple[str, str], rows: list[Any], place: str, first: int, faults: Faults
) -> Columns:
    """Return the texts of rows; faulty rows become empty texts.

    Args:
        source: the source, which has the names of the fields.
        languages: language codes of source and target, which are the default names of the fields.
        rows: the rows, as objects or as lines of JSON.
        place: text before the row number in messages.
        first: index of the first row, starting at 0.
        faults: object in which faulty rows are recorded.
    """
    src_lang, tgt_lang = languages
    src_lines: list[str] = []
    tgt_lines: list[str] = []
    for number, row in enumerate(rows):
        try:
            parsed = parse_row(row) if isinstance(row, str) else row
            src = _text(parsed, field_of(parsed, source.src_field, src_lang), "src_field")
            tgt = _text(parsed, field_of(parsed, source.tgt_field, tgt_lang), "tgt_field")
        except RowError as error:
            row_number = first + number + 1
            message = f"{place}{row_number}: {error}"
            faults.add(FaultKind.BROKEN, "pair", number, message, note=str(error))
            src = ""
            tgt = ""
        src_lines.append(src)
        tgt_lines.append(tgt)
    return src_lines, tgt_lines


def field_of(row: dict[str, Any], field: str | None, language: str) -> Sequence[str]:
    """Return the keys of the field with the text of a language.

    Args:
        row: the row.
        field: dotted name of the field; None: `translation.LANG` if the row has translations, or else `LANG`.
        language: the language code LANG.
    """
    if field:
        return field.split(".")
    if isinstance(row.get("translation"), dict):
        return ("translation", language)
    return (language,)


def _text(row: dict[str, Any], keys: Sequence[str], option: str) -> str:
    """Return the text of a field; null is read as empty."""
    value: Any = row
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            field = ".".join(keys)
            raise RowError(f"no field '{field}' (found: {_contents(value)}); set the field with {option}")
        value = value[key]

    if value is None:
        return ""
    if not isinstance(value, str):
        field = ".".join(keys)
        raise RowError(f"field '{field}' is not text but {value!r:.40}; set another field with {option}")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            field = ".".join(keys)
            problem = "has an unpaired surrogate, which is not a character; remove it"
            raise RowError(f"field '{field}' {problem}") from error
    return value


def _contents(value: Any) -> str:
    """Return the names of the fields of an object, or another value, for a message."""
    if not isinstance(value, dict):
        return f"only {value!r:.40}"
    return printable(", ".join(value), NAMES_LENGTH)

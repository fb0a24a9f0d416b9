r"""Readers of pairs, which split a source into raw records; the records are parsed elsewhere.

A record is a line, two lines of parallel files, or a row of a dataset. Finding newlines is cheap and decoding is not,
so raw records can be sent to other processes to be parsed. Only \n ends a line; a \r before it (files from Windows) and
a byte order mark at the start of a file are removed.
"""

import contextlib
import io
import json
import lzma
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from mtformer.config.data import DataConfig, HubDataset, JsonlFile, TextFiles, TsvFile
from mtformer.data.corpus.compressed import BLOCK_BYTES, open_bytes, require_line
from mtformer.data.data_report import Columns
from mtformer.errors import DataError

BOM = b"\xef\xbb\xbf"
LINES_AT_ONCE = 1000


@dataclass
class Faults:
    """Faulty records by index; the keys of `invalid` and `crlf` are sides, or "pair" for lines that contain both."""

    invalid: dict[str, list[int]] = field(default_factory=dict)
    """Lines that are not UTF-8; invalid bytes become U+FFFD."""
    crlf: dict[str, list[int]] = field(default_factory=dict)
    """Lines that end with \\r\\n."""
    short: list[int] = field(default_factory=list)
    """Lines that lack a column; the column is read as empty."""
    broken: dict[int, str] = field(default_factory=dict)
    """Error messages for rows without text for a side; both sides are read as empty."""

    @property
    def unusable(self) -> list[int]:
        """Indices of the records with invalid, short or broken lines."""
        return sorted({*chain.from_iterable(self.invalid.values()), *self.short, *self.broken})


@dataclass(frozen=True)
class RawRecords:
    """Consecutive unparsed records, which can be pickled."""

    size: int
    parse: Callable[..., Columns]
    """Function that returns the text of the records. For a record that cannot be parsed, it raises DataError, or adds
    the record to its `Faults` argument if given."""


class Reader(ABC):
    """Base class of readers, which return the records of a source in order."""

    files: "Sequence[Lines]" = ()
    """The open files; empty for a dataset."""

    @abstractmethod
    def take(self, count: int) -> RawRecords:
        """Return the next records, at most `count`; size 0 at the end.

        Raises DataError if the source is damaged, or its files have different numbers of lines.
        """

    @property
    def position(self) -> int:
        """Number of (compressed) bytes read from disk; 0 if unknown."""
        return sum(file.position for file in self.files)


# ---- files of lines -------------------------------------------------------------------------------------------------


class Lines:
    """Lines of a plain or compressed file, which is open inside a `with` statement.

    Opening and reading raise DataError if the file is missing or its compression is damaged.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.number = 0
        """Number of lines returned."""
        self._rest = b""
        """Bytes that have been read but not returned yet."""

    def __enter__(self) -> "Lines":
        with reading(self.path):
            self._file = open_bytes(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def position(self) -> int:
        """Number of (compressed) bytes read from disk; 0 if unknown."""
        try:
            return os.lseek(self._file.fileno(), 0, os.SEEK_CUR)
        except OSError:
            return 0

    def peek(self, count: int) -> bytes:
        """Return the next lines without consuming them; see `take`."""
        number, lines = self.number, self.take(count)
        self._rest, self.number = lines + self._rest, number
        return lines

    def take(self, count: int) -> bytes:
        """Return the next lines, at most `count`, with their line endings."""
        pieces, num_missing, length = [], count, 0
        with reading(self.path):
            while num_missing and (piece := self._rest or self._file.read(BLOCK_BYTES)):
                ends = np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n"))
                end = int(ends[num_missing - 1]) + 1 if len(ends) >= num_missing else len(piece)
                pieces.append(piece[:end])
                length = end - int(ends[-1]) - 1 if len(ends) else length + end
                require_line(length, self.path)
                self._rest = piece[end:]
                num_missing -= min(len(ends), num_missing)
        lines = b"".join(pieces)
        has_end = not lines or lines.endswith(b"\n")
        self.number += count - num_missing + (not has_end)
        return lines


class FileReader(Reader):
    """Reader of files that are read line by line in parallel.

    `parse` is a function from (index of the first line, bytes of each file, faults) to text. If `is_lenient`, files of
    unequal length are read up to the end of the shortest one; otherwise, they are an error.
    """

    def __init__(self, parse: Callable[..., Columns], *files: Lines, is_lenient: bool = False) -> None:
        self._parse, self.files, self._is_lenient = parse, files, is_lenient

    def take(self, count: int) -> RawRecords:
        """Return the next lines of all files, at most `count`."""
        first = self.files[0].number
        blocks = [file.take(count) for file in self.files]
        numbers = [file.number for file in self.files]
        size = max(0, min(numbers) - first)
        if len(set(numbers)) > 1:
            for file in self.files:
                while file.take(BLOCK_BYTES):
                    pass
            if not self._is_lenient:
                src, tgt = self.files
                raise DataError(
                    f"{src.path} has {src.number:,} lines but {tgt.path} has {tgt.number:,}; parallel files must "
                    "have the same number of lines (only \\n ends a line)"
                )
            blocks = [b"".join(islice(io.BytesIO(lines), size)) for lines in blocks]
        return RawRecords(size, partial(self._parse, first, *blocks))


def parse_text(source: TextFiles, first: int, src: bytes, tgt: bytes, faults: Faults | None = None) -> Columns:
    """Parse lines of two parallel files."""
    return decode(source.src, first, src, "src", faults), decode(source.tgt, first, tgt, "tgt", faults)


def parse_tsv(source: TsvFile, first: int, lines: bytes, faults: Faults | None = None) -> Columns:
    """Parse two columns of tab-separated lines."""
    src, tgt = source.src_column, source.tgt_column
    rows = [line.split("\t") for line in decode(source.tsv, first, lines, "pair", faults)]
    for number, row in enumerate(rows):
        if len(row) < max(src, tgt):
            key = "src_column" if src > len(row) else "tgt_column"
            if faults is None:
                raise DataError(
                    f"{source.tsv}:{first + number + 1}: {key} is {getattr(source, key)}, but the number of "
                    f"columns is {len(row)} (separated by tabs, counted from 1)"
                )
            faults.short.append(number)
            row += [""] * (max(src, tgt) - len(row))
    return [row[src - 1] for row in rows], [row[tgt - 1] for row in rows]


def parse_jsonl(source: JsonlFile, fields: "Fields", first: int, lines: bytes, faults: Faults | None = None) -> Columns:
    """Parse two fields of lines with JSON objects."""
    return fields.columns(decode(source.jsonl, first, lines, "pair", faults), f"{source.jsonl}:", first, faults)


def decode(path: str, first: int, lines: bytes, side: str = "", faults: Faults | None = None) -> list[str]:
    """Decode lines and remove line endings; `first` is the index of the first line in the file, starting at 0.

    Lines that are not UTF-8 are recorded in `faults` under the key `side`; without `faults`, they raise DataError.
    """
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
                "file with iconv, or fix the line"
            ) from error
        text = lines.decode("utf-8", "replace")
        decoded = text.encode("utf-8").split(b"\n")
        faults.invalid[side] = [n for n, line in enumerate(lines.split(b"\n")) if line != decoded[n]]
    found = text.split("\n")
    if text.endswith("\n"):
        found.pop()
    if "\r" not in text:
        return found
    if faults is not None and (crlf := [number for number, line in enumerate(found) if line.endswith("\r")]):
        faults.crlf[side] = crlf
    return [line.removesuffix("\r") for line in found]


def read_lines(path: str | Path) -> list[str]:
    """Return all lines of a plain or compressed text file; raise DataError if it cannot be read or is not UTF-8."""
    with Lines(str(path)) as lines:
        return decode(lines.path, 0, lines.take(sys.maxsize))


# ---- rows with fields: lines of JSONL files and rows of datasets -----------------------------------------------------


class RowError(Exception):
    """Raised for a row that cannot be used; the caller adds the row number to the message."""


def parse_row(line: str) -> dict[str, Any]:
    """Parse a line with a JSON object; raise RowError if it is something else."""
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON ({error.msg}: column {error.colno}); each line must be one JSON object") from error
    except (ValueError, RecursionError) as error:  # a number with too many digits, or too deeply nested brackets
        raise RowError(f"unsupported JSON ({error}); each line must be one JSON object") from error
    if not isinstance(row, dict):
        raise RowError(f"not a JSON object but {line[:40]!r}; each line must be one JSON object")
    return row


@dataclass(frozen=True)
class Fields:
    """Key paths of the source and target text in a row."""

    src: tuple[str, ...]
    tgt: tuple[str, ...]

    @classmethod
    def of(cls, source: JsonlFile | HubDataset, data: DataConfig, first_row: dict[str, Any]) -> "Fields":
        """Return the fields named in the config of a source; the defaults depend on the first row."""
        src = source.src_field or _default(source.src_lang or data.src_lang, first_row)
        tgt = source.tgt_field or _default(source.tgt_lang or data.tgt_lang, first_row)
        return cls(tuple(src.split(".")), tuple(tgt.split(".")))

    @classmethod
    def of_file(cls, source: JsonlFile, data: DataConfig, file: Lines) -> "Fields":
        """Return the fields of an open file; defaults depend on the first JSON object, which is not consumed."""
        for line in decode(source.jsonl, 0, file.peek(LINES_AT_ONCE), faults=Faults()):
            with contextlib.suppress(RowError):
                return cls.of(source, data, parse_row(line))
        return cls.of(source, data, {})

    def columns(self, rows: Iterable[Any], place: str, first: int, faults: Faults | None) -> Columns:
        """Return the texts of rows, given as objects or lines of JSON; `first` is the index of the first row.

        Faulty rows are recorded in `faults` and returned as empty texts. Without `faults`, they raise DataError with
        `place` and the row number.
        """
        columns: Columns = [], []
        for number, row in enumerate(rows):
            try:
                parsed = parse_row(row) if isinstance(row, str) else row
                src, tgt = _text(parsed, self.src, "src_field"), _text(parsed, self.tgt, "tgt_field")
            except RowError as error:
                if faults is None:
                    raise DataError(f"{place}{first + number + 1}: {error}") from error
                faults.broken[number] = str(error)
                src = tgt = ""
            columns[0].append(src)
            columns[1].append(tgt)
        return columns


def _default(language: str, first_row: dict[str, Any]) -> str:
    nested = first_row.get("translation")
    return f"translation.{language}" if isinstance(nested, dict) and language in nested else language


def _text(row: dict[str, Any], keys: tuple[str, ...], option: str) -> str:
    """Return the text of a field; null is read as empty."""
    value: Any = row
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            there = f"{', '.join(value):.100}" if isinstance(value, dict) else f"only {value!r:.40}"
            raise RowError(f"no field '{'.'.join(keys)}' (found: {there}); set the field with {option}")
        value = value[key]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RowError(f"field '{'.'.join(keys)}' is not text but {value!r:.40}; set another field with {option}")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RowError(f"field '{'.'.join(keys)}' has an unpaired surrogate, which is invalid") from error
    return value


@contextlib.contextmanager
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
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        raise DataError(f"{path}: the compressed file is damaged or truncated ({error}); copy it again") from error

"""Read parallel text files in blocks of lines, and write resumable output files."""

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

from pydantic import BaseModel, NonNegativeInt

from mtformer.cli.paced_input import BlockLimits, is_pipe, open_stdin, paced_input
from mtformer.data.corpus.formats import BOM, Content
from mtformer.data.corpus.readers import (
    TEXT,
    create_bytes,
    open_bytes,
    open_text,
    read_line,
    reading,
    require_text,
    suffixes,
)
from mtformer.errors import DataError, log
from mtformer.files import atomic_file, file_sha256, locked, read_json, sync, write_text

LINES_AT_ONCE = 2000
"""Maximum number of lines that are read, sorted by length and translated together, to limit memory."""
BYTES_AT_ONCE = 1 << 20
"""Number of bytes of all files at which a block of lines ends."""
CHUNK_BYTES = 1 << 20
"""Number of bytes that are read at once to count lines or to compute a checksum."""
REPLACEMENT = "\ufffd"
"""Character that replaces invalid UTF-8."""


class InputPosition(NamedTuple):
    """Position in parallel files."""

    num_lines: int
    sha256: list[str]
    """Checksum of the lines up to this position, for each file."""


class ParallelLines:
    r"""Blocks of lines from one or more parallel files.

    Lines end only at \n. Lines with invalid UTF-8 are counted, and invalid bytes become U+FFFD.

    Args:
        files: pairs (name for messages, file opened for reading bytes).
        total: number of lines of each file, if known.
        is_piped: True if a file is a pipe: a thread reads the files, and a block also ends at a pause of the writer.
        accepted: contents other than plain text that the lines may be.
    """

    def __init__(
        self,
        files: Sequence[tuple[str, IO[bytes]]],
        total: int | None = None,
        *,
        is_piped: bool = False,
        accepted: Collection[Content] = TEXT,
    ) -> None:
        self.files = files
        self.total = total
        self.num_lines = 0
        self._is_piped = is_piped
        self._digests = [hashlib.sha256() for _ in files]
        self._num_bad = 0
        columns = [_lines(name, file, accepted) for name, file in files]
        limits = BlockLimits(LINES_AT_ONCE, BYTES_AT_ONCE)
        self._rows = paced_input(_rows(columns), _num_bytes, limits, is_piped=is_piped)

    @property
    def position(self) -> InputPosition:
        """Position up to which the files were read."""
        return InputPosition(self.num_lines, [digest.hexdigest() for digest in self._digests])

    def skip(self, num_lines: int) -> None:
        """Skip up to `num_lines` lines; they are included in the checksum."""
        while num_lines:
            block = self._block(min(num_lines, LINES_AT_ONCE))
            if not block:
                return
            num_lines -= len(block[0])

    def has_more(self) -> bool:
        """Return True if there is another line."""
        return self._rows.has_more()

    def is_silent(self) -> bool:
        """Return True if the program that writes the input pauses: the next line has to be waited for."""
        return self._rows.is_silent()

    def stop(self) -> bool:
        """Stop reading; return True if the files can be closed, False if a thread may still be reading them."""
        return self._rows.stop()

    def blocks(self) -> Iterator[list[list[str]]]:
        """Yield blocks of up to LINES_AT_ONCE lines or about BYTES_AT_ONCE bytes, with a list of lines for each file.

        Lines of a pipe are also yielded when no other line has arrived for 50 ms.

        Raise DataError if a file has more lines than another or became shorter, or compressed data is damaged.
        """
        while block := self._block(LINES_AT_ONCE):
            yield [list(map(self._text, lines)) for lines in block]
        if self.total is not None and self.num_lines < self.total:
            raise DataError(f"{self.files[0][0]}: became shorter while it was read; run the command again")
        if self._num_bad:
            log.warning(
                "%d lines were not valid UTF-8; invalid bytes were replaced by U+FFFD; convert the input to UTF-8 to "
                "translate them",
                self._num_bad,
            )

    def _block(self, max_lines: int) -> list[list[bytes]]:
        """Return up to `max_lines` lines of each file, or an empty list at the end of the files."""
        rows = self._read_rows(max_lines)
        block = [list(lines) for lines in zip(*rows, strict=True)]
        for digest, lines in zip(self._digests, block, strict=False):  # no lines at the end of the files
            digest.update(b"".join(lines))
        self.num_lines += len(rows)
        return block

    def _read_rows(self, max_lines: int) -> list[tuple[bytes, ...]]:
        """Return up to `max_lines` rows, each with a line of each file."""
        rows: list[tuple[bytes, ...]] = []
        for row in self._rows.take(max_lines):
            if None in row:
                self._refuse_incomplete(row, self.num_lines + len(rows))
            rows.append(row)
        return rows

    def _refuse_incomplete(self, row: tuple[bytes | None, ...], num_before: int) -> None:
        """Raise DataError for a row in which a file has no line, with the number of lines of each file.

        The rest of a pipe is not counted, because it may only end when the program that writes it gets an answer.

        Args:
            row: a line of each file, None for files that have ended.
            num_before: number of rows before it.
        """
        totals = []
        for (name, file), line in zip(self.files, row, strict=True):
            if line is None:
                totals.append((name, str(num_before)))
            elif self._is_piped:
                totals.append((name, "more"))
            else:
                with reading(name):
                    num_later = sum(1 for _ in file)
                totals.append((name, str(num_before + 1 + num_later)))
        _refuse_unequal(totals)

    def _text(self, line: bytes) -> str:
        text = line.rstrip(b"\n").decode("utf-8", "replace")
        if REPLACEMENT in text and REPLACEMENT.encode() not in line:
            self._num_bad += 1
        return text


def _lines(name: str, file: IO[bytes], accepted: Collection[Content]) -> Iterator[bytes]:
    """Yield the lines of a file without its byte order mark; refuse files that are not UTF-8 text."""
    with reading(name):
        first = read_line(file, name)
        require_text(name, first, accepted)
        if first:
            yield first.removeprefix(BOM)
        while line := read_line(file, name):
            yield line


def _rows(columns: Sequence[Iterator[bytes]]) -> Iterator[tuple[bytes, ...]]:
    """Yield a line of each file, up to the first row in which a file has ended before another."""
    for row in itertools.zip_longest(*columns):
        yield row
        if None in row:
            return


def _num_bytes(row: tuple[bytes | None, ...]) -> int:
    return sum(len(line) for line in row if line is not None)


@contextmanager
def parallel_lines(paths: Sequence[Path | None], accepted: Collection[Content] = TEXT) -> Iterator[ParallelLines]:
    """Open plain or compressed files.

    Lines are counted in advance, except for a single compressed file, to avoid decompressing it twice.

    Args:
        paths: the files; None is stdin.
        accepted: contents other than plain text that the lines may be.

    Raise DataError if a file is missing, damaged or not text, or has more lines than another (raised at the end for
    pipes).
    """
    for path in paths:
        if path is not None:
            _require_file(path, accepted)

    totals = [(str(path), _count_lines(path)) for path in _countable(paths)]
    if len({total for _, total in totals}) > 1:
        _refuse_unequal([(name, str(total)) for name, total in totals])
    if totals and totals[0] == (str(paths[0]), 0):
        log.warning("%s: is empty, so there are no lines to read; check the file", paths[0])

    with ExitStack() as stack:
        files: list[tuple[str, IO[bytes]]] = []
        for path in paths:
            if path is None:
                files.append(("the input", open_stdin()))
            else:
                with reading(str(path)):
                    files.append((str(path), stack.enter_context(open_bytes(path))))

        total = totals[0][1] if totals else None
        lines = ParallelLines(files, total, is_piped=any(map(is_pipe, paths)), accepted=accepted)
        try:
            yield lines
        finally:
            if not lines.stop():
                stack.pop_all()  # closing a pipe would wait for the thread that reads it


def _require_file(path: Path, accepted: Collection[Content]) -> None:
    """Raise DataError if there is no file or pipe with this path, or the file is not text."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder, not a file; give the name of a file")
    if not path.exists():
        raise DataError(f"{path}: no such file; check the path")
    if path.is_file():
        with reading(str(path)), open_text(path, accepted):
            pass


def _countable(paths: Sequence[Path | None]) -> list[Path]:
    """Return the files whose lines are counted in advance: no pipes, and not a single compressed file."""
    files = [path for path in paths if path is not None and path.is_file()]
    if len(files) == 1 and suffixes(files[0])[1]:
        return []
    return files


def _count_lines(path: Path) -> int:
    """Return the number of lines; the last line may lack a line end."""
    num_lines = 0
    last_block = b"\n"
    with reading(str(path)), open_bytes(path) as file:
        while block := file.read(CHUNK_BYTES):
            num_lines += block.count(b"\n")
            last_block = block
    if not last_block.endswith(b"\n"):
        num_lines += 1
    return num_lines


def _refuse_unequal(totals: Sequence[tuple[str, str]]) -> NoReturn:
    """Raise DataError with the name and the number of lines of each file."""
    counts = ", ".join(f"{name} has {total}" for name, total in totals)
    raise DataError(
        f"files of unequal length: {counts} lines; give parallel files, which have the same number of lines"
    )


class _RecordFile(BaseModel, strict=True):
    """Contents of the file of a record, whose fields are those of `_Record`."""

    lines: NonNegativeInt
    input_sha256: list[str]
    bytes: NonNegativeInt
    settings: dict[str, Any]
    partial_sha256: str | None = None
    output_sha256: str | None = None


@dataclass(frozen=True)
class _Record:
    """The record of an output file: what it was written from, and how much of it is written."""

    num_lines: int
    """Number of lines of the input."""
    input_sha256: list[str]
    num_bytes: int
    """Number of bytes of the uncompressed output."""
    settings: dict[str, Any]
    partial_sha256: str | None = None
    """Checksum of the partial file; None for a complete output, and in records of version 0.3."""
    output_sha256: str | None = None
    """Checksum of the complete file."""

    def to_json(self) -> str:
        """Return the record as a JSON object."""
        values = {
            "lines": self.num_lines,
            "input_sha256": self.input_sha256,
            "bytes": self.num_bytes,
            "settings": self.settings,
            "partial_sha256": self.partial_sha256,
            "output_sha256": self.output_sha256,
        }
        return json.dumps({key: value for key, value in values.items() if value is not None})

    @classmethod
    def read(cls, path: Path) -> "_Record | None":
        """Return the record in a file; None if it is missing or damaged."""
        try:
            values = _RecordFile.model_validate(read_json(path))
        except (OSError, ValueError):  # a ValidationError is a ValueError
            return None
        return cls(
            num_lines=values.lines,
            input_sha256=values.input_sha256,
            num_bytes=values.bytes,
            settings=values.settings,
            partial_sha256=values.partial_sha256,
            output_sha256=values.output_sha256,
        )


class ResumableOutput:
    """An output file that an interrupted command can resume.

    Until the output is complete, it is written uncompressed to NAME.partial, because a compressed file cannot be
    truncated at a line. After each block, the record .NAME.mtformer.json is updated with the output size, the input
    checksum and the settings. The record is kept next to the complete file, with the checksum of the output.
    """

    def __init__(self, path: Path) -> None:
        self.name = path
        self.path = Path(os.path.realpath(path))  # symbolic links are kept
        self.settings: dict[str, Any] = {}
        self.partial = self.path.with_name(f"{self.path.name}.partial")
        self.record = self.path.with_name(f".{self.path.name}.mtformer.json")
        self.lock = self.path.with_name(f".{self.path.name}.lock")
        self._digest = hashlib.sha256()
        """Checksum of the first `_num_hashed` bytes of the partial file."""
        self._num_hashed = 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes from writing the same file; raise DataError if one is writing it."""
        refusal = DataError(
            f"{self.name}: another process is writing this file; wait for it, or name another file with --output"
        )
        with locked(self.lock, refusal):
            try:
                yield
            finally:
                self.lock.unlink(missing_ok=True)

    def open(self, lines: ParallelLines, settings: dict[str, Any], continues: bool) -> IO[bytes] | None:
        """Return the partial file, positioned where writing continues, or None if the output is already complete.

        If `continues`, resume an interrupted output, or extend a complete one if lines were added to the input;
        finished lines of the input are skipped.

        Args:
            lines: the input.
            settings: all values that affect the output, except for the input.
            continues: resume; otherwise start at the first line.

        Raises:
            DataError: if the output was not written from this input with these settings, or has changed since, or the
                partial file or the record is a named pipe, a device or a folder.
        """
        for path in (self.partial, self.record):
            if path.exists() and not path.is_file():
                raise DataError(f"{path}: is not a file; move it away, or name another file with --output")
        self.settings = json.loads(json.dumps(settings))  # so that they equal settings read from the record
        if not continues:
            return self._start(lines)

        record = _Record.read(self.record)
        is_partial = record is not None and self._has_partial(record)
        if not is_partial and not self.path.exists():
            log.info("%s: nothing to continue; starting at the first line", self.name)
            return self._start(lines)
        if record is None:
            raise DataError(
                f"{self.name}: cannot be continued, because there is no record of how this file was written; remove "
                "--continue to replace it"
            )
        self._check_input(record, lines)

        if not is_partial:
            self._check_complete(record)
            if not lines.has_more():
                log.info("%s: already complete", self.name)
                return None
            with open_bytes(self.name) as complete, self.partial.open("wb") as partial:
                shutil.copyfileobj(complete, partial)
        log.info("continuing after line %d", record.num_lines)
        return self._continue(record)

    def save(self, file: IO[bytes], end: InputPosition) -> None:
        """Record that the output for all lines up to `end` is written."""
        file.flush()
        os.fsync(file.fileno())
        self._hash_up_to(file.tell())
        self._write_record(end, file.tell(), partial_sha256=self._digest.hexdigest())

    def finish(self, end: InputPosition) -> None:
        """Move the complete and closed output to its final path."""
        num_bytes = self.partial.stat().st_size
        # The record is written first: if the process is killed in between, the partial file still allows resuming.
        if suffixes(self.name)[1]:
            with atomic_file(self.path) as temporary:
                with self.partial.open("rb") as partial, create_bytes(temporary, self.name) as compressed:
                    shutil.copyfileobj(partial, compressed)
                self._write_record(end, num_bytes, output_sha256=file_sha256(temporary))
            self.partial.unlink()
        else:
            self._write_record(end, num_bytes, output_sha256=file_sha256(self.partial))
            os.replace(self.partial, self.path)
            sync(self.path.parent)

    def _start(self, lines: ParallelLines) -> IO[bytes]:
        """Return a new partial file."""
        file = self.partial.open("wb")
        self.save(file, lines.position)
        return file

    def _continue(self, record: _Record) -> IO[bytes]:
        """Return the partial file, without bytes after those that are recorded."""
        self._hash_up_to(record.num_bytes)
        file = self.partial.open("r+b")
        file.truncate(record.num_bytes)
        file.seek(record.num_bytes)
        return file

    def _has_partial(self, record: _Record) -> bool:
        """Return True if the partial file has all recorded bytes; raise DataError if they have changed."""
        if not self.partial.is_file() or self.partial.stat().st_size < record.num_bytes:
            return False
        if record.partial_sha256 is not None:
            self._hash_up_to(record.num_bytes)
            if self._digest.hexdigest() != record.partial_sha256:
                raise DataError(
                    f"{self.partial}: damaged; remove --continue to start over, or restore the file from a copy"
                )
        return True

    def _check_complete(self, record: _Record) -> None:
        """Raise DataError if the complete output is not the recorded one."""
        if file_sha256(self.path) != record.output_sha256:
            raise DataError(
                f"{self.name}: changed since it was written; restore it from a copy, or remove --continue to replace it"
            )

    def _check_input(self, record: _Record, lines: ParallelLines) -> None:
        """Skip the finished lines; raise DataError if the output was made with other settings or from other lines."""
        advice = "repeat the same command, or remove --continue to start over"
        for key in sorted(record.settings.keys() | self.settings.keys()):
            old = record.settings.get(key)
            new = self.settings.get(key)
            if old != new:
                raise DataError(f"{self.name}: was written with {key} {old}, not {new}; {advice}")

        lines.skip(record.num_lines)
        if lines.position != (record.num_lines, record.input_sha256):
            raise DataError(f"{self.name}: was written from a different input; {advice}")

    def _hash_up_to(self, num_bytes: int) -> None:
        """Add the bytes of the partial file up to this number to its checksum."""
        with self.partial.open("rb") as file:
            file.seek(self._num_hashed)
            while block := file.read(min(CHUNK_BYTES, num_bytes - self._num_hashed)):
                self._digest.update(block)
                self._num_hashed += len(block)

    def _write_record(
        self, end: InputPosition, num_bytes: int, partial_sha256: str | None = None, output_sha256: str | None = None
    ) -> None:
        record = _Record(end.num_lines, end.sha256, num_bytes, self.settings, partial_sha256, output_sha256)
        write_text(self.record, record.to_json() + "\n")

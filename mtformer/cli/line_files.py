"""Read parallel text files in blocks of lines, and write resumable output files."""

import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from mtformer.data.corpus.readers import BOM, SUFFIXES, create_bytes, open_bytes, read_line, reading, suffixes
from mtformer.errors import DataError, log
from mtformer.files import atomic_file, file_sha256, locked, read_json, sync, write_text

LINES_AT_ONCE = 2000  # maximum number of lines that are read, sorted by length and translated together, to limit memory
BYTES_AT_ONCE = 1 << 20
SIGNATURES = (b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh", b"\xff\xfe", b"\xfe\xff")
"""First bytes of gzip, xz, zstd, bzip2 and UTF-16 (in either byte order)."""


class Position(NamedTuple):
    """Position in parallel files."""

    num_lines: int
    sha256: list[str]
    """Checksum of the lines up to this position, for each file."""


class ParallelLines:
    r"""Blocks of lines from one or more parallel files.

    Lines end only at \n. Lines with invalid UTF-8 are counted, and invalid bytes become U+FFFD. `files` has pairs (name
    for messages, file opened for reading bytes); `total` is the number of lines of each file, if known.
    """

    def __init__(self, files: Sequence[tuple[str, IO[bytes]]], total: int | None = None) -> None:
        self.files = files
        self.total = total
        self.num_lines = 0
        self._digests = [hashlib.sha256() for _ in files]
        self._num_bad = 0
        self._rows: Iterator[tuple[bytes, ...]] = itertools.zip_longest(*(_lines(name, file) for name, file in files))

    @property
    def position(self) -> Position:
        """Position up to which the files were read."""
        return Position(self.num_lines, [digest.hexdigest() for digest in self._digests])

    def skip(self, num_lines: int) -> None:
        """Skip up to `num_lines` lines; they are included in the checksum."""
        while num_lines and (block := self._block(min(num_lines, LINES_AT_ONCE))):
            num_lines -= len(block[0])

    def has_more(self) -> bool:
        """Return True if there is another line."""
        row = next(self._rows, None)
        self._rows = itertools.chain([row] if row is not None else [], self._rows)
        return row is not None

    def blocks(self) -> Iterator[list[list[str]]]:
        """Yield blocks of up to LINES_AT_ONCE lines or about BYTES_AT_ONCE bytes, with a list of lines for each file.

        Raise DataError if a file has more lines than another or became shorter, or compressed data is damaged.
        """
        while block := self._block(LINES_AT_ONCE):
            yield [[self._text(line) for line in lines] for lines in block]
        if self.total is not None and self.num_lines < self.total:
            raise DataError(f"{self.files[0][0]}: became shorter while it was read; run the command again")
        if self._num_bad:
            log.warning("%d lines were not valid UTF-8; invalid bytes were replaced by U+FFFD", self._num_bad)

    def _block(self, most: int) -> list[list[bytes]]:
        """Return up to `most` lines of each file, or an empty list at the end of the files."""
        rows, num_bytes = list[tuple[bytes, ...]](), 0
        while len(rows) < most and num_bytes < BYTES_AT_ONCE and (row := next(self._rows, None)):
            if None in row:  # a file has ended, so all are counted to their ends
                totals = []
                for (name, file), line in zip(self.files, row, strict=True):
                    with reading(name):
                        totals.append((name, self.num_lines + len(rows) + (line is not None) + sum(1 for _ in file)))
                _refuse_unequal(totals)
            rows.append(row)
            num_bytes += len(row[0])
        block = [list(lines) for lines in zip(*rows, strict=True)]
        for digest, lines in zip(self._digests, block, strict=False):
            digest.update(b"".join(lines))
        self.num_lines += len(rows)
        return block

    def _text(self, line: bytes) -> str:
        text = line.rstrip(b"\n").decode("utf-8", "replace")
        self._num_bad += "\ufffd" in text and b"\xef\xbf\xbd" not in line
        return text


def _lines(name: str, file: IO[bytes]) -> Iterator[bytes]:
    with reading(name):
        for number, line in enumerate(iter(partial(read_line, file, name), b"")):
            if not number and line.startswith(SIGNATURES):
                what = "compressed or UTF-16, not UTF-8 text"
                raise DataError(f"{name}: {what}; convert it, or use a suffix that is read ({', '.join(SUFFIXES)})")
            yield line if number else line.removeprefix(BOM)


@contextmanager
def parallel_lines(paths: Sequence[Path | None]) -> Iterator[ParallelLines]:
    """Open plain or compressed files; None is stdin.

    Lines are counted in advance, except for a single compressed file, to avoid decompressing it twice. Raise DataError
    if a file is missing or damaged, or has more lines than another (raised at the end for pipes).
    """
    for path in paths:
        if path is not None and (path.is_dir() or not path.exists()):
            raise DataError(f"{path}: {'is a folder, not a' if path.is_dir() else 'no such'} file")
    counted = [path for path in paths if path is not None and path.is_file()]
    if len(counted) == 1 and suffixes(counted[0])[1]:
        counted = []
    totals = [(str(path), _count_lines(path)) for path in counted]
    if len({total for _, total in totals}) > 1:
        _refuse_unequal(totals)
    with ExitStack() as stack:
        files: list[tuple[str, IO[bytes]]] = []
        for path in paths:
            with reading(str(path)):
                file = sys.stdin.buffer if path is None else stack.enter_context(open_bytes(path))
            files.append(("the input" if path is None else str(path), file))
        yield ParallelLines(files, totals[0][1] if totals else None)


def _count_lines(path: Path) -> int:
    """Return the number of lines; the last line may lack a line end."""
    count, last = 0, b"\n"
    with reading(str(path)), open_bytes(path) as file:
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))


def _refuse_unequal(totals: Sequence[tuple[str, int]]) -> None:
    described = ", ".join(f"{name} has {total}" for name, total in totals)
    raise DataError(f"files of unequal length: {described} lines; give parallel files")


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
        refusal = DataError(f"{self.name}: another process is writing this file; wait, or change --output")
        with locked(self.lock, refusal):
            try:
                yield
            finally:
                self.lock.unlink(missing_ok=True)

    def open(self, lines: ParallelLines, settings: dict[str, Any], continues: bool) -> IO[bytes] | None:
        """Return the partial file, positioned where writing continues, or None if the output is already complete.

        The settings are all values that affect the output, except the input. If `continues`, resume an interrupted
        output, or extend a complete one if lines were added to the input; finished lines of the input are skipped.
        Raise DataError if the output was not written from this input with these settings, or has changed since.
        """
        self.settings = json.loads(json.dumps(settings))  # so that they equal settings read from the record
        done = self._read_record() if continues else None
        is_partial = done is not None and self.partial.is_file() and self.partial.stat().st_size >= done["bytes"]
        if done is not None and is_partial and "partial_sha256" in done:  # not of version 0.3
            self._hash_up_to(done["bytes"])
            if self._digest.hexdigest() != done["partial_sha256"]:
                what = f"{self.partial}: damaged"
                raise DataError(f"{what}; remove --continue to start over, or restore the file from a copy")
        if not is_partial and not (continues and self.path.exists()):
            if continues:
                log.info("%s: nothing to continue; starting at the first line", self.name)
            out: IO[bytes] = self.partial.open("wb")
            self.save(out, lines.position)
            return out
        if done is None:
            what = "there is no record of how this file was written"
            raise DataError(f"{self.name}: {what}; remove --continue to replace it")
        self._check(done, lines)
        if not is_partial:
            if file_sha256(self.path) != done.get("output_sha256"):
                raise DataError(f"{self.name}: changed since it was written; remove --continue to replace it")
            if not lines.has_more():
                log.info("%s: already complete", self.name)
                return None
            with open_bytes(self.name) as whole, self.partial.open("wb") as copy:
                shutil.copyfileobj(whole, copy)
        log.info("continuing after line %d", done["lines"])
        self._hash_up_to(done["bytes"])
        out = self.partial.open("r+b")
        out.truncate(done["bytes"])
        out.seek(done["bytes"])
        return out

    def save(self, out: IO[bytes], end: Position) -> None:
        """Record that the output for all lines up to `end` is written."""
        out.flush()
        os.fsync(out.fileno())
        self._hash_up_to(out.tell())
        self._write_record(end, out.tell(), partial_sha256=self._digest.hexdigest())

    def _hash_up_to(self, num_bytes: int) -> None:
        """Add the bytes of the partial file up to this number to its checksum."""
        with self.partial.open("rb") as file:
            file.seek(self._num_hashed)
            while block := file.read(min(1 << 20, num_bytes - self._num_hashed)):
                self._digest.update(block)
                self._num_hashed += len(block)

    def finish(self, end: Position) -> None:
        """Move the complete and closed output to its final path."""
        num_bytes = self.partial.stat().st_size
        # The record is written first: if the process is killed in between, the partial file still allows resuming.
        if suffixes(self.name)[1]:
            with atomic_file(self.path) as temporary:
                with self.partial.open("rb") as plain, create_bytes(temporary, self.name) as out:
                    shutil.copyfileobj(plain, out)
                self._write_record(end, num_bytes, output_sha256=file_sha256(temporary))
            self.partial.unlink()
        else:
            self._write_record(end, num_bytes, output_sha256=file_sha256(self.partial))
            os.replace(self.partial, self.path)
            sync(self.path.parent)

    def _write_record(self, end: Position, num_bytes: int, **more: str) -> None:
        record = {"lines": end.num_lines, "input_sha256": end.sha256, "bytes": num_bytes, "settings": self.settings}
        write_text(self.record, json.dumps(record | more) + "\n")

    def _read_record(self) -> dict[str, Any] | None:
        try:
            done = read_json(self.record)
        except (OSError, ValueError):
            return None
        required = {"lines", "input_sha256", "bytes", "settings"}
        return done if isinstance(done, dict) and done.keys() >= required else None

    def _check(self, done: dict[str, Any], lines: ParallelLines) -> None:
        advice = "repeat the same command, or remove --continue to start over"
        for key in sorted(done["settings"].keys() | self.settings.keys()):
            old, new = done["settings"].get(key), self.settings.get(key)
            if old != new:
                raise DataError(f"{self.name}: was written with {key} {old}, not {new}; {advice}")
        lines.skip(done["lines"])
        if lines.position != (done["lines"], done["input_sha256"]):
            raise DataError(f"{self.name}: was written from a different input; {advice}")

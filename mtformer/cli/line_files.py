"""Files read line by line beside each other, and an output file that an interrupted command can go on with."""

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

log = logging.getLogger("mtformer")
LINES_AT_ONCE = 2000
"""Lines that are read, sorted by length and translated together; with the bytes below they bound the memory."""
BYTES_AT_ONCE = 1 << 20
STATE_KEYS = ("lines", "input_sha256", "bytes", "settings")


class ParallelLines:
    """Blocks of lines from one or more files; line n of one belongs to line n of the others.

    Lines end at \\n only. Bytes that are no UTF-8 are counted and become U+FFFD.

    Args:
        files: open for reading bytes, with the names that errors call them by.
        total: how many lines they have, when that is known.
    """

    def __init__(self, files: Sequence[tuple[str, IO[bytes]]], total: int | None = None) -> None:
        self.files = files
        self.total = total
        self.num_lines = 0
        self._digests = [hashlib.sha256() for _ in files]
        self._num_bad = 0

    @property
    def sha256(self) -> list[str]:
        """Of all lines read so far of each file."""
        return [digest.hexdigest() for digest in self._digests]

    def skip(self, num_lines: int) -> None:
        """Reads so many lines for their checksum only, or as many as there are."""
        while num_lines and (block := self._block(min(num_lines, LINES_AT_ONCE))):
            num_lines -= len(block[0])

    def blocks(self) -> Iterator[list[list[str]]]:
        """Lists of lines, one list a file, of up to LINES_AT_ONCE lines or about BYTES_AT_ONCE bytes of the first file.

        Raises:
            DataError: when one file has more lines than another.
        """
        while block := self._block(LINES_AT_ONCE):
            yield [[self._text(line) for line in lines] for lines in block]
        if self._num_bad:
            log.warning("%d lines were not UTF-8; what was not became U+FFFD", self._num_bad)

    def _block(self, most: int) -> list[list[bytes]]:
        """Empty at the end."""
        lines, num_bytes = list[bytes](), 0
        while len(lines) < most and num_bytes < BYTES_AT_ONCE and (line := self.files[0][1].readline()):
            lines.append(line)
            num_bytes += len(line)
        is_end = len(lines) < most and num_bytes < BYTES_AT_ONCE
        # At its end no other file may have one more.
        others = [list(itertools.islice(file, len(lines) + is_end)) for _, file in self.files[1:]]
        block = [lines, *others]
        if any(len(other) != len(lines) for other in others):
            self._refuse(block)
        for digest, some in zip(self._digests, block, strict=True):
            digest.update(b"".join(some))
        self.num_lines += len(lines)
        return block if lines else []

    def _refuse(self, block: list[list[bytes]]) -> None:
        totals = [
            (name, self.num_lines + len(lines) + sum(1 for _ in file))
            for (name, file), lines in zip(self.files, block, strict=True)
        ]
        _refuse_unequal(totals)

    def _text(self, line: bytes) -> str:
        text = line.rstrip(b"\n").decode("utf-8", "replace")
        self._num_bad += "\ufffd" in text and b"\xef\xbf\xbd" not in line
        return text


@contextmanager
def parallel_lines(paths: Sequence[Path | None]) -> Iterator[ParallelLines]:
    """Opens the files; None is stdin.

    Raises:
        DataError: when one is not there, or has more lines than another; of pipes that is known at their end only.
    """
    import sys

    from mtformer.errors import DataError

    for path in paths:
        if path is not None and (path.is_dir() or not path.exists()):
            raise DataError(f"{path}: no such file")
    totals = [(str(path), _count_lines(path)) for path in paths if path is not None and path.is_file()]
    if len({total for _, total in totals}) > 1:
        _refuse_unequal(totals)
    with ExitStack() as stack:
        files = [
            ("the input", sys.stdin.buffer) if path is None else (str(path), stack.enter_context(path.open("rb")))
            for path in paths
        ]
        yield ParallelLines(files, totals[0][1] if totals else None)


def _count_lines(path: Path) -> int:
    """As iterating counts them: a last line need not end."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block
    return count + (not last.endswith(b"\n"))


def _refuse_unequal(totals: Sequence[tuple[str, int]]) -> None:
    from mtformer.errors import DataError

    told = ", ".join(f"{name} has {total}" for name, total in totals)
    raise DataError(f"files of unequal length: {told} lines; give files whose lines belong together")


class ResumableOutput:
    """An output file that grows beside its place, as NAME.partial, until it is whole.

    What has been written of it, and from what, stands in NAME.partial.json after each block, so that another process
    can go on where this one was stopped.

    Args:
        path: the file's place.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # a link stays a link
        self.settings: dict[str, Any] = {}
        self.partial = self.path.with_name(self.path.name + ".partial")
        self.state = self.path.with_name(self.path.name + ".partial.json")

    def is_whole(self) -> bool:
        """Whether nothing is left to do."""
        return self.path.exists() and not self.partial.exists()

    def open(self, lines: ParallelLines, settings: dict[str, Any], continues: bool) -> IO[bytes]:
        """The partial file, at the place to write to; with `continues` the input is read up to where it stopped.

        Args:
            lines: the input.
            settings: all that the output hangs on beside it.
            continues: whether to go on with what another process left.

        Raises:
            DataError: when the partial file was made from another input or with other settings.
        """
        self.settings = json.loads(json.dumps(settings))  # as they come back from a file
        self.path.parent.mkdir(parents=True, exist_ok=True)
        done = self._done() if continues else None
        if done is None:
            if continues:
                log.info("%s: nothing to go on with; beginning anew", self.partial)
            self.state.unlink(missing_ok=True)  # of another output, before there is a file that it might be taken for
            return self.partial.open("wb")
        self._check(done, lines)
        log.info("going on after line %d", done["lines"])
        out = self.partial.open("r+b")
        out.truncate(done["bytes"])
        out.seek(done["bytes"])
        return out

    def save(self, out: IO[bytes], lines: ParallelLines) -> None:
        """Notes that what has been read is written."""
        from mtformer.rundir import write_text

        out.flush()
        os.fsync(out.fileno())
        values = (lines.num_lines, lines.sha256, out.tell(), self.settings)
        write_text(self.state, json.dumps(dict(zip(STATE_KEYS, values, strict=True))) + "\n")

    def finish(self) -> None:
        """Puts the file, closed by now, in its place."""
        from mtformer.rundir import sync

        os.replace(self.partial, self.path)
        self.state.unlink(missing_ok=True)
        sync(self.path.parent)

    def _done(self) -> dict[str, Any] | None:
        """What the partial file holds; None when there is none to go on with."""
        try:
            done: dict[str, Any] = json.loads(self.state.read_text(encoding="utf-8"))
            is_there = self.partial.stat().st_size >= done["bytes"] and done.keys() >= set(STATE_KEYS)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return done if is_there else None

    def _check(self, done: dict[str, Any], lines: ParallelLines) -> None:
        from mtformer.errors import DataError

        advice = "give the same again, or leave --continue out to start anew"
        for key in sorted(done["settings"].keys() | self.settings.keys()):
            old, new = done["settings"].get(key), self.settings.get(key)
            if old != new:
                raise DataError(f"{self.partial}: made with {key} {old}, not {new}; {advice}")
        lines.skip(done["lines"])
        if (lines.num_lines, lines.sha256) != (done["lines"], done["input_sha256"]):
            raise DataError(f"{self.partial}: made from another input; {advice}")

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
"""Lines that are read, sorted by length and translated together; memory is bounded by them."""


class ParallelLines:
    """Blocks of lines from one or more files; line n of one belongs to line n of the others.

    Lines end at \\n only. Bytes that are no UTF-8 are counted and become U+FFFD.

    Args:
        files: open for reading bytes, with the names that errors call them by.
    """

    def __init__(self, files: Sequence[tuple[str, IO[bytes]]]) -> None:
        self.files = files
        self.num_lines = 0
        self._digest = hashlib.sha256()
        self._num_bad = 0

    @property
    def sha256(self) -> str:
        """Of all lines read so far."""
        return self._digest.hexdigest()

    def skip(self, num_lines: int) -> None:
        """Reads so many lines for their checksum only, or as many as there are."""
        while num_lines and (block := self._block(min(num_lines, LINES_AT_ONCE))):
            num_lines -= len(block[0])

    def blocks(self) -> Iterator[list[list[str]]]:
        """Lists of lines, one list a file, of up to LINES_AT_ONCE lines each.

        Raises:
            DataError: when one file has more lines than another.
        """
        while block := self._block(LINES_AT_ONCE):
            yield [[self._text(line) for line in lines] for lines in block]
        if self._num_bad:
            log.warning("%d lines were not UTF-8; what was not became U+FFFD", self._num_bad)

    def _block(self, num_lines: int) -> list[list[bytes]]:
        """Empty at the end."""
        block = [list(itertools.islice(file, num_lines)) for _, file in self.files]
        counts = [len(lines) for lines in block]
        if len(set(counts)) > 1:
            self._refuse(counts)
        for line in itertools.chain(*block):
            self._digest.update(line)
        self.num_lines += counts[0]
        return block if counts[0] else []

    def _refuse(self, counts: list[int]) -> None:
        from mtformer.errors import DataError

        totals = [
            (name, self.num_lines + count + sum(1 for _ in file))
            for (name, file), count in zip(self.files, counts, strict=True)
        ]
        told = ", ".join(f"{name} has {total}" for name, total in totals)
        raise DataError(f"files of unequal length: {told} lines; give files whose lines belong together")

    def _text(self, line: bytes) -> str:
        text = line.rstrip(b"\n").decode("utf-8", "replace")
        self._num_bad += "\ufffd" in text and b"\xef\xbf\xbd" not in line
        return text


@contextmanager
def parallel_lines(paths: Sequence[Path | None]) -> Iterator[ParallelLines]:
    """Opens the files; None is stdin. Raises DataError when one is not there."""
    import sys

    from mtformer.errors import DataError

    with ExitStack() as stack:
        files = []
        for path in paths:
            if path is not None and (path.is_dir() or not path.exists()):
                raise DataError(f"{path}: no such file")
            name = "the input" if path is None else str(path)
            files.append((name, sys.stdin.buffer if path is None else stack.enter_context(path.open("rb"))))
        yield ParallelLines(files)


class ResumableOutput:
    """An output file that grows beside its place, as NAME.partial, until it is whole.

    What has been written of it, and from what, stands in NAME.partial.json after each block, so that another process
    can go on where this one was stopped.

    Args:
        path: the file's place.
        settings: all that the output hangs on beside the input; a partial file made with others is refused.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self.settings = settings
        self.partial = path.with_name(path.name + ".partial")
        self.state = path.with_name(path.name + ".partial.json")

    def open(self, lines: ParallelLines, continues: bool) -> IO[bytes]:
        """The partial file, at the place to write to; with `continues` the input is read up to where it stopped.

        Raises:
            DataError: when the partial file was made from another input or with other settings.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        done = self._done() if continues else None
        if done is None:
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
        state = {"lines": lines.num_lines, "input_sha256": lines.sha256, "bytes": out.tell(), "settings": self.settings}
        write_text(self.state, json.dumps(state) + "\n")

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
            return done if self.partial.stat().st_size >= done["bytes"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

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

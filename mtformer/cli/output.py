"""Output to the terminal and to the log of a run."""

import contextlib
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Container, Iterator, Sequence
from functools import cache
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import IO, Any

import typer

from mtformer.errors import ConfigError, log

MAX_ERRORS = 20
MAX_ERROR_LENGTH = 500
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # control characters except tabs and line ends
OTHER_LOGS = ("sacrebleu", "asyncio")
_log_once = cache(log.log)


def require_no_input(output: Path | None, *inputs: Path | str | None) -> None:
    """Raise ConfigError if an output file is one of the input files, which it would replace."""
    existing = [one for one in inputs if one is not None and os.path.exists(one)]
    if output is not None and output.is_file() and any(map(output.samefile, existing)):
        raise ConfigError(f"{output}: is also an input; name another file for the output")


def use_utf8() -> None:
    r"""Make stdin, stdout and stderr UTF-8 with `\n` line ends, in any locale."""
    # Replace closed streams, so that no other file gets their descriptors. Reading stdin and writing stdout then fail.
    for name, flag, mode in (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flag), mode))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")


def set_up_logging() -> None:
    """Send the package's log to stderr as plain lines; repeated calls have no further effect."""
    terminal = _TerminalHandler()
    terminal.setFormatter(_Formatter())
    log.handlers = [*(one for one in log.handlers if not isinstance(one, _TerminalHandler)), terminal]
    log.setLevel(logging.INFO)
    log.propagate = False
    for name in OTHER_LOGS:
        logging.getLogger(name).handlers = [_OnceHandler()]
        logging.getLogger(name).propagate = False


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also append the package's log, with timestamps, to `path`; lines are buffered until its folder exists."""
    handler = _RunLogHandler(path)
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()


def clean_up_on_sigterm() -> None:
    """From now on, exit through SystemExit on SIGTERM, so that temporary folders are deleted."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def printable(text: str) -> str:
    """Return the text with control characters escaped, so that it cannot control the terminal."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def for_terminal(text: str, out: IO[Any]) -> str:
    """Return the text for a stream: escaped for a terminal, unchanged for files and pipes."""
    return printable(text) if out.isatty() else text


def echo(*lines: str, err: bool = False) -> None:
    """Write lines to stdout or stderr."""
    for line in lines:
        typer.echo(printable(line) if err else for_terminal(line, sys.stdout), err=err)


def error_lines(message: str) -> None:
    """Write the first lines of a message to stderr as errors; cut the middle of very long lines."""
    lines = printable(message).splitlines()
    if len(lines) > MAX_ERRORS:
        lines[MAX_ERRORS:] = [f"and {len(lines) - MAX_ERRORS} more"]
    with contextlib.suppress(OSError):  # the exit code still reports the error
        for line in (f"error: {line}" for line in lines):
            cut = line if len(line) <= MAX_ERROR_LENGTH else f"{line[:300]} … {line[-190:]}"
            sys.stderr.write(f"{cut}\n")


def table_lines(
    rows: Sequence[Sequence[str]], width: int | None = None, right: Container[int] = (), indent: int = 0
) -> list[str]:
    """Return the rows as lines of at most `width` characters (None: unlimited), with aligned columns.

    `right` has the indices of right-aligned columns; `indent` is the number of spaces before each line.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for number in range(len(rows[0])):
        table.add_column(justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    limit = 1_000_000 if width is None else width - indent
    console = Console(width=limit, color_system=None, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    return [f"{' ' * indent}{line}".rstrip() for line in captured.get().splitlines()]


def flush_or_discard_stdout() -> bool:
    """Flush stdout; if it is closed or cannot be written, discard its buffer and return False."""
    try:
        sys.stdout.flush()
        return True
    except OSError:
        with contextlib.suppress(io.UnsupportedOperation):
            descriptor = os.open(os.devnull, os.O_WRONLY)
            os.dup2(descriptor, sys.stdout.fileno())
            os.close(descriptor)
        return False


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _OnceHandler(logging.Handler):
    """Handler that forwards the first line of each distinct message to the package's log, with the logger name."""

    def emit(self, record: logging.LogRecord) -> None:
        _log_once(record.levelno, "%s", f"{record.name}: {record.getMessage().splitlines()[0]}")


class _TerminalHandler(logging.Handler):
    """Handler that writes to stderr, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if record.levelno >= logging.WARNING:
            line = f"{record.levelname.lower()}: {line}"
        from tqdm import tqdm

        with contextlib.suppress(OSError):  # a full disk must not stop training
            tqdm.write(line, file=sys.stderr)


class _RunLogHandler(WatchedFileHandler):
    """Handler that appends to a file whose folder may not exist yet, or may be deleted and created again."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", delay=True)
        self._waiting: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._waiting.append(record)
        if os.path.isdir(os.path.dirname(self.baseFilename)):
            ready, self._waiting = self._waiting, []
            for waiting in ready:
                try:
                    super().emit(waiting)
                except OSError:  # Raised when the file is opened; logging calls handleError for later errors.
                    self.handleError(waiting)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # name defined by logging
        """Report the first error in writing the log file, and continue without the file."""
        log.removeHandler(self)
        log.warning("%s: cannot be written (%s); only stderr has the log now", self.baseFilename, sys.exc_info()[1])

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

from mtformer.errors import ONCE, ConfigError, log

MAX_ERRORS = 20
"""Number of errors that are shown."""
MAX_ERROR_LENGTH = 500
"""Number of characters of the longest error that is shown in full."""
ERROR_START = 300
"""Number of characters that are shown of the start of a longer error."""
ERROR_END = 190
"""Number of characters that are shown of its end."""
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters except for tabs and line ends."""
OTHER_LOGS = ("asyncio",)
"""Loggers of libraries whose messages are shown once."""
SILENT_LOGS = ("sacrebleu",)
"""Loggers of libraries whose messages are not shown, because mtformer says what a user needs in its own words."""
UNLIMITED = 1_000_000
"""Width of a table that has no limit."""
_log_once = cache(log.log)


def require_no_input(output: Path | None, *inputs: Path | str | None) -> None:
    """Raise ConfigError if an output file is one of the input files, which it would replace."""
    if output is None or not output.is_file():
        return
    for path in inputs:
        if path is not None and os.path.exists(path) and output.samefile(path):
            raise ConfigError(f"{output}: is also an input; name another file for the output")


def use_utf8() -> None:
    r"""Make stdin, stdout and stderr UTF-8 with `\n` line ends, in any locale."""
    # Replace closed streams, so that no other file gets their descriptors. Reading stdin and writing stdout then fail.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY), "r")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")


def set_up_logging() -> None:
    """Send the package's log to stderr as plain lines; repeated calls have no further effect."""
    terminal = _TerminalHandler()
    terminal.setFormatter(_Formatter())
    terminal.addFilter(_FirstOfKind())
    other_handlers = [handler for handler in log.handlers if not isinstance(handler, _TerminalHandler)]
    log.handlers = [*other_handlers, terminal]
    log.setLevel(logging.INFO)
    log.propagate = False
    for name in OTHER_LOGS:
        logging.getLogger(name).handlers = [_OnceHandler()]
        logging.getLogger(name).propagate = False
    for name in SILENT_LOGS:
        logging.getLogger(name).handlers = [logging.NullHandler()]
        logging.getLogger(name).propagate = False


@contextlib.contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Also append the package's log, with timestamps, to `path`; lines are buffered until its folder exists."""
    handler = _RunLogHandler(path)
    handler.addFilter(_FirstOfKind())
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
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def for_terminal(text: str, out: IO[Any]) -> str:
    """Return the text for a stream: escaped for a terminal, unchanged for files and pipes."""
    return printable(text) if out.isatty() else text


def echo(*lines: str, err: bool = False) -> None:
    """Write lines to stdout or stderr."""
    from mtformer.files import naming_file  # imports Pydantic, which `--help` does not need

    with naming_file(Path("stderr" if err else "stdout")):
        for line in lines:
            typer.echo(printable(line) if err else for_terminal(line, sys.stdout), err=err)


def error_lines(message: str) -> None:
    """Write the first lines of a message to stderr as errors; cut the middle of very long lines."""
    lines = printable(message).splitlines()
    if len(lines) > MAX_ERRORS:
        lines[MAX_ERRORS:] = [f"and {len(lines) - MAX_ERRORS} more"]
    with contextlib.suppress(OSError):  # the exit code still reports the error
        for line in lines:
            shown = f"error: {line}"
            if len(shown) > MAX_ERROR_LENGTH:
                shown = f"{shown[:ERROR_START]} … {shown[-ERROR_END:]}"
            sys.stderr.write(f"{shown}\n")


def table_lines(
    rows: Sequence[Sequence[str]], width: int | None = None, right: Container[int] = (), indent: int = 0
) -> list[str]:
    """Return the rows of a table as lines with aligned columns.

    Args:
        rows: cells of each row.
        width: maximum number of characters of a line; None: unlimited.
        right: indices of right-aligned columns.
        indent: number of spaces before each line.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for number in range(len(rows[0])):
        table.add_column(justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))

    limit = UNLIMITED if width is None else width - indent
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


class _FirstOfKind(logging.Filter):
    """Filter that drops warnings of a kind (see `warn_once`) after the first one."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        kind = getattr(record, ONCE, None)
        if kind is None:
            return True
        is_first = kind not in self._kinds
        self._kinds.add(kind)
        return is_first


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
        if not os.path.isdir(os.path.dirname(self.baseFilename)):
            return
        from mtformer.files import require_file  # imports Pydantic, which --help does not need

        ready = self._waiting
        self._waiting = []
        for waiting_record in ready:
            try:
                if os.path.exists(self.baseFilename):
                    require_file(self.baseFilename)
                super().emit(waiting_record)
            except OSError:  # Raised when the file is opened; logging calls handleError for later errors.
                self.handleError(waiting_record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # name defined by logging
        """Report the first error in writing the log file, and continue without the file."""
        log.removeHandler(self)
        error = sys.exc_info()[1]
        log.warning("%s: cannot be written (%s); logging continues on stderr only", self.baseFilename, error)

"""Calls of the program in this process, and the rule by which a call holds."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from program import invoke

SECONDS = 120
"""Time after which a call counts as one that never ends."""


class EndlessError(BaseException):
    """A call took too long."""


def problem(*arguments: object, stdin: bytes = b"A dog runs.\n") -> str:
    """Return what is wrong with a call: an internal error, an error without its line, or no end; empty if it holds."""
    words = " ".join(str(word) for word in arguments)[:300]
    try:
        with _time_limit():
            result = invoke(*arguments, stdin=stdin)
    except EndlessError:
        return f"{words!a}: never ends"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"{words!a}: {result.exception!r:.300}"
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ") or "Usage: " in line]
    if result.exit_code not in (0, 1, 2) or (result.exit_code != 0 and not errors):
        return f"{words!a}: exit code {result.exit_code}, {result.stderr[-300:]!r}"
    return ""


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise EndlessError

    previous = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def report(problems: list[str]) -> str:
    """Return the problems as lines, for the message of a test that fails."""
    return "\n".join(filter(None, problems))

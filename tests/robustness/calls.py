"""Calling the program in this process, and checking that a call passes."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from program import invoke

SECONDS = 120
"""Time limit of a call, in seconds."""


class EndlessError(BaseException):
    """Raised if a call exceeds the time limit."""


def problem(*arguments: object, stdin: bytes = b"A dog runs.\n") -> str:
    """Return the problem with a call: an internal error, a missing error message or a timeout; empty if it passes."""
    words = " ".join(str(word) for word in arguments)[:300]
    try:
        with _time_limit():
            result = invoke(*arguments, stdin=stdin)
    except EndlessError:
        return f"{words!a}: timed out"
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
    """Return the problems as lines, for the output of a failed test."""
    return "\n".join(filter(None, problems))

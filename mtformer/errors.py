"""What a user can get wrong. Each message says what, where, and what to do, in one line.

The command line prints the message and exits with 2; nothing else in the package prints or exits.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager


class MtformerError(Exception):
    """A mistake that the user can mend; the message is one line: what, where, what to do."""


class ConfigError(MtformerError):
    """A config file or an override that does not fit the schema."""


class DataError(MtformerError):
    """A corpus that is missing, damaged, or does not fit the config."""


class CheckpointError(MtformerError):
    """A run directory or checkpoint that is missing, damaged, or does not fit the config."""


class LostProcessError(Exception):
    """Another process of a training that several share has ended; what was wrong is for that one to say."""


class InterruptedRunError(Exception):
    """The run was asked to stop; a checkpoint of `step` is saved."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step
        self.signal_number = signal_number


class DeviceError(MtformerError):
    """A device or precision that this machine does not have."""


@contextmanager
def told_writing(what: str, remedy: str) -> Iterator[None]:
    """Turns what the system refuses while something is written into a DataError.

    Args:
        what: is written, and where.
        remedy: what else to do than to make room.
    """
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise DataError(f"{what} cannot be written: {reason}; make room, or {remedy}") from error

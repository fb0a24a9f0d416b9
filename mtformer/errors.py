"""Exceptions. The message of a user error says what is wrong, where, and what to do, in one line."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager


class MtformerError(Exception):
    """A user error; the command line prints its message and exits with 2."""


class ConfigError(MtformerError):
    """A config file or an override that does not fit the schema."""


class DataError(MtformerError):
    """A corpus that is missing, damaged, or does not fit the config."""


class CheckpointError(MtformerError):
    """A run directory or checkpoint that is missing, damaged, or does not fit the config."""


class LostProcessError(Exception):
    """Another process of a distributed training ended; that process reports the error."""


class InterruptedRunError(Exception):
    """A signal stopped the run; a checkpoint of `step` is saved."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step
        self.signal_number = signal_number


class DeviceError(MtformerError):
    """A device or precision that this machine does not have."""


def require_extra(what: str, extra: str, *packages: str) -> None:
    """Raise ConfigError unless the packages of an extra, which `what` needs, are installed."""
    for package in packages:
        try:
            __import__(package)
        except ImportError as error:
            raise ConfigError(f"{what} needs {package}: pip install 'mtformer[{extra}]'") from error


@contextmanager
def explain_write_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn an OSError while writing into a DataError; a closed pipe is none.

    Args:
        what: the object and its place.
        remedy: alternative to freeing space.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, None)
        reason = error.strerror or " ".join(str(error).split())
        if reason.endswith(" written"):  # NumPy counts values: "600 requested and 506 written"
            reason = f"{os.strerror(errno.ENOSPC)} ({reason})"
        raise DataError(f"{what} cannot be written: {reason}; {'free some space, or ' * is_full}{remedy}") from error

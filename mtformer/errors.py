"""Exceptions, and the log. A user error has one line for each mistake: what is wrong, where, and what to do."""

import errno
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("mtformer")

ONCE = "shown_once"
"""Attribute of log records with the kind of a warning that is shown once."""
OUT_OF_MEMORY = re.compile(
    "allocate memory|out of memory|not enough memory|_ALLOC_FAILED|bad_alloc|failed to map segment"
    "|size calculation overflowed",
    re.IGNORECASE,
)
"""Messages of PyTorch, CUDA and its libraries (`CUBLAS_STATUS_ALLOC_FAILED`), C++ and the dynamic linker, which have no
exception class for this error in common."""


class MtformerError(Exception):
    """A user error; the command line prints its message and exits with 2."""


class ConfigError(MtformerError):
    """An invalid config file or override."""


class DataError(MtformerError):
    """A missing, damaged or unsuitable corpus."""


class CheckpointError(MtformerError):
    """A run directory or checkpoint that is missing, damaged, or incompatible with the config."""


class LostProcessError(Exception):
    """Another process of a distributed run ended; that process reports the error."""


class InterruptedRunError(Exception):
    """A signal stopped the run after a checkpoint of `step` was saved."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step
        self.signal_number = signal_number


class DeviceError(MtformerError):
    """A device or precision that is not available on this machine."""


def warn_once(kind: str, message: str, *values: object) -> None:
    """Log a warning of which the program shows only the first one of its kind.

    Args:
        kind: identifies the warning.
        message: format of the message.
        values: values in the message.
    """
    log.warning(message, *values, extra={ONCE: kind})


def is_out_of_memory(error: Exception) -> bool:
    """Return True for an error because memory ran out, on the CPU or on a GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # the latter is PyTorch's
        return True
    return OUT_OF_MEMORY.search(str(error)) is not None


def require_extra(feature: str, extra: str, *packages: str) -> None:
    """Raise ConfigError if one of the packages that a feature needs is not installed; `extra` installs them."""
    for package in packages:
        try:
            __import__(package)
        except ImportError as error:
            raise ConfigError(f"{feature} needs {package}: pip install 'mtformer[{extra}]'") from error


@contextmanager
def explain_write_errors(target: str, remedy: str) -> Iterator[None]:
    """Raise a DataError for an OSError that occurs while writing; BrokenPipeError is re-raised.

    Args:
        target: what is written, as the subject of the message.
        remedy: what the user can do besides freeing disk space.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        if reason.endswith(" written"):  # NumPy only reports counts: "600 requested and 506 written"
            reason = f"{os.strerror(errno.ENOSPC)} ({reason})"
        is_disk_full = error.errno in (errno.ENOSPC, errno.EDQUOT, None)  # None: an error of NumPy
        if is_disk_full:
            remedy = f"free some space, or {remedy}"
        raise DataError(f"{target} cannot be written: {reason}; {remedy}") from error

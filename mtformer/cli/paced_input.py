"""Input in blocks that never wait long: records from a pipe are read in a thread, and silence ends a block.

A program that writes one line to a pipe and waits for the answer gets it before it writes the next line, while the
lines of a file or of a fast writer are still processed in large blocks.
"""

import os
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Generic, TypeVar

from mtformer.data.corpus.readers import BLOCK_BYTES

SILENCE_SECONDS = 0.05
"""Time without a new record after which a block ends."""
SIGNAL_SECONDS = 1.0
"""Time between two checks for Ctrl-C while waiting, because Windows does not interrupt a wait."""
Record = TypeVar("Record")


@dataclass(frozen=True)
class BlockLimits:
    """Size at which a block ends."""

    num_records: int
    num_bytes: int


class StoredInput(Generic[Record]):
    """Blocks of records that never have to be waited for.

    Args:
        records: the records.
        size: function of a record that returns its number of bytes.
        limits: size of a block.
    """

    def __init__(self, records: Iterable[Record], size: Callable[[Record], int], limits: BlockLimits) -> None:
        self._records = iter(records)
        self._size = size
        self._limits = limits

    def take(self, max_records: int) -> list[Record]:
        """Return the next block of up to `max_records` records, or an empty list at the end of the input."""
        block: list[Record] = []
        num_bytes = 0
        while len(block) < max_records and num_bytes < self._limits.num_bytes:
            record = next(self._records, None)
            if record is None:
                break
            block.append(record)
            num_bytes += self._size(record)
        return block

    def has_more(self) -> bool:
        """Return True if there is another record."""
        record = next(self._records, None)
        if record is None:
            return False
        self._records = chain([record], self._records)
        return True

    def is_silent(self) -> bool:
        """Return True if the next record has to be waited for."""
        return False

    def stop(self) -> bool:
        """Stop reading; return True if the files can be closed."""
        return True


class PipedInput(StoredInput[Record]):
    """Blocks of records that a thread reads, because the next one may arrive late.

    A block ends at its limits, or when no record has arrived for 50 ms. The thread reads at most one block ahead, so
    memory is limited if the writer is faster than the reader. It is a daemon: nothing can end the system call in
    which it waits for the next record, and the program must still be able to exit. It starts when the first record is
    needed, because at a prompt, `input` reads the terminal instead.

    Args:
        records: the records.
        size: function of a record that returns its number of bytes.
        limits: size of a block.
    """

    def __init__(self, records: Iterable[Record], size: Callable[[Record], int], limits: BlockLimits) -> None:
        super().__init__(records, size, limits)
        self._waiting: deque[Record] = deque()
        self._num_bytes = 0
        """Number of bytes of the waiting records."""
        self._last_arrival = 0.0
        self._has_ended = False
        self._error: Exception | None = None
        """Error with which the input ended."""
        self._is_stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="input", daemon=True)

    def take(self, max_records: int) -> list[Record]:
        """Return the next block of up to `max_records` records, or an empty list at the end of the input."""
        with self._changed:
            self._start()
            self._wait_for_record()
            self._wait_for_block(max_records)

            block: list[Record] = []
            while self._waiting and len(block) < max_records:
                record = self._waiting.popleft()
                self._num_bytes -= self._size(record)
                block.append(record)
            self._changed.notify_all()

            if not block and self._error is not None:
                raise self._error
        return block

    def has_more(self) -> bool:
        """Wait for the next record, and return True if there is one."""
        with self._changed:
            self._start()
            self._wait_for_record()
            if not self._waiting and self._error is not None:
                raise self._error
            return bool(self._waiting)

    def is_silent(self) -> bool:
        """Return True if no further record arrives within 50 ms of the last one."""
        with self._changed:
            self._start()
            while not self._waiting and not self._has_ended:
                if not self._wait_for_arrival():
                    return True
        return False

    def stop(self) -> bool:
        """Stop reading; return True if the files can be closed, which would wait for a thread that reads them."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        return not self._thread.is_alive()

    # ---- the thread that takes the records --------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the thread if it has not started."""
        if self._thread.ident is None:
            self._thread.start()

    def _wait_for_record(self) -> None:
        """Wait until there is a record, or the input has ended."""
        while not self._waiting and not self._has_ended:
            self._changed.wait(SIGNAL_SECONDS)

    def _wait_for_block(self, max_records: int) -> None:
        """Wait until `max_records` records are there, the block is full, the input has ended, or it is silent."""
        while len(self._waiting) < max_records and not self._is_full() and not self._has_ended:
            if not self._wait_for_arrival():
                return

    def _wait_for_arrival(self) -> bool:
        """Wait for a change until 50 ms after the last record; return False if that time is over."""
        seconds = self._last_arrival + SILENCE_SECONDS - time.monotonic()
        if seconds <= 0:
            return False
        self._changed.wait(seconds)
        return True

    def _is_full(self) -> bool:
        return len(self._waiting) >= self._limits.num_records or self._num_bytes >= self._limits.num_bytes

    # ---- the thread that reads --------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read all records; an error is raised where they are taken."""
        error = None
        try:
            for record in self._records:
                if not self._add(record):
                    return
        except Exception as reading_error:
            error = reading_error
        with self._changed:
            self._error = error
            self._has_ended = True
            self._changed.notify_all()

    def _add(self, record: Record) -> bool:
        """Wait for space and add a record; return False if reading is to stop."""
        with self._changed:
            while self._is_full() and not self._is_stopped:
                self._changed.wait()
            self._waiting.append(record)
            self._num_bytes += self._size(record)
            self._last_arrival = time.monotonic()
            # Waking the other thread for each record would slow down fast writers; it also wakes after silence.
            if len(self._waiting) == 1 or self._is_full():
                self._changed.notify_all()
            return not self._is_stopped


def paced_input(
    records: Iterator[Record], size: Callable[[Record], int], limits: BlockLimits, *, is_piped: bool
) -> StoredInput[Record]:
    """Return the input in blocks.

    Args:
        records: the records.
        size: function of a record that returns its number of bytes.
        limits: size of a block.
        is_piped: True if a record may have to be waited for.
    """
    input_class = PipedInput if is_piped else StoredInput
    return input_class(records, size, limits)


def is_pipe(path: Path | None) -> bool:
    """Return True for a pipe, terminal or device, whose next line may have to be waited for; None is stdin."""
    if path is not None:
        return not path.is_file()
    try:
        status = os.fstat(sys.stdin.fileno())
    except OSError:  # a stream in memory, as in tests
        return False
    return not stat.S_ISREG(status.st_mode)


def open_stdin() -> IO[bytes]:
    """Return stdin for reading bytes.

    A pipe gets a buffer of its own: at exit, Python closes that of `sys.stdin`, and would wait for a thread that reads
    from it.
    """
    if not is_pipe(None):
        return sys.stdin.buffer
    return open(sys.stdin.fileno(), "rb", buffering=BLOCK_BYTES, closefd=False)

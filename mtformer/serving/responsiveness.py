"""Keep the event loop of a server answering while other threads translate: no thread may stop all others."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SWITCH_SECONDS = 0.0005
"""Time after which a thread that runs Python code lets another thread run. The event loop waits for this time at each
of several steps of a request while other threads translate; Python's default is 5 ms."""
NEVER = 1_000_000_000
"""Threshold of the garbage collector that is not reached."""
MAX_OVERLAPPING = 100
"""Number of overlapping large requests that end before the next full collection."""


def keep_responsive() -> None:
    """Let the event loop of this process answer while other threads compute; call it when all models are loaded."""
    sys.setswitchinterval(SWITCH_SECONDS)
    # Each full collection over all packages and the model would stop all threads for 0.1 s.
    gc.collect()
    gc.freeze()


class FullCollectionPause:
    """Pause of the garbage collector's full collections while large requests are in progress.

    A full collection visits all objects of the process again, and stops all threads for that time: 0.3 s if there are
    translations of 1 MB. Collections of new objects, which are short, continue.
    """

    def __init__(self) -> None:
        self._num_requests = 0
        """Number of large requests in progress."""
        self._num_ended = 0
        """Number of those that ended since the last full collection was possible."""
        self._thresholds = gc.get_threshold()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Pause full collections until no request needs the pause anymore."""
        if self._num_requests == 0:
            self._thresholds = gc.get_threshold()
            young, middle, _ = self._thresholds
            gc.set_threshold(young, middle, NEVER)
        self._num_requests += 1
        try:
            yield
        finally:
            self._num_requests -= 1
            self._resume()

    def _resume(self) -> None:
        self._num_ended += 1
        if self._num_requests == 0:
            gc.set_threshold(*self._thresholds)
            self._num_ended = 0
        elif self._num_ended >= MAX_OVERLAPPING:
            gc.collect()
            self._num_ended = 0

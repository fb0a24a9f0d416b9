"""Prefetching: a thread computes the items of an iterator ahead of their consumer."""

import contextlib
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Iterator[T], Generic[T]):
    """The items of another iterator, computed ahead by one thread.

    An error of the thread is raised by `next`, after the items before it. Use it in a `with` statement or call `close`;
    otherwise the thread ends when the object is collected.

    Args:
        source: the iterator; only the thread uses it from now on.
        num_ahead: maximum number of items that are ready.
    """

    def __init__(self, source: Iterator[T], num_ahead: int) -> None:
        self._ready: queue.Queue[T | BaseException] = queue.Queue(num_ahead)
        stop = threading.Event()
        thread = threading.Thread(target=_fill, args=(source, self._ready, stop), name="prefetch", daemon=True)
        thread.start()
        # The thread knows the queue and not this object, so that this can be collected.
        self._stop = weakref.finalize(self, _stop, thread, self._ready, stop)

    def __next__(self) -> T:
        if not self._stop.alive:
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, BaseException):
            self.close()
            raise item
        return item

    def close(self) -> None:
        """End the thread; the iterator is then exhausted."""
        self._stop()

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fill(source: Iterator[T], ready: "queue.Queue[T | BaseException]", stop: threading.Event) -> None:
    """Put the items and, at the end, the exception that the consumer raises: StopIteration, or an error."""
    end: BaseException = StopIteration()
    try:
        for item in source:
            ready.put(item)
            if stop.is_set():
                return
    except BaseException as error:
        end = error
    ready.put(end)


def _stop(thread: threading.Thread, ready: "queue.Queue[T | BaseException]", stop: threading.Event) -> None:
    stop.set()
    while thread.is_alive():
        with contextlib.suppress(queue.Empty):
            ready.get_nowait()  # unblocks a waiting put
        thread.join(0.01)

"""Prefetching: a thread computes the items of an iterator in advance."""

import contextlib
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Iterator[T], Generic[T]):
    """Iterator over the items of another iterator, which a thread computes in advance.

    An exception in the thread is raised by `next` after the preceding items. Use a `with` statement or call `close`;
    otherwise, the thread ends when the object is garbage-collected. Only the thread uses `source`; it computes at most
    `num_ahead` items in advance.
    """

    def __init__(self, source: Iterator[T], num_ahead: int) -> None:
        self._ready: queue.Queue[T | BaseException] = queue.Queue(num_ahead)
        stop = threading.Event()
        thread = threading.Thread(target=_fill, args=(source, self._ready, stop), name="prefetch", daemon=True)
        thread.start()
        # The thread refers to the queue only, so that this object can be garbage-collected.
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
        """Stop the thread; `next` then raises StopIteration."""
        self._stop()

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fill(source: Iterator[T], ready: "queue.Queue[T | BaseException]", stop: threading.Event) -> None:
    """Put all items in the queue, followed by the exception that `next` raises: StopIteration, or an error."""
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
            ready.get_nowait()  # unblocks a pending put
        thread.join(0.01)

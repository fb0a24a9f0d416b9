"""An iterator that a thread keeps ahead of its consumer."""

import contextlib
import queue
import threading
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Iterator[T], Generic[T]):
    """The items of another iterator, made ahead by one thread.

    What goes wrong there is raised by `next` in its place. Use it in a `with` statement or call `close`; a forgotten
    one stops when it is collected.

    Args:
        source: the iterator; only the thread uses it from now on.
        ahead: items that wait ready at most.
    """

    def __init__(self, source: Iterator[T], ahead: int) -> None:
        self._ready: queue.Queue[T | _End] = queue.Queue(ahead)
        stop = threading.Event()
        thread = threading.Thread(target=_fill, args=(source, self._ready, stop), name="ahead", daemon=True)
        thread.start()
        # The thread knows the queue and not this object, so that this can be collected.
        self._stop = weakref.finalize(self, _stop, thread, self._ready, stop)

    def __next__(self) -> T:
        if not self._stop.alive:
            raise StopIteration
        item = self._ready.get()
        if isinstance(item, _End):
            self.close()
            raise StopIteration if item.error is None else item.error
        return item

    def close(self) -> None:
        """Ends the thread; the iterator is then at its end."""
        self._stop()

    def __enter__(self) -> "Ahead[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _End:
    """What stands behind the last item: why there is no other."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


def _fill(source: Iterator[T], ready: "queue.Queue[T | _End]", stop: threading.Event) -> None:
    try:
        for item in source:
            ready.put(item)
            if stop.is_set():
                return
        ready.put(_End())
    except BaseException as error:  # it belongs to the consumer
        ready.put(_End(error))


def _stop(thread: threading.Thread, ready: "queue.Queue[T | _End]", stop: threading.Event) -> None:
    stop.set()
    while thread.is_alive():
        with contextlib.suppress(queue.Empty):
            ready.get_nowait()  # makes room for a put that waits
        thread.join(0.01)

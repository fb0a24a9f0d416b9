"""Apply a function to many items in several processes; results keep the order of the items."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, Generic, TypeVar

from mtformer.errors import DataError

ITEMS_ALONE = 4
"""Number of items that the main process computes before it starts worker processes, which takes seconds."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerEndedError(DataError):
    """Raised if a worker process was killed, usually by the system; the corpus itself is intact."""

    def __init__(self) -> None:
        super().__init__("a worker process was killed, most likely because memory ran out; lower data.num_workers")


class Workers(Generic[Item, Result]):
    """Process pool. The main process computes the first items itself, or all items if `num_processes` is 1.

    Processes are started on demand with the "spawn" method, so scripts need `if __name__ == "__main__":`. If one is
    killed, `map` raises WorkerEndedError.

    Args:
        function: function of (item, number of threads) that returns the result; pickled once per process.
        num_processes: maximum number of processes; None: number of cores.
    """

    def __init__(self, function: Callable[[Item, int], Result], num_processes: int | None) -> None:
        self._function, self._num_processes = function, num_processes or os.cpu_count() or 1
        self._num_alone = ITEMS_ALONE
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workers[Item, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in order; at most as many items as there are processes are read ahead."""
        rest = iter(items)
        for item in islice(rest, self._num_alone if self._num_processes > 1 else None):
            self._num_alone -= 1
            yield item, self._function(item, self._num_processes)
        waiting = deque[tuple[Item, Future[Result]]]()
        try:
            for item in rest:
                if len(waiting) == self._num_processes:
                    first, future = waiting.popleft()
                    yield first, future.result()
                waiting.append((item, self._submit(item)))
            for item, future in waiting:
                yield item, future.result()
        except BrokenProcessPool as error:
            raise WorkerEndedError from error

    def _submit(self, item: Item) -> "Future[Result]":
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._num_processes, context, _start, (self._function,))
        return self._pool.submit(_compute, item)


_function: Callable[[Any, int], Any]  # in a worker process


def _start(function: Callable[[Any, int], Any]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    signal.raise_signal(signal.SIGTERM)


def _compute(item: Any) -> Any:
    return _function(item, 1)

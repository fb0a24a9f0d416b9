"""Apply a function to many items in several processes or on a Ray cluster; results keep the order of the items."""

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mtformer.errors import DataError

if TYPE_CHECKING:
    from mtformer.ray_tasks import RayTasks

ITEMS_ALONE = 4
"""Number of items that the main process computes before it starts worker processes, which takes seconds."""
Item = TypeVar("Item")
Result = TypeVar("Result")
Function = Callable[[Any, int], Any]
_make_tasks: "type[RayTasks] | None" = None
"""Set inside `use_ray`."""


class WorkerEndedError(DataError):
    """Raised if a worker process was killed, usually by the system; the corpus itself is intact."""

    def __init__(self) -> None:
        super().__init__("a worker process was killed, most likely because memory ran out; lower data.num_workers")


@contextmanager
def use_ray(address: str | None) -> Iterator[None]:
    """Compute the items of all `Workers` inside the context on Ray; see `ray_tasks.connect`. None: in processes."""
    global _make_tasks
    if address is None:
        yield
        return
    from mtformer.ray_tasks import RayTasks, connect

    with connect(address):
        _make_tasks = RayTasks
        try:
            yield
        finally:
            _make_tasks = None


class Workers(Generic[Item, Result]):
    """Pool of processes, or of Ray tasks inside `use_ray`.

    Without Ray, the main process computes the first items itself, or all items if `num_processes` is 1. Processes are
    started on demand with the "spawn" method, so scripts need `if __name__ == "__main__":`. If one is killed, `map`
    raises WorkerEndedError. Ray repeats the tasks of processes and nodes that end.

    Args:
        function: function of (item, number of threads) that returns the result; pickled once per process.
        num_processes: maximum number of processes; None: number of cores. With Ray, the cluster determines it.
        device: `cpu`, `cuda` or `auto`; Ray reserves a GPU for each task on `cuda`, and on `auto` if there are GPUs.
    """

    def __init__(self, function: Callable[[Item, int], Result], num_processes: int | None, device: str = "cpu") -> None:
        self._function, self._num_processes = function, num_processes or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None
        self._tasks: RayTasks | None = None
        self._num_alone = ITEMS_ALONE if self._num_processes > 1 else sys.maxsize
        if _make_tasks is not None:
            self._tasks, self._num_alone = _make_tasks(function, device), 0
            self._num_processes = 2 * self._tasks.jobs  # so that each process has its next item

    def __enter__(self) -> "Workers[Item, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in order; at most as many items as there are processes are read ahead."""
        rest = iter(items)
        for item in islice(rest, self._num_alone):
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
        if self._tasks is not None:
            return self._tasks.submit(item)
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._num_processes, context, _start, (self._function,))
        return self._pool.submit(_compute, item)


_function: Function  # in a worker process


def _start(function: Function) -> None:
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

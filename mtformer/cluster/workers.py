"""Apply a function to many items in several processes or on a Ray cluster; results keep the order of the items."""

import os
import pickle
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection, parent_process, reduction
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, Generic, TypeVar

from mtformer.cluster.cores import num_cores
from mtformer.cluster.ray_tasks import RayTasks, connect
from mtformer.errors import DataError, log

ITEMS_ALONE = 4
"""Number of items that the main process computes before it starts worker processes, which takes seconds."""
QUEUED_PER_TASK = 2
"""Number of items per Ray task that are submitted: for short tasks, each process should have its next item."""
NOTICE_SECONDS = 2.0
"""Interval in which a process that waits for a result looks for worker processes that have ended."""
Item = TypeVar("Item")
Result = TypeVar("Result")
Function = Callable[[Any, int], Any]
_make_tasks: type[RayTasks] | None = None
"""Class of the tasks; set inside `use_ray`."""


class WorkerEndedError(DataError):
    """Raised if a worker process was killed, usually by the system; the corpus itself is intact."""


@contextmanager
def use_ray(address: str | None) -> Iterator[None]:
    """Compute the items of all `Workers` inside the context on Ray; see `ray_tasks.connect`. None: in processes."""
    global _make_tasks
    if address is None:
        yield
        return
    with connect(address):
        _make_tasks = RayTasks
        try:
            yield
        finally:
            _make_tasks = None


class Workers(AbstractContextManager["Workers[Item, Result]"], Generic[Item, Result]):
    """Pool of processes, or of Ray tasks inside `use_ray`.

    Without Ray, the main process computes the first items itself, or all items if `num_processes` is 1. Processes are
    started on demand with the "spawn" method, so scripts need `if __name__ == "__main__":`. If a process is
    killed, `map` computes its item again once, because memory that ran out most likely runs out again, and then raises
    WorkerEndedError. Ray repeats the tasks of processes and nodes that end, up to three times.

    Args:
        function: function of (item, number of threads) that returns the result; pickled once per process.
        num_processes: maximum number of processes; None: number of cores. With Ray, the cluster determines it.
        device: `cpu`, `cuda` or `auto`; Ray reserves a GPU for each task on `cuda`, and on `auto` if there are GPUs.
        starts_programs: `function` starts a program and waits for it: without Ray, threads compute all items, and Ray
            divides its cores among `num_processes` tasks (None: one task per GPU, or per node).
    """

    def __init__(
        self,
        function: Callable[[Item, int], Result],
        num_processes: int | None,
        device: str = "cpu",
        starts_programs: bool = False,
    ) -> None:
        self.num_processes = num_processes or num_cores()
        self._function = function
        self._pool: ProcessPoolExecutor | None = None
        self._context = _Context()
        self._threads: ThreadPoolExecutor | None = None
        self._tasks: RayTasks | None = None
        self._running: dict[Future[Result], Item] = {}
        """Items of `as_completed`."""
        self._num_alone = ITEMS_ALONE if self.num_processes > 1 else sys.maxsize
        """Number of items that this process still computes itself."""

        if _make_tasks is not None:
            self._num_alone = 0
            if starts_programs:
                self._tasks = _make_tasks(function, device, num_processes or 0)
                self.num_processes = self._tasks.jobs
            else:
                self._tasks = _make_tasks(function, device, None)
                self.num_processes = QUEUED_PER_TASK * self._tasks.jobs
        elif starts_programs:
            self._threads = ThreadPoolExecutor(self.num_processes)

    def __exit__(self, *_: object) -> None:
        """Wait for the items that are being computed."""
        wait(self._running)
        for pool in (self._pool, self._threads):
            if pool is not None:
                pool.shutdown(cancel_futures=True)

    def map(self, items: Iterable[Item], pauses: Callable[[], bool] = lambda: False) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in order; at most as many items as there are processes are read ahead.

        Args:
            items: the items.
            pauses: function that returns True if the next item has to be waited for: the results of all items before
                it are yielded first.
        """
        waiting: deque[_Waiting[Item, Result]] = deque()
        for item in items:
            if self._num_alone > 0:
                self._num_alone -= 1
                yield item, self._function(item, self.num_processes)
                continue
            future = self._submit(item)
            waiting.append(_Waiting(item, future, self._context))
            num_ahead = 0 if pauses() else self.num_processes - 1
            while len(waiting) > num_ahead:
                yield self._first(waiting)
        while waiting:
            yield self._first(waiting)

    def as_completed(self, items: Iterable[Item]) -> Iterator[tuple[Item, "Future[Result]"]]:
        """Yield each item with its result or error when it is computed; read an item when a process is free for it."""
        remaining = iter(items)
        while True:
            num_free = self.num_processes - len(self._running)
            for item in islice(remaining, num_free):
                self._running[self._submit(item)] = item
            if not self._running:
                return
            for future in wait(self._running, return_when=FIRST_COMPLETED).done:
                yield self._running.pop(future), future

    def _submit(self, item: Item) -> "Future[Result]":
        if self._tasks is not None:
            return self._tasks.submit(item)
        if self._threads is not None:
            return self._threads.submit(self._function, item, 1)
        if self._pool is None:
            self._context = _Context()
            function: Any = _SentFunction(self._function)  # arrives as the function
            self._pool = ProcessPoolExecutor(self.num_processes, self._context, _start, (function,))
        try:
            return self._submit_to(self._pool, item)
        except BrokenProcessPool:
            self._discard(self._context)
            return self._submit(item)

    def _discard(self, context: "_Context") -> None:
        """Stop the broken pool of a context; the next item starts a new one."""
        context.kill_all()
        if context is self._context and self._pool is not None:
            log.warning("a worker process was killed; its work is repeated")
            _stop(self._pool, context)
            self._pool = None

    @staticmethod
    def _submit_to(pool: ProcessPoolExecutor, item: Item) -> "Future[Result]":
        """Submit an item in a thread that blocks Ctrl-C, which would interrupt a process that starts now."""
        with ThreadPoolExecutor(1, initializer=_block_sigint) as starter:
            try:
                return starter.submit(pool.submit, _compute, item).result()
            except (OSError, ValueError):
                # Before Python 3.12, a breaking pool closes pipes of a new process; it then says that it is broken.
                return starter.submit(pool.submit, _compute, item).result()

    def _first(self, waiting: "deque[_Waiting[Item, Result]]") -> tuple[Item, Result]:
        """Remove the first item, and return it with its result."""
        first = waiting.popleft()
        with suppress(BrokenProcessPool):
            return first.item, first.result()

        self._discard(first.context)
        again = _Waiting(first.item, self._submit(first.item), self._context)
        try:
            return again.item, again.result()
        except BrokenProcessPool as error:
            if self._pool is not None:
                _stop(self._pool, self._context)
            raise WorkerEndedError(
                "a worker process was killed, most likely because memory ran out; lower data.num_workers"
            ) from error


@dataclass(frozen=True)
class _Waiting(Generic[Item, Result]):
    """An item whose result is being computed."""

    item: Item
    future: "Future[Result]"
    context: "_Context"
    """Context of the pool to which it was submitted; it has no processes with Ray or threads."""

    def result(self) -> Result:
        """Wait for the result.

        A pool does not notice the end of a process that it started last, until it receives a result or another item.
        Therefore all processes are killed if one has ended, so that it notices.
        """
        while not wait([self.future], NOTICE_SECONDS).done:
            if self.context.has_ended_process():
                self.context.kill_all()
        return self.future.result()


class _Context(SpawnContext):
    """Start method "spawn"; `processes` are all processes that were started."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[SpawnProcess] = []

    def Process(self, *arguments: Any, **options: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        """Return a new process, which is not started."""
        process = SpawnProcess(*arguments, **options)
        self.processes.append(process)
        return process

    def has_ended_process(self) -> bool:
        """Return True if a process was started and has ended."""
        sentinels = [process.sentinel for process in self.processes if process.pid is not None]
        return bool(connection.wait(sentinels, timeout=0))

    def kill_all(self) -> None:
        """Kill all processes that are running."""
        for process in self.processes:
            if process.pid is not None:
                process.kill()


def _stop(pool: ProcessPoolExecutor, context: _Context) -> None:
    """Stop a broken pool, for whose processes and thread the program would wait at its exit.

    The pool terminates the processes that it knows, but not one that starts at the same time. Before Python 3.11.6, its
    thread may write an item forever to a pipe from which no process reads (python/cpython#94777).
    """
    context.kill_all()
    if sys.version_info < (3, 11, 6):
        queue: Any = vars(pool)["_call_queue"]
        queue._reader.close()


class _SentFunction:
    """Function that is sent to new processes in a file without a name.

    Its tokenizers are larger than a pipe. While a process starts, the parent keeps both ends of the pipe to it open,
    so the parent would wait forever if the process were killed before it has read its arguments from the pipe.
    """

    def __init__(self, function: Function) -> None:
        self._data = bytes(reduction.ForkingPickler.dumps(function))
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed with this object
        self._file.write(self._data)
        self._file.flush()

    def __reduce__(self) -> tuple[Any, ...]:
        if os.name == "nt":  # cannot inherit the file
            return pickle.loads, (self._data,)
        return _read_function, (reduction.DupFd(self._file.fileno()), len(self._data))


def _read_function(file: Any, num_bytes: int) -> Function:
    """Return the function in a file that the parent opened; processes share its position, so it is not changed."""
    descriptor = file.detach()
    data = os.pread(descriptor, num_bytes, 0)
    os.close(descriptor)
    function: Function = pickle.loads(data)
    return function


def _block_sigint() -> None:
    """Block Ctrl-C in this thread and in processes that it starts, which would show tracebacks while they start."""
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


_function: Function
"""Function of a worker process."""


def _start(function: Function) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    signal.raise_signal(signal.SIGTERM)


def _compute(item: Any) -> Any:
    return _function(item, 1)

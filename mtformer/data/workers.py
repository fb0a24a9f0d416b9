"""Apply a function to many items in several processes; results keep the order of the items."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from types import TracebackType
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

    Each worker has its own pipe and exits when the pipe is closed, so workers end with this process even if it is
    killed. They are started on demand with the "spawn" method, so scripts need `if __name__ == "__main__":`.

    Args:
        function: function of (item, number of threads) that returns the result; pickled once per process.
        num_processes: maximum number of processes; None: number of cores.
    """

    def __init__(self, function: Callable[[Item, int], Result], num_processes: int | None) -> None:
        self._function, self._num_processes = function, num_processes or os.cpu_count() or 1
        self._num_alone = ITEMS_ALONE
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []

    def __enter__(self) -> "Workers[Item, Result]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            if error is not None:
                process.terminate()
            process.join()

    def map(self, items: Iterable[Item]) -> Iterator[tuple[Item, Result]]:
        """Yield each item with its result, in order; reads ahead at most as many items as there are processes.

        Raises:
            WorkerEndedError: if a worker process was killed.
        """
        rest = iter(items)
        for item in islice(rest, self._num_alone if self._num_processes > 1 else None):
            self._num_alone -= 1
            yield item, self._function(item, self._num_processes)
        waiting = deque[tuple[Item, Connection]]()
        for number, item in enumerate(rest):
            if len(waiting) == self._num_processes:
                yield self._receive(*waiting.popleft())
            if number < self._num_processes and len(self._pipes) <= number:
                self._start()
            pipe = self._pipes[number % self._num_processes]
            try:
                pipe.send(item)
            except OSError as error:
                raise WorkerEndedError from error
            waiting.append((item, pipe))
        while waiting:
            yield self._receive(*waiting.popleft())

    def _receive(self, item: Item, pipe: Connection) -> tuple[Item, Result]:
        try:
            is_result, answer = pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerEndedError from error
        if not is_result:
            raise answer
        return item, answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._function), daemon=True)
        process.start()
        theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)


def _serve(pipe: Connection, function: Callable[[Any, int], Any]) -> None:
    """Compute items until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process handles Ctrl-C and closes the pipes
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = (True, function(item, 1))
        except Exception as error:
            answer = (False, error)
        try:
            pipe.send(answer)
        except OSError:
            return

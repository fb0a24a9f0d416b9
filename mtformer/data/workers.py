"""One function over many items, in several processes, the results in order."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Generic, TypeVar

from mtformer.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerEndedError(DataError):
    """The system ended a process; nothing is wrong with the corpus."""


class Workers(Generic[Item, Result]):
    """Processes that each build the function once and then answer items; with one process all is done in this one.

    Each has a pipe of its own: when this process is gone, however it ended, they read the pipe's end and go too.
    They start as items come, each in a fresh interpreter, so a script that uses this needs the usual
    `if __name__ == "__main__":`.

    Args:
        build: makes the function from the settings, in each process.
        settings: what can be pickled.
        num_processes: at most.
    """

    def __init__(self, build: Callable[[Any], Callable[[Item], Result]], settings: Any, num_processes: int) -> None:
        self._build, self._settings, self._num_processes = build, settings, num_processes
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._function = build(settings) if num_processes == 1 else None

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
        """Each item with its result; no more items are read ahead than there are processes.

        Raises:
            WorkerEndedError: when a process was ended from outside.
        """
        if self._function is not None:
            for item in items:
                yield item, self._function(item)
            return
        waiting = deque[tuple[Item, Connection]]()
        for number, item in enumerate(items):
            if len(waiting) == self._num_processes:
                yield self._answer(waiting)
            if number < self._num_processes and len(self._pipes) <= number:
                self._start()
            pipe = self._pipes[number % self._num_processes]
            try:
                pipe.send(item)
            except OSError as error:
                raise _ended() from error
            waiting.append((item, pipe))
        while waiting:
            yield self._answer(waiting)

    def _answer(self, waiting: "deque[tuple[Item, Connection]]") -> tuple[Item, Result]:
        item, pipe = waiting.popleft()
        try:
            is_result, answer = pipe.recv()
        except (EOFError, OSError) as error:
            raise _ended() from error
        if not is_result:
            raise answer
        return item, answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._build, self._settings), daemon=True)
        process.start()
        theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)


def _ended() -> WorkerEndedError:
    return WorkerEndedError(
        "a process that works on the corpus was ended by the system, most likely for want of memory; "
        "lower data.num_workers"
    )


def _serve(pipe: Connection, build: Callable[[Any], Callable[[Any], Any]], settings: Any) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process, which then closes the pipes
    function = build(settings)
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[bool, Any] = (True, function(item))
        except Exception as error:
            answer = (False, error)
        try:
            pipe.send(answer)
        except OSError:
            return

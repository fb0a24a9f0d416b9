"""Requests translated together: what waits is gathered, and each gets its own lines back."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from mtformer.decoding.translation import Translation
from mtformer.decoding.translator import Translator

GATHER_SECONDS = 0.005
MAX_CHARACTERS = 10_000
"""Characters, from which on no more requests are taken into a batch."""


class BusyError(Exception):
    """As many requests wait as may."""


class ClosedError(Exception):
    """The server ends."""


class _GivenUpError(Exception):
    """Nobody waits for what is being translated."""


@dataclass
class Job:
    """Lines of one request.

    Args:
        lines: the text.
        target: language that they are translated into.
        n_best: translations of each line.
        attention: whether to give `Translation.attention`.
        watch: called with the number of a line and its best translation so far, from the threads that search.
    """

    lines: Sequence[str]
    target: str
    n_best: int = 1
    attention: bool = False
    watch: Callable[[int, str], object] | None = None
    answer: Future[list[Translation]] = field(default_factory=Future)
    """One translation a line; its `alternatives` may be more than were asked for."""
    is_abandoned: bool = False
    """Set by whoever no longer wants the answer, which then may never come."""

    @property
    def size(self) -> int:
        """Characters, line ends counted."""
        return sum(len(line) + 1 for line in self.lines)


class Batcher:
    """One thread that owns the models.

    Args:
        translators: one for each target language, with the same settings.
        queue_size: requests that may wait; those that are being translated do not count.
    """

    def __init__(self, translators: Mapping[str, Translator], queue_size: int) -> None:
        self._translators = translators
        self._waiting: queue.Queue[Job | None] = queue.Queue(queue_size)
        self._is_closing = False
        # Samples hang on a line's place among those that are translated with it.
        draws = any(one.decoding.draws for one in translators.values())
        self._max_characters = 0 if draws else MAX_CHARACTERS
        self._thread = threading.Thread(target=self._work, name="translate", daemon=True)

    def start(self) -> None:
        """Begins to translate."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queues a job; raises BusyError when too many wait, and ClosedError after `close`."""
        if self._is_closing:
            raise ClosedError
        job.answer.set_running_or_notify_cancel()  # Now whoever waits for it cannot cancel it under the thread's hands.
        try:
            self._waiting.put_nowait(job)
        except queue.Full:
            raise BusyError from None

    def close(self) -> None:
        """Ends as soon as the engine's batch in progress is done; jobs that are left get ClosedError."""
        self._is_closing = True
        with contextlib.suppress(queue.Empty):
            while job := self._waiting.get_nowait():
                job.answer.set_exception(ClosedError())
        self._waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while not self._is_closing:
            jobs = self._gather()
            groups: dict[tuple[str, bool], list[Job]] = {}
            for job in jobs:
                groups.setdefault((job.target, job.attention), []).append(job)
            for group in groups.values():
                self._translate(group)

    def _gather(self) -> list[Job]:
        """The next job, and those that come with it or within a few milliseconds."""
        jobs: list[Job] = []
        size, deadline = 0, None
        while not jobs or size < self._max_characters:
            try:
                timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
                job = self._waiting.get(timeout=timeout)
            except queue.Empty:
                break
            if job is None:
                break
            if not job.is_abandoned:
                jobs.append(job)
                size += job.size
                deadline = deadline or time.monotonic() + GATHER_SECONDS
        return jobs

    def _translate(self, group: Sequence[Job]) -> None:
        """Answers jobs that agree in what is to be done; when that fails for all together, each by itself."""
        group = [job for job in group if not job.is_abandoned]
        if not group:
            return
        try:
            found = iter(self._found(group))
        except Exception as error:
            if len(group) > 1:
                for job in group:
                    self._translate([job])
            else:
                group[0].answer.set_exception(ClosedError() if isinstance(error, _GivenUpError) else error)
            return
        for job in group:
            job.answer.set_result([next(found) for _ in job.lines])

    def _found(self, group: Sequence[Job]) -> list[Translation]:
        """The translations of all lines."""

        def go_on(_: int) -> None:
            if self._is_closing or all(job.is_abandoned for job in group):
                raise _GivenUpError

        return self._translators[group[0].target].translate(
            [line for job in group for line in job.lines],
            attention=group[0].attention,
            progress=go_on,
            watch=[_watcher(job, number) for job in group for number in range(len(job.lines))],
            n_best=max(job.n_best for job in group),
        )


def _watcher(job: Job, number: int) -> Callable[[str], object] | None:
    watch = job.watch
    return None if watch is None else lambda text: watch(number, text)

"""Batching of requests: waiting requests are translated together, and each one gets its own translations back."""

import contextlib
import queue
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.errors import MtformerError

MAX_CHARACTERS = 10_000  # number of characters, including line ends, at which a batch is full


class ClosedError(MtformerError):
    """Raised when the server shuts down, or when no client is waiting for the answer."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


@dataclass
class Job:
    """Lines of one request."""

    lines: Sequence[str]
    target: str
    n_best: int = 1
    attention: bool = False
    answer: Future[list[Translation]] = field(default_factory=Future)
    """A translation for each line; it may have more `alternatives` than requested."""
    is_abandoned: bool = False
    """True if no client is waiting for the answer anymore; the job may then never be answered."""


class Batcher:
    """A thread that owns the models and translates waiting jobs together.

    There is a translator for each target language, with the same settings. Running requests do not count as queued.
    """

    def __init__(self, translators: Mapping[str, Translator], queue_size: int) -> None:
        self._translators = translators
        self.waiting: queue.Queue[Job | None] = queue.Queue(queue_size)
        self._is_closing = False
        # When sampling, requests are not batched, because samples depend on the position of a line in its batch.
        draws = any(one.decoding.draws for one in translators.values())
        self._max_characters = 0 if draws else MAX_CHARACTERS
        self._thread = threading.Thread(target=self._work, name="translate", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job; raise queue.Full if too many are waiting, or ClosedError after `close`."""
        if self._is_closing:
            raise ClosedError
        job.answer.set_running_or_notify_cancel()  # from now on, the future cannot be cancelled
        self.waiting.put_nowait(job)

    def close(self) -> None:
        """Stop after the current batch; all other jobs get ClosedError."""
        self._is_closing = True
        with contextlib.suppress(queue.Empty):
            while job := self.waiting.get_nowait():
                job.answer.set_exception(ClosedError())
        self.waiting.put(None)
        self._thread.join()

    def _work(self) -> None:
        while not self._is_closing:
            groups: dict[tuple[str, bool], list[Job]] = defaultdict(list)
            for job in self._gather():
                groups[job.target, job.attention].append(job)
            for group in groups.values():
                self._translate(group)

    def _gather(self) -> list[Job]:
        """Wait for a job, and return it together with those that already wait behind it."""
        jobs: list[Job] = []
        size = 0
        with contextlib.suppress(queue.Empty):
            while not jobs or size < self._max_characters:
                job = self.waiting.get(block=not jobs)
                if job is None:
                    break
                if not job.is_abandoned:
                    jobs.append(job)
                    size += sum(len(line) + 1 for line in job.lines)
        return jobs

    def _translate(self, group: Sequence[Job]) -> None:
        """Answer jobs with the same settings together; if that fails, answer each job separately."""
        group = [job for job in group if not job.is_abandoned]
        if not group:
            return

        def check_abandoned(_: int) -> None:
            if self._is_closing or all(job.is_abandoned for job in group):
                raise ClosedError

        lines, n_best = [line for job in group for line in job.lines], max(job.n_best for job in group)
        translate = self._translators[group[0].target].translate
        try:
            found = iter(translate(lines, attention=group[0].attention, progress=check_abandoned, n_best=n_best))
        except Exception as error:
            if len(group) > 1:
                for job in group:
                    self._translate([job])
            else:
                group[0].answer.set_exception(error)
            return
        for job in group:
            job.answer.set_result([next(found) for _ in job.lines])

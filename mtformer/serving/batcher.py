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

MAX_CHARACTERS = 10_000
"""Number of characters, including line ends, at which a batch is full."""


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

    Running requests do not count as queued.

    Args:
        translators: a translator for each target language, with the same settings.
        queue_size: maximum number of waiting jobs.
    """

    def __init__(self, translators: Mapping[str, Translator], queue_size: int) -> None:
        self._translators = translators
        self.waiting: queue.Queue[Job | None] = queue.Queue(queue_size)
        self._is_closing = False
        # When sampling, requests are not batched, because samples depend on the position of a line in its batch.
        is_sampling = any(translator.decoding.draws for translator in translators.values())
        self._max_characters = 0 if is_sampling else MAX_CHARACTERS
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
        """Translate jobs until the batcher is closed; those with the same language and attention together."""
        while not self._is_closing:
            groups: dict[tuple[str, bool], list[Job]] = defaultdict(list)
            for job in self._gather():
                groups[job.target, job.attention].append(job)
            for group in groups.values():
                self._translate(group)

    def _gather(self) -> list[Job]:
        """Wait for a job, and return it together with those that already wait behind it."""
        jobs: list[Job] = []
        num_characters = 0
        with contextlib.suppress(queue.Empty):
            while not jobs or num_characters < self._max_characters:
                job = self.waiting.get(block=not jobs)
                if job is None:
                    break
                if job.is_abandoned:
                    continue
                jobs.append(job)
                num_characters += sum(len(line) + 1 for line in job.lines)
        return jobs

    def _translate(self, group: Sequence[Job]) -> None:
        """Answer jobs with the same settings together; if that fails, answer each job separately."""
        jobs = [job for job in group if not job.is_abandoned]
        if not jobs:
            return
        try:
            translations = self._translations(jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
            else:
                for job in jobs:
                    self._translate([job])
            return

        start = 0
        for job in jobs:
            end = start + len(job.lines)
            job.answer.set_result(translations[start:end])
            start = end

    def _translations(self, jobs: Sequence[Job]) -> list[Translation]:
        """Return the translations of the lines of all jobs; raise ClosedError when no job needs them anymore."""

        def check_abandoned(_: int) -> None:
            if self._is_closing or all(job.is_abandoned for job in jobs):
                raise ClosedError

        lines: list[str] = []
        for job in jobs:
            lines += job.lines
        first_job = jobs[0]  # all have the same target language and attention
        translator = self._translators[first_job.target]
        n_best = max(job.n_best for job in jobs)
        return translator.translate(lines, attention=first_job.attention, progress=check_abandoned, n_best=n_best)

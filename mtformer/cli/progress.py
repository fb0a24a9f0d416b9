"""Progress bars on a terminal, and plain log lines elsewhere."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NoReturn

from tqdm import tqdm

from mtformer.cli.output import printable
from mtformer.data.store.prepare import log_progress
from mtformer.errors import log
from mtformer.formatting import format_duration
from mtformer.training.figures import bar_texts

SECONDS_PER_LINE = 30.0
"""Time between lines of the log if there is no terminal."""
ELAPSED = "{desc}: {elapsed}"
"""Format of a bar for work of unknown size."""
FIRST_BAR = "{desc}: {percentage:3.0f}%|{bar}| {remaining} left"
"""Format of the bar of training until the first figures are known."""
BAR = "{desc}: {percentage:3.0f}%|{bar}| {postfix[0]}"
"""Format of the bar of training."""
BAR_WIDTH = len("train: 100%|") + 10 + len("| ")
"""Width of the bar of training without the postfix."""
DEFAULT_WIDTH = 80
"""Width of a terminal that does not report it."""


@contextmanager
def line_progress(description: str, num_lines: int) -> Iterator[Callable[[int], object]]:
    """Show a bar that counts lines, and yield the function that advances it."""
    with tqdm(total=num_lines, desc=printable(description), unit="line", disable=None, leave=False) as bar:
        yield bar.update


class TimedLines(AbstractContextManager["TimedLines"]):
    """Progress of work on lines of text, with the time left: a bar, or log lines if there is no terminal."""

    def __init__(self, description: str) -> None:
        self.description = description
        self.bar = tqdm(desc=printable(description), unit="line", disable=None, leave=False)
        self.num_lines = 0
        """Number of lines in total."""
        self.num_finished = 0
        self.num_logged = 0
        """Number of lines that were finished at the last log line."""
        self.log_time = 0.0
        """Time of the last log line."""

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def start(self, num_lines: int) -> None:
        """Start the clock, given the number of lines in total."""
        self.num_lines = num_lines
        self.log_time = time.monotonic()
        self.bar.reset(num_lines)

    def advance(self, num_lines: int) -> None:
        """Count finished lines; without a terminal, log them if the last log line is long ago."""
        self.bar.update(num_lines)
        self.num_finished += num_lines
        seconds = time.monotonic() - self.log_time
        if seconds < SECONDS_PER_LINE or not self.bar.disable:
            return
        # The latest speed counts, because the first lines may be finished already if the work is resumed.
        lines_per_second = (self.num_finished - self.num_logged) / seconds
        seconds_left = (self.num_lines - self.num_finished) / lines_per_second
        log.info(
            "%s: %s of %s lines, about %s left",
            *(self.description, f"{self.num_finished:,}", f"{self.num_lines:,}", format_duration(seconds_left)),
        )
        self.num_logged = self.num_finished
        self.log_time += seconds


@contextmanager
def alive(desc: str, **settings: Any) -> Iterator["tqdm[NoReturn]"]:
    """Yield a bar that is refreshed every second; if there is no terminal, log the elapsed time at intervals."""
    start = time.monotonic()
    end = threading.Event()

    def refresh(bar: "tqdm[NoReturn]") -> None:
        while not end.wait(SECONDS_PER_LINE if bar.disable else 1.0):
            if bar.disable:
                log.info("%s: running for %s", desc, format_duration(time.monotonic() - start))
            else:
                bar.refresh()

    with tqdm(desc=desc, disable=None, leave=False, dynamic_ncols=True, **settings) as bar:
        thread = threading.Thread(target=refresh, args=[bar], daemon=True)
        thread.start()
        try:
            yield bar
        finally:
            end.set()
            thread.join()


class TrainingProgress(AbstractContextManager["TrainingProgress"]):
    """Progress display for preparation and training."""

    def __init__(self) -> None:
        self.bar: tqdm[NoReturn] | None = None
        self.preparing: tqdm[NoReturn] | None = None
        self._figures: Any = [""]  # tqdm formats any object, but its types allow only text and mappings
        self._start = ExitStack()

    def __enter__(self) -> "TrainingProgress":
        if log.isEnabledFor(logging.INFO):
            self._start.enter_context(alive("prepare", bar_format=ELAPSED))
        return self

    def __exit__(self, *error: object) -> None:
        self._end_preparing()
        if self.bar is not None:
            self.bar.close()

    def prepared(self, num_pairs: int, share: float) -> None:
        """Show the progress of preparing a corpus; see `mtformer.training.progress.Progress`."""
        self._start.close()
        if not sys.stderr.isatty() or not log.isEnabledFor(logging.INFO):
            log_progress(num_pairs, share)
            return
        if self.preparing is not None and num_pairs < self.preparing.n:  # the next corpus
            self._end_preparing()
        if self.preparing is None:
            self.preparing = tqdm(unit="pair", unit_scale=True, desc="prepare", dynamic_ncols=True, leave=False)
        self.preparing.total = round(num_pairs / share) if share else None
        self.preparing.update(num_pairs - self.preparing.n)
        if share == 1:
            self._end_preparing()

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        """Show the progress of training; see `mtformer.training.progress.Progress`."""
        self._end_preparing()
        if sys.stderr.isatty():
            self._advance_bar(step, num_steps)
            if figures is not None:
                self._show_figures(f"step {step}/{num_steps}", f"epoch {epoch + 1}", figures)
        elif figures is not None:
            texts = ", ".join(bar_texts(figures).values())
            log.info("step %d/%d, epoch %d, %s, %s", step, num_steps, epoch + 1, texts, _time_left(figures))

    def _advance_bar(self, step: int, num_steps: int) -> None:
        if self.bar is None:
            self.bar = tqdm(
                initial=step - 1, desc="train", bar_format=FIRST_BAR, postfix=self._figures, dynamic_ncols=True
            )
        self.bar.total = num_steps
        self.bar.update(step - self.bar.n)

    def _show_figures(self, step: str, epoch: str, figures: dict[str, float]) -> None:
        """Show as many figures as fit on the line, the most important ones first."""
        assert self.bar is not None, "the bar is created before it shows figures"
        texts = bar_texts(figures)
        first = [texts.pop("loss"), texts.pop("tokens_per_second"), step]
        postfix = _time_left(figures)
        max_width = self.bar.format_dict["ncols"] or DEFAULT_WIDTH
        for text in (*first, *reversed(texts.values()), epoch):
            longer = f"{postfix}, {text}"
            if BAR_WIDTH + len(longer) < max_width:
                postfix = longer
        self._figures[0] = postfix
        self.bar.bar_format = BAR
        self.bar.refresh()

    def _end_preparing(self) -> None:
        self._start.close()
        if self.preparing is not None:
            self.preparing.close()
            self.preparing = None


def _time_left(figures: dict[str, float]) -> str:
    return f"{format_duration(figures['seconds_left'])} left"

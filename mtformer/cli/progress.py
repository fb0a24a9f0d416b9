"""Progress of a training: bars on a terminal, plain log lines elsewhere."""

import logging
import sys
from contextlib import AbstractContextManager
from typing import NoReturn

from tqdm import tqdm

from mtformer.data.store.prepare import log_progress
from mtformer.experiment.runs import format_duration
from mtformer.training.figures import bar_text

log = logging.getLogger("mtformer")


class TrainingProgress(AbstractContextManager["TrainingProgress"]):
    """Shows the progress of preparation and training; `num_steps`: total number of optimizer steps."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.bar: tqdm[NoReturn] | None = None
        self.preparing: tqdm[NoReturn] | None = None

    def __exit__(self, *error: object) -> None:
        self._end_preparing()
        if self.bar is not None:
            self.bar.close()

    def prepared(self, num_pairs: int, share: float) -> None:
        """Show the progress of a corpus; see `mtformer.training.metrics.Progress`."""
        if not sys.stderr.isatty() or not log.isEnabledFor(logging.INFO):
            log_progress(num_pairs, share)
            return
        if self.preparing is not None and num_pairs < self.preparing.n:  # another corpus
            self._end_preparing()
        if self.preparing is None:
            self.preparing = tqdm(unit="pair", unit_scale=True, desc="prepare", dynamic_ncols=True, leave=False)
        self.preparing.total = round(num_pairs / share) if share else None
        self.preparing.update(num_pairs - self.preparing.n)
        if share == 1:
            self._end_preparing()

    def advance(self, step: int, epoch: int, figures: dict[str, float] | None) -> None:
        """Show a step; see `mtformer.training.metrics.Progress`."""
        self._end_preparing()
        if sys.stderr.isatty():
            if self.bar is None:
                self.bar = tqdm(total=self.num_steps, initial=step - 1, unit="step", desc="train", dynamic_ncols=True)
            self.bar.update(step - self.bar.n)
            if figures is not None:
                self.bar.set_postfix_str(f"epoch {epoch + 1}, {bar_text(figures)}")
        elif figures is not None:
            left = format_duration((self.num_steps - step) * figures["seconds_per_step"])
            log.info("step %d/%d, epoch %d, %s, %s left", step, self.num_steps, epoch + 1, bar_text(figures), left)

    def _end_preparing(self) -> None:
        if self.preparing is not None:
            self.preparing.close()
            self.preparing = None

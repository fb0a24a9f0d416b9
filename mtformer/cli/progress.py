"""How far a training is: a bar on a terminal, plain log lines elsewhere."""

import logging
import sys
from types import TracebackType
from typing import NoReturn

from tqdm import tqdm

from mtformer.data.store.prepare import log_progress

log = logging.getLogger("mtformer")


class TrainingProgress:
    """Shows how far data and training are; bars when stderr is a terminal.

    Args:
        num_steps: optimizer steps in all.
    """

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.bar: tqdm[NoReturn] | None = None
        self.preparing: tqdm[NoReturn] | None = None

    def __enter__(self) -> "TrainingProgress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_preparing()
        if self.bar is not None:
            self.bar.close()

    def prepared(self, num_pairs: int, share: float) -> None:
        """Some pairs are tokenised; see `mtformer.training.metrics.Progress`."""
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
        """A step is done; see `mtformer.training.metrics.Progress`."""
        self._end_preparing()
        if sys.stderr.isatty():
            if self.bar is None:
                self.bar = tqdm(total=self.num_steps, initial=step - 1, unit="step", desc="train", dynamic_ncols=True)
            self.bar.update(step - self.bar.n)
            if figures is not None:
                self.bar.set_postfix_str(_short(epoch, figures))
        elif figures is not None:
            remaining = (self.num_steps - step) * figures["seconds_per_step"]
            log.info("step %d/%d, %s, %s left", step, self.num_steps, _short(epoch, figures), _duration(remaining))

    def _end_preparing(self) -> None:
        if self.preparing is not None:
            self.preparing.close()
            self.preparing = None


def _short(epoch: int, figures: dict[str, float]) -> str:
    text = (
        f"epoch {epoch + 1}, loss {figures['loss']:.3f}, {figures['tokens_per_second']:,.0f} tokens/s, "
        f"lr {figures['learning_rate']:.2e}, grad {figures['grad_norm']:.2f}"
    )
    return text + (f", {figures['skipped_steps']:.0f} steps skipped" if figures["skipped_steps"] else "")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"

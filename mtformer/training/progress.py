"""Interface between a training run and the display of its progress."""

from typing import Protocol


class Progress(Protocol):
    """Progress display of a training run."""

    def prepared(self, num_pairs: int, share: float) -> None:
        """Show the number of tokenized pairs of a corpus, and their share of the corpus (0: unknown)."""

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        """Show a completed step.

        Args:
            step: number of completed steps.
            num_steps: planned number of steps.
            epoch: current epoch, from 0.
            figures: result of `TrainWindow.figures`, and `seconds_left`; None if the step has no log line.
        """

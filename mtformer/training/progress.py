"""Interface between a training run and the display of its progress."""

from typing import Protocol


class Progress(Protocol):
    """Progress display of a training run."""

    def prepared(self, num_pairs: int, share: float) -> None:
        """Show the number of tokenized pairs of a corpus, and their share of the corpus (0: unknown)."""

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        """Show a completed step of `num_steps`; `figures` are given with each log line."""

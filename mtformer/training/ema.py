"""Exponential moving average of the weights: what the run is judged by and keeps, while the optimizer moves the others.

    average <- d average + (1 - d) weights    after each step, with d = min(decay, (1 + step) / (10 + step))

Such averages are those of Polyak and Juditsky (1992); the smaller d of the first steps, as TensorFlow's
`ExponentialMovingAverage` has it, lets the initial weights be forgotten soon.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """The averages of a model's parameters, on their device and in their shares.

    Args:
        model: its weights as they are now are the first averages.
        decay: d.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters: list[Tensor] = list(model.parameters())
        self.averages = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step number `step`; the first is 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        # Not `lerp`, whose difference of two biases of -inf (see `training.loss`) is NaN.
        torch._foreach_mul_(self.averages, decay)
        torch._foreach_add_(self.averages, self.parameters, alpha=1 - decay)

    @torch.no_grad()
    def begin_anew(self) -> None:
        """From the weights as they are now."""
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            average.copy_(parameter)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model has the averages."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # By value: graphs and sharded weights know the memory they were made with.
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            kept = parameter.clone()
            parameter.copy_(average)
            average.copy_(kept)

"""Optimizer, learning rate schedules and moving average of the weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mtformer.config.schema import TrainingConfig
from mtformer.model.ops import Linear
from mtformer.model.transformer import Transformer
from mtformer.training.muon import Muon
from mtformer.training.ranks import ALONE, Ranks

DECAY_SHARE = 0.4
"""Share of the steps after the warmup in which the learning rate of `warmup_stable_decay` decreases."""
ADAM_STATE = frozenset({"step", "exp_avg", "exp_avg_sq"})
"""Names of the tensors that Adam and AdamW keep for a parameter: PyTorch's names of the first and second moment."""
MUON_STATE = frozenset({"step", "momentum"})
"""Names of the tensors that Muon keeps for a matrix."""


def make_optimizer(model: Transformer, config: TrainingConfig, ranks: Ranks = ALONE) -> torch.optim.Optimizer:
    """Return fused Adam (Kingma and Ba 2015), AdamW (Loshchilov and Hutter 2019) or Muon.

    Weight decay, and Muon, are for the matrices of linear layers: not for biases and norms, embeddings or positions.

    Args:
        model: the model on its device.
        config: the `training` section.
        ranks: the processes of the run, which share the work of Muon.
    """
    linears = [module for module in model.modules() if isinstance(module, Linear)]
    matrices = {linear.weight: linear.out_widths for linear in linears}
    other_parameters = [parameter for parameter in model.parameters() if parameter not in matrices]
    options: dict[str, Any] = {"lr": config.learning_rate, "betas": config.betas, "eps": config.eps}
    if config.optimizer == "muon":
        dtype = torch.bfloat16 if model.compute_dtype is torch.bfloat16 else torch.float32
        return Muon(matrices.items(), other_parameters, dtype, config.weight_decay, ranks, **options)

    groups = [
        {"params": list(matrices), "weight_decay": config.weight_decay},
        {"params": other_parameters, "weight_decay": 0.0},
    ]
    optimizer_class = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return optimizer_class(groups, fused=True, **options)


def names_of_moments(optimizer: torch.optim.Optimizer) -> list[frozenset[str]]:
    """Return the names of the tensors that an optimizer keeps for each parameter, in the order of its groups."""
    names: list[frozenset[str]] = []
    for number, group in enumerate(optimizer.param_groups):
        is_matrix_group = isinstance(optimizer, Muon) and number == 0
        names += [MUON_STATE if is_matrix_group else ADAM_STATE] * len(group["params"])
    return names


def learning_rate(step: float, config: TrainingConfig, d_model: int) -> float:
    """Return the learning rate of an optimizer step.

    noam is equation 3 of "Attention Is All You Need", multiplied by `learning_rate`. The other schedules increase
    linearly to `learning_rate` over `warmup_steps`; then they are constant, decay to 0 at `max_steps` (cosine,
    linear), are constant and decay linearly in the last part (warmup_stable_decay; Hu et al. 2024, arXiv 2404.06395),
    or decay with the square root of the step (inverse_sqrt).

    Args:
        step: the step of the schedule, from 1; with a plan, it lies between whole steps (see `training.schedule`).
        config: the `training` section.
        d_model: width of the model, which only noam depends on.
    """
    peak = config.learning_rate
    warmup = config.warmup_steps
    if config.schedule == "noam":
        rise = step * warmup**-1.5 if warmup else math.inf
        return peak * d_model**-0.5 * min(step**-0.5, rise)

    if step < warmup:
        return peak * step / warmup
    if config.schedule == "constant":
        return peak
    if config.schedule == "inverse_sqrt":
        return peak * math.sqrt(max(warmup, 1) / step)

    decay_steps = max(1, config.max_steps - warmup)
    progress = min(1.0, (step - warmup) / decay_steps)
    if config.schedule == "warmup_stable_decay":
        return peak * min(1.0, (1 - progress) / DECAY_SHARE)
    if config.schedule == "linear":
        return peak * (1 - progress)
    return peak * 0.5 * (1 + math.cos(math.pi * progress))  # cosine


class Ema:
    """Exponential moving average of the weights, used in validation and checkpoints.

    average <- d average + (1 - d) weights    after each step, with d = min(decay, (1 + step) / (10 + step))

    See Polyak and Juditsky (1992). The smaller d of the first steps, as in TensorFlow's `ExponentialMovingAverage`,
    reduces the influence of the initial weights. Averages have the same device and sharding as the parameters.

    Args:
        model: the model; its current weights are the initial averages.
        decay: maximum of d.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters: list[Tensor] = list(model.parameters())
        self.averages = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the averages after optimizer step `step` (the first is 1)."""
        decay = min(self.decay, (1 + step) / (10 + step))
        # `lerp` would give NaN for biases of -inf (see `training.loss`).
        torch._foreach_mul_(self.averages, decay)
        torch._foreach_add_(self.averages, self.parameters, alpha=1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the averages as weights of the model inside the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # Copy values, because compiled graphs and sharded weights refer to this memory.
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            weight = parameter.clone()
            parameter.copy_(average)
            average.copy_(weight)

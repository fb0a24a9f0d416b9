"""Adam, and how its learning rate goes over the steps."""

import math

import torch
from torch import nn

from mtformer.config.schema import TrainingConfig


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Fused Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019).

    Weight decay is for matrices only: not for biases and norms (one dimension), nor for embeddings and positions.
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_lookup = "embedding" in name or "positions" in name or name == "output"
        (others if parameter.dim() < 2 or is_lookup else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=True)


def learning_rate(step: int, config: TrainingConfig, d_model: int) -> float:
    """The rate of optimizer step `step` (the first is 1).

    noam is "Attention Is All You Need", equation 3, times `learning_rate`; the others rise linearly to
    `learning_rate` within `warmup_steps`, then stay, or fall to 0 at `max_steps` (cosine, linear), or fall with
    the square root of the step (inverse_sqrt).
    """
    warmup = config.warmup_steps
    if config.schedule == "noam":
        rise = step * warmup**-1.5 if warmup else math.inf
        return config.learning_rate * d_model**-0.5 * min(step**-0.5, rise)
    if step < warmup:
        return config.learning_rate * step / warmup
    if config.schedule == "constant":
        return config.learning_rate
    if config.schedule == "inverse_sqrt":
        return config.learning_rate * math.sqrt(max(warmup, 1) / step)
    progress = min(1.0, (step - warmup) / max(1, config.max_steps - warmup))
    if config.schedule == "linear":
        return config.learning_rate * (1 - progress)
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))

"""Averaging the weights of checkpoints ("Attention Is All You Need", section 6.1)."""

import torch
from torch import Tensor

from mtformer.errors import CheckpointError
from mtformer.files import verify
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.training.checkpoint import save_averaged
from mtformer.weights import read_weights


def average_last(run: RunDir, count: int) -> list[int]:
    """Average the newest `count` checkpoints of a run into its `averaged` one, not validated yet; return their steps.

    Raises:
        CheckpointError: when the run has fewer checkpoints than that, or one of them is damaged.
    """
    steps = run.regular_steps()[-count:]
    if len(steps) < count:
        raise CheckpointError(f"{run.checkpoints}: {count} checkpoints to average asked for, {len(steps)} there")
    total: dict[str, Tensor] = {}
    for step in steps:
        folder = run.checkpoint(step)
        verify(folder, WEIGHTS)
        for name, weight in read_weights(folder / WEIGHTS).items():
            # float64, so that the order of the sum does not show.
            total[name] = total.get(name, torch.zeros((), dtype=torch.float64)) + weight.double()
    save_averaged(run, steps, {name: (weight / count).float() for name, weight in total.items()}, {})
    return steps

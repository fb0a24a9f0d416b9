"""The processes of one training: who this one is, and what they tell each other.

Numbers and small objects go from host to host (gloo), so that asking never waits for a device. Gradients meet through
PyTorch's own engine, see `replicate`.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Ranks:
    """This process among those of a training; without arguments: alone."""

    rank: int = 0
    """From 0; process 0 writes the files."""
    size: int = 1
    """Processes in all."""
    local_rank: int = 0
    """From 0 on each machine; also the number of its CUDA device."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Each value summed over the processes, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def gather(self, item: Any) -> list[Any]:
        """What each process gave, in the order of ranks, on every process."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def any(self, flag: bool) -> bool:
        """Whether any process says so."""
        return self.sum([float(flag)])[0] > 0

    def wait(self) -> None:
        """Until all processes are here."""
        self.sum([0.0])


ALONE = Ranks()


def synchronised(module: nn.Module, is_last: bool) -> contextlib.AbstractContextManager[None]:
    """Around forward and backward of one of a step's micro-batches: gradients meet once a step, with the last."""
    if isinstance(module, DistributedDataParallel) and not is_last:
        return module.no_sync()
    return contextlib.nullcontext()

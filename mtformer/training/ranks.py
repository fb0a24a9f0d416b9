"""The processes of one training: who this one is, what they tell each other, how gradients and weights meet.

`torchrun` starts them. Numbers and small objects go from host to host (gloo), so that asking never waits for a device;
gradients and sharded weights go through PyTorch's own DistributedDataParallel and FSDP2 (`fully_shard`).
"""

import contextlib
import inspect
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from mtformer.errors import DeviceError, LostProcessError

TIMEOUT = timedelta(hours=12)
"""How long a process waits for another: longer than any preparation of data or save. That one has died is noticed at
once, by its closed connections."""


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
        """What each process gave, in the order of ranks, on every process. Items are pickled: keep them small."""
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

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Inside, process 0 comes first, then one process of each machine, then the others.

        So files are made once, and what is wrong with them is said once.
        """
        order = 0 if self.is_main else 1 if self.local_rank == 0 else 2
        for _ in range(order):
            self.wait()
        yield
        for _ in range(2 - order):
            self.wait()


ALONE = Ranks()
SYNC_BUFFERS = "broadcast_buffers"  # tables of positions are the same everywhere
if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters:
    SYNC_BUFFERS = "forward_sync_buffers"  # its name since PyTorch 2.13


@contextlib.contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks]:
    """Inside, this process is one of those that `torchrun` started; without `torchrun` it is alone.

    Raises:
        LostProcessError: when another process ended.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
        yield Ranks(rank, size, local_rank)
        # The threads of gloo need the interpreter to drop their last tensors, and destroying a group while one of them
        # waits for that does not end (PyTorch 2.13).
        time.sleep(0.2)
        dist.destroy_process_group()  # not after an error: it would wait for the others
    except RuntimeError as error:
        if size > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise LostProcessError(f"process {rank}: another process of this training ended") from error
        raise


def own_device(device: torch.device) -> torch.device:
    """The CUDA device of this process: `torchrun` gives each on a machine a number. Others stay as they are.

    Raises:
        DeviceError: when there are more processes than devices.
    """
    if device.type != "cuda":
        return device
    local_rank, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= count:
        raise DeviceError(f"process {local_rank} of this machine has no CUDA device: there are {count}; start {count}")
    own = torch.device("cuda", local_rank)
    torch.cuda.set_device(own)
    return own


# ---- gradients and weights ------------------------------------------------------------------------------------------


def spread(objective: nn.Module, blocks: Sequence[nn.Module], ranks: Ranks, sharded: bool) -> nn.Module:
    """The objective as all processes have it: a copy each (DDP), or a share of each weight (FSDP2, in place).

    Args:
        objective: its `forward` gives the loss; the same weights on each process.
        blocks: its layers; FSDP2 has the weights of one of them whole at a time.
        ranks: the processes.
        sharded: FSDP2 instead of DDP.
    """
    if not dist.is_initialized():
        return objective
    device_type = next(objective.parameters()).device.type
    if sharded:
        mesh = init_device_mesh(device_type, (ranks.size,))
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(objective, mesh=mesh)
        return objective
    options: dict[str, Any] = {SYNC_BUFFERS: False, "gradient_as_bucket_view": True}
    return DistributedDataParallel(objective, **options)


@contextlib.contextmanager
def synchronised(objective: nn.Module, is_last: bool) -> Iterator[None]:
    """Around forward and backward of one of a step's micro-batches: gradients meet once a step, with the last."""
    if isinstance(objective, FSDPModule):
        objective.set_requires_gradient_sync(is_last)
    with contextlib.ExitStack() as stack:
        if isinstance(objective, DistributedDataParallel) and not is_last:
            stack.enter_context(objective.no_sync())
        yield


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor put together, on every process, in this process's memory; another one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def share_like(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's share of a whole tensor, cut as `like` is; the tensor itself when `like` is not sharded."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

"""Distributed training: the processes that `torchrun` starts, and how they synchronize gradients and weights.

Numbers and small objects go from host to host (gloo), so they never wait for a device; gradients and sharded weights go
through PyTorch's DistributedDataParallel and FSDP2 (`fully_shard`).
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
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from mtformer.errors import DeviceError, LostProcessError

TIMEOUT = timedelta(hours=12)
"""Maximum time that a process waits for another one, longer than any preparation of data or save. The end of a process
is noticed at once by its closed connections."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of a training; by default the only one."""

    rank: int = 0
    """From 0; process 0 writes the files."""
    size: int = 1
    """Number of processes."""
    local_rank: int = 0
    """From 0 on each machine; also the number of its CUDA device."""

    @property
    def is_main(self) -> bool:
        """True for the process that writes files and logs."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Return each value summed over the processes, in float64."""
        if self.size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def gather(self, item: Any) -> list[Any]:
        """Return the items of all processes, by rank, on every process. They are pickled, so keep them small."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def any(self, flag: bool) -> bool:
        """Return True if the flag of any process is set."""
        return self.sum([float(flag)])[0] > 0

    def wait(self) -> None:
        """Wait for all processes."""
        self.sum([0.0])

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the context on process 0 first, then on one process of each machine, then on the others.

        So files are written once, and errors in them are reported once.
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
    """Join the processes that `torchrun` started for the time of the context; without `torchrun` yield `ALONE`.

    Raises:
        LostProcessError: if another process ended.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return
    rank, size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
        yield Ranks(rank, size, local_rank)
        # The threads of gloo need the interpreter to free their last tensors; destroying the group while one of them
        # waits for it never ends (PyTorch 2.13).
        time.sleep(0.2)
        dist.destroy_process_group()  # not after an error: it would wait for the others
    except RuntimeError as error:
        if size > 1 and (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise LostProcessError(f"process {rank}: another process of this training ended") from error
        raise


def own_device(device: torch.device) -> torch.device:
    """Return the CUDA device of this process, by its number on the machine; other devices are returned unchanged.

    Raises:
        DeviceError: if there are more processes than devices.
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


def parallelize(
    objective: nn.Module, blocks: Sequence[nn.Module], ranks: Ranks, sharded: bool, dtype: torch.dtype
) -> nn.Module:
    """Return the objective, replicated on all processes (DDP) or with each weight sharded (FSDP2, in place).

    Args:
        objective: its `forward` returns the loss; the same weights on each process.
        blocks: its layers; FSDP2 gathers the weights of one of them at a time.
        ranks: the processes.
        sharded: FSDP2 instead of DDP.
        dtype: of the activations; FSDP2 gathers the weights of the layers in it, and sums gradients in float32.
    """
    if not dist.is_initialized():
        return objective
    device_type = next(objective.parameters()).device.type
    if sharded:
        mesh = init_device_mesh(device_type, (ranks.size,))
        # Embeddings and the output projection stay float32: the model reads them so.
        policy = MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(objective, mesh=mesh)
        return objective
    options: dict[str, Any] = {SYNC_BUFFERS: False, "gradient_as_bucket_view": True}
    return DistributedDataParallel(objective, **options)


@contextlib.contextmanager
def gradient_sync(objective: nn.Module, is_last: bool) -> Iterator[None]:
    """Synchronize gradients only if `is_last`; for forward and backward of each micro-batch of a step."""
    if isinstance(objective, FSDPModule):
        objective.set_requires_gradient_sync(is_last)
    with contextlib.ExitStack() as stack:
        if isinstance(objective, DistributedDataParallel) and not is_last:
            stack.enter_context(objective.no_sync())
        yield


def unshard(tensor: Tensor) -> Tensor:
    """Return the full tensor of a sharded one, on every process; another tensor unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's shard of a full tensor, sharded as `like`; the tensor itself if `like` is not sharded."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

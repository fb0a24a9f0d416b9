"""Distributed training: communication between the processes of `torchrun`, and DDP or FSDP2.

Numbers and small objects are exchanged on the CPU (gloo), so this never waits for a device; the updates of Muon are
exchanged on the device; gradients and sharded weights use PyTorch's DistributedDataParallel and FSDP2 (`fully_shard`).
"""

import inspect
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

from mtformer.errors import DeviceError, LostProcessError, log

TIMEOUT = timedelta(hours=12)
"""Maximum time that a process waits for another one; longer than preparing data or saving a checkpoint takes. If a
process ends, the others notice immediately, because its connections are closed."""


@dataclass(frozen=True)
class Ranks:
    """Rank of this process and number of processes; by default, a single process."""

    rank: int = 0
    """Rank of this process, from 0; process 0 writes files."""
    size: int = 1
    local_rank: int = 0
    """Rank on this machine, from 0; also the index of its CUDA device."""

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
        """Return the items of all processes by rank, on every process. Items are pickled and should be small."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def gather_rows(self, row: Tensor) -> Tensor:
        """Return tensors (N,) of the same size and dtype of all processes as (number of processes, N), on the device.

        In contrast to `gather`, they may be large, and on a GPU they are not copied to the CPU.
        """
        own_bytes = row.view(torch.uint8)  # gloo does not support each dtype in each version
        all_bytes = own_bytes.new_empty(self.size * len(own_bytes))
        getattr(dist, ALL_GATHER)(all_bytes, own_bytes)
        return all_bytes.view(row.dtype).view(self.size, len(row))

    def any(self, flag: bool) -> bool:
        """Return True if the flag is set on any process."""
        return self.sum([float(flag)])[0] > 0

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the body of the context on process 0 first, then on one process per machine, then on the others.

        This way, shared files are written once, and their errors are reported once.
        """
        if self.is_main:
            own_turn = 0
        elif self.local_rank == 0:
            own_turn = 1
        else:
            own_turn = 2
        for turn in range(3):
            if turn == own_turn:
                yield
            self.gather(None)  # waits for all processes


ALL_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
"""Function that gathers tensors of the same size, which PyTorch 2.13 renamed."""
ALONE = Ranks()
"""A single process."""
HAS_FORWARD_SYNC_BUFFERS = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
"""True from PyTorch 2.13 on, which renamed `broadcast_buffers`."""
SYNC_BUFFERS = "forward_sync_buffers" if HAS_FORWARD_SYNC_BUFFERS else "broadcast_buffers"
"""Argument of DDP that copies buffers from process 0; position tables are the same on all processes."""


@contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks]:
    """Connect the processes of `torchrun` inside the context; without `torchrun`, yield `ALONE`.

    Raise LostProcessError if another process ended.
    """
    if not dist.is_torchelastic_launched():
        yield ALONE
        return

    rank = int(os.environ["RANK"])
    size = int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
        yield Ranks(rank, size, local_rank)
        # Threads of gloo need the interpreter lock to free their last tensors. Destroying the group while one of them
        # waits for the lock causes a deadlock (PyTorch 2.13).
        time.sleep(0.2)
        dist.destroy_process_group()  # not after an error, because it would wait for the others
    except RuntimeError as error:
        is_lost_connection = isinstance(error, dist.DistError) or "gloo" in str(error)
        if size > 1 and is_lost_connection:
            raise LostProcessError(f"process {rank}: another process of this run ended; its log says why") from error
        raise


def own_device(device: torch.device) -> torch.device:
    """Return the CUDA device of this process, by local rank; other devices are returned unchanged.

    A process that sees a single device uses it, because launchers may show each process only its own one (Slurm with
    --gpus-per-task=1); `check_own_devices` ensures that it has no other process. Raise DeviceError if there are more
    processes than devices.
    """
    if device.type != "cuda":
        return device
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    num_devices = torch.cuda.device_count()
    index = 0 if num_devices == 1 else local_rank
    if index >= num_devices:
        raise DeviceError(
            f"process {local_rank} has no CUDA device: this machine has {num_devices}; start {num_devices} processes"
        )
    cuda_device = torch.device("cuda", index)
    torch.cuda.set_device(cuda_device)
    return cuda_device


def check_own_devices(device: torch.device, ranks: Ranks) -> None:
    """Raise DeviceError if two processes have the same CUDA device; all processes call this together."""
    if device.type != "cuda" or ranks.size == 1:
        return
    own_uuid = str(torch.cuda.get_device_properties(device).uuid)
    uuids = ranks.gather(own_uuid)
    for rank, uuid in enumerate(uuids):
        first_rank = uuids.index(uuid)
        if first_rank != rank:
            raise DeviceError(
                f"processes {first_rank} and {rank} have the same CUDA device; start one process per device (with "
                "Slurm: --gpus-per-task=1, or as many --gpus-per-node as --ntasks-per-node)"
            )


def parallelize(
    objective: nn.Module, blocks: Sequence[nn.Module], ranks: Ranks, sharded: bool, dtype: torch.dtype
) -> nn.Module:
    """Return the objective, replicated on all processes (DDP) or sharded (FSDP2, in place).

    Args:
        objective: module whose `forward` returns the loss, with the same weights on all processes.
        blocks: its layers; FSDP2 gathers the weights of one layer at a time.
        ranks: the processes.
        sharded: use FSDP2 instead of DDP.
        dtype: dtype of the activations; FSDP2 gathers layer weights in this dtype and sums gradients in float32.
    """
    if not dist.is_initialized():
        if sharded:
            log.warning("training.sharded has no effect on a single process; start several with torchrun")
        return objective
    if not sharded:
        options: dict[str, Any] = {SYNC_BUFFERS: False, "gradient_as_bucket_view": True}
        return DistributedDataParallel(objective, **options)

    device_type = next(objective.parameters()).device.type
    mesh = init_device_mesh(device_type, (ranks.size,))
    policy = MixedPrecisionPolicy(dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    # Embeddings and the output projection stay float32, because the model uses them in this dtype.
    fully_shard(objective, mesh=mesh)
    return objective


def gradient_sync(objective: nn.Module, is_last: bool) -> AbstractContextManager[None]:
    """Return a context for the forward and backward pass of a micro-batch; only `is_last` synchronizes gradients."""
    if isinstance(objective, FSDPModule):
        objective.set_requires_gradient_sync(is_last)
    if isinstance(objective, DistributedDataParallel) and not is_last:
        return objective.no_sync()
    return nullcontext()


def unshard(tensor: Tensor) -> Tensor:
    """Return the full tensor of a sharded tensor, on every process; other tensors are returned unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return the local shard of a full tensor, sharded like `like`; the full tensor if `like` is not sharded."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape:
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

"""A process group of one process, with which a model is replicated (DDP) or sharded (FSDP2) as in a larger one."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed as dist


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Start a process group of this process alone inside the context, with the backends of `join_ranks`."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()

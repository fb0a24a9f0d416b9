"""Script for `torchrun`: resume the toy run in a folder in several processes, whose batches have different shapes.

    distributed_resume.py FOLDER KIND LIMITS

KIND is `copied` (DDP) or `sharded` (FSDP2). LIMITS are the limits of the micro-batches after resuming: `restored` from
the checkpoint by all processes, `restored by process 0` because the devices of the others differ, `none`, or
`of process 1` (30 tokens, as if its memory had run out alone).
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
from toy_run import MADE_WITH, Quiet
from toy_training import toy_batch, toy_batches, toy_config, toy_step

from mtformer.data.batching.batches import Batch
from mtformer.data.batching.mixture import SamplerState
from mtformer.run_dir import RunDir
from mtformer.training import ranks as ranks_module
from mtformer.training.checkpoint import newest_good
from mtformer.training.loop import Trainer
from mtformer.training.ranks import Ranks, join_ranks
from mtformer.training.resuming import resume_trainer
from mtformer.training.validation import Decoded, DevData

LIMIT = 30
NUM_PAIRS = (3, 9)
"""Pairs in the batches of each process. With LIMIT, those of process 0 stay whole, and those of process 1 are split."""


def batches_of(ranks: Ranks, place: SamplerState) -> Iterator[Batch]:
    for number, batch in enumerate(toy_batches(place)):
        own = toy_batch(10 * number + ranks.rank, num_pairs=NUM_PAIRS[ranks.rank])
        yield replace(own, end=batch.end)


def dev_batches() -> list[Batch]:
    return [toy_batch(seed, num_pairs=num_pairs) for seed, num_pairs in ((90, 3), (91, 9), (92, 6))]


def resumed(folder: Path, is_sharded: bool, limits: str, ranks: Ranks) -> Trainer:
    config = toy_config(max_steps=8, learning_rate=1e-2, eps=1e-3, sharded=is_sharded)
    made_with = dict(MADE_WITH)
    if limits == "restored by process 0" and not ranks.is_main:
        made_with["device"] = "another one"

    trainer = Trainer(
        config,
        RunDir(folder),
        toy_step(config, ranks=ranks, dropout=0.0),
        lambda place: batches_of(ranks, place),
        DevData(dev_batches, lambda progress: Decoded({}, [])),
        Quiet(),
        made_with,
    )
    resume_trainer(trainer, newest_good(trainer.run))

    if limits in ("none", "of process 1"):
        trainer.step.max_padded_tokens = None
    if limits == "of process 1" and ranks.rank == 1:
        trainer.step.max_padded_tokens = LIMIT
    return trainer


if __name__ == "__main__":
    # Processes that wait for each other in different places end after this time; the others need seconds.
    ranks_module.TIMEOUT = timedelta(seconds=30)
    with join_ranks(torch.device("cpu")) as ranks:
        resumed(Path(sys.argv[1]), sys.argv[2] == "sharded", sys.argv[3], ranks).train()

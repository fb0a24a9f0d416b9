"""Script for test_cuda.py and test_one_rank.py: compare a run that is stopped and resumed with an uninterrupted one.

    resume_on_device.py FOLDER DEVICE PRECISION KIND

KIND is `alone` (no process group), or, in a process group of one process: `copied` (DDP), `sharded` (FSDP2) or
`compiled` (DDP and torch.compile, compared with an uninterrupted run that has neither, so results differ by rounding).
On a CPU, graphs are not compiled to code. Prints "the same", or ends with an error.
"""

import functools
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import toy_run
from one_rank import process_group
from toy_training import VOCAB, toy_config

from mtformer.config.schema import Config
from mtformer.device import DTYPES, be_deterministic
from mtformer.errors import InterruptedRunError
from mtformer.model.transformer import Transformer
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.training.step import TrainingStep
from mtformer.weights import read_weights

NUM_STEPS = 9
MAX_DIFFERENCE = 0.3
"""Maximum difference of the weights of a compiled run, relative to the change of the weights in training."""


def main(folder: Path, device: str, precision: str, kind: str) -> None:
    def step_on_device(config: Config) -> TrainingStep:
        torch.manual_seed(config.training.seed)
        model = Transformer(config.model, VOCAB, VOCAB, compute_dtype=DTYPES[precision])
        return TrainingStep(model.to(device), config.training)

    toy_run.toy_step = step_on_device
    if kind == "compiled" and device == "cpu":
        torch.compile = functools.partial(torch.compile, backend="eager")
    if kind != "compiled":
        be_deterministic()
    # A large eps: Adam would amplify gradients that are 0 except for rounding.
    config = toy_config(max_steps=NUM_STEPS, accumulation_steps=2, device=device, learning_rate=1e-2, eps=1e-3)
    if kind == "compiled":  # compiled code draws other dropout masks
        config = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})
    training = config.training.model_copy(
        update={"sharded": kind == "sharded", "compile": "always" if kind == "compiled" else "never"}
    )
    resumed_config = config.model_copy(update={"training": training})

    whole, halves = RunDir(folder / "whole"), RunDir(folder / "halves")
    with nullcontext() if kind in ("alone", "compiled") else process_group(device):
        toy_run.trainer(config if kind == "compiled" else resumed_config, whole.path).train()
    with nullcontext() if kind == "alone" else process_group(device):
        with pytest.raises(InterruptedRunError):
            toy_run.trainer(resumed_config, halves.path, toy_run.Quiet(signal_at=3)).train()
        if kind != "compiled":  # each process compiles for a minute
            with pytest.raises(InterruptedRunError):
                toy_run.resumed(resumed_config, halves.path, toy_run.Quiet(signal_at=6)).train()
        toy_run.resumed(resumed_config, halves.path).train()

    if kind == "compiled":
        assert_close(whole, halves, step_on_device(config).weights())
    else:
        toy_run.assert_same_run(whole, halves)
    print("the same")


def assert_close(one: RunDir, other: RunDir, before: dict[str, torch.Tensor]) -> None:
    weights, other_weights = (read_weights(run.checkpoint(NUM_STEPS) / WEIGHTS) for run in (one, other))
    for name, weight in weights.items():
        difference = (other_weights[name] - weight).norm()
        assert difference <= MAX_DIFFERENCE * (weight - before[name]).norm() + 1e-4, name


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""Script for test_cuda.py: compare a run that is stopped and resumed on a device with an uninterrupted one.

    python resume_on_device.py FOLDER DEVICE PRECISION

Prints "the same", or ends with an error.
"""

import sys
from pathlib import Path

import pytest
import torch
import toy_run
from toy_training import VOCAB, toy_config

from mtformer.config.schema import Config
from mtformer.device import DTYPES, be_deterministic
from mtformer.errors import InterruptedRunError
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.training.step import TrainingStep


def main(folder: Path, device: str, precision: str) -> None:
    def step_on_device(config: Config) -> TrainingStep:
        torch.manual_seed(config.training.seed)
        model = Transformer(config.model, VOCAB, VOCAB, compute_dtype=DTYPES[precision])
        return TrainingStep(model.to(device), config.training)

    toy_run.toy_step = step_on_device
    be_deterministic()
    config = toy_config(max_steps=9, accumulation_steps=2, device=device)
    toy_run.trainer(config, folder / "whole").train()
    with pytest.raises(InterruptedRunError):
        toy_run.trainer(config, folder / "halves", toy_run.Quiet(signal_at=3)).train()
    with pytest.raises(InterruptedRunError):
        toy_run.resumed(config, folder / "halves", toy_run.Quiet(signal_at=6)).train()
    toy_run.resumed(config, folder / "halves").train()
    toy_run.assert_same_run(RunDir(folder / "whole"), RunDir(folder / "halves"))
    print("the same")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])

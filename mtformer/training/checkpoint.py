"""What a run saves, and how it is found again.

A checkpoint is a folder that appears whole or not at all:

    model.safetensors   the weights, tied ones once
    trainer.pt          optimizer, scaler, random state, position: loads with weights_only=True, so it can run no code
    meta.json           step, dev metrics, precision of training, SHA-256 of the two files
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mtformer.config.schema import TrainingConfig
from mtformer.errors import CheckpointError
from mtformer.rundir import META, TRAINER_STATE, WEIGHTS, RunDir, atomic_folder, file_sha256, read_meta
from mtformer.weights import save_weights


def save_checkpoint(
    run: RunDir,
    step: int,
    model: nn.Module,
    trainer_state: dict[str, Any],
    metrics: dict[str, float],
    precision: str,
    is_temporary: bool = False,
) -> Path:
    """Writes the checkpoint of a step; raises CheckpointError when the disk refuses, and leaves nothing half-written.

    A temporary one (of a run that was interrupted) only serves to resume: it goes when the next one is saved, so that
    the checkpoints of a run that was stopped and resumed are those of a run that never stopped.
    """
    target = run.checkpoint(step)
    try:
        with atomic_folder(target) as folder:
            save_weights(model, folder / WEIGHTS)
            torch.save(trainer_state, folder / TRAINER_STATE)
            _write_meta(folder, step, metrics, precision=precision, is_temporary=is_temporary)
    except Exception as error:
        # safetensors and torch wrap a full disk in errors of their own, so each kind is caught here.
        raise CheckpointError(
            f"{target}: could not be saved ({_first_line(error)}); {_last_good(run)}, "
            "so free some space and go on with --resume"
        ) from error
    return target


def save_averaged(run: RunDir, steps: list[int], weights: dict[str, Tensor]) -> None:
    """Writes averaged weights beside the checkpoints."""
    with atomic_folder(run.averaged) as folder:
        save_file(weights, folder / WEIGHTS)
        _write_meta(folder, steps[-1], {}, steps=steps)


def load_trainer_state(folder: Path) -> dict[str, Any]:
    """The trainer's state of a checkpoint; raises CheckpointError when a file was cut or changed."""
    meta = read_meta(folder)
    for name, expected in meta["sha256"].items():
        path = folder / name
        if not path.is_file() or file_sha256(path) != expected:
            raise CheckpointError(f"{path}: cut short or changed since it was saved; go back to an earlier checkpoint")
    state: dict[str, Any] = torch.load(folder / TRAINER_STATE, map_location="cpu", weights_only=True)
    return state


def prune(run: RunDir, config: TrainingConfig) -> None:
    """Keeps the newest, and of those not temporary the last `keep_last` and the best `keep_best`; deletes the rest."""
    steps = run.steps()
    keep = {
        steps[-1],
        *run.regular_steps()[-config.keep_last :],
        *run.best_steps(config.best_metric)[: config.keep_best],
    }
    for step in steps:
        if step not in keep:
            # meta.json goes first: without it the folder no longer counts as a checkpoint, should we be stopped here.
            (run.checkpoint(step) / META).unlink()
            shutil.rmtree(run.checkpoint(step))


def _write_meta(folder: Path, step: int, metrics: dict[str, float], **more: Any) -> None:
    hashes = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    meta = {"step": step, "metrics": metrics, "sha256": hashes, **more}
    (folder / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")


def _last_good(run: RunDir) -> str:
    steps = run.steps()
    return f"the last good checkpoint is step {steps[-1]}" if steps else "there is no earlier checkpoint"


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]

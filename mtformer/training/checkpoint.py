"""Save, find and load checkpoints.

A checkpoint is a folder that is written atomically:

    model.safetensors   the weights; tied weights are stored once
    trainer.pt          optimizer, scaler, random state, position, sums of the log window; with `ema_decay`, also the
                        weights before averaging. Loaded with weights_only=True, so it cannot execute code
    meta.json           step, dev metrics, environment, and the SHA-256 of these two files, of meta.json itself, and of
                        metrics.jsonl and samples.jsonl at the time of saving

Old checkpoints are deleted after the new one is saved. Resuming uses the latest intact one and renames damaged ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mtformer.config.schema import TrainingConfig
from mtformer.errors import CheckpointError, log
from mtformer.files import DamagedError, atomic_folder, clear_leftovers, delete_folder, read_meta, verify, write_meta
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir
from mtformer.training.history import log_checksum


def save_checkpoint(
    run: RunDir,
    step: int,
    weights: dict[str, Tensor],
    trainer_state: dict[str, Any],
    metrics: dict[str, float],
    made_with: dict[str, Any],
    is_temporary: bool = False,
) -> Path:
    """Save the checkpoint of a step atomically; raise CheckpointError if that fails.

    A temporary checkpoint of an interrupted run is only for resuming. It is deleted after the next checkpoint is saved,
    so a resumed run has the same checkpoints as an uninterrupted one. An existing checkpoint of this step is replaced.

    `weights` contains tied weights once; `trainer_state` contains only plain values and tensors; `metrics` are those on
    dev; `made_with` describes the data, versions and device.
    """
    target = run.checkpoint(step)
    remedy = f"{last_good(run)}. Free some space, or fix the cause, and continue with --resume"
    with _explain_errors(f"{target}: could not be saved", remedy):
        clear_leftovers(run.checkpoints)
        with atomic_folder(target) as folder:
            save_file(weights, folder / WEIGHTS)
            torch.save(trainer_state, folder / TRAINER_STATE)
            logs = {path.name: log_checksum(path) for path in (run.metrics, run.samples) if path.is_file()}
            write_meta(
                folder,
                step=step,
                metrics=metrics,
                made_with=made_with,
                is_temporary=is_temporary,
                logs=logs,
                adapted=run.is_adaptation,
            )
    return target


def save_averaged(
    run: RunDir, steps: list[int], weights: dict[str, Tensor], metrics: dict[str, float], is_chosen: bool = False
) -> None:
    """Save averaged weights next to the checkpoints, with their dev metrics (empty if not validated).

    If `is_chosen`, they are the default weights of the run even if a checkpoint has a better dev score.
    """
    remedy = "free some space, or fix the cause, and resume the run to average again"
    with _explain_errors(f"{run.averaged}: could not be saved", remedy), atomic_folder(run.averaged) as folder:
        save_file(weights, folder / WEIGHTS)
        write_meta(folder, step=steps[-1], metrics=metrics, steps=steps, is_chosen=is_chosen, adapted=run.is_adaptation)


def newest_good(run: RunDir) -> Path | None:
    """Return the latest intact checkpoint; None if there is no checkpoint.

    Leftovers of killed processes are deleted. Damaged checkpoints after it are renamed to `damaged-...`, with a warning
    for each. Raise CheckpointError if all are damaged (then none is renamed), or one cannot be read or renamed.
    """
    damaged: list[tuple[Path, str]] = []
    try:
        for folder in (run.path, run.checkpoints):
            clear_leftovers(folder)
        for folder in reversed(run.checkpoint_folders()):
            try:
                verify(folder, WEIGHTS, TRAINER_STATE)
            except DamagedError as error:
                damaged.append((folder, error.what))
                continue
            for other, what in damaged:
                aside = _set_aside(other)
                log.warning("%s: %s; kept as %s, resuming from %s", other, what, aside.name, folder.name)
            return folder
    except OSError as error:
        what = f"{error.filename or run.checkpoints}: {error.strerror or error}"
        raise CheckpointError(f"{what}; resuming needs read and write access to {run.path}") from error
    if damaged:
        newest, what = damaged[0]
        what = f"no intact checkpoint; damaged: {len(damaged)} ({newest.name}: {what})"
        raise CheckpointError(f"{run.checkpoints}: {what}; restore one from a copy, or start over with --overwrite")
    return None


def _set_aside(folder: Path) -> Path:
    """Rename a folder to the first unused name of `damaged-NAME`, `damaged-NAME-2`, ..."""
    number, aside = 1, folder.with_name(f"damaged-{folder.name}")
    while aside.exists():
        number += 1
        aside = folder.with_name(f"damaged-{folder.name}-{number}")
    return folder.rename(aside)


def load_trainer_state(folder: Path) -> dict[str, Any]:
    """Load the trainer state of a verified checkpoint; raise CheckpointError if it cannot be loaded."""
    path = folder / TRAINER_STATE
    with _explain_errors(f"{path}: cannot be loaded", "was it saved by another version of PyTorch?"):
        return torch.load(path, map_location="cpu", weights_only=True)


def prune(run: RunDir, config: TrainingConfig) -> None:
    """Keep the latest checkpoint and the `keep_last` latest and `keep_best` best regular ones; delete all others.

    Averaged weights are deleted unless they are of the latest regular checkpoint. A failed deletion logs a warning.
    """
    steps = run.steps()
    best, latest = run.best_steps(config.best_metric)[: config.keep_best], run.regular_steps()[-config.keep_last :]
    old = [run.checkpoint(step) for step in sorted({*steps}.difference(steps[-1:], latest, best))]
    with suppress(CheckpointError):
        old += [run.averaged] * (read_meta(run.averaged)["step"] != max(latest, default=0))
    for folder in old:
        try:
            delete_folder(folder)
        except OSError as error:
            log.warning("%s: the old checkpoint cannot be deleted (%s)", folder, error.strerror)


def last_good(run: RunDir) -> str:
    """Describe the latest checkpoint, for an error message."""
    steps = run.steps()
    if not steps:
        return "there is no earlier checkpoint"
    return f"the last good checkpoint is step {steps[-1]} ({run.checkpoint(steps[-1])})"


@contextmanager
def _explain_errors(what: str, remedy: str) -> Iterator[None]:
    """Raise a CheckpointError for any error: torch, safetensors, pickle and zipfile raise their own exceptions."""
    try:
        yield
    except Exception as error:
        first_line = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{what} ({first_line}); {remedy}") from error

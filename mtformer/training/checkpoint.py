"""Save, find and load checkpoints.

A checkpoint is a folder that is written atomically:

    model.safetensors   the weights; tied weights are stored once
    trainer.pt          optimizer, scaler, random state, position, sums of the log window; with `ema_decay`, also the
                        weights before averaging. Loaded with weights_only=True, so it cannot execute code
    meta.json           step, dev metrics, environment, and the SHA-256 of these two files, of meta.json itself, and of
                        metrics.jsonl and samples.jsonl at the time of saving

Old checkpoints are deleted after the new one is saved. Resuming uses the latest intact one and renames damaged ones.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mtformer.config.schema import TrainingConfig
from mtformer.errors import CheckpointError, log
from mtformer.files import (
    DamagedError,
    atomic_folder,
    clear_leftovers,
    delete_folder,
    move_folder,
    read_meta,
    unchanged,
    verify,
    write_meta,
)
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir
from mtformer.training.history import log_checksum


@dataclass(frozen=True)
class Checkpoint:
    """Contents of a checkpoint that is to be saved."""

    step: int
    weights: dict[str, Tensor]
    """The weights; tied weights once."""
    trainer_state: dict[str, Any]
    """State of the training, see `training.state`: plain values and tensors."""
    metrics: dict[str, float]
    """Metrics on dev."""
    made_with: dict[str, Any]
    """Description of the data, versions and device."""
    is_temporary: bool = False
    """True for the checkpoint of an interrupted run, which is only for resuming. It is deleted after the next one is
    saved, so a resumed run has the same checkpoints as an uninterrupted one."""


def save_checkpoint(run: RunDir, checkpoint: Checkpoint, logs: dict[str, Any] | None = None) -> Path:
    """Save a checkpoint atomically and return its folder; raise CheckpointError if that fails.

    An existing checkpoint of this step is replaced.

    Args:
        run: run directory.
        checkpoint: contents of the checkpoint.
        logs: result of `log_checksums` at its step; default: those of now.
    """
    if logs is None:
        logs = log_checksums(run, checkpoint.step)
    target = run.checkpoint(checkpoint.step)
    with _explain_save_errors(run, checkpoint.step):
        clear_leftovers(run.checkpoints)
        with atomic_folder(target) as folder:
            save_file(checkpoint.weights, folder / WEIGHTS)
            torch.save(checkpoint.trainer_state, folder / TRAINER_STATE)
            write_meta(
                folder,
                step=checkpoint.step,
                metrics=checkpoint.metrics,
                made_with=checkpoint.made_with,
                is_temporary=checkpoint.is_temporary,
                logs=logs,
                adapted=run.is_adaptation,
            )
    return target


def log_checksums(run: RunDir, step: int) -> dict[str, Any]:
    """Return the results of `log_checksum` by file name; raise CheckpointError, which names the step, on an error."""
    with _explain_save_errors(run, step):
        log_files = [path for path in (run.metrics, run.samples) if path.is_file()]
        return {path.name: log_checksum(path) for path in log_files}


@contextmanager
def _explain_save_errors(run: RunDir, step: int) -> Iterator[None]:
    """Raise a CheckpointError for any error while the checkpoint of a step is saved."""
    remedy = f"{last_good(run)}. Free some space, or fix the cause, and continue with --resume"
    with _explain_errors(f"{run.checkpoint(step)}: could not be saved", remedy):
        yield


def save_averaged(
    run: RunDir, steps: list[int], weights: dict[str, Tensor], metrics: dict[str, float], is_chosen: bool = False
) -> None:
    """Save averaged weights next to the checkpoints.

    Args:
        run: run directory.
        steps: steps of the averaged checkpoints, ascending.
        weights: averaged weights by name.
        metrics: dev metrics of the averaged weights; empty if they were not validated.
        is_chosen: use them as the default weights of the run, even if a checkpoint has a better dev score.
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
    try:
        for folder in (run.path, run.checkpoints):
            clear_leftovers(folder)
        intact, damaged = _find_intact(run)
        if intact is not None:
            for folder, damage in damaged:
                aside = _set_aside(folder)
                log.warning("%s: %s; kept as %s, resuming from %s", folder, damage, aside.name, intact.name)
            return intact
    except OSError as error:
        place = error.filename or run.checkpoints
        cause = error.strerror or error
        message = f"{place}: {cause}; resuming needs read and write access to {run.path}"
        raise CheckpointError(message) from error

    if damaged:
        newest, damage = damaged[0]
        raise CheckpointError(
            f"{run.checkpoints}: no intact checkpoint; damaged: {len(damaged)} ({newest.name}: {damage}); restore one "
            "from a copy, or start over with --overwrite"
        )
    return None


def _find_intact(run: RunDir) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Return the latest intact checkpoint, and the damaged ones after it, each with a description of the damage."""
    damaged: list[tuple[Path, str]] = []
    for folder in reversed(run.checkpoint_folders()):
        try:
            verify(folder, WEIGHTS, TRAINER_STATE)
        except DamagedError as error:
            damaged.append((folder, error.what))
        else:
            return folder, damaged
    return None, damaged


def _set_aside(folder: Path) -> Path:
    """Rename a folder to the first unused name of `damaged-NAME`, `damaged-NAME-2`, ..."""
    aside = folder.with_name(f"damaged-{folder.name}")
    number = 1
    while aside.exists():
        number += 1
        aside = folder.with_name(f"damaged-{folder.name}-{number}")
    move_folder(folder, aside)
    return aside


@dataclass(frozen=True)
class LoadedCheckpoint:
    """Contents of a checkpoint from which a run is resumed, without the weights."""

    folder: Path
    trainer_state: dict[str, Any]
    """See `Checkpoint`."""
    made_with: dict[str, Any]
    """Description of the data, versions and device."""
    is_temporary: bool
    logs: dict[str, Any]
    """Results of `log_checksum` by file name."""


def load_checkpoint(folder: Path, load_weights: Callable[[Path], object]) -> LoadedCheckpoint:
    """Verify and load a checkpoint, whose weights are loaded with `load_weights`.

    Raise CheckpointError if it is damaged, or changes meanwhile.
    """
    with unchanged(folder / WEIGHTS, folder / TRAINER_STATE):
        # `newest_good` verified them before the data were prepared, which may have taken hours.
        meta = verify(folder, WEIGHTS, TRAINER_STATE)
        trainer_state = load_trainer_state(folder)
        load_weights(folder / WEIGHTS)
    return LoadedCheckpoint(folder, trainer_state, meta["made_with"], meta["is_temporary"], meta["logs"])


def load_trainer_state(folder: Path) -> dict[str, Any]:
    """Load the trainer state of a verified checkpoint; raise CheckpointError if it cannot be loaded."""
    path = folder / TRAINER_STATE
    remedy = "if another version of PyTorch saved it, install that version; otherwise, move this checkpoint away"
    with _explain_errors(f"{path}: cannot be loaded", remedy):
        return torch.load(path, map_location="cpu", weights_only=True)


def prune(run: RunDir, config: TrainingConfig) -> None:
    """Keep the latest checkpoint and the `keep_last` latest and `keep_best` best regular ones; delete all others.

    Averaged weights are deleted unless they are of the latest regular checkpoint. A failed deletion logs a warning.
    """
    steps = run.steps()
    best_steps = run.best_steps(config.best_metric)[: config.keep_best]
    latest_steps = run.regular_steps()[-config.keep_last :]
    kept_steps = {*steps[-1:], *best_steps, *latest_steps}
    old_steps = sorted(set(steps) - kept_steps)
    old_folders = [run.checkpoint(step) for step in old_steps]

    with suppress(CheckpointError):  # without averaged weights
        step_of_average = read_meta(run.averaged)["step"]
        if step_of_average != max(latest_steps, default=0):
            old_folders.append(run.averaged)

    for folder in old_folders:
        try:
            delete_folder(folder)
        except OSError as error:
            log.warning(
                "%s: the old checkpoint cannot be deleted (%s); delete it when no process uses it",
                folder,
                error.strerror,
            )


def last_good(run: RunDir) -> str:
    """Describe the latest checkpoint, for an error message."""
    steps = run.steps()
    if not steps:
        return "there is no earlier checkpoint"
    last_step = steps[-1]
    return f"the last good checkpoint is step {last_step} ({run.checkpoint(last_step)})"


@contextmanager
def _explain_errors(failure: str, remedy: str) -> Iterator[None]:
    """Raise a CheckpointError for any error: torch, safetensors, pickle and zipfile raise their own exceptions."""
    try:
        yield
    except Exception as error:
        description = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror:  # without the file, which `failure` names
            description = f"[Errno {error.errno}] {error.strerror}"
        first_line = description.splitlines()[0]
        raise CheckpointError(f"{failure} ({first_line}); {remedy}") from error

"""After a process is killed at any time, checkpoints are complete or absent; disk errors do not destroy any."""

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from killing import killed_at_each_stage
from toy_run import names
from toy_training import toy_config

from mtformer.errors import CheckpointError
from mtformer.files import META, delete_folder, read_meta, verify
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir
from mtformer.training import checkpoint
from mtformer.training.checkpoint import (
    Checkpoint,
    load_trainer_state,
    newest_good,
    prune,
    save_averaged,
    save_checkpoint,
)
from mtformer.training.history import cut_after
from mtformer.weights import read_weights

LOSSES = {1: 0.5, 2: 3.0, 3: 2.0, 4: 2.5}
"""Dev losses by step; step 1 is the best."""
CONFIG = toy_config(keep_last=1, keep_best=1, best_metric="loss").training


def save(run: RunDir, step: int, is_temporary: bool = False) -> None:
    """Save a checkpoint whose weights and state equal its step."""
    weights = {"weight": torch.full((2, 2), float(step)), "bias": torch.full((2,), float(step))}
    metrics = {} if is_temporary else {"loss": LOSSES[step]}
    save_checkpoint(run, Checkpoint(step, weights, {"step": step}, metrics, {"torch": "2"}, is_temporary))


def assert_intact(folder: Path, step: int) -> None:
    """Check that the checkpoint passes verification and contains what was saved at its step."""
    assert verify(folder, WEIGHTS, TRAINER_STATE)["step"] == step
    assert load_trainer_state(folder) == {"step": step}
    assert all((weight == step).all() for weight in read_weights(folder / WEIGHTS).values())


@pytest.fixture
def start_again(tmp_path: Path) -> Callable[[Callable[[RunDir], None]], tuple[RunDir, Callable[[], None]]]:
    """Return a function that creates a run, and returns it and a function that restores its initial state."""

    def make(fill: Callable[[RunDir], None]) -> tuple[RunDir, Callable[[], None]]:
        template, run = RunDir(tmp_path / "template"), RunDir(tmp_path / "run")
        fill(template)

        def prepare() -> None:
            shutil.rmtree(run.path, ignore_errors=True)
            shutil.copytree(template.path, run.path)

        return run, prepare

    return make


StartAgain = Callable[[Callable[[RunDir], None]], tuple[RunDir, Callable[[], None]]]


# ---- killed ---------------------------------------------------------------------------------------------------------


def test_killed_while_saving_and_pruning(start_again: StartAgain) -> None:
    def fill(run: RunDir) -> None:
        for step in (1, 2, 3):
            save(run, step)

    def act() -> None:
        save(run, 4)
        prune(run, CONFIG)

    run, prepare = start_again(fill)
    stages, latest_steps = [], []
    for stage in killed_at_each_stage(prepare, act):
        newest = run.steps()[-1]
        stages.append(stage)
        latest_steps.append(newest)
        assert run.best_steps("loss")[0] == 1
        for step in run.steps():
            assert_intact(run.checkpoint(step), step)
        assert newest_good(run) == run.checkpoint(newest)
        assert set(names(run.checkpoints)) <= {run.checkpoint(step).name for step in LOSSES}  # leftovers are deleted
        if newest == 3:
            save(run, 4)
        prune(run, CONFIG)
        assert run.steps() == [1, 4]
        assert names(run.checkpoints) == [run.checkpoint(step).name for step in (1, 4)]
    assert latest_steps == sorted(latest_steps)
    assert set(latest_steps) == {3, 4}
    assert {"mkdir", "serialize_file", "fsync", "rename", "unlink", "rmdir"} <= set(stages)
    assert len(stages) > 30


def test_killed_while_a_temporary_checkpoint_is_replaced(start_again: StartAgain) -> None:
    def fill(run: RunDir) -> None:
        save(run, 3)
        save(run, 4, is_temporary=True)

    run, prepare = start_again(fill)
    were_temporary = []
    for _ in killed_at_each_stage(prepare, lambda: save(run, 4)):
        assert newest_good(run) == run.checkpoint(4)
        assert_intact(run.checkpoint(4), 4)
        assert names(run.checkpoints) == [run.checkpoint(3).name, run.checkpoint(4).name]
        were_temporary.append(read_meta(run.checkpoint(4))["is_temporary"])
    assert were_temporary == sorted(were_temporary, reverse=True)
    assert not were_temporary[-1]


def test_killed_while_the_average_is_replaced(start_again: StartAgain) -> None:
    def fill(run: RunDir) -> None:
        save_averaged(run, [1, 2], {"weight": torch.full((3,), 2.0)}, {})

    run, prepare = start_again(fill)
    seen = set()
    for _ in killed_at_each_stage(prepare, lambda: save_averaged(run, [3, 4], {"weight": torch.full((3,), 4.0)}, {})):
        assert newest_good(run) is None
        step = verify(run.averaged, WEIGHTS)["step"]
        assert (read_weights(run.averaged / WEIGHTS)["weight"] == step).all()
        assert names(run.checkpoints) == ["averaged"]
        seen.add(step)
    assert seen == {2, 4}


def test_killed_while_deleting_leftovers_and_renaming_damaged_checkpoints(start_again: StartAgain) -> None:
    """The run has a damaged step 4, a half-written step 3, and the temporary checkpoint that step 3 was to replace."""

    def fill(run: RunDir) -> None:
        for step in (1, 3, 4):
            save(run, step)
        weights = run.checkpoint(4) / WEIGHTS
        weights.write_bytes(weights.read_bytes()[:-1])
        gone = f"@{os.uname().nodename}.{_unused_pid()}"
        run.checkpoint(3).rename(run.checkpoints / f".{run.checkpoint(3).name}{gone}.old")
        shutil.copytree(run.checkpoint(1), run.checkpoints / f".{run.checkpoint(3).name}{gone}.tmp")
        (run.path / f".config.yaml{gone}.tmp").write_text("half")

    run, prepare = start_again(fill)
    for _ in killed_at_each_stage(prepare, lambda: newest_good(run)):
        assert newest_good(run) == run.checkpoint(3)
        assert_intact(run.checkpoint(3), 3)
        assert names(run.checkpoints) == ["damaged-step-00000004", "step-00000001", "step-00000003"]
        assert names(run.checkpoints / "damaged-step-00000004") == sorted([META, WEIGHTS, TRAINER_STATE])
        assert names(run.path) == ["checkpoints"]


def test_killed_while_log_lines_are_removed(start_again: StartAgain) -> None:
    lines = [json.dumps({"kind": "train", "step": step}) + "\n" for step in range(1, 9)]

    def fill(run: RunDir) -> None:
        run.path.mkdir()
        run.metrics.write_text("".join(lines) + "{")

    run, prepare = start_again(fill)
    seen = set()
    for _ in killed_at_each_stage(prepare, lambda: cut_after(run.metrics, 5, with_dev=True)):
        seen.add(run.metrics.read_text())
        newest_good(run)
        assert names(run.path) == ["metrics.jsonl"]
        cut_after(run.metrics, 5, with_dev=True)
        assert run.metrics.read_text() == "".join(lines[:5])
    assert seen == {"".join(lines) + "{", "".join(lines[:5])}


def test_saving_deletes_leftovers_of_all_steps(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    save(run, 1)
    shutil.copytree(run.checkpoint(1), run.checkpoints / f".step-00000002@{os.uname().nodename}.{_unused_pid()}.tmp")
    save(run, 3)
    assert names(run.checkpoints) == ["step-00000001", "step-00000003"]


def _unused_pid() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


# ---- disk errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["save_file", "write_meta"])
def test_disk_errors_are_reported_and_nothing_is_lost(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    save(run, 3)
    save(run, 4, is_temporary=True)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint, stage, refuse)
    with pytest.raises(CheckpointError) as error:
        save(run, 4)
    message = str(error.value)
    assert message.startswith(f"{run.checkpoint(4)}: could not be saved ([Errno 28] No space left on device)")
    assert f"the last good checkpoint is step 4 ({run.checkpoint(4)})" in message
    assert "--resume" in message
    assert "\n" not in message
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_a_failed_rename_restores_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path)
    save(run, 4, is_temporary=True)
    rename, calls = os.rename, []

    def refuse_second(src: Path, dst: Path) -> None:
        calls.append(dst)
        if len(calls) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(src, dst)

    monkeypatch.setattr(os, "rename", refuse_second)
    with pytest.raises(CheckpointError, match="could not be saved"):
        save(run, 4)
    assert_intact(run.checkpoint(4), 4)
    assert names(run.checkpoints) == [run.checkpoint(4).name]


@pytest.mark.parametrize(("module", "refused"), [(Path, "iterdir"), (os, "rename")])
def test_a_folder_without_permissions(
    tmp_path: Path, module: object, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run")
    save(run, 3)
    save(run, 4)
    weights = run.checkpoint(4) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(module, refused, refuse)
        with pytest.raises(CheckpointError, match=rf"^{run.path}.*: Permission denied; .* needs read and write access"):
            newest_good(run)
    assert names(run.checkpoints) == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize("is_shorter", [True, False])
def test_the_average_of_a_shorter_or_longer_training_is_deleted(is_shorter: bool, tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    save(run, 1)
    save(run, 2)
    save_averaged(run, [1, 2], {"w": torch.ones(2)}, {})
    prune(run, CONFIG)
    assert run.averaged.exists()
    if is_shorter:
        save(run, 3)
    else:
        shutil.rmtree(run.checkpoint(2))  # to train the last steps again
    prune(run, CONFIG)
    assert not run.averaged.exists()


def test_an_old_checkpoint_that_cannot_be_deleted_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path)
    for step in (1, 2, 3, 4):
        save(run, step)

    def refuse(path: Path) -> None:
        if path == run.checkpoint(2):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        delete_folder(path)

    monkeypatch.setattr(checkpoint, "delete_folder", refuse)
    prune(run, CONFIG)
    assert run.steps() == [1, 2, 4]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    problem = "the old checkpoint cannot be deleted (Device or resource busy)"
    assert warnings == [f"{run.checkpoint(2)}: {problem}; delete it when no process uses it"]

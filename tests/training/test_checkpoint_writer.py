"""Checkpoints that a thread writes are those that training would write itself, and their errors stop it."""

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from killing import killed_at_each_stage
from toy_run import Killed, Quiet, assert_same_run, finished, resumed, trainer
from toy_training import toy_config

from mtformer.errors import CheckpointError, InterruptedRunError, MtformerError
from mtformer.files import read_meta, verify
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir
from mtformer.training import checkpoint, checkpoint_writer, loop
from mtformer.training.checkpoint import Checkpoint, load_trainer_state, newest_good
from mtformer.training.checkpoint_writer import CheckpointWriter
from mtformer.weights import read_weights

CONFIG = toy_config(keep_last=1, best_metric="loss").training
WAIT_SECONDS = 60.0
"""Time after which a test fails that would otherwise wait forever."""


def checkpoint_of(step: int) -> Checkpoint:
    """Return a checkpoint whose weights and state equal its step."""
    value = torch.full((2, 2), float(step))
    moments: dict[str, Any] = {"state": [{"exp_avg": value.clone()}, (1, 2)], "step": step}
    return Checkpoint(step, {"weight": value}, moments, {"loss": 1.0 / step}, {"torch": "2"})


def assert_intact(run: RunDir, step: int) -> None:
    folder = run.checkpoint(step)
    assert verify(folder, WEIGHTS, TRAINER_STATE)["step"] == step
    state = load_trainer_state(folder)
    assert state["step"] == step
    assert state["state"][1] == (1, 2)
    assert (state["state"][0]["exp_avg"] == step).all()
    assert (read_weights(folder / WEIGHTS)["weight"] == step).all()


@pytest.fixture
def in_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU write in the background, like a GPU."""
    monkeypatch.setattr(loop, "BACKGROUND_DEVICES", ("cpu",))


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.usefixtures("in_background")
def test_a_run_is_the_same_as_without_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"max_steps": 12, "validate_every": 2, "keep_last": 2, "ema_decay": 0.5, "best_metric": "loss"}
    background = finished(tmp_path / "background", **settings)
    monkeypatch.setattr(loop, "BACKGROUND_DEVICES", ())
    assert_same_run(background, finished(tmp_path / "alone", **settings))


@pytest.mark.usefixtures("in_background")
def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first checkpoint, of step 4, waits until step 5 is done, whose values it must not contain."""
    is_past = threading.Event()
    save = checkpoint_writer.save_checkpoint

    def save_later(*arguments: Any) -> Path:
        assert is_past.wait(WAIT_SECONDS)
        return save(*arguments)

    class Passing(Quiet):
        def advance(self, step: int, *rest: Any) -> None:
            if step == 5:
                is_past.set()

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", save_later)
    trainer(toy_config(max_steps=8), tmp_path / "later", Passing()).train()
    monkeypatch.setattr(loop, "BACKGROUND_DEVICES", ())
    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", save)
    assert_same_run(RunDir(tmp_path / "later"), finished(tmp_path / "alone", max_steps=8))
    logs = read_meta(RunDir(tmp_path / "later").checkpoint(4))["logs"]["metrics.jsonl"]
    lines = (tmp_path / "later" / "metrics.jsonl").read_bytes()[: logs["bytes"]].splitlines()
    assert b'"step": 4' in lines[-1]


def test_a_state_that_changes_later_is_saved_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_changed = threading.Event()
    save = checkpoint_writer.save_checkpoint

    def save_later(*arguments: Any) -> Path:
        assert is_changed.wait(WAIT_SECONDS)
        return save(*arguments)

    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", save_later)
    run = RunDir(tmp_path)
    with CheckpointWriter(run, in_background=True) as writer:
        given = checkpoint_of(1)
        writer.write(given, CONFIG)
        given.trainer_state["state"][0]["exp_avg"].zero_()
        given.trainer_state["step"] = 7
        is_changed.set()
    assert_intact(run, 1)


def test_a_checkpoint_waits_for_the_previous_one_and_old_ones_are_deleted_after_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with CheckpointWriter(run, in_background=True) as writer:
        for step in range(1, 6):
            writer.write(checkpoint_of(step), CONFIG)
            assert step == 1 or (run.checkpoint(step - 1) / WEIGHTS).exists()
        writer.finish()
        assert run.steps() == [5]
    assert_intact(run, 5)


def test_a_killed_process_leaves_an_intact_checkpoint(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")

    def prepare() -> None:
        for path in sorted(run.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        with CheckpointWriter(run, in_background=False) as writer:
            writer.write(checkpoint_of(1), CONFIG)

    def act() -> None:
        with CheckpointWriter(run, in_background=True) as writer:
            for step in (2, 3):
                writer.write(checkpoint_of(step), CONFIG)

    newest_steps = []
    for _ in killed_at_each_stage(prepare, act):
        newest = newest_good(run)
        assert newest is not None
        step = run.steps()[-1]
        assert newest == run.checkpoint(step)
        for kept in run.steps():
            assert_intact(run, kept)
        newest_steps.append(step)
    assert newest_steps == sorted(newest_steps)
    assert set(newest_steps) == {1, 2, 3}
    assert len(newest_steps) > 40


def error_of(action: Callable[[], object]) -> str:
    with pytest.raises(CheckpointError) as caught:
        action()
    return str(caught.value)


@pytest.mark.parametrize("stage", ["save_file", "write_meta", "log_checksum"])
def test_a_full_disk_stops_training_with_the_same_line(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 4 is saved, that of step 8 is not."""
    messages = []
    for devices in ((), ("cpu",)):
        folder = tmp_path / f"run {len(devices)}"
        monkeypatch.setattr(loop, "BACKGROUND_DEVICES", devices)
        trainer(toy_config(max_steps=4), folder).train()
        longer = resumed(toy_config(max_steps=40), folder)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, stage, refuse)
            messages.append(error_of(longer.train).replace(str(folder), "RUN"))
        assert longer.position.step < 40
        assert RunDir(folder).steps() == [4]
        resumed(toy_config(max_steps=12), folder).train()
        assert RunDir(folder).steps()[-1] == 12
    assert messages[0] == messages[1]
    assert messages[0].startswith("RUN/checkpoints/step-00000008: could not be saved ([Errno 28] No space left")
    assert "the last good checkpoint is step 4" in messages[0]


@pytest.mark.usefixtures("in_background")
def test_an_interrupted_run_has_its_checkpoint(tmp_path: Path) -> None:
    """The signal comes with the checkpoint of step 4, or after step 6, for which a temporary one is saved."""
    whole = finished(tmp_path / "whole")
    for step in (4, 6):
        folder = tmp_path / f"stopped {step}"
        with pytest.raises(InterruptedRunError):
            trainer(toy_config(), folder, Quiet(signal_at=step)).train()
        assert newest_good(RunDir(folder)) == RunDir(folder).checkpoint(step)
        resumed(toy_config(), folder).train()
        assert_same_run(whole, RunDir(folder))


@pytest.mark.usefixtures("in_background")
def test_an_interrupted_run_whose_checkpoint_cannot_be_saved_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "save_file", refuse)
    stopped = trainer(toy_config(), tmp_path / "run", Quiet(signal_at=2, number=signal.SIGINT))
    assert "step-00000002: could not be saved" in error_of(stopped.train)


def write_and_raise(run: RunDir, step: int, error: BaseException) -> None:
    with CheckpointWriter(run, in_background=True) as writer:
        writer.write(checkpoint_of(step), CONFIG)
        raise error


def test_another_error_is_raised_after_the_checkpoint_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(MtformerError, match="diverged"):
        write_and_raise(run, 1, MtformerError("diverged"))
    assert_intact(run, 1)

    monkeypatch.setattr(checkpoint, "save_file", refuse)
    with pytest.raises(MtformerError, match="diverged"):
        write_and_raise(run, 2, MtformerError("diverged"))
    assert "step-00000002: could not be saved" in caplog.text


def test_a_process_that_is_interrupted_at_once_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", lambda *_: is_over.wait(WAIT_SECONDS))
    with pytest.raises(Killed):
        write_and_raise(RunDir(tmp_path), 1, Killed())
    [thread] = [thread for thread in threading.enumerate() if thread.name == "checkpoint"]
    assert thread.is_alive()
    assert thread.daemon, "it does not delay the exit"
    is_over.set()
    thread.join(WAIT_SECONDS)

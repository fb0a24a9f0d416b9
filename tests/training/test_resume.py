"""A run that is interrupted and resumed is bitwise equal to an uninterrupted run, even after damage to its files."""

import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_run import Killed, Quiet, assert_same_run, finished, given, names, resumed, state, trainer
from toy_training import toy_batch, toy_config

from mtformer.data.batching.batches import Batch
from mtformer.errors import CheckpointError, InterruptedRunError, MtformerError
from mtformer.files import META, read_meta, write_meta
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir
from mtformer.training import checkpoint_writer
from mtformer.training.checkpoint import Checkpoint, newest_good, save_checkpoint
from mtformer.training.history import read_records
from mtformer.training.loop import Trainer
from mtformer.training.resuming import resume_trainer
from mtformer.training.validation import Decoded

# ---- stopped or killed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"accumulation_steps": 2},
        {"ema_decay": 0.9},
        {"consistency": "simcut", "token_dropout": 0.1},
        {"optimizer": "muon"},
    ],
)
@pytest.mark.parametrize("stop_at", [1, 3, 4, 6, 9])
def test_stopped_and_resumed_run_is_the_same(tmp_path: Path, stop_at: int, more: dict[str, Any]) -> None:
    settings = {"max_steps": 9, "log_every": 4, **more}
    whole = finished(tmp_path / "whole", **settings)
    config = toy_config(**settings)
    with pytest.raises(InterruptedRunError) as stopped:
        trainer(config, tmp_path / "halves", Quiet(signal_at=stop_at)).train()
    assert (stopped.value.step, stopped.value.signal_number) == (stop_at, signal.SIGTERM)
    assert RunDir(tmp_path / "halves").steps()[-1] == stop_at
    resumed(config, tmp_path / "halves").train()
    assert whole.steps() == [4, 8, 9]
    assert_same_run(whole, RunDir(tmp_path / "halves"))


@pytest.mark.parametrize("kill_at", [1, 3, 4, 5, 7, 8])
def test_killed_and_resumed_run_is_the_same(tmp_path: Path, kill_at: int) -> None:
    whole = finished(tmp_path / "whole")
    with pytest.raises(Killed):
        trainer(toy_config(), tmp_path / "halves", Quiet(kill_at=kill_at)).train()
    resumed(toy_config(), tmp_path / "halves").train()
    assert_same_run(whole, RunDir(tmp_path / "halves"))


@pytest.mark.parametrize("stop_at", [3, 8])
def test_killed_between_the_dev_line_and_the_checkpoint(
    tmp_path: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also test resuming from a temporary checkpoint of the same step, whose validation is repeated."""
    whole, run = finished(tmp_path / "whole", max_steps=8), RunDir(tmp_path / "halves")
    with pytest.raises(InterruptedRunError):
        trainer(toy_config(), run.path, dev_batches=stops_within(run, stop_at)).train()

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer, "save_checkpoint", kill)
        with pytest.raises(Killed):
            resumed(toy_config(), run.path).train()
    assert json.loads(run.metrics.read_text().splitlines()[-1])["kind"] == "dev"
    resumed(toy_config(), run.path).train()
    assert_same_run(whole, run)


@pytest.mark.parametrize("kill_at", [4, 8])
def test_killed_between_the_samples_and_the_checkpoint(
    tmp_path: Path, kill_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run = tmp_path / "whole", RunDir(tmp_path / "halves")
    validated(trainer, whole, Validation()).train()

    def save(run: RunDir, checkpoint: Checkpoint) -> None:
        kill() if checkpoint.step == kill_at else save_checkpoint(run, checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer, "save_checkpoint", save)
        with pytest.raises(Killed):
            validated(trainer, run.path, Validation()).train()
    assert read_records(run.samples)[-1]["step"] == kill_at
    validated(resumed, run.path, Validation()).train()
    assert [record["step"] for record in read_records(run.samples)] == [4, 8]
    assert_same_run(RunDir(whole), run)


def test_killed_before_old_checkpoints_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also test this at the end of the run, after the last checkpoint is saved."""
    whole, run = finished(tmp_path / "whole", keep_last=1, max_steps=8), RunDir(tmp_path / "halves")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer, "prune", lambda run, config: kill() if run.steps()[-1] == 8 else None)
        with pytest.raises(Killed):
            trainer(toy_config(keep_last=1, max_steps=8), run.path).train()
    assert run.steps() == [4, 8]
    resumed(toy_config(keep_last=1, max_steps=8), run.path).train()
    assert_same_run(whole, run)


def kill(*_: object, **__: object) -> None:
    raise Killed


def stops_within(run: RunDir, step: int) -> Callable[[], Iterator[Batch]]:
    """Return a function that yields dev batches and sends SIGTERM in the first validation at or after a step."""

    def dev_batches() -> Iterator[Batch]:
        last = json.loads(run.metrics.read_text().splitlines()[-1])
        if last["step"] >= step:
            os.kill(os.getpid(), signal.SIGTERM)
        yield toy_batch(99)

    return dev_batches


@pytest.mark.parametrize(
    "tear",
    [
        *(
            lambda data, torn=torn: data + torn
            for torn in (b'{"kind": "tr', b'{"kind": "dev", "step": 4}', b"\0\0\0", b'{"kind": "train"}\n[]\n')
        ),
        lambda data: data[:-1],  # the line end is missing
    ],
)
def test_incomplete_lines_do_not_change_the_resumed_run(tmp_path: Path, tear: Callable[[bytes], bytes]) -> None:
    whole, run = finished(tmp_path / "whole", max_steps=6), RunDir(tmp_path / "halves")
    with pytest.raises(InterruptedRunError):
        trainer(toy_config(max_steps=6), run.path, Quiet(signal_at=3)).train()
    run.metrics.write_bytes(tear(run.metrics.read_bytes()))
    resumed(toy_config(max_steps=6), run.path).train()
    assert_same_run(whole, run)


def test_the_count_of_skipped_steps_is_restored(tmp_path: Path) -> None:
    def with_bad_gradients(subject: Trainer) -> Trainer:
        subject.step.model.decoder_norm.weight.register_hook(lambda grad: grad * float("nan"))
        return subject

    config = toy_config(max_steps=100, validate_every=50)
    with pytest.raises(InterruptedRunError):
        with_bad_gradients(trainer(config, tmp_path, Quiet(signal_at=15))).train()
    with pytest.raises(MtformerError, match="step 20: the gradient was not finite 20 times in a row"):
        with_bad_gradients(resumed(config, tmp_path)).train()


def test_no_checkpoint_is_saved_after_too_many_skipped_steps(tmp_path: Path) -> None:
    """On a GPU, the count is checked only when a log line is written, and a checkpoint may be due earlier."""
    subject = trainer(toy_config(max_steps=4), tmp_path)
    subject.step.skipped_in_a_row.fill_(25)
    with pytest.raises(MtformerError, match="not finite 25 times in a row"):
        subject._save({})
    assert subject.run.steps() == []


def test_memory_limit_is_restored_on_the_same_machine_only(tmp_path: Path) -> None:
    subject = trainer(toy_config(max_steps=4), tmp_path)
    subject.step.max_padded_tokens = 30
    subject.train()
    assert resumed(toy_config(), tmp_path).step.max_padded_tokens == 30
    elsewhere = trainer(toy_config(), tmp_path)
    elsewhere.made_with = {**subject.made_with, "device": "larger"}
    resume_trainer(elsewhere, newest_good(subject.run))
    assert elsewhere.step.max_padded_tokens is None


# ---- stopped during validation --------------------------------------------------------------------------------------


class Validation:
    """Dev batches and weight-dependent decoding that record their progress and send a signal at a given point."""

    def __init__(self, stop_at: tuple[str, int] | None = None) -> None:
        self.stop_at = stop_at
        self.done: list[tuple[str, int]] = []
        self.model: torch.nn.Module | None = None

    def reach(self, *place: str | int) -> None:
        self.done.append(place)  # type: ignore[arg-type]  # always a name and a number
        if place == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    def dev_batches(self) -> Iterator[Batch]:
        for number in range(4):
            self.reach("dev", number)
            yield toy_batch(99 + number)

    def decode(self, progress: Callable[[int], object]) -> Decoded:
        assert self.model is not None
        for number in range(3):
            self.reach("decode", number)
            progress(1)
        value = sum(float(p.detach().abs().sum()) for p in self.model.parameters())
        return Decoded({"bleu": value}, [("source", "reference", str(value))])


def validated(make: Callable[..., Trainer], folder: Path, validation: Validation, **settings: object) -> Trainer:
    subject = make(toy_config(**settings), folder, decode=validation.decode, dev_batches=validation.dev_batches)
    validation.model = subject.step.model
    return subject


@pytest.mark.parametrize("place", [("dev", 0), ("dev", 2), ("decode", 0), ("decode", 1)])
@pytest.mark.parametrize(
    ("settings", "stops"),
    [
        ({"max_steps": 10, "patience": 2}, (4, 8)),
        ({"max_steps": 4}, (4,)),  # last step
        ({"max_steps": 100, "max_epochs": 1, "validate_every": 50}, (5,)),  # end of the data
    ],
)
def test_an_abandoned_validation_is_repeated(
    tmp_path: Path, settings: dict[str, object], stops: tuple[int, ...], place: tuple[str, int]
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    validated(trainer, whole, Validation(), **settings).train()
    make: Callable[..., Trainer] = trainer
    for step in stops:
        validation = Validation(place)
        with pytest.raises(InterruptedRunError) as stopped:
            validated(make, halves, validation, **settings).train()
        assert stopped.value.step == step
        assert validation.done[-1] in (place, (place[0], place[1] + 1))  # only work that was already started
        assert read_meta(RunDir(halves).checkpoint(step))["is_temporary"]
        validated(resumed, halves, Validation(), **{**settings, "max_steps": step}).train()
        make = resumed
    validated(resumed, halves, Validation(), **settings).train()
    assert_same_run(RunDir(whole), RunDir(halves))


def test_a_validation_may_be_stopped_repeatedly(tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    validated(trainer, whole, Validation(), max_steps=4).train()
    for make in (trainer, resumed, resumed):
        with pytest.raises(InterruptedRunError):
            validated(make, halves, Validation(("decode", 1)), max_steps=4).train()
    validated(resumed, halves, Validation(), max_steps=4).train()
    assert_same_run(RunDir(whole), RunDir(halves))


def test_a_signal_after_the_last_checkpoint_ends_the_run(tmp_path: Path) -> None:
    """Later work, such as computing test scores, must not start."""
    validation = Validation()
    subject = validated(trainer, tmp_path, validation, max_steps=4)
    subject.best_score.update = lambda *_: os.kill(os.getpid(), signal.SIGTERM)  # type: ignore[method-assign]
    with pytest.raises(InterruptedRunError):
        subject.train()
    assert RunDir(tmp_path).regular_steps() == [4]
    again = validated(resumed, tmp_path, validation, max_steps=4)
    validation.done.clear()
    assert again.train().step == 4
    assert validation.done == []


# ---- damaged checkpoints --------------------------------------------------------------------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    file.write_bytes(data)


def change_a_metric(file: Path) -> None:
    meta = json.loads((file.parent / META).read_text())
    meta["metrics"]["loss"] = 0.0
    (file.parent / META).write_text(json.dumps(meta))


def become_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES = [
    *((harm, name) for harm in (cut, flip, Path.unlink, become_a_folder) for name in (WEIGHTS, TRAINER_STATE, META)),
    (change_a_metric, META),
    (lambda file: shutil.rmtree(file.parent) or file.parent.mkdir(), META),
    (lambda file: file.write_text("[]"), META),
]


@pytest.mark.parametrize(("harm", "name"), DAMAGES)
def test_a_damaged_latest_checkpoint_is_renamed_and_the_previous_one_used(
    tmp_path: Path, harm: Callable[[Path], object], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole, run = finished(tmp_path / "whole", max_steps=9), finished(tmp_path / "halves", max_steps=9)
    harm(run.checkpoint(9) / name)
    content = {path.name: path.is_file() and path.read_bytes() for path in run.checkpoint(9).iterdir()}
    assert run.steps()[:2] == run.regular_steps()[:2] == [4, 8]
    assert run.best_steps("loss")
    caplog.clear()
    again = resumed(toy_config(max_steps=9), run.path)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{run.checkpoint(9)}: {name} is ")
    assert "kept as damaged-step-00000009, resuming from step-00000008" in warnings[0]
    aside = run.checkpoints / "damaged-step-00000009"
    assert {path.name: path.is_file() and path.read_bytes() for path in aside.iterdir()} == content
    again.train()
    shutil.rmtree(aside)
    assert_same_run(whole, run)


def drop_a_line(file: Path) -> None:
    _, *rest = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(rest))


@pytest.mark.parametrize("harm", [None, flip, cut, drop_a_line, Path.unlink])
@pytest.mark.parametrize("name", ["metrics", "samples"])
def test_a_damaged_log_causes_a_warning_on_resuming(
    tmp_path: Path, name: str, harm: Callable[[Path], object] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage after the part that the checkpoint covers is not reported."""
    decode = given([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(Killed):
        trainer(toy_config(max_steps=16), tmp_path, Quiet(kill_at=15), decode).train()
    log: Path = getattr(RunDir(tmp_path), name)
    if harm is not None:
        harm(log)
    caplog.clear()
    resumed(toy_config(max_steps=16), tmp_path, None, decode).train()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    warning_start = f"{log}: changed or truncated since the checkpoint of step 12 was saved; training is not affected"
    assert [warning.startswith(warning_start) for warning in warnings[:1]] == ([] if harm is None else [True])
    assert warnings[1:] in ([], [f"{log}: removed damaged lines: 1"])
    assert RunDir(tmp_path).steps()[-1] == 16


def test_damaged_lines_of_a_log_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = finished(tmp_path, max_steps=8, log_every=1)
    lines = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join([b"\x00" + lines[0], *lines[1:4], b"[1]\n", *lines[4:], b'{"kind": "tr']))
    caplog.clear()
    resumed(toy_config(max_steps=8, log_every=1), tmp_path)
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING][1:] == [
        f"{run.metrics}: removed damaged lines: 2"
    ]


def test_a_second_damaged_checkpoint_of_a_step_is_renamed_too(tmp_path: Path) -> None:
    run = finished(tmp_path, max_steps=9)
    for _ in range(2):
        cut(run.checkpoint(9) / WEIGHTS)
        resumed(toy_config(max_steps=9), run.path).train()
    assert [name for name in names(run.checkpoints) if "damaged" in name] == [
        "damaged-step-00000009",
        "damaged-step-00000009-2",
    ]
    assert run.steps() == [4, 8, 9]


def test_if_all_checkpoints_are_damaged_nothing_is_changed(tmp_path: Path) -> None:
    run = finished(tmp_path, max_steps=8)
    cut(run.checkpoint(4) / TRAINER_STATE)
    (run.checkpoint(8) / META).unlink()
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=r"damaged: 2 \(step-00000008: meta.json is missing\)"):
        newest_good(run)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_an_unreadable_checkpoint_is_not_treated_as_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path, max_steps=8)
    forbidden = run.checkpoint(8) / WEIGHTS

    def read(path: Path) -> str:
        if path == forbidden:
            raise PermissionError(13, "Permission denied", str(path))
        return "0"

    monkeypatch.setattr("mtformer.files.file_sha256", read)
    with pytest.raises(CheckpointError, match=f"{forbidden}: cannot be read .Permission denied.; fix the cause"):
        newest_good(run)
    assert names(run.checkpoints) == ["step-00000004", "step-00000008"]


def test_the_error_for_an_invalid_trainer_state_is_clear(tmp_path: Path) -> None:
    run = finished(tmp_path, max_steps=4)
    folder = run.checkpoint(4)
    meta = read_meta(folder)
    (folder / TRAINER_STATE).write_bytes(b"no zip file")
    write_meta(folder, **{key: meta[key] for key in ("step", "metrics", "made_with")})
    with pytest.raises(CheckpointError, match=r"trainer\.pt: cannot be loaded"):
        resume_trainer(trainer(toy_config(), run.path), run.checkpoint(4))


# ---- changed settings -----------------------------------------------------------------------------------------------


def test_optimizer_settings_are_taken_from_the_config(tmp_path: Path) -> None:
    run = finished(tmp_path, max_steps=4)
    again = resumed(toy_config(max_steps=8, betas=[0.8, 0.9], eps=1e-7, weight_decay=0.1), run.path)
    groups = again.step.optimizer.param_groups
    assert {(group["betas"], group["eps"]) for group in groups} == {((0.8, 0.9), 1e-7)}
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    moments = {name: value for name, value in state(run.checkpoint(4)).items() if "exp_avg" in name}
    own = [value for values in again.step.optimizer.state_dict()["state"].values() for value in values.values()]
    assert moments
    assert all(any(torch.equal(value, one) for one in own) for value in moments.values())


def test_changing_best_metric_resets_the_best_score_and_patience(tmp_path: Path) -> None:
    config = toy_config(max_steps=4, validate_every=2, patience=5)
    trainer(config, tmp_path, decode=given([30.0, 20.0])).train()
    same = resumed(toy_config(max_steps=8), tmp_path)
    assert (same.best_score.value, same.best_score.validations_since_best) == (30.0, 1)
    other = resumed(toy_config(max_steps=8, best_metric="loss"), tmp_path)
    assert (other.best_score.value, other.best_score.validations_since_best) == (None, 0)


def test_changing_dev_data_resets_the_best_score_and_the_choice_of_checkpoints(tmp_path: Path) -> None:
    """Scores on different data are not comparable."""
    made_with = {"device": "cpu", "dev data": "a"}
    config = toy_config(max_steps=4, validate_every=2, patience=5)
    trainer(config, tmp_path, decode=given([30.0, 20.0]), made_with=made_with).train()
    run = RunDir(tmp_path)
    assert run.best_steps("bleu") == [2, 4]
    same = resumed(toy_config(max_steps=8), tmp_path, made_with=made_with)
    assert same.best_score.value == 30.0
    other = resumed(
        toy_config(max_steps=6, validate_every=2),
        tmp_path,
        decode=given([10.0]),
        made_with={**made_with, "dev data": "b"},
    )
    assert (other.best_score.value, other.best_score.validations_since_best) == (None, 0)
    other.train()
    assert run.best_steps("bleu") == [6]


def test_a_scaler_missing_from_the_checkpoint_starts_at_its_default(tmp_path: Path) -> None:
    run = finished(tmp_path, max_steps=4)
    again = trainer(toy_config(), run.path)
    again.step.scaler = torch.amp.GradScaler("cpu", enabled=True)
    resume_trainer(again, newest_good(run))
    assert again.step.scaler.get_scale() == 65536.0

"""What a run keeps, judges and tells, and how it ends; what resuming makes of it is in test_resume.py."""

import json
import signal
from pathlib import Path

import pytest
import torch
from toy_run import Quiet, given, resumed, trainer
from toy_training import toy_config

from mtformer.data.batches import Batch
from mtformer.errors import CheckpointError, MtformerError
from mtformer.rundir import WEIGHTS, RunDir, read_meta
from mtformer.training import loop
from mtformer.training.average import average_last
from mtformer.training.loop import InterruptedRunError
from mtformer.weights import read_weights


def test_ctrl_c_saves_too_and_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(InterruptedRunError):
        trainer(toy_config(), tmp_path, Quiet(signal_at=3, number=signal.SIGINT)).train()
    assert RunDir(tmp_path).steps() == [3]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    trainer(toy_config(), tmp_path).train()
    again = resumed(toy_config(), tmp_path)
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name == WEIGHTS}
    assert again.train().step == 8
    assert files == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name == WEIGHTS}


def test_max_epochs_ends_the_run_and_no_batch_is_lost(tmp_path: Path) -> None:
    config = toy_config(max_steps=100, max_epochs=2, accumulation_steps=4)
    position = trainer(config, tmp_path).train()
    assert position.step == 3  # 10 micro-batches in steps of 4, 4 and 2
    assert position.place[:2] == (1, 30)


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    config = toy_config(max_steps=10, validate_every=2, keep_last=2, keep_best=1)
    trainer(config, tmp_path, decode=given([1.0, 9.0, 3.0, 4.0, 5.0])).train()
    run = RunDir(tmp_path)
    assert run.steps() == [4, 8, 10]
    assert run.best_steps("bleu") == [4, 10, 8]


def test_patience_survives_a_resume(tmp_path: Path) -> None:
    config = toy_config(max_steps=100, validate_every=2, patience=3, keep_last=1)
    decode = given([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    with pytest.raises(InterruptedRunError):
        trainer(config, tmp_path, Quiet(signal_at=5), decode).train()
    assert resumed(config, tmp_path, decode=decode).train().step == 8  # best at 2, then 4, 6 and 8 without progress
    assert RunDir(tmp_path).best_steps("bleu")[0] == 2


def test_lower_is_better_for_perplexity(tmp_path: Path) -> None:
    config = toy_config(best_metric="perplexity", max_steps=12, validate_every=4, learning_rate=1e-2)
    trainer(config, tmp_path).train()
    run = RunDir(tmp_path)
    values = {step: read_meta(run.checkpoint(step))["metrics"]["perplexity"] for step in run.steps()}
    assert run.best_steps("perplexity")[0] == min(values, key=values.__getitem__)


def test_metrics_are_appended_and_complete(tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError):
        trainer(toy_config(), tmp_path, Quiet(signal_at=5)).train()
    resumed(toy_config(), tmp_path).train()
    rows = [json.loads(line) for line in RunDir(tmp_path).metrics.read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in rows] == [
        ("train", 2), ("train", 4), ("dev", 4), ("resume", 5), ("train", 6), ("train", 8), ("dev", 8),
    ]  # fmt: skip
    wanted = {"loss", "learning_rate", "grad_norm", "tokens_per_second", "padding", "waiting_for_data", "skipped_steps"}
    assert wanted <= rows[0].keys()
    assert 0 < rows[0]["padding"] < 1


def test_metrics_that_cannot_be_written_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")  # a device whose disk is always full
    with pytest.raises(CheckpointError) as error:
        trainer(toy_config(), tmp_path).train()
    assert str(error.value).startswith(f"{tmp_path}/metrics.jsonl: cannot be written (No space left on device); ")
    assert "\n" not in str(error.value)


def test_the_lines_before_a_checkpoint_are_on_the_disk_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[object] = []
    monkeypatch.setattr(loop, "sync", order.append)
    monkeypatch.setattr(loop, "save_checkpoint", lambda run, *rest: order.append(run.checkpoint(rest[0])))
    run = RunDir(tmp_path)
    monkeypatch.setattr(loop, "prune", lambda *_: None)
    trainer(toy_config(), tmp_path).train()
    assert order == [run.metrics, run.checkpoint(4), run.metrics, run.checkpoint(8)]


def test_a_gradient_that_stays_not_finite_stops_the_run(tmp_path: Path) -> None:
    subject = trainer(toy_config(max_steps=100, validate_every=5), tmp_path)
    original, broken = subject.step.run, float("nan")

    def run(batches: list[Batch], step: int) -> object:
        if step > 6:
            subject.step.model.decoder_norm.weight.register_hook(lambda grad: grad * broken)
        return original(batches, step)

    subject.step.run = run  # type: ignore[method-assign, assignment]
    with pytest.raises(MtformerError, match="not finite 20 times in a row"):
        subject.train()
    weights = read_weights(RunDir(tmp_path).checkpoint(RunDir(tmp_path).steps()[-1]) / WEIGHTS)
    assert all(weight.isfinite().all() for weight in weights.values())


def test_skipped_steps_are_counted_in_the_log(tmp_path: Path) -> None:
    progress = Quiet()
    subject = trainer(toy_config(max_steps=4), tmp_path, progress)
    handle = subject.step.model.decoder_norm.weight.register_hook(lambda grad: grad * float("inf"))
    original = subject.step.run

    def run(batches: list[Batch], step: int) -> object:
        if step == 2:
            handle.remove()
        return original(batches, step)

    subject.step.run = run  # type: ignore[method-assign, assignment]
    subject.train()
    assert [figures["skipped_steps"] for figures in progress.figures] == [1, 0]
    assert all(figures["loss"] > 0 for figures in progress.figures)


def test_average_is_the_mean_and_leaves_out_interrupted_ones(tmp_path: Path) -> None:
    config = toy_config(max_steps=12, keep_last=5)
    with pytest.raises(InterruptedRunError):
        trainer(config, tmp_path, Quiet(signal_at=9)).train()
    run = RunDir(tmp_path)
    assert average_last(run, 2) == [4, 8]
    averaged, four, eight = (
        read_weights(folder / WEIGHTS) for folder in (run.averaged, run.checkpoint(4), run.checkpoint(8))
    )
    for name, weight in averaged.items():
        torch.testing.assert_close(weight, ((four[name].double() + eight[name].double()) / 2).float(), rtol=0, atol=0)
    with pytest.raises(CheckpointError, match="3 checkpoints to average asked for, 2 there"):
        average_last(run, 3)

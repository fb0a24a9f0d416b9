"""A run that is stopped and resumed is the run that never stopped; what is kept, judged, and told."""

import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from toy_training import toy_batch, toy_batches, toy_config, toy_step

from mtformer.config.schema import Config
from mtformer.data.batches import Batch
from mtformer.errors import CheckpointError, MtformerError
from mtformer.rundir import META, TRAINER_STATE, WEIGHTS, RunDir, read_meta
from mtformer.training.average import average_last
from mtformer.training.loop import InterruptedRunError, Trainer
from mtformer.training.validation import Decoded
from mtformer.weights import read_weights


class Quiet:
    """Progress that may send a signal at a step."""

    def __init__(self, signal_at: int | None = None, number: signal.Signals = signal.SIGTERM) -> None:
        self.signal_at, self.number = signal_at, number
        self.figures: list[dict[str, float]] = []

    def advance(self, step: int, epoch: int, figures: dict[str, float] | None) -> None:
        if figures is not None:
            self.figures.append(figures)
        if step == self.signal_at:
            os.kill(os.getpid(), self.number)


def trainer(
    config: Config, folder: Path, progress: Quiet | None = None, bleu: Iterator[float] | None = None
) -> Trainer:
    folder.mkdir(exist_ok=True)
    decode = None if bleu is None else lambda: Decoded({"bleu": next(bleu)}, [("a", "b", "c")])
    return Trainer(
        config,
        RunDir(folder),
        toy_step(config),
        partial(toy_batches, max_epochs=config.training.max_epochs),
        lambda: [toy_batch(99)],
        decode,
        progress or Quiet(),
    )


def same_checkpoint(one: Path, other: Path) -> bool:
    states = [torch.load(folder / TRAINER_STATE, weights_only=True) for folder in (one, other)]
    moments = [[v for s in state["optimizer"]["state"].values() for v in s.values()] for state in states]
    weights = [read_weights(folder / WEIGHTS) for folder in (one, other)]
    return (
        all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
        and all(torch.equal(a, b) for a, b in zip(*moments, strict=True))
        and torch.equal(states[0]["rng"], states[1]["rng"])
        and read_meta(one)["metrics"] == read_meta(other)["metrics"]
    )


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("stop_at", [1, 3, 6])
def test_stopped_and_resumed_is_bitwise_the_same(tmp_path: Path, stop_at: int, accumulation: int) -> None:
    config = toy_config(max_steps=9, accumulation_steps=accumulation)
    trainer(config, tmp_path / "whole").train()
    with pytest.raises(InterruptedRunError) as stopped:
        trainer(config, tmp_path / "halves", Quiet(signal_at=stop_at)).train()
    assert (stopped.value.step, stopped.value.signal_number) == (stop_at, signal.SIGTERM)
    second = trainer(config, tmp_path / "halves")
    torch.manual_seed(12345)  # whatever happens before a resume must not matter
    second.resume()
    second.train()
    whole, halves = RunDir(tmp_path / "whole"), RunDir(tmp_path / "halves")
    assert whole.steps() == halves.steps() == [4, 8, 9]
    for step in whole.steps():
        assert same_checkpoint(whole.checkpoint(step), halves.checkpoint(step))


def test_ctrl_c_saves_too_and_handlers_are_put_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(InterruptedRunError):
        trainer(toy_config(), tmp_path, Quiet(signal_at=3, number=signal.SIGINT)).train()
    assert RunDir(tmp_path).steps() == [3]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    trainer(toy_config(), tmp_path).train()
    again = trainer(toy_config(), tmp_path)
    again.resume()
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name == WEIGHTS}
    assert again.train().step == 8
    assert files == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.name == WEIGHTS}


def test_max_epochs_ends_the_run_and_no_batch_is_lost(tmp_path: Path) -> None:
    config = toy_config(max_steps=100, max_epochs=2, accumulation_steps=4)
    position = trainer(config, tmp_path).train()
    assert position.step == 3  # 10 micro-batches in steps of 4, 4 and 2
    assert (position.epoch, position.pairs) == (1, 30)


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    config = toy_config(max_steps=10, validate_every=2, keep_last=2, keep_best=1)
    trainer(config, tmp_path, bleu=iter([1.0, 9.0, 3.0, 4.0, 5.0])).train()
    run = RunDir(tmp_path)
    assert run.steps() == [4, 8, 10]
    assert run.best_steps("bleu") == [4, 10, 8]


def test_patience_survives_a_resume(tmp_path: Path) -> None:
    config = toy_config(max_steps=100, validate_every=2, patience=3, keep_last=1)
    values = iter([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    with pytest.raises(InterruptedRunError):
        trainer(config, tmp_path, Quiet(signal_at=5), bleu=values).train()
    second = trainer(config, tmp_path, bleu=values)
    second.resume()
    assert second.train().step == 8  # best at 2, then 4, 6 and 8 without progress
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
    second = trainer(toy_config(), tmp_path)
    second.resume()
    second.train()
    rows = [json.loads(line) for line in RunDir(tmp_path).metrics.read_text().splitlines()]
    assert [(row["kind"], row["step"]) for row in rows] == [
        ("train", 2), ("train", 4), ("dev", 4), ("resume", 5), ("train", 6), ("train", 8), ("dev", 8),
    ]  # fmt: skip
    wanted = {"loss", "learning_rate", "grad_norm", "tokens_per_second", "padding", "waiting_for_data", "skipped_steps"}
    assert wanted <= rows[0].keys()
    assert 0 < rows[0]["padding"] < 1


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


@pytest.mark.parametrize("name", [WEIGHTS, TRAINER_STATE, META])
def test_a_checkpoint_that_was_cut_is_refused_by_name(tmp_path: Path, name: str) -> None:
    trainer(toy_config(), tmp_path).train()
    file = RunDir(tmp_path).checkpoint(8) / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=name):
        trainer(toy_config(max_steps=12), tmp_path).resume()


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

"""Checkpoints, best scores, log lines and the end of training; see test_resume.py for resuming."""

import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_run import Quiet, assert_same_run, given, resumed, trainer
from toy_training import toy_batch, toy_batches, toy_config, toy_step

from mtformer.config.schema import Config
from mtformer.data.batching.batches import Batch
from mtformer.decoding.weights import find_weights
from mtformer.errors import CheckpointError, InterruptedRunError, MtformerError
from mtformer.files import read_meta
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.text.tokenizer import BOS
from mtformer.training import checkpoint, checkpoint_writer, history
from mtformer.training.budget import Plan, StepPlan
from mtformer.training.figures import FIGURES
from mtformer.training.history import read_records
from mtformer.training.loop import Trainer
from mtformer.training.ranks import Ranks
from mtformer.training.step import StepResult, TrainingStep
from mtformer.training.validation import Decoded, DecodeDev, DevData, Validator
from mtformer.weights import average_weights, read_weights


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_a_checkpoint_and_signal_handlers_are_restored(number: signal.Signals, tmp_path: Path) -> None:
    previous = signal.signal(number, signal.default_int_handler)  # SIGHUP is ignored under nohup
    try:
        with pytest.raises(InterruptedRunError):
            trainer(toy_config(), tmp_path, Quiet(signal_at=3, number=number)).train()
        assert RunDir(tmp_path).steps() == [3]
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, previous)


def test_max_epochs_ends_the_run_without_losing_batches(tmp_path: Path) -> None:
    config = toy_config(max_steps=100, max_epochs=2, accumulation_steps=4)
    position = trainer(config, tmp_path).train()
    assert position.step == 3  # 10 micro-batches in steps of 4, 4 and 2
    assert position.place[:2] == (1, 30)


def test_latest_and_best_checkpoints_are_kept(tmp_path: Path) -> None:
    config = toy_config(max_steps=10, validate_every=2, keep_last=2, keep_best=1)
    trainer(config, tmp_path, decode=given([1.0, 9.0, 3.0, 4.0, 5.0])).train()
    run = RunDir(tmp_path)
    assert run.steps() == [4, 8, 10]
    assert run.best_steps("bleu") == [4, 10, 8]


def test_patience_is_restored_on_resuming(tmp_path: Path) -> None:
    config = toy_config(max_steps=100, validate_every=2, patience=3, keep_last=1)
    decode = given([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    with pytest.raises(InterruptedRunError):
        trainer(config, tmp_path, Quiet(signal_at=5), decode).train()
    assert resumed(config, tmp_path, decode=decode).train().step == 8  # best at 2, no improvement at 4, 6 and 8
    assert RunDir(tmp_path).best_steps("bleu")[0] == 2


def test_an_equal_score_is_no_improvement(tmp_path: Path) -> None:
    config = toy_config(max_steps=100, validate_every=2, patience=3)
    assert trainer(config, tmp_path, decode=given([5.0] * 9)).train().step == 8


def test_validations_with_a_bleu_of_0_do_not_end_the_run_and_the_lowest_loss_is_the_best(tmp_path: Path) -> None:
    config = toy_config(max_steps=10, validate_every=2, patience=2, keep_last=5, learning_rate=1e-2)
    assert trainer(config, tmp_path, decode=given([0.0] * 5)).train().step == 10
    run = RunDir(tmp_path)
    losses = {step: read_meta(run.checkpoint(step))["metrics"]["loss"] for step in run.steps()}
    assert run.best_steps("bleu") == sorted(losses, key=losses.__getitem__)


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
    of_dev_only = {"perplexity", "bleu", "chrf"}
    assert rows[0].keys() == {"kind", "step", "epoch", *(one.key for one in FIGURES)} - of_dev_only
    assert rows[2].keys() <= {"kind", "step", "epoch", *(one.key for one in FIGURES if one.on_dev)}
    assert 0 < rows[0]["padding"] < 1


def test_the_error_for_metrics_that_cannot_be_written_is_clear(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(CheckpointError) as error:
        trainer(toy_config(), tmp_path).train()
    assert str(error.value).startswith(f"{tmp_path}/metrics.jsonl: cannot be written (a pipe or device, not a file); ")
    assert "\n" not in str(error.value)


def test_log_lines_are_synced_before_a_checkpoint_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []
    monkeypatch.setattr(history, "sync", order.append)
    monkeypatch.setattr(checkpoint, "write_meta", lambda folder, **values: order.append(values["step"]))
    monkeypatch.setattr(checkpoint_writer, "prune", lambda *_: None)
    run = RunDir(tmp_path)
    trainer(toy_config(), tmp_path).train()
    assert order == [run.metrics, 4, run.metrics, 8]


@dataclass(frozen=True)
class Twins(Ranks):
    """Stand-in for two processes with the same values; the other one receives a signal before `signal_at` exchanges."""

    size: int = 2
    signal_at: int | None = None
    exchanges: list[str] = field(default_factory=list)

    def sum(self, values: Sequence[float]) -> list[float]:
        self.exchanges.append("sum")
        tokens, *others = [2 * value for value in values]
        if others:
            tokens = max(tokens, 30.0)  # the other process has targets if this one has none
        if self.signal_at is not None and len(self.exchanges) >= self.signal_at:
            others = [other + 1 for other in others]
        return [tokens, *others]

    def gather(self, item: Any) -> list[Any]:
        self.exchanges.append("gather")
        is_signal = item is None and self.signal_at is not None and len(self.exchanges) > self.signal_at
        return [item, signal.SIGTERM if is_signal else item]


def in_twins(config: Config, folder: Path, signal_at: int | None = None) -> tuple[Trainer, list[str]]:
    """Return a trainer that is one of two processes, and the names of its exchanges with the other one."""
    ranks = Twins(signal_at=signal_at)
    batches_from = partial(toy_batches, max_epochs=None)
    made = Trainer(config, RunDir(folder), toy_step(config, ranks=ranks), batches_from, None, Quiet(), {})
    return made, ranks.exchanges


def test_processes_exchange_values_once_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tokens and the signals travel together; a step does not wait for the others twice."""
    counts: list[int] = []
    monkeypatch.setattr(Quiet, "advance", lambda *_: counts.append(len(exchanges)))
    subject, exchanges = in_twins(toy_config(max_steps=8, validate_every=8, log_every=8), tmp_path)
    subject.train()
    assert counts[:7] == [1, 2, 3, 4, 5, 6, 7]


def test_processes_plan_after_the_same_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request for a plan travels with the next step, so that planning takes no exchange of its own before it."""
    monkeypatch.setattr(StepPlan, "is_due", lambda self, step, seconds_spent: step == 3)
    monkeypatch.setattr(StepPlan, "_fitting_plan", lambda self, step, seconds_spent: Plan(6))
    counts: list[int] = []
    monkeypatch.setattr(Quiet, "advance", lambda *_: counts.append(len(exchanges)))
    subject, exchanges = in_twins(toy_config(max_minutes=9, max_steps=99, validate_every=50, log_every=50), tmp_path)
    assert subject.train().step == 6
    plans = [record for record in read_records(RunDir(tmp_path).metrics) if record["kind"] == "plan"]
    assert [(record["step"], record["max_steps"]) for record in plans] == [(4, 6)]
    assert counts == [1, 2, 3, 4, 6, 7]  # one per step, and the plan after step 4


def test_an_untrained_model_is_decoded_with_short_outputs(tmp_path: Path) -> None:
    """Only the perplexity decides this, so that a repetition of the run does the same."""
    decoded: list[str] = []

    def decode_as(name: str) -> DecodeDev:
        def decode(progress: Callable[[int], object]) -> Decoded:
            decoded.append(name)
            return Decoded({"bleu": 1.0}, [])

        return decode

    subject = trainer(toy_config(max_steps=40, validate_every=10, warmup_steps=5, learning_rate=0.02), tmp_path)
    dev = DevData(lambda: [toy_batch(1)], decode_as("usual"), decode_as("short"), untrained_perplexity=9.0)
    subject.validator = Validator(subject.run, dev, subject.stop)
    subject.train()
    perplexities = [record["perplexity"] for record in read_records(subject.run.metrics) if record["kind"] == "dev"]
    assert decoded == ["short" if perplexity > 9.0 else "usual" for perplexity in perplexities]
    assert set(decoded) == {"short", "usual"}


def test_a_signal_of_another_process_stops_the_run_after_the_step(tmp_path: Path) -> None:
    subject, _ = in_twins(toy_config(max_steps=100, validate_every=100, log_every=100), tmp_path, signal_at=5)
    with pytest.raises(InterruptedRunError) as stopped:
        subject.train()
    assert stopped.value.signal_number == signal.SIGTERM
    assert subject.position.step == 5
    assert RunDir(tmp_path).steps() == [5]


def test_a_process_without_targets_in_the_last_step_saves_its_checkpoint(tmp_path: Path) -> None:
    """With noise, a process may have fewer batches in a window than another one."""
    subject, _ = in_twins(toy_config(max_steps=4, validate_every=4), tmp_path)
    batches_from = subject.batches_from
    subject.batches_from = lambda place: (
        batch.without_targets() if number == 3 else batch for number, batch in enumerate(batches_from(place))
    )
    subject.train()
    assert RunDir(tmp_path).steps() == [4]
    assert subject.last_batches[0].num_tgt_tokens > 0


def test_own_signal_of_one_of_several_processes_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, _ = in_twins(toy_config(max_steps=100, validate_every=100, log_every=100), tmp_path)
    monkeypatch.setattr(subject, "progress", Quiet(signal_at=3))
    with pytest.raises(InterruptedRunError):
        subject.train()
    assert subject.position.step == 4  # all processes learn of it at the start of this step


def skipping(subject: Trainer, first: int, last: int) -> Trainer:
    """Patch the trainer so that the gradients of these steps are not finite."""
    original = subject.step.run

    def run(batches: list[Batch], step: int, **options: Any) -> StepResult:
        if not first <= step <= last:
            return original(batches, step, **options)
        handle = subject.step.model.decoder_norm.weight.register_hook(lambda grad: grad * float("nan"))
        result = original(batches, step, **options)
        handle.remove()
        return result

    subject.step.run = run  # type: ignore[method-assign]
    return subject


def test_persistent_non_finite_gradients_stop_the_run(tmp_path: Path) -> None:
    subject = skipping(trainer(toy_config(max_steps=100, validate_every=5), tmp_path), 7, 100)
    with pytest.raises(MtformerError, match=r"not finite 20 times in a row; the last good checkpoint is step 25 \("):
        subject.train()
    weights = read_weights(RunDir(tmp_path).checkpoint(RunDir(tmp_path).steps()[-1]) / WEIGHTS)
    assert all(weight.isfinite().all() for weight in weights.values())


def changed_by(subject: Trainer, number: int, change: Callable[[TrainingStep], object]) -> Trainer:
    """Patch the trainer so that it calls `change` after step `number`."""
    original = subject.step.run

    def run(batches: list[Batch], step: int, **options: Any) -> StepResult:
        result = original(batches, step, **options)
        if step == number:
            change(subject.step)
        return result

    subject.step.run = run  # type: ignore[method-assign]
    return subject


def diverge(step: TrainingStep) -> None:
    """Scale the weights so that they are finite, but the loss is not."""
    with torch.no_grad():
        for parameter in [*step.model.parameters(), *(step.ema.averages if step.ema else ())]:
            parameter.mul_(1e30)


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
@pytest.mark.parametrize("has_dev", [True, False])
def test_weights_with_a_non_finite_loss_are_not_saved(tmp_path: Path, has_dev: bool, ema_decay: float) -> None:
    """A learning rate of 1e30 gives finite weights with a non-finite loss in step 1; another run diverges in step 4."""
    for name, rate, step in (("at once", 1e30, 1), ("later", 5e-4, 4)):
        config = toy_config(validate_every=1, ema_decay=ema_decay, learning_rate=rate)
        subject = changed_by(trainer(config, tmp_path / name), 4, diverge)
        if not has_dev:
            subject.validator = Validator(subject.run, None, subject.stop)
        with pytest.raises(MtformerError) as error:
            subject.train()
        kept = f"the last good checkpoint is step 3 ({subject.run.checkpoint(3)})"
        assert str(error.value) == (
            f"step {step}: the {'dev' if has_dev else 'training'} loss is not finite; "
            f"{kept if step == 4 else 'there is no earlier checkpoint'}. "
            "Lower training.learning_rate, raise training.warmup_steps, or set training.precision to fp32"
        )
        assert subject.run.steps() == list(range(1, step))


def test_non_finite_weights_are_not_saved(tmp_path: Path) -> None:
    """The source embedding of bos is never used, so the loss is finite."""
    config = toy_config(validate_every=1)
    config = config.model_copy(update={"model": config.model.model_copy(update={"tie_embeddings": "none"})})
    subject = trainer(config, tmp_path)

    def change(step: TrainingStep) -> None:
        step.model.src_embedding.data[BOS] = float("inf")

    with pytest.raises(MtformerError, match=r"step 3: src_embedding has NaN or inf.*; .* is step 2 \(.*00002\)"):
        changed_by(subject, 3, change).train()
    assert subject.run.steps() == [1, 2]


def test_initial_skipped_steps_in_fp16_do_not_end_the_run(tmp_path: Path) -> None:
    """The initial scale is too high and is halved in each skipped step; a checkpoint is due after every step."""
    config = toy_config(validate_every=1, keep_last=8)
    subject = trainer(config, tmp_path)
    subject.step = toy_step(config, "fp16")
    subject.step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    assert subject.train().step == 8
    records = read_records(subject.run.metrics)
    assert sum(record["skipped_steps"] for record in records if record["kind"] == "train") > 1


def test_a_run_in_which_all_steps_are_skipped_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MtformerError, match="step 8: the gradient was not finite in any step; there is no earlier"):
        skipping(trainer(toy_config(validate_every=10), tmp_path), 1, 8).train()
    assert RunDir(tmp_path).steps() == []


@pytest.mark.parametrize("stop_at", [6, 8, 10])
def test_run_stopped_during_skipped_steps_is_resumed_exactly(tmp_path: Path, stop_at: int) -> None:
    """Skipped steps do not change the weights, so a checkpoint of the interrupted run is valid."""
    config, whole, halves = toy_config(max_steps=14), tmp_path / "whole", tmp_path / "halves"
    skipping(trainer(config, whole), 5, 9).train()
    with pytest.raises(InterruptedRunError):
        skipping(trainer(config, halves, Quiet(signal_at=stop_at)), 5, 9).train()
    assert RunDir(halves).steps()[-1] == stop_at
    skipping(resumed(config, halves), 5, 9).train()
    assert_same_run(RunDir(whole), RunDir(halves))


def test_no_checkpoint_is_saved_if_stopped_after_diverging(tmp_path: Path) -> None:
    subject = changed_by(trainer(toy_config(), tmp_path, Quiet(signal_at=6)), 5, diverge)
    with pytest.raises(MtformerError, match=r"step 6: the training loss is not finite; the last good .* is step 4"):
        subject.train()
    assert RunDir(tmp_path).steps() == [4]
    assert resumed(toy_config(), tmp_path).train().step == 8


def test_skipped_steps_are_counted_in_the_log(tmp_path: Path) -> None:
    progress = Quiet()
    skipping(trainer(toy_config(max_steps=4), tmp_path, progress), 1, 1).train()
    assert [figures["skipped_steps"] for figures in progress.figures] == [1, 0]
    assert all(figures["loss"] > 0 for figures in progress.figures)


def test_average_is_the_mean_of_regular_checkpoints(tmp_path: Path) -> None:
    config = toy_config(max_steps=12, keep_last=5)
    with pytest.raises(InterruptedRunError):
        trainer(config, tmp_path, Quiet(signal_at=9)).train()
    run = RunDir(tmp_path)
    files = find_weights(run, "last:2", "bleu")
    assert files == [run.checkpoint(4) / WEIGHTS, run.checkpoint(8) / WEIGHTS]
    averaged, four, eight = average_weights(files), *map(read_weights, files)
    for name, weight in averaged.items():
        torch.testing.assert_close(weight, ((four[name].double() + eight[name].double()) / 2).float(), rtol=0, atol=0)
    with pytest.raises(CheckpointError, match="3 checkpoints requested, but only 2 exist"):
        find_weights(run, "last:3", "bleu")

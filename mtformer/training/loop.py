"""The training loop: steps, log lines, validations, checkpoints, and resuming."""

import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from mtformer.config.schema import Config
from mtformer.data.batching.batches import Batch
from mtformer.data.batching.mixture import START, SamplerState
from mtformer.errors import CheckpointError, InterruptedRunError, MtformerError
from mtformer.files import read_meta, sync
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir, lower_is_better
from mtformer.training.budget import Budget, with_steps
from mtformer.training.checkpoint import last_good, load_trainer_state, prune, save_checkpoint
from mtformer.training.history import append_record, cut_after, warn_if_changed
from mtformer.training.metrics import CoreWatch, Metrics, Progress, Window
from mtformer.training.optimizer import learning_rate
from mtformer.training.signals import StopSignal
from mtformer.training.step import MAX_SKIPPED_IN_A_ROW, TrainingStep
from mtformer.training.validation import DecodeDev, dev_loss
from mtformer.weights import not_finite

SCHEDULE_KEYS = ("learning_rate", "max_minutes", "max_steps", "schedule", "warmup_steps")
MAX_JUMP = 0.05
"""Largest relative change of the learning rate by a changed schedule that is not reported."""
log = logging.getLogger("mtformer")


class _AbandonedError(Exception):
    """Raised to end a validation early after a signal."""


@dataclass
class Position:
    """Progress of a run, saved in each checkpoint."""

    step: int = 0
    place: SamplerState = START
    """Sampler state."""
    seconds: float = 0.0
    """Training time in seconds, including validation."""
    seconds_before: float = 0.0
    """Time in seconds for preparation, in all processes of the run."""
    max_steps: int | None = None
    """With `max_minutes`: planned number of steps; None: not planned yet."""
    max_minutes: float | None = None
    """`max_minutes` of that plan."""
    best: float | None = None
    validations_since_best: int = 0


class Trainer:
    """Trains a model and writes logs and checkpoints to a run directory.

    Args:
        config: the config of the experiment.
        run: the run directory.
        step: the training step, with model and optimizer.
        batches_from: function that takes a sampler state and returns the batches that follow, each with its
            `end` state.
        dev_batches: function that returns the dev batches; None without dev data.
        decode_dev: function that translates and scores dev; None without dev data.
        progress: progress display.
        made_with: description of the data, versions and device; saved in each checkpoint and compared on resuming.
    """

    def __init__(
        self,
        config: Config,
        run: RunDir,
        step: TrainingStep,
        batches_from: Callable[[SamplerState], Iterator[Batch]],
        dev_batches: Callable[[], Iterable[Batch]] | None,
        decode_dev: DecodeDev | None,
        progress: Progress,
        made_with: dict[str, Any],
    ) -> None:
        self.given = self.config = config.training
        self.budget: Budget | None = None
        self.plans: Mapping[int, int] | None = None
        """With `max_minutes`: plans to follow instead of planning by time, as numbers of steps by step."""
        self.run = run
        self.step = step
        self.ranks = step.ranks
        self.batches_from = batches_from
        self.dev_batches = dev_batches
        self.decode_dev = decode_dev
        self.progress = progress
        self.made_with = made_with
        self.stop = StopSignal()
        self.window = Window()
        self.core_watch = CoreWatch()
        self.metrics = Metrics(run, config) if self.ranks.is_main else None
        self.position = Position()
        self.last_batches: list[Batch] = []
        """Micro-batches of the last step."""
        self.saved_step = 0
        """Step of the latest checkpoint of this run."""
        self.is_validated = False
        """True if the latest checkpoint is not a temporary one of an interrupted run."""
        self.mark = time.perf_counter()
        """Time at which `position.seconds` was last updated."""

    def resume(self, checkpoint: Path | None, config_changes: Mapping[str, Any] = {}) -> None:
        """Load a checkpoint (see `newest_good`), or start at step 0 if it is None; record changed config keys.

        Raises:
            CheckpointError: if its weights do not fit the model, or its state cannot be loaded.
        """
        if checkpoint is None:
            if self.ranks.is_main:
                self._cut_after(0, with_dev=False)
                self._record_resume(config_changes, self.made_with)
            return
        state, meta = load_trainer_state(checkpoint), read_meta(checkpoint)
        self.step.load_weights(checkpoint / WEIGHTS)
        try:
            self._restore(state, meta["made_with"])
        except Exception as error:  # any of these calls may fail on values of wrong types
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise CheckpointError(
                f"{checkpoint / TRAINER_STATE}: not a trainer state of this run ({what:.200}); move {checkpoint} away"
            ) from error
        self.saved_step = self.position.step
        self.is_validated = not meta["is_temporary"]
        if self.metrics is not None:
            for path in (self.run.metrics, self.run.samples):
                if path.name in meta["logs"]:
                    warn_if_changed(path, meta["logs"][path.name], self.position.step)
            self._cut_after(self.position.step, with_dev=not meta["is_temporary"])
            prune(self.run, self.config)  # the previous process may have been killed before pruning
            schedule = [key for key in config_changes if key.removeprefix("training.") in SCHEDULE_KEYS]
            jump = self._jump(f"{' and '.join(schedule)} changed") if schedule else {}
            self._record_resume({**config_changes, **jump}, meta["made_with"])
        log.info("resumed at step %d of %d", self.position.step, self.config.max_steps)

    def _jump(self, cause: str) -> dict[str, Any]:
        """Log and return the change of the learning rate of the current step by a changed schedule, if it is large."""
        step, before = self.position.step, self.step.optimizer.param_groups[0]["lr"]
        after = learning_rate(step, self.config, self.step.model.config.d_model)
        if not step or abs(after - before) <= MAX_JUMP * max(after, before):
            return {}
        log.warning("step %d: the learning rate jumps from %.2e to %.2e, because %s", step, before, after, cause)
        return {"training.current_learning_rate": [float(f"{rate:.3g}") for rate in (before, after)]}

    def _record_resume(self, changes: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        """Write a `resume` line: time and changes (config, data, device, versions) since the checkpoint."""
        other = {key: [before.get(key), value] for key, value in self.made_with.items() if before.get(key) != value}
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        append_record(self.run.metrics, "resume", self.position.step, time=now, changes={**changes, **other})

    def _restore(self, state: dict[str, Any], made_with: dict[str, Any]) -> None:
        """Restore the state saved by `_save`; if it is invalid, exceptions of any type may be raised."""
        if state["training_weights"]:
            self.step.load_training_weights(state["training_weights"])
        # Moments are restored from the checkpoint; betas, eps and weight decay are those of the current config.
        pairs = zip(self.step.optimizer.state_dict()["param_groups"], state["optimizer"]["param_groups"], strict=True)
        groups = [{**own, "lr": float(saved["lr"])} for own, saved in pairs]
        self.step.load_optimizer_state({**state["optimizer"], "param_groups": groups})
        if state["scaler"]:  # empty without fp16
            self.step.scaler.load_state_dict(state["scaler"])
        self.step.skipped_in_a_row.fill_(state["skipped_in_a_row"])
        if made_with == self.made_with:  # on another device, more memory may be available
            self.step.max_padded_tokens = TypeAdapter(int | None).validate_python(state["max_padded_tokens"])
        if self.ranks.rank < len(state["rng"]):  # additional processes keep their initial state, see `make_step`
            set_random_state(state["rng"][self.ranks.rank], self.step.device)
        state["position"]["place"].pop("since_step", None)  # of version 0.3
        self.position = TypeAdapter(Position).validate_python(state["position"])
        if self.position.max_minutes != self.given.max_minutes:
            self.position.max_steps = None
        if self.position.max_steps is not None:
            self._set_steps(self.position.max_steps)
        if state["best_metric"] != self.config.best_metric:
            self.position.best, self.position.validations_since_best = None, 0
        windows = state["windows"]
        if len(windows) == self.ranks.size:
            self.window = Window.from_state(windows[self.ranks.rank])

    def _cut_after(self, step: int, with_dev: bool) -> None:
        for path in (self.run.metrics, self.run.samples):
            cut_after(path, step, with_dev)

    def train(self, seconds_before: float = 0.0, validation_seconds: float = 0.0) -> Position:
        """Train until the end and return the final position.

        Args:
            seconds_before: time in seconds that this process has spent before, for `max_minutes`.
            validation_seconds: estimated time of a validation.

        Raises:
            InterruptedRunError: after SIGINT or SIGTERM; a checkpoint has been saved.
            MtformerError: if gradients remain non-finite, the loss or weights to be saved are not finite, or a
                checkpoint cannot be saved.
        """
        self.mark = time.perf_counter()
        self.position.seconds_before += seconds_before
        if self.given.max_minutes is not None:
            self.budget = Budget(self.given, validation_seconds)
        with self.stop, self.metrics or contextlib.nullcontext():
            if self._is_validation_due() and not self._is_saved():
                self._validate()  # the interrupted run did not finish this validation
            if not self.is_done():
                self._train_on(self.batches_from(self.position.place))
            self._stop_if_signaled()
            if 0 < self.position.step <= int(self.step.skipped_in_a_row):
                raise self._diverged("the gradient was not finite in any step")
        return self.position

    def _train_on(self, batches: Iterator[Batch]) -> None:
        while not self.is_done():
            self._stop_if_signaled()
            waited = time.perf_counter()
            micro_batches = list(itertools.islice(batches, self.config.accumulation_steps))
            self.window.waiting += time.perf_counter() - waited
            if not micro_batches:
                if not self._is_saved():
                    self._validate()
                break
            self._one_step(micro_batches)
            self._log()
            self._plan_steps(is_validation=False)
            if self._is_validation_due():
                self._validate()

    def _is_validation_due(self) -> bool:
        step = self.position.step
        return step > 0 and (step % self.config.validate_every == 0 or self.is_done())

    def _validate(self) -> None:
        """Validate and save a checkpoint; if a signal interrupts this, the resumed run does both."""
        start = time.perf_counter()
        try:
            self._validate_and_save()
        except _AbandonedError:
            self._stop_if_signaled()
        self.window.paused += time.perf_counter() - start
        if self.budget is not None:
            self.budget.add_validation(time.perf_counter() - start)

    def _is_saved(self) -> bool:
        """Return True if a validated checkpoint of the current step exists."""
        return self.is_validated and self.saved_step == self.position.step

    def _check_stop(self) -> None:
        # Distributed processes synchronize during validation, so a single process cannot abandon it.
        if self.stop.received is not None and self.ranks.size == 1:
            raise _AbandonedError

    def _stop_if_signaled(self) -> None:
        """Save a temporary checkpoint and end the run if any process received a signal."""
        if not self.ranks.any(self.stop.received is not None):
            return
        if self.saved_step != self.position.step:
            self._save({}, is_temporary=True)
        signals = [number for number in self.ranks.gather(self.stop.received) if number is not None]
        raise InterruptedRunError(self.position.step, signals[0])

    def is_done(self) -> bool:
        """Return True after the last step, or after `patience` validations without improvement."""
        patience = self.config.patience
        is_stale = patience is not None and self.position.validations_since_best >= patience
        return is_stale or self.position.step >= self.config.max_steps

    def _plan_steps(self, is_validation: bool) -> None:
        """With `max_minutes`: plan the number of steps once, and change the plan at validations if the speed changes.

        The schedule is stretched over the planned steps. Plans are saved in checkpoints and written to metrics.jsonl.
        """
        if self.budget is None:
            return
        if not is_validation:
            self.budget.add_step()
        step, planned, num_steps = self.position.step, self.position.max_steps, None
        if self.plans is not None:
            num_steps = self.plans.get(step) if is_validation or planned is None else None
        elif is_validation or (planned is None and step % self.config.log_every == 0):
            spent = self.position.seconds_before + self.position.seconds + time.perf_counter() - self.mark
            if is_validation or self.budget.is_first_plan_due(step, spent):
                num_steps = self.budget.plan(step, spent, planned)
            num_steps = self.ranks.gather(num_steps)[0]
        if num_steps is None or num_steps == planned:
            return
        self.position.max_steps, self.position.max_minutes = num_steps, self.given.max_minutes
        self._set_steps(num_steps)
        log.info("step %d: %d steps in all fit in %g minutes", step, num_steps, self.given.max_minutes)
        if planned is not None:
            self._jump("the speed changed")
        self._write("plan", step, max_steps=num_steps)

    def _set_steps(self, num_steps: int) -> None:
        self.config = self.step.config = with_steps(self.given, num_steps)

    def _one_step(self, micro_batches: list[Batch]) -> None:
        is_alone_on_cpu = self.step.device.type == "cpu" and self.ranks.size == 1
        with self.core_watch.step() if is_alone_on_cpu else contextlib.nullcontext():
            result = self.step.run(micro_batches, self.position.step + 1)
        self.position.step += 1
        self.position.place = micro_batches[-1].end
        self.last_batches = micro_batches
        self.window.add(micro_batches, result)
        # Reading the count waits for the GPU, so it is only checked at log lines, which wait anyway.
        if self.step.device.type == "cpu" or self.position.step % self.config.log_every == 0:
            self._check_gradients()

    def _check_gradients(self) -> None:
        """Raise MtformerError after too many consecutive skipped steps, without saving the weights."""
        count = int(self.step.skipped_in_a_row)
        if count >= MAX_SKIPPED_IN_A_ROW:
            raise self._diverged(f"the gradient was not finite {count} times in a row")

    def _diverged(self, what: str) -> MtformerError:
        """Return the error for a diverged run."""
        return MtformerError(
            f"step {self.position.step}: {what}; {last_good(self.run)}. Lower training.learning_rate, raise "
            "training.warmup_steps, or set training.precision to fp32"
        )

    def _log(self) -> None:
        step, epoch = self.position.step, self.position.place.epoch
        figures = self.window.figures(self.ranks) if step % self.config.log_every == 0 else None
        if self.ranks.is_main:
            self.progress.advance(step, self.config.max_steps, epoch, figures)
        if figures is not None:
            self._write("train", step, epoch=epoch, **figures)
            self.window = Window()

    def _validate_and_save(self) -> None:
        self._check_gradients()
        num_skipped = int(self.step.skipped_in_a_row)
        saved = self.ranks.gather(max(self.run.regular_steps(), default=0))[0]
        if 0 < self.position.step - saved <= num_skipped:
            log.warning(
                "step %d: not saved: the gradient was not finite in any step since the last checkpoint (step %d)",
                self.position.step, saved,
            )  # fmt: skip
            return
        with self.step.ema_weights():
            metrics = self._dev_metrics()
        if metrics:
            by_set = dict[str, list[str]]()
            for key, value in metrics.items():
                metric, _, name = key.partition(" ")
                by_set.setdefault(f"{name}: " if name else "", []).append(f"{metric} {value:.4g}")
            for name, texts in by_set.items():
                log.info("step %d: dev %s%s", self.position.step, name, ", ".join(texts))
            self._write("dev", self.position.step, epoch=self.position.place.epoch, **metrics)
            self._update_best(metrics)
        if not self.is_done():
            self._plan_steps(is_validation=True)
        self._save(metrics)

    def validate_average(self) -> dict[str, float]:
        """Load the averaged weights of the run into the model and return their dev metrics.

        Raises:
            InterruptedRunError: after SIGINT or SIGTERM; the resumed run repeats the validation.
        """
        self.step.load_weights(self.run.averaged / WEIGHTS)
        with self.stop:
            try:
                return self._dev_metrics(keeps_samples=False)
            except _AbandonedError:
                assert self.stop.received is not None
                raise InterruptedRunError(self.position.step, self.stop.received) from None

    def _dev_metrics(self, keeps_samples: bool = True) -> dict[str, float]:
        metrics = {}
        if self.dev_batches is not None:
            metrics = dev_loss(self.step, self._until_stopped(self.dev_batches()))
            if not math.isfinite(metrics["loss"]):
                raise self._diverged("the dev loss is not finite")
        if self.decode_dev is not None:
            self.step.model.eval()
            decoded = self.decode_dev(lambda count: self._check_stop())
            metrics.update(decoded.metrics)
            for src, reference, hypothesis in decoded.samples if keeps_samples else ():
                log.info("  source     %s\n  reference  %s\n  hypothesis %s", src, reference, hypothesis)
            if self.ranks.is_main and decoded.samples and keeps_samples:
                append_record(self.run.samples, "dev", self.position.step, samples=decoded.samples)
        return metrics

    def _until_stopped(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._check_stop()
            yield batch

    def _update_best(self, metrics: dict[str, float]) -> None:
        """Update the best score and count validations without improvement."""
        value = metrics.get(self.config.best_metric)
        if value is None:
            return
        best, position = self.position.best, self.position
        lower = lower_is_better(self.config.best_metric)
        if best is None or (value < best if lower else value > best):
            position.best, position.validations_since_best = value, 0
        else:
            position.validations_since_best += 1
        if self.config.patience is not None and position.validations_since_best >= self.config.patience:
            count, metric = self.config.patience, self.config.best_metric
            log.info("step %d: early stopping: no improvement in %s over %d validations", position.step, metric, count)

    def _check_loss(self) -> None:
        """Raise MtformerError if the loss on the last batch is not finite; called before saving without validation.

        The gradient check is not sufficient, because the last gradient was computed before the weights changed.
        """
        if self.last_batches:
            with self.step.ema_weights():
                loss = dev_loss(self.step, self.last_batches[:1])["loss"]
            if not math.isfinite(loss):
                raise self._diverged("the training loss is not finite")

    def _save(self, metrics: dict[str, float], is_temporary: bool = False) -> None:
        self._check_gradients()
        if "loss" not in metrics:
            self._check_loss()
        now = time.perf_counter()
        self.position.seconds += now - self.mark
        self.mark = now
        rng = self.ranks.gather(random_state(self.step.device))
        windows = self.ranks.gather(self.window.state())
        state: dict[str, Any] = {
            "position": {**asdict(self.position), "place": self.position.place._asdict()},
            "best_metric": self.config.best_metric,
            "optimizer": self.step.optimizer_state(),
            "scaler": self.step.scaler.state_dict(),
            "skipped_in_a_row": int(self.step.skipped_in_a_row),
            "max_padded_tokens": self.step.max_padded_tokens,
            "windows": windows,
            "rng": rng,
            "training_weights": self.step.weights() if self.step.ema is not None else {},
        }
        with self.step.ema_weights():
            weights = self.step.weights()
        if name := not_finite(weights) or not_finite(state["training_weights"]):
            raise self._diverged(f"{name} has NaN or infinite values")
        if self.ranks.is_main:
            for path in (self.run.metrics, self.run.samples):
                if path.is_file():
                    sync(path)  # because a resumed run does not write earlier lines again
            save_checkpoint(self.run, self.position.step, weights, state, metrics, self.made_with, is_temporary)
            prune(self.run, self.config)
        self.saved_step, self.is_validated = self.position.step, not is_temporary

    def _write(self, kind: str, step: int, **values: Any) -> None:
        if self.metrics is not None:
            self.metrics.write(kind, step, **values)


def random_state(device: torch.device) -> list[Tensor]:
    """Return the random number generator states of the CPU and of a CUDA device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_random_state(state: list[Tensor], device: torch.device) -> None:
    """Restore the result of `random_state`; the state of a CUDA device is ignored on a CPU."""
    torch.set_rng_state(state[0])
    if device.type == "cuda" and len(state) > 1:
        torch.cuda.set_rng_state(state[1], device)

"""The training loop: steps, log lines, validations, checkpoints, and resuming."""

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from mtformer.config.schema import Config
from mtformer.data.batching.batches import Batch
from mtformer.data.batching.mixture import START, SamplerState
from mtformer.errors import CheckpointError, InterruptedRunError, MtformerError, log
from mtformer.files import unchanged, utc_now, verify
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir, lower_is_better
from mtformer.training.budget import FIRST_STEPS, Budget, Plans, relative_cost, with_steps
from mtformer.training.checkpoint import last_good, load_trainer_state, prune, save_checkpoint
from mtformer.training.history import append_record, cut_after
from mtformer.training.metrics import CoreWatch, Metrics, Progress, Window
from mtformer.training.optimizer import learning_rate
from mtformer.training.signals import StopSignal
from mtformer.training.step import MAX_SKIPPED_IN_A_ROW, TrainingStep
from mtformer.training.validation import Decoded, DecodeDev, dev_loss
from mtformer.weights import not_finite

SCHEDULE_KEYS = ("learning_rate", "max_minutes", "max_steps", "schedule", "warmup_steps")
MAX_JUMP = 0.05  # largest relative change of the learning rate by a changed schedule that is not reported


@dataclass
class Position:
    """Progress of a run, saved in each checkpoint."""

    step: int = 0
    place: SamplerState = START
    seconds: float = 0.0
    """Training time in seconds, including validation."""
    seconds_before: float = 0.0
    """Time in seconds for preparation, in all processes of the run."""
    max_steps: int | None = None
    """With `max_minutes`: planned number of steps; None: not planned yet."""
    max_minutes: float | None = None
    """`max_minutes` of that plan."""
    given_steps: int | None = None
    """`training.max_steps` of that plan, which it cannot exceed."""
    best: float | None = None
    validations_since_best: int = 0


@dataclass(eq=False)
class Trainer:
    """Trains a model and writes logs and checkpoints to a run directory."""

    experiment: Config
    run: RunDir
    step: TrainingStep
    batches_from: Callable[[SamplerState], Iterator[Batch]]
    """Function that returns the batches after a sampler state, each with its `end` state."""
    dev_batches: Callable[[], Iterable[Batch]] | None
    """Function that returns the dev batches; None without dev data."""
    decode_dev: DecodeDev | None
    """Function that translates and scores dev; None without dev data."""
    progress: Progress
    made_with: dict[str, Any]
    """Description of the data, versions and device; saved in each checkpoint and compared on resuming."""
    plans: Plans | None = None
    """See `Budget`."""

    def __post_init__(self) -> None:
        self.given = self.config = self.experiment.training
        self.budget: Budget | None = None
        self.expected_steps = self.given.max_steps  # fewer with `max_epochs`
        self.ranks = self.step.ranks
        self.stop = StopSignal()
        self.window = Window()
        self.core_watch = CoreWatch(self.step.device, self.ranks)
        self.metrics = Metrics(self.run, self.experiment, self.ranks.is_main)
        self.position = Position()
        self.last_batches: list[Batch] = []
        """First micro-batch of the last step."""
        self.saved_step = 0
        """Step of the latest checkpoint of this run that is not temporary."""
        self.resumed: dict[str, Any] | None = None
        """Record of the resume, written when training starts, because the caller may refuse it."""
        self.start = 0.0
        """Time at which training would have started without interruptions."""

    def resume(self, checkpoint: Path | None, config_changes: Mapping[str, Any] = {}) -> None:
        """Load a checkpoint (see `newest_good`), or start at step 0 if it is None; record changed config keys.

        Raise CheckpointError if its weights do not fit the model, or its state cannot be loaded.
        """
        meta: dict[str, Any] = {"made_with": self.made_with, "is_temporary": True, "logs": {}}
        if checkpoint is not None:
            with unchanged(checkpoint / WEIGHTS, checkpoint / TRAINER_STATE):
                # They were verified before the data were prepared, which may have taken hours.
                meta = verify(checkpoint, WEIGHTS, TRAINER_STATE)
                state = load_trainer_state(checkpoint)
                self.step.load_weights(checkpoint / WEIGHTS)
            try:
                self._restore(state, meta["made_with"])
            except Exception as error:  # any of these calls may fail on values of wrong types
                what = f"not a trainer state of this run ({' '.join(f'{type(error).__name__}: {error}'.split()):.200})"
                raise CheckpointError(f"{checkpoint / TRAINER_STATE}: {what}; move {checkpoint} away") from error
        self.step.share_memory_limit()  # the devices of the processes may differ, so not all may have restored it
        self.saved_step = self.ranks.gather(max(self.run.regular_steps(), default=0))[0]
        if not self.ranks.is_main:
            return
        for path in (self.run.metrics, self.run.samples):
            cut_after(path, self.position.step, not meta["is_temporary"], meta["logs"].get(path.name))
        schedule = [key for key in config_changes if key.removeprefix("training.") in SCHEDULE_KEYS]
        jump = self._jump(f"{' and '.join(schedule)} changed") if schedule else {}
        before = meta["made_with"]
        other = {key: [before.get(key), value] for key, value in self.made_with.items() if before.get(key) != value}
        self.resumed = {"time": utc_now(), "changes": {**config_changes, **jump, **other}}

    def _jump(self, cause: str) -> dict[str, Any]:
        """Log and return the change of the learning rate of the current step by a changed schedule, if it is large."""
        step, before = self.position.step, self.step.optimizer.param_groups[0]["lr"]
        after = learning_rate(step, self.config, self.step.model.config.d_model)
        if not step or abs(after - before) <= MAX_JUMP * max(after, before):
            return {}
        log.warning("step %d: the learning rate jumps from %.2e to %.2e, because %s", step, before, after, cause)
        return {"training.current_learning_rate": [float(f"{rate:.3g}") for rate in (before, after)]}

    def _restore(self, state: dict[str, Any], made_with: dict[str, Any]) -> None:
        """Restore the state saved by `_save`; if it is invalid, exceptions of any type may be raised."""
        if state["training_weights"]:
            self.step.load_training_weights(state["training_weights"])
        self.step.load_optimizer_state(state["optimizer"])
        if state["scaler"]:  # empty without fp16
            self.step.scaler.load_state_dict(state["scaler"])
        self.step.skipped_in_a_row.fill_(state["skipped_in_a_row"])
        if made_with == self.made_with:  # on another device, more memory may be available
            self.step.max_padded_tokens = TypeAdapter(int | None).validate_python(state["max_padded_tokens"])
        if self.ranks.rank < len(state["rng"]):  # additional processes keep their initial state, see `make_step`
            set_random_state(state["rng"][self.ranks.rank], self.step.device)
        state["position"]["place"].pop("since_step", None)  # of version 0.3
        self.position = TypeAdapter(Position).validate_python(state["position"])
        planned, limits = self.position.max_steps, (self.position.max_minutes, self.position.given_steps)
        if limits in [(self.given.max_minutes, steps) for steps in (None, self.given.max_steps)]:
            soonest = 0
        else:  # until the next plan, which needs some steps of this process, the schedule stays the same
            spent = (self.position.seconds + self.position.seconds_before) / 60
            to_plan = self.given.log_every + 2 * FIRST_STEPS if spent < (self.given.max_minutes or math.inf) else 0
            soonest, self.position.max_minutes = self.position.step + to_plan, None
        self.position.max_steps = None
        if planned is not None and self.given.max_minutes is not None:
            self.position.max_steps = num_steps = min(max(planned, soonest), self.given.max_steps)
            self.config = self.step.config = with_steps(self.given, num_steps)
        dev, new_dev = made_with.get("dev data"), self.made_with.get("dev data")
        if state["best_metric"] != self.config.best_metric or (new_dev is not None and dev != new_dev):
            self.position.best, self.position.validations_since_best = None, 0
        if len(state["windows"]) == self.ranks.size:
            self.window = Window.from_state(state["windows"][self.ranks.rank])

    def train(self, seconds_before: float = 0.0, validation_seconds: float = 0.0) -> Position:
        """Train until the end and return the final position.

        For `max_minutes`: this process has spent `seconds_before`, and a validation takes about `validation_seconds`.
        Raise InterruptedRunError after SIGINT or SIGTERM, when a checkpoint has been saved; MtformerError if gradients
        remain non-finite, the loss or weights to be saved are not finite, or a checkpoint cannot be saved.
        """
        self.window.start = time.perf_counter()  # without the memory check
        self.start = self.window.start - self.position.seconds
        self.position.seconds_before += seconds_before
        if self.given.max_minutes is not None:
            self.budget = Budget(self.given, 60 * self.given.max_minutes, validation_seconds, self.plans)
        with self.stop, self.metrics:
            if self.resumed is not None:
                if self.position.step:
                    log.info("resumed at step %d of %d", self.position.step, self.config.max_steps)
                prune(self.run, self.config)  # the previous process may have been killed before pruning
                self.metrics.write("resume", self.position.step, **self.resumed)
                if self.position.max_steps is not None and self.position.max_minutes is None:  # another limit
                    self.metrics.write("plan", self.position.step, max_steps=self.position.max_steps)
            if self.position.step % self.config.validate_every == 0:
                self._validate()  # if the interrupted run has not finished this
            batches = self.batches_from(self.position.place)
            while not self.is_done():
                self._stop_if_signaled()
                waited = time.perf_counter()
                micro_batches = list(itertools.islice(batches, self.config.accumulation_steps))
                self.window.waiting += time.perf_counter() - waited
                if not micro_batches:
                    break
                self._one_step(micro_batches)
                if self.position.step % self.config.validate_every == 0:
                    self._validate()
            if not self.position.step:
                raise MtformerError("training ended before its first step; raise training.max_epochs, or the weights")
            if self.position.step <= int(self.step.skipped_in_a_row):
                raise self._diverged("the gradient was not finite in any step")
            self._validate()
            self._stop_if_signaled()
        return self.position

    def _validate(self) -> None:
        """Validate and save a checkpoint if there is none; after an interruption, the resumed run does both."""
        if self.saved_step == self.position.step:
            return
        start = time.perf_counter()
        try:
            with self.step.ema_weights():
                metrics, samples = self._evaluate()
        except InterruptedRunError:
            self._save({}, is_temporary=True)
            raise
        for src, reference, hypothesis in samples:
            log.info("  source     %s\n  reference  %s\n  hypothesis %s", src, reference, hypothesis)
        if samples and self.ranks.is_main:
            append_record(self.run.samples, "dev", self.position.step, samples=samples)
        if metrics:
            by_set = dict[str, list[str]]()
            for key, value in metrics.items():
                metric, _, name = key.partition(" ")
                by_set.setdefault(f"{name}: " if name else "", []).append(f"{metric} {value:.4g}")
            for name, texts in by_set.items():
                log.info("step %d: dev %s%s", self.position.step, name, ", ".join(texts))
            self.metrics.write("dev", self.position.step, epoch=self.position.place.epoch, **metrics)
            self._update_best(metrics)
        if self.budget is not None and not self.is_done():
            self._plan_steps(self.budget)
        self._save(metrics)
        seconds = time.perf_counter() - start
        self.window.paused += seconds
        if self.budget is not None:
            self.budget.add_validation(seconds)

    def _stop_validation_if_signaled(self, *_: object) -> None:
        # Distributed processes synchronize during validation, so a single process cannot abandon it.
        if self.stop.received is not None and self.ranks.size == 1:
            raise InterruptedRunError(self.position.step, self.stop.received)

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

    def _plan_steps(self, budget: Budget) -> None:
        """Choose the number of steps for `max_minutes`: once at the start, and at validations if the speed changes.

        The schedule is stretched over the planned steps. Plans are saved in checkpoints and written to metrics.jsonl.
        """
        step, planned = self.position.step, self.position.max_steps if self.position.max_minutes else None
        spent = self.position.seconds_before + time.perf_counter() - self.start
        num_steps = self.ranks.gather(budget.plan(step, spent, planned))[0]
        if num_steps is None or num_steps == planned:
            return
        self.position.max_steps, self.position.max_minutes = num_steps, self.given.max_minutes
        self.position.given_steps, had_plan = self.given.max_steps, self.config is not self.given
        self.config = self.step.config = with_steps(self.given, num_steps)
        log.info("step %d: %d steps in all fit in %g minutes", step, num_steps, self.given.max_minutes)
        jump = self._jump("the number of steps that fit in the time changed") if had_plan else {}
        self.metrics.write("plan", step, max_steps=num_steps, **({"changes": jump} if jump else {}))

    def _one_step(self, micro_batches: list[Batch]) -> None:
        with self.core_watch.step():
            result = self.step.run(micro_batches, self.position.step + 1)
        self.position.step += 1
        self.position.place = micro_batches[-1].end
        self.last_batches = micro_batches[:1]
        self.window.add(micro_batches, result)
        step, epoch = self.position.step, self.position.place.epoch
        is_logged = step % self.config.log_every == 0
        # Reading the count waits for the GPU, so it is only checked at log lines, which wait anyway.
        if is_logged or self.step.device.type == "cpu":
            self._check_gradients()
        figures = None
        if is_logged:
            figures = self.window.figures(self.ranks)
            last = max(step, min(self.config.max_steps, self.expected_steps))
            steps_left = relative_cost(self.config, step, last)  # of the length of this one
            steps_left /= relative_cost(self.config, step - 1, step)
            figures["seconds_left"] = steps_left * figures["seconds_per_step"]
        if self.ranks.is_main:
            self.progress.advance(step, self.config.max_steps, epoch, figures)
        if figures is not None:
            self.metrics.write("train", step, epoch=epoch, **figures)
            self.window = Window()
        if self.budget is not None:
            self.budget.add_step()
            is_due = self.position.max_minutes is None and (is_logged or step % (2 * FIRST_STEPS) == 0)
            if is_due or (self.plans is not None and step % self.config.validate_every):
                self._plan_steps(self.budget)

    def _check_gradients(self) -> None:
        """Raise MtformerError after too many consecutive skipped steps, without saving the weights."""
        count = int(self.step.skipped_in_a_row)
        if count >= MAX_SKIPPED_IN_A_ROW:
            raise self._diverged(f"the gradient was not finite {count} times in a row")

    def _diverged(self, what: str) -> MtformerError:
        remedy = "Lower training.learning_rate, raise training.warmup_steps, or set training.precision to fp32"
        return MtformerError(f"step {self.position.step}: {what}; {last_good(self.run)}. {remedy}")

    def validate_average(self) -> dict[str, float]:
        """Load the averaged weights of the run into the model and return their dev metrics.

        Raise InterruptedRunError after SIGINT or SIGTERM; the resumed run repeats the validation.
        """
        self.step.load_weights(self.run.averaged / WEIGHTS)
        with self.stop:
            return self._evaluate().metrics

    def _evaluate(self) -> Decoded:
        """Return all dev metrics, and sample translations; raise MtformerError if the loss is not finite."""
        if self.dev_batches is None or self.decode_dev is None:  # without dev data, both are None
            return Decoded({}, [])
        metrics = self._finite_loss("dev", self._until_stopped(self.dev_batches()))
        scores, samples = self.decode_dev(self._stop_validation_if_signaled)
        return Decoded({**metrics, **scores}, samples)

    def _until_stopped(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._stop_validation_if_signaled()
            yield batch

    def _finite_loss(self, data: str, batches: Iterable[Batch]) -> dict[str, float]:
        metrics = dev_loss(self.step, batches)
        if not math.isfinite(metrics["loss"]):
            raise self._diverged(f"the {data} loss is not finite")
        return metrics

    def _update_best(self, metrics: dict[str, float]) -> None:
        """Update the best score and count validations without improvement."""
        position, metric, patience = self.position, self.config.best_metric, self.config.patience
        value = metrics.get(metric)
        if value is None:
            return
        sign = 1 if lower_is_better(metric) else -1
        if position.best is None or sign * value < sign * position.best:
            position.best, position.validations_since_best = value, 0
        elif value:  # a BLEU of 0 at the beginning says nothing
            position.validations_since_best += 1
        if patience is not None and position.validations_since_best >= patience:
            text = "step %d: early stopping: no improvement in %s over %d validations"
            log.info(text, position.step, metric, patience)

    def _save(self, metrics: dict[str, float], is_temporary: bool = False) -> None:
        self._check_gradients()
        training_weights = self.step.weights() if self.step.ema is not None else {}
        with self.step.ema_weights():
            weights = self.step.weights()
            if "loss" not in metrics and self.last_batches:
                # A finite gradient is not sufficient, because it was computed before the weights changed.
                self._finite_loss("training", self.last_batches)
        if name := not_finite(weights) or not_finite(training_weights):
            raise self._diverged(f"{name} has NaN or infinite values")
        self.step.share_memory_limit()  # in validation, memory may have run out on one process
        self.position.seconds = time.perf_counter() - self.start
        state: dict[str, Any] = {
            "position": {**asdict(self.position), "place": self.position.place._asdict()},
            "best_metric": self.config.best_metric,
            "optimizer": self.step.optimizer_state(),
            "scaler": self.step.scaler.state_dict(),
            "skipped_in_a_row": int(self.step.skipped_in_a_row),
            "max_padded_tokens": self.step.max_padded_tokens,
            "windows": self.ranks.gather(self.window.state()),
            "rng": self.ranks.gather(random_state(self.step.device)),
            "training_weights": training_weights,
        }
        if self.ranks.is_main:
            self.run.confidence.unlink(missing_ok=True)  # fitted to earlier weights
            save_checkpoint(self.run, self.position.step, weights, state, metrics, self.made_with, is_temporary)
            prune(self.run, self.config)
        if not is_temporary:
            self.saved_step = self.position.step


def random_state(device: torch.device) -> list[Tensor]:
    """Return the random number generator states of the CPU and of a CUDA device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def set_random_state(state: list[Tensor], device: torch.device) -> None:
    """Restore the result of `random_state`; the state of a CUDA device is ignored on a CPU."""
    torch.set_rng_state(state[0])
    if device.type == "cuda" and len(state) > 1:
        torch.cuda.set_rng_state(state[1], device)

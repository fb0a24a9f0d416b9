"""The training loop: steps, log lines, validations and checkpoints."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from mtformer.config.schema import Config, TrainingConfig
from mtformer.data.batching.batches import Batch
from mtformer.data.batching.mixture import SamplerState
from mtformer.errors import InterruptedRunError, MtformerError, log
from mtformer.run_dir import RunDir
from mtformer.training.budget import Plans, StepPlan
from mtformer.training.checkpoint import Checkpoint, prune
from mtformer.training.checkpoint_writer import BACKGROUND_DEVICES, CheckpointWriter
from mtformer.training.core_watch import CoreWatch
from mtformer.training.divergence import check_any_step_taken, check_gradients, check_weights
from mtformer.training.metrics import Metrics
from mtformer.training.progress import Progress
from mtformer.training.signals import StopSignal
from mtformer.training.state import (
    BestScore,
    OfEachProcess,
    RandomState,
    Stateful,
    TrainPosition,
    collect_state,
)
from mtformer.training.step import StepFlags, TrainingStep
from mtformer.training.train_window import TrainWindow
from mtformer.training.validation import DevData, Validator


@dataclass(eq=False)
class Trainer:
    """Trains a model and writes logs and checkpoints to a run directory."""

    experiment: Config
    run: RunDir
    step: TrainingStep
    batches_from: Callable[[SamplerState], Iterator[Batch]]
    """Function that returns the batches after a sampler state, each with its `end` state."""
    dev: DevData | None
    progress: Progress
    made_with: dict[str, Any]
    """Description of the data, versions and device; saved in each checkpoint and compared on resuming."""
    plans: Plans | None = None
    """See `StepPlan.start`."""

    def __post_init__(self) -> None:
        config = self.experiment.training
        self.ranks = self.step.ranks
        self.position = TrainPosition()
        self.plan = StepPlan(config)
        self.best_score = BestScore(config.best_metric, config.patience)
        self.window = TrainWindow()

        self.stop = StopSignal()
        self.is_stopping = False
        """True if any process had received a signal when the last step began; the same on all processes."""
        self.writer = CheckpointWriter(self.run, in_background=self.step.device.type in BACKGROUND_DEVICES)
        self.validator = Validator(self.run, self.dev, self.stop)
        self.core_watch = CoreWatch(self.step.device, self.ranks)
        self.metrics = Metrics(self.run, self.experiment, self.ranks.is_main)
        self.expected_steps = config.max_steps
        """Estimated number of steps; with `max_epochs` or `max_minutes`, it may be lower than `max_steps`."""
        self.last_batches: list[Batch] = []
        """First micro-batch with targets of the last step that had one; with noise, a process may have none at the end
        of a window."""
        self.saved_step = 0
        """Step of the latest checkpoint of this run that is not temporary."""
        self.resumed: dict[str, Any] | None = None
        """Record of the resume, written when training starts, because the caller may refuse it."""
        self.start_time = 0.0
        """Time at which training would have started without interruptions."""

    @property
    def config(self) -> TrainingConfig:
        """Training settings, with the planned number of steps."""
        return self.plan.config

    @property
    def num_steps(self) -> int:
        """Planned number of steps, or the estimated one before there is a plan."""
        if self.plan.num_steps is not None:
            return self.plan.num_steps
        return max(self.position.step, min(self.config.max_steps, self.expected_steps))

    @property
    def parts(self) -> list[Stateful]:
        """All parts of the state that checkpoints contain and a resumed run restores."""
        # The window is about the batches of one process, and these depend on the number of processes.
        return [
            self.position,
            self.plan,
            self.best_score,
            self.step,
            OfEachProcess("windows", self.window, self.ranks, needs_same_number=True),
            OfEachProcess("rng", RandomState(self.step.device), self.ranks),
        ]

    # ---- training ---------------------------------------------------------------------------------------------------

    def train(self, seconds_before: float = 0.0, validation_seconds: float = 0.0) -> TrainPosition:
        """Train until the end and return the final position.

        Args:
            seconds_before: Seconds that this process has spent before, which count for `max_minutes`.
            validation_seconds: Estimated seconds of a validation, for `max_minutes`.

        Raises:
            InterruptedRunError: After SIGINT or SIGTERM, when a checkpoint has been saved.
            MtformerError: If gradients remain non-finite, the loss or weights to be saved are not finite, or a
                checkpoint cannot be saved.
        """
        self.window.start = time.perf_counter()  # without the memory check
        self.start_time = self.window.start - self.position.seconds
        self.position.seconds_before += seconds_before
        self.plan.start(validation_seconds, self.plans)

        with self.stop, self.metrics, self.writer:
            if self.resumed is not None:
                self._complete_resume(self.resumed)
            if self.position.step % self.config.validate_every == 0:
                self._validate()  # if the interrupted run has not finished this
            self._take_all_steps()

            if not self.position.step:
                raise MtformerError(
                    "training ended before its first step, because the corpus is too small; raise "
                    "training.max_epochs, or the weights in data.corpora"
                )
            check_any_step_taken(self.run, self.position.step, self.step.skipped_in_a_row)
            self._validate()
            if self.ranks.any(self.stop.received is not None):
                self._stop()
        return self.position

    def _complete_resume(self, record: dict[str, Any]) -> None:
        step = self.position.step
        if step:
            log.info("resumed at step %d of %d", step, self.config.max_steps)
        prune(self.run, self.config)  # the previous process may have been killed before pruning
        self.metrics.write("resume", step, **record)
        if self.plan.is_left_from_other_limits:
            self.metrics.write("plan", step, **self.plan.plan.record())

    def is_done(self) -> bool:
        """Return True after the last step, or after `patience` validations without improvement."""
        return self.best_score.is_stale or self.position.step >= self.config.max_steps

    def _take_all_steps(self) -> None:
        """Train, with log lines and validations, until the run is done or the data end."""
        batches = self.batches_from(self.position.place)
        while not self.is_done():
            self.writer.check()
            if self._is_signaled():
                self._stop()
            waiting_start = time.perf_counter()
            micro_batches = list(itertools.islice(batches, self.config.accumulation_steps))
            self.window.waiting += time.perf_counter() - waiting_start
            if not micro_batches:
                return

            self._take_step(micro_batches)
            if self.position.step % self.config.validate_every == 0:
                self._validate()

    def _take_step(self, micro_batches: list[Batch]) -> None:
        """Take one optimizer step and log it; with `max_minutes`, plan the number of steps if that is due."""
        flags = StepFlags(is_stopping=self.stop.received is not None, is_planning=self._wants_plan())
        with self.core_watch.step():
            next_step = self.position.step + 1
            schedule_step = self.plan.schedule.next_step(self.position.step)
            result = self.step.run(micro_batches, next_step, schedule_step=schedule_step, flags=flags)
        self.is_stopping = result.flags.is_stopping
        self.position.step += 1
        self.plan.schedule.advance()
        self.position.place = micro_batches[-1].end
        batches_with_targets = [batch for batch in micro_batches if batch.num_tgt_tokens]
        self.last_batches = batches_with_targets[:1] or self.last_batches or micro_batches[:1]
        self.window.add(micro_batches, result)

        step = self.position.step
        epoch = self.position.place.epoch
        is_logged = step % self.config.log_every == 0
        # Reading the count waits for the GPU, so it is only checked at log lines, which wait anyway.
        if is_logged or self.step.device.type == "cpu":
            check_gradients(self.run, step, self.step.skipped_in_a_row)

        figures = self._figures() if is_logged else None
        if self.ranks.is_main:
            self.progress.advance(step, self.num_steps, epoch, figures)
        if figures is not None:
            self.metrics.write("train", step, epoch=epoch, **figures)
            self.window = TrainWindow()

        self.plan.speed.add_step(step)
        if figures is not None and not self.plan.is_limited:
            self.plan.speed.end_window()
        # Several processes exchange the flag at the start of each step, so that their plans change after the same one.
        is_decided_alone = self.ranks.size == 1 or self.plan.is_following
        if self._wants_plan() if is_decided_alone else result.flags.is_planning:
            self._plan_steps()

    def _figures(self) -> dict[str, float]:
        """Return the values of a log line after the current step."""
        figures = self.window.figures(self.ranks)
        figures["seconds_left"] = self.plan.seconds_left(
            self.position.step, self.num_steps, figures["seconds_per_step"], self._seconds_spent()
        )
        return figures

    def _seconds_spent(self) -> float:
        """Return the seconds since the start of the run, in all its processes."""
        return self.position.seconds_before + time.perf_counter() - self.start_time

    def _wants_plan(self) -> bool:
        return self.plan.is_due(self.position.step, self._seconds_spent())

    def _plan_steps(self) -> None:
        """Choose the number of steps for `max_minutes`; plans are saved in checkpoints and written to metrics.jsonl."""
        step = self.position.step
        if self.step.device.type == "cuda":
            torch.cuda.synchronize(self.step.device)  # a few dozen times in a run
        if not self.plan.update(step, self._seconds_spent(), self.ranks):
            return

        values = self.plan.plan.record()
        self.step.config = self.plan.schedule.config
        cause = "training.max_minutes or training.max_steps changed"
        jump = self.step.log_rate_jump(step, self.plan.schedule.step_of(step), cause)
        if jump:
            values["changes"] = jump
        self.metrics.write("plan", step, **values)

    # ---- interruption -----------------------------------------------------------------------------------------------

    def _is_signaled(self) -> bool:
        """Return True if any process received a signal; several processes exchange this at the start of each step."""
        if self.ranks.size == 1:
            return self.stop.received is not None
        return self.is_stopping

    def _stop(self) -> None:
        """Save a temporary checkpoint and end the run; all processes call this together."""
        if self.saved_step != self.position.step:
            self._save({}, is_temporary=True)
        signals_by_rank = self.ranks.gather(self.stop.received)
        received = [number for number in signals_by_rank if number is not None]
        raise InterruptedRunError(self.position.step, received[0])

    # ---- validation and checkpoints ---------------------------------------------------------------------------------

    def _validate(self) -> None:
        """Validate and save a checkpoint if there is none; after an interruption, the resumed run does both."""
        if self.saved_step == self.position.step:
            return
        start = time.perf_counter()
        try:
            with self.step.ema_weights():
                decoded = self.validator.evaluate(self.step, self.position.step)
        except InterruptedRunError:
            self._save({}, is_temporary=True)
            raise

        self.validator.log_results(decoded, self.position.step, is_main=self.ranks.is_main)
        if decoded.metrics:
            self.metrics.write("dev", self.position.step, epoch=self.position.place.epoch, **decoded.metrics)
        self.best_score.update(self.position.step, decoded.metrics)
        validation_seconds = time.perf_counter() - start
        self.plan.speed.add_validation(validation_seconds)
        if self.plan.is_following or not self.is_done():
            self._plan_steps()
        self._save(decoded.metrics)

        seconds = time.perf_counter() - start
        self.window.paused += seconds
        self.plan.speed.add_saving(seconds - validation_seconds)

    def _save(self, metrics: dict[str, float], is_temporary: bool = False) -> None:
        """Save a checkpoint of the current step, with the dev metrics; raise MtformerError if the run has diverged."""
        step = self.position.step
        check_gradients(self.run, step, self.step.skipped_in_a_row)
        with self.step.ema_weights():
            weights = self.step.weights()
            if "loss" not in metrics and self.last_batches:
                # A finite gradient is not sufficient, because it was computed before the weights changed.
                self.validator.finite_loss("training", self.last_batches, self.step, step)
        self.step.share_memory_limit()  # in validation, memory may have run out on one process
        self.position.seconds = time.perf_counter() - self.start_time

        state = collect_state(self.parts)
        check_weights(self.run, step, weights, state["training_weights"])

        if self.ranks.is_main:
            self.run.confidence.unlink(missing_ok=True)  # fitted to earlier weights
            checkpoint = Checkpoint(step, weights, state, metrics, self.made_with, is_temporary)
            self.writer.write(checkpoint, self.config)
        if not is_temporary:
            self.saved_step = step

"""The training loop: steps, log lines, validations, checkpoints, and where a run goes on after it stopped."""

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mtformer.config.schema import Config
from mtformer.data.batches import Batch
from mtformer.errors import MtformerError
from mtformer.rundir import LOWER_IS_BETTER, WEIGHTS, RunDir
from mtformer.training.checkpoint import load_trainer_state, prune, save_checkpoint
from mtformer.training.metrics import MetricsFile, Progress, Window
from mtformer.training.signals import StopSignal
from mtformer.training.step import MAX_SKIPPED_IN_A_ROW, TrainingStep
from mtformer.training.validation import DecodeDev, dev_loss
from mtformer.weights import load_weights

log = logging.getLogger("mtformer")


class InterruptedRunError(Exception):
    """The run was asked to stop; a checkpoint of `step` is saved."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step
        self.signal_number = signal_number


@dataclass
class Position:
    """How far a run is; all of it goes into the checkpoint."""

    step: int = 0
    epoch: int = 0
    pairs: int = 0
    """Pairs of this epoch already trained on."""
    seconds: float = 0.0
    """Spent in training, validation included."""
    best: float | None = None
    validations_since_best: int = 0


class Trainer:
    """Trains one model in one run directory.

    Args:
        config: the experiment.
        run: where checkpoints and metrics go.
        step: the model with its optimizer.
        batches_from: (epoch, pairs of it to pass over) -> the batches from there on, each with its `end`.
        dev_batches: a function that gives the dev batches anew, or None without dev data.
        decode_dev: translates and scores dev, or None.
        progress: where the figures are shown.
    """

    def __init__(
        self,
        config: Config,
        run: RunDir,
        step: TrainingStep,
        batches_from: Callable[[int, int], Iterator[Batch]],
        dev_batches: Callable[[], Iterable[Batch]] | None,
        decode_dev: DecodeDev | None,
        progress: Progress,
    ) -> None:
        self.config = config.training
        self.run = run
        self.step = step
        self.ranks = step.ranks
        self.batches_from = batches_from
        self.dev_batches = dev_batches
        self.decode_dev = decode_dev
        self.progress = progress
        self.metrics = MetricsFile(run.metrics, self.config.tensorboard)
        self.position = Position()
        self.mark = time.perf_counter()
        """When `position.seconds` was last brought up to date."""

    def resume(self) -> None:
        """Takes up the newest checkpoint, or starts at step 0 when there is none yet."""
        steps = self.run.steps()
        if not steps:
            return
        folder = self.run.checkpoint(steps[-1])
        state = load_trainer_state(folder)
        load_weights(self.step.model, folder / WEIGHTS)
        self.step.optimizer.load_state_dict(state["optimizer"])
        self.step.scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"])
        if self.step.device.type == "cuda" and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"])
        self.position = Position(**state["position"])
        self.metrics.write("resume", self.position.step)
        log.info("resumed at step %d of %d", self.position.step, self.config.max_steps)

    def train(self) -> Position:
        """Runs to the end and returns the last position.

        Raises:
            InterruptedRunError: after SIGINT or SIGTERM, with a checkpoint saved.
            MtformerError: when the gradient stays non-finite, or a checkpoint cannot be saved.
        """
        if self.is_done():
            return self.position
        batches = self.batches_from(self.position.epoch, self.position.pairs)
        window, self.mark = Window(), time.perf_counter()
        with StopSignal() as stop:
            while not self.is_done():
                waited = time.perf_counter()
                micro_batches = list(itertools.islice(batches, self.config.accumulation_steps))
                window.waiting += time.perf_counter() - waited
                if not micro_batches:
                    if self.position.step not in self.run.regular_steps():
                        self._validate_and_save()
                    break
                self._one_step(micro_batches, window)
                window = self._log(window)
                if self.position.step % self.config.validate_every == 0 or self.is_done():
                    pause = time.perf_counter()
                    self._validate_and_save()
                    window.paused += time.perf_counter() - pause
                if stop.received is not None and not self.is_done():
                    if self.position.step not in self.run.steps():
                        self._save({}, is_temporary=True)
                    raise InterruptedRunError(self.position.step, stop.received)
        return self.position

    def is_done(self) -> bool:
        """Whether the last step is taken, or patience is spent."""
        patience = self.config.patience
        is_stale = patience is not None and self.position.validations_since_best >= patience
        return is_stale or self.position.step >= self.config.max_steps

    def _one_step(self, micro_batches: list[Batch], window: Window) -> None:
        result = self.step.run(micro_batches, self.position.step + 1)
        self.position.step += 1
        self.position.epoch, self.position.pairs = micro_batches[-1].end
        window.add(micro_batches, result)
        # Whether a step was skipped is known to the device alone; asking a GPU costs time, and log lines ask anyway.
        if self.step.device.type == "cpu" or self.position.step % self.config.log_every == 0:
            self._check_gradients()

    def _check_gradients(self) -> None:
        """Ends a run that makes no progress; its weights are those of the last finite gradient, and are not saved."""
        count = int(self.step.skipped_in_a_row)
        if count >= MAX_SKIPPED_IN_A_ROW:
            raise MtformerError(
                f"step {self.position.step}: the gradient was not finite {count} times in a row; the last checkpoint "
                "is kept. Try a lower training.learning_rate, more warmup_steps, or precision fp32"
            )

    def _log(self, window: Window) -> Window:
        step = self.position.step
        figures = window.figures(self.ranks) if step % self.config.log_every == 0 else None
        self.progress.advance(step, self.position.epoch, figures)
        if figures is None:
            return window
        self.metrics.write("train", step, epoch=self.position.epoch, **figures)
        return Window()

    def _validate_and_save(self) -> None:
        metrics = dev_loss(self.step, self.dev_batches()) if self.dev_batches is not None else {}
        if self.decode_dev is not None:
            self.step.model.eval()
            decoded = self.decode_dev()
            metrics.update(decoded.metrics)
            for src, reference, hypothesis in decoded.samples:
                log.info("  source     %s\n  reference  %s\n  hypothesis %s", src, reference, hypothesis)
        if metrics:
            text = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            log.info("step %d: dev %s", self.position.step, text)
            self.metrics.write("dev", self.position.step, epoch=self.position.epoch, **metrics)
            self._judge(metrics)
        self._save(metrics)

    def _judge(self, metrics: dict[str, float]) -> None:
        """Counts validations without progress."""
        value = metrics.get(self.config.best_metric)
        if value is None:
            return
        best, position = self.position.best, self.position
        lower = self.config.best_metric in LOWER_IS_BETTER
        if best is None or (value < best if lower else value > best):
            position.best, position.validations_since_best = value, 0
        else:
            position.validations_since_best += 1
        if self.config.patience is not None and position.validations_since_best >= self.config.patience:
            count, metric = self.config.patience, self.config.best_metric
            log.info("step %d: no better %s in %d validations: stopping early", position.step, metric, count)

    def _save(self, metrics: dict[str, float], is_temporary: bool = False) -> None:
        now = time.perf_counter()
        self.position.seconds += now - self.mark
        self.mark = now
        state: dict[str, Any] = {
            "position": asdict(self.position),
            "optimizer": self.step.optimizer.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state() if self.step.device.type == "cuda" else None,
        }
        save_checkpoint(
            self.run, self.position.step, self.step.model, state, metrics, self.step.precision, is_temporary
        )
        prune(self.run, self.config)

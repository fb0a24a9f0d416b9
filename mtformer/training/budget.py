"""Number of training steps that fit in `training.max_minutes`, from the measured speed."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from mtformer.config.schema import TrainingConfig

FIRST_STEPS = 5  # number of first steps of a process that are not timed, because they are slower
PLAIN_COST = 0.55
"""Time of a step without consistency regularization, relative to one with it: it has one pass instead of two. 0.50 and
0.59 were measured (docs/log/quality.md)."""
PLANNED_AFTER = 0.03
"""The number of steps is set at the first log line or validation after this share of the time or the warmup."""
MAX_WARMUP_SHARE = 0.2
Plans = Mapping[int, int]
"""Planned numbers of steps, by the step of the plan."""
TOLERANCE = 0.02  # a planned number of steps changes if the number of remaining steps differs by more than this share


def relative_cost(config: TrainingConfig, first: int, last: int) -> float:
    """Return the time of steps `first` + 1 to `last`, relative to a step with consistency regularization, if used."""
    return last - first - (1 - PLAIN_COST) * max(0, min(last, config.consistency_start) - first)


def fitting_steps(
    seconds: float, step_seconds: float, validation_seconds: float, config: TrainingConfig, step: int = 0
) -> int:
    """Return how many steps after `step` fit in a time, including the validations between them and one at the end.

    `step_seconds` is the time of a step of relative cost 1.
    """
    seconds -= validation_seconds * (2 if config.average_last else 1)
    per_validation = validation_seconds / config.validate_every
    cheap_seconds = PLAIN_COST * step_seconds + per_validation
    num_cheap = min(max(0, config.consistency_start - step), int(seconds / cheap_seconds))
    seconds -= num_cheap * cheap_seconds
    return max(1, num_cheap + int(seconds / (step_seconds + per_validation)))


def with_steps(config: TrainingConfig, num_steps: int) -> TrainingConfig:
    """Return the config with another number of steps; the warmup takes at most `MAX_WARMUP_SHARE` of them."""
    warmup_steps, rate = min(config.warmup_steps, int(num_steps * MAX_WARMUP_SHARE)), config.learning_rate
    if config.schedule == "noam" and config.warmup_steps:  # its peak is proportional to warmup_steps^-0.5
        rate *= (warmup_steps / config.warmup_steps) ** 0.5
    return config.model_copy(update={"max_steps": num_steps, "warmup_steps": warmup_steps, "learning_rate": rate})


@dataclass
class Budget:
    """Measures the speed of this process, and plans the number of steps that fit in a time."""

    config: TrainingConfig
    seconds: float
    validation_seconds: float
    """Time of a validation: an estimate, until one is measured."""
    plans: Plans | None
    """Plans to follow instead of planning by time, as numbers of steps by step; None: plan by time."""
    _num_steps: int = 0
    _start: float = 0.0
    _timed: float = 0.0
    """Seconds of all steps since `_start`, at the last step."""
    _paused: float = 0.0

    def add_step(self) -> None:
        """Time the step that has just ended."""
        now = time.perf_counter()
        self._num_steps += 1
        if self._num_steps == FIRST_STEPS:
            self._start, self._paused = now, 0.0
        self._timed = now - self._start - self._paused

    def add_validation(self, seconds: float) -> None:
        """Exclude a validation from the time of the steps."""
        self.validation_seconds = seconds
        self._paused += seconds

    def plan(self, step: int, spent: float, planned: int | None) -> int | None:
        """Return the number of steps in all that fit in the time; None if it is too early, or about the planned number.

        At the current step, `spent` seconds have passed since the start; if `planned` is None, there is no plan yet.
        """
        if self.plans is not None:
            return self.plans.get(step)
        is_early = step < self.config.warmup_steps and spent < PLANNED_AFTER * self.seconds
        if self._num_steps < 2 * FIRST_STEPS or (planned is None and is_early):
            return None
        step_seconds = self._timed / relative_cost(self.config, step - self._num_steps + FIRST_STEPS, step)
        left = fitting_steps(self.seconds - spent, step_seconds, self.validation_seconds, self.config, step)
        total = min(self.config.max_steps, step + left)
        is_close = planned is not None and abs(total - planned) <= TOLERANCE * max(1, planned - step)
        return None if is_close else total

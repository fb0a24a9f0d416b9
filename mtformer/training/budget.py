"""Number of training steps that fit in `training.max_minutes`, from the measured speed."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from mtformer.config.schema import TrainingConfig
from mtformer.errors import log
from mtformer.training.ranks import Ranks
from mtformer.training.state import TrainPosition

FIRST_STEPS = 5
"""Number of first steps of a process that are not timed, because they are slower."""
PLAIN_COST = 0.55
"""Time of a step without consistency regularization, relative to one with it: it has one pass instead of two. 0.50 and
0.59 were measured (docs/log/quality.md)."""
PLANNED_AFTER = 0.03
"""The number of steps is set at the first log line or validation after this share of the time or the warmup."""
MAX_WARMUP_SHARE = 0.2
"""Largest share of the planned steps that the warmup takes."""
TOLERANCE = 0.02
"""A planned number of steps changes if the number of remaining steps differs by more than this share."""
Plans = Mapping[int, int]
"""Planned numbers of steps, by the step of the plan."""


def relative_cost(config: TrainingConfig, first: int, last: int) -> float:
    """Return the time of some steps, relative to a step with consistency regularization, if used.

    Args:
        config: Settings of the training.
        first: Step before the first of these steps.
        last: Last of these steps.
    """
    num_plain_steps = max(0, min(last, config.consistency_start) - first)
    return last - first - (1 - PLAIN_COST) * num_plain_steps


def fitting_steps(
    seconds: float, step_seconds: float, validation_seconds: float, config: TrainingConfig, step: int = 0
) -> int:
    """Return how many steps fit in a time, including the validations between them and one at the end.

    Args:
        seconds: The time, in seconds.
        step_seconds: Seconds of a step of relative cost 1.
        validation_seconds: Seconds of a validation.
        config: Settings of the training.
        step: Step after which the time begins.
    """
    num_last_validations = 2 if config.average_last else 1  # the average is validated too
    seconds -= validation_seconds * num_last_validations
    seconds_for_validation = validation_seconds / config.validate_every  # share of each step

    # First the steps without consistency regularization, which are faster.
    plain_seconds = PLAIN_COST * step_seconds + seconds_for_validation
    num_steps_before_consistency = max(0, config.consistency_start - step)
    num_plain_steps = min(num_steps_before_consistency, int(seconds / plain_seconds))
    seconds -= num_plain_steps * plain_seconds

    num_full_steps = int(seconds / (step_seconds + seconds_for_validation))
    return max(1, num_plain_steps + num_full_steps)


def with_steps(config: TrainingConfig, num_steps: int) -> TrainingConfig:
    """Return the config with another number of steps; the warmup takes at most `MAX_WARMUP_SHARE` of them."""
    warmup_steps = min(config.warmup_steps, int(num_steps * MAX_WARMUP_SHARE))
    learning_rate = config.learning_rate
    if config.schedule == "noam" and config.warmup_steps:  # its peak is proportional to warmup_steps^-0.5
        learning_rate *= (warmup_steps / config.warmup_steps) ** 0.5
    changes = {"max_steps": num_steps, "warmup_steps": warmup_steps, "learning_rate": learning_rate}
    return config.model_copy(update=changes)


@dataclass
class Budget:
    """Measures the speed of this process, and plans the number of steps that fit in a time."""

    config: TrainingConfig
    seconds: float
    """The time, in seconds."""
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
            self._start = now
            self._paused = 0.0
        self._timed = now - self._start - self._paused

    def add_validation(self, seconds: float) -> None:
        """Exclude a validation from the time of the steps."""
        self.validation_seconds = seconds
        self._paused += seconds

    def plan(self, step: int, spent: float, planned: int | None) -> int | None:
        """Return the number of steps in all that fit in the time.

        Args:
            step: The current step.
            spent: Seconds since the start of the run.
            planned: Planned number of steps; None: there is no plan yet.

        Returns:
            The number of steps; None if it is too early to plan, or if it is about the planned number.
        """
        if self.plans is not None:
            return self.plans.get(step)
        if self._is_too_early(step, spent, has_plan=planned is not None):
            return None

        first_timed_step = step - self._num_steps + FIRST_STEPS
        step_seconds = self._timed / relative_cost(self.config, first_timed_step, step)
        seconds_left = self.seconds - spent
        steps_left = fitting_steps(seconds_left, step_seconds, self.validation_seconds, self.config, step)
        num_steps = min(self.config.max_steps, step + steps_left)

        if planned is not None:
            planned_steps_left = max(1, planned - step)
            if abs(num_steps - planned) <= TOLERANCE * planned_steps_left:
                return None
        return num_steps

    def _is_too_early(self, step: int, spent: float, has_plan: bool) -> bool:
        if self._num_steps < 2 * FIRST_STEPS:
            return True
        is_in_warmup = step < self.config.warmup_steps
        return not has_plan and is_in_warmup and spent < PLANNED_AFTER * self.seconds


@dataclass(frozen=True)
class _SavedPlan:
    """Values of `StepPlan` in a checkpoint."""

    max_steps: int | None = None
    max_minutes: float | None = None
    given_steps: int | None = None


class StepPlan:
    """Number of steps of a run, and the config whose schedule ends there.

    Without `training.max_minutes`, both are those of the config. With it, the number is planned from the measured
    speed, up to `max_steps` of the config, and the schedule is stretched over the planned steps.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.base_config = config
        """Training settings of the experiment."""
        self.config = config
        """Training settings with the planned number of steps."""
        self.num_steps: int | None = None
        """Planned number of steps; None: not planned."""
        self.limit_minutes: float | None = None
        """`training.max_minutes` for which `num_steps` was planned; None: for another value, so it will be replaced."""
        self.limit_steps: int | None = None
        """`training.max_steps` for which `num_steps` was planned."""
        self.budget: Budget | None = None
        """Speed of this process; None without `max_minutes`, or before `start`."""

    @property
    def is_left_from_other_limits(self) -> bool:
        """True if the number of steps, planned for other limits, is kept until the next plan."""
        return self.num_steps is not None and self.limit_minutes is None

    @property
    def has_changed_config(self) -> bool:
        """True if the number of steps and the schedule are no longer those of the experiment."""
        return self.config is not self.base_config

    def start(self, validation_seconds: float, plans: Plans | None) -> None:
        """With `max_minutes`, begin to measure the speed; for the arguments see `Budget`."""
        if self.base_config.max_minutes is not None:
            self.budget = Budget(self.base_config, 60 * self.base_config.max_minutes, validation_seconds, plans)

    def add_step(self) -> None:
        """Time the step that has just ended."""
        if self.budget is not None:
            self.budget.add_step()

    def add_validation(self, seconds: float) -> None:
        """Exclude a validation from the time of the steps."""
        if self.budget is not None:
            self.budget.add_validation(seconds)

    def is_due(self, step: int, is_logged: bool) -> bool:
        """Return True if the number of steps must be planned after a step, apart from validations, which plan too."""
        if self.budget is None:
            return False
        has_plan = self.limit_minutes is not None
        if not has_plan and (is_logged or step % (2 * FIRST_STEPS) == 0):
            return True
        is_validated = step % self.config.validate_every == 0
        return self.budget.plans is not None and not is_validated

    def update(self, step: int, seconds_spent: float, ranks: Ranks) -> bool:
        """Plan the number of steps; log it and return True if it changed. All processes must call this together.

        Args:
            step: The current step.
            seconds_spent: Seconds since the start of the run, of `max_minutes`.
            ranks: The processes; all of them follow the plan of the main process.
        """
        if self.budget is None:
            return False
        planned = self.num_steps if self.limit_minutes is not None else None
        plans_by_rank = ranks.gather(self.budget.plan(step, seconds_spent, planned))
        num_steps = plans_by_rank[0]
        if num_steps is None or num_steps == planned:
            return False

        self.limit_minutes = self.base_config.max_minutes
        self.limit_steps = self.base_config.max_steps
        self._stretch(num_steps)
        log.info("step %d: %d steps in all fit in %g minutes", step, num_steps, self.limit_minutes)
        return True

    def remaining_cost(self, step: int, expected_steps: int) -> float:
        """Return the time of the remaining steps, relative to the current one.

        Args:
            step: The current step, from 1.
            expected_steps: Number of steps that the data allow.
        """
        last_step = max(step, min(self.config.max_steps, expected_steps))
        cost_of_remaining = relative_cost(self.config, step, last_step)
        cost_of_current = relative_cost(self.config, step - 1, step)
        return cost_of_remaining / cost_of_current

    def _stretch(self, num_steps: int) -> None:
        self.num_steps = num_steps
        self.config = with_steps(self.base_config, num_steps)

    def apply_limits(self, position: TrainPosition) -> None:
        """Adapt a restored plan to the limits of the config, which may have changed since it was made.

        If they have changed, the schedule stays the same until the next plan, which needs some steps of this process.
        """
        fewest_steps = 0
        if not self._has_limits_of_config():
            self.limit_minutes = None
            fewest_steps = position.step
            minutes_spent = (position.seconds + position.seconds_before) / 60
            if minutes_spent < (self.base_config.max_minutes or math.inf):
                fewest_steps += self.base_config.log_every + 2 * FIRST_STEPS

        planned = self.num_steps
        self.num_steps = None
        if planned is not None and self.base_config.max_minutes is not None:
            num_steps = max(planned, fewest_steps)
            self._stretch(min(num_steps, self.base_config.max_steps))

    def _has_limits_of_config(self) -> bool:
        has_max_steps = self.limit_steps is None or self.limit_steps == self.base_config.max_steps
        return has_max_steps and self.limit_minutes == self.base_config.max_minutes

    def state_dict(self) -> dict[str, Any]:
        """Return the values of this part in the entry `position` of a checkpoint."""
        values = {"max_steps": self.num_steps, "max_minutes": self.limit_minutes, "given_steps": self.limit_steps}
        return {"position": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the plan; call `apply_limits` next."""
        saved = TypeAdapter(_SavedPlan).validate_python(state["position"])
        self.num_steps = saved.max_steps
        self.limit_minutes = saved.max_minutes
        self.limit_steps = saved.given_steps

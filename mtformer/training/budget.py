"""Number of training steps that fit in `training.max_minutes`, from the measured speed."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from mtformer.config.schema import TrainingConfig
from mtformer.errors import log
from mtformer.training.ranks import Ranks
from mtformer.training.schedule import Schedule, SchedulePoint, first_point, point_from
from mtformer.training.speed import FIRST_STEPS, Pace, Speed, relative_cost
from mtformer.training.state import TrainPosition

CHECK_SHARE = 0.02
"""Longest time between two checks of the plan, as a share of `max_minutes`."""
CHECKS_TO_THE_END = 4
"""A check also follows after this part of the time that is left, so that checks become more frequent."""
TOLERANCE = 0.02
"""A planned number of steps changes if the number of remaining steps differs by more than this share."""
REPORTED_CHANGE = 0.1
"""A change of the planned number of steps by more than this share is logged; all are in metrics.jsonl."""
VALIDATION_SHARE = 0.1
"""Share of `max_minutes` for which validations are more frequent than `validate_every`, if there are enough of them."""
MIN_VALIDATIONS = 4
"""Number of validations below which they may take more than that, up to `MAX_VALIDATION_SHARE`."""
MAX_VALIDATION_SHARE = 0.25
"""Largest share of `max_minutes` for which validations are more frequent than `validate_every`."""
MAX_VALIDATIONS = 20
"""Number of validations above which they are not more frequent than `validate_every`."""
INTERVAL_TOLERANCE = 1.5
"""The interval between validations changes if it is too long or too short by this factor."""
MAX_ESTIMATED_SHARE = 0.06
"""Largest share of `max_minutes` that a validation is assumed to take before one is measured. It is low enough for
`MIN_VALIDATIONS`, so that one is measured early."""


@dataclass(frozen=True)
class Plan:
    """Planned length of a training."""

    num_steps: int
    validate_every: int | None = None
    """Number of steps between validations; None: that of the config."""
    point: SchedulePoint | None = None
    """Progress in the schedule with this plan; None: it follows from the number of steps."""

    def record(self) -> dict[str, Any]:
        """Return the values for metrics.jsonl."""
        values: dict[str, Any] = {"max_steps": self.num_steps}
        if self.validate_every is not None:
            values["validate_every"] = self.validate_every
        if self.point is not None:
            values |= asdict(self.point)
        return values

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Plan":
        """Return the plan in a record of metrics.jsonl, which may be that of an earlier version."""
        return cls(record["max_steps"], record.get("validate_every"), point_from(record))


Plans = Mapping[int, Plan]
"""Plans by the step after which they were made."""


def num_validations(first: int, last: int, config: TrainingConfig) -> int:
    """Return the number of validations between two steps, without those at these steps."""
    return max(0, (last - 1) // config.validate_every - first // config.validate_every)


def num_last_validations(config: TrainingConfig) -> int:
    """Return the number of validations after the last step: of the last checkpoint and, if configured, the average."""
    return 2 if config.average_last else 1


def needed_seconds(pace: Pace, config: TrainingConfig, first: int, last: int) -> float:
    """Return the time of steps with the validations between them and at the end.

    Args:
        pace: Seconds of a step and of a validation.
        config: Settings of the training.
        first: Step before the first of these steps.
        last: Last of these steps.
    """
    validations = num_validations(first, last, config) + num_last_validations(config)
    return pace.step_seconds * relative_cost(config, first, last) + pace.validation_seconds * validations


def fitting_steps(seconds: float, pace: Pace, config: TrainingConfig, step: int = 0) -> int:
    """Return how many steps fit in a time, including the validations between them and at the end.

    Args:
        seconds: The time, in seconds.
        pace: Seconds of a step and of a validation.
        config: Settings of the training; not more steps than its `max_steps` fit.
        step: Step after which the time begins.
    """

    def needed(last: int) -> float:
        return needed_seconds(pace, config, step, last)

    last_steps = range(step + 1, config.max_steps + 1)
    return bisect_right(last_steps, seconds, key=needed)


def fitting_plan(
    seconds: float, pace: Pace, config: TrainingConfig, step: int = 0, validate_every: int | None = None
) -> Plan:
    """Return the plan for a time, in which also a short run has several validations.

    Args:
        seconds: The time that is left, in seconds.
        pace: Seconds of a step and of a validation.
        config: Settings of the experiment; its limits and its interval between validations are the maximum.
        step: Step after which the time begins.
        validate_every: Interval between validations so far, which remains if it is about right; None: there is none.
    """
    current_interval = validate_every or config.validate_every
    config_so_far = config.model_copy(update={"validate_every": current_interval})
    num_steps = step + fitting_steps(seconds, pace, config_so_far, step)

    # The interval depends on the number of steps, on which it has a smaller effect.
    interval = validation_interval(pace.validation_seconds, config, num_steps, current_interval)
    config_with_interval = config.model_copy(update={"validate_every": interval})
    num_steps = step + fitting_steps(seconds, pace, config_with_interval, step)
    return Plan(num_steps, interval)


def validation_interval(validation_seconds: float, config: TrainingConfig, num_steps: int, current: int) -> int:
    """Return the number of steps between validations.

    Args:
        validation_seconds: Seconds of a validation.
        config: Settings of the experiment, whose interval is the maximum.
        num_steps: Number of steps in all.
        current: Interval so far, which remains if it is about right.
    """
    assert config.max_minutes is not None, "only the interval of runs with a time limit changes"
    share = validation_seconds / (60 * config.max_minutes)
    frequent = VALIDATION_SHARE / max(share, VALIDATION_SHARE / MAX_VALIDATIONS)
    rare = min(MIN_VALIDATIONS, MAX_VALIDATION_SHARE / max(share, MAX_VALIDATION_SHARE / MIN_VALIDATIONS))
    wanted = max(1, int(frequent), int(rare))
    interval = max(1, min(config.validate_every, math.ceil(num_steps / wanted)))
    is_about_right = interval / INTERVAL_TOLERANCE <= current <= interval * INTERVAL_TOLERANCE
    return current if is_about_right else interval


@dataclass(frozen=True)
class _SavedPlan:
    """Values of `StepPlan` in a checkpoint, besides those of `SchedulePoint`."""

    max_steps: int | None = None
    max_minutes: float | None = None
    given_steps: int | None = None
    validate_every: int | None = None


class StepPlan:
    """Number of steps of a run, and its progress in the schedule, which ends there.

    Without `training.max_minutes`, both are those of the config. With it, the number is planned from the measured
    speed, up to `max_steps` of the config, again and again until the end.
    """

    def __init__(self, config: TrainingConfig) -> None:
        self.base_config = config
        """Training settings of the experiment."""
        self.config = config
        """Training settings with the planned number of steps and interval between validations."""
        self.schedule = Schedule(config)
        self.num_steps: int | None = None
        """Planned number of steps; None: not planned."""
        self.limit_minutes: float | None = None
        """`training.max_minutes` for which `num_steps` was planned; None: for another value, so it will be replaced."""
        self.limit_steps: int | None = None
        """`training.max_steps` for which `num_steps` was planned."""
        self.limit = math.inf if config.max_minutes is None else 60 * config.max_minutes
        """Time for the training in seconds."""
        self.plans: Plans | None = None
        """Plans to follow instead of planning by time; None: plan by time."""
        self.speed = Speed(config)
        """Speed of this process."""
        self._planned_at = -1
        """Step of the last plan of this process."""
        self._reported_steps = 0
        """Number of steps in the last log line about a plan."""
        self._is_checked = False
        """True after the first check of the plan with the speed of this process."""
        self._next_check = self.limit
        """Seconds since the start of the run after which the plan is checked."""
        self._check_at = config.max_steps
        """Step after which the plan is checked."""

    @property
    def is_limited(self) -> bool:
        """True with `max_minutes`."""
        return self.limit < math.inf

    @property
    def is_left_from_other_limits(self) -> bool:
        """True if the number of steps, planned for other limits, is kept until the next plan."""
        return self.num_steps is not None and self.limit_minutes is None

    @property
    def is_following(self) -> bool:
        """True if given plans are followed."""
        return self.plans is not None

    @property
    def plan(self) -> Plan:
        """The current plan."""
        return Plan(self.config.max_steps, self.config.validate_every, self.schedule.point)

    def start(self, validation_seconds: float, plans: Plans | None) -> None:
        """Begin to measure the speed.

        Args:
            validation_seconds: Estimated seconds of a validation.
            plans: With `max_minutes`, plans to follow instead of planning by time.
        """
        bounded_seconds = min(validation_seconds, MAX_ESTIMATED_SHARE * self.limit)
        self.speed = Speed(self.base_config, bounded_seconds, max_first_seconds=CHECK_SHARE * self.limit)
        self.plans = plans

    def is_due(self, step: int, seconds_spent: float) -> bool:
        """Return True if the number of steps must be planned after a step, apart from validations, which plan too.

        Args:
            step: The current step.
            seconds_spent: Seconds since the start of the run.
        """
        if not self.is_limited or step % self.config.validate_every == 0:
            return False
        if self.plans is not None:
            return step in self.plans
        if step >= self.config.max_steps:
            return False
        if self.speed.is_known and not self._is_checked:
            return True
        return seconds_spent >= self._next_check or step >= self._check_at

    def update(self, step: int, seconds_spent: float, ranks: Ranks) -> bool:
        """Plan the number of steps; log it and return True if it changed. All processes must call this together.

        Args:
            step: The current step, which the device has finished.
            seconds_spent: Seconds since the start of the run, of `max_minutes`.
            ranks: The processes; all of them follow the plan of the main process.
        """
        if not self.is_limited or step == self._planned_at:
            return False
        if self.plans is not None:
            plan = self.plans.get(step)
        elif step >= self.config.max_steps:
            return False
        else:
            own_plan = self._fitting_plan(step, seconds_spent) if ranks.is_main else None
            plan = ranks.gather(own_plan)[0]
        if plan is None:
            return False
        self._apply(plan, step)
        self._report(step)
        return True

    def _fitting_plan(self, step: int, seconds_spent: float) -> Plan | None:
        """Return the plan for the remaining time; None: the current one, or it is too early."""
        self.speed.end_window()
        seconds_left = self.limit - seconds_spent
        step_seconds = self.speed.step_seconds(horizon=seconds_left) if self.speed.is_known else None
        if step_seconds is None:
            return None if seconds_left > 0 else Plan(step, self.config.validate_every)

        pace = Pace(step_seconds, self.speed.validation_seconds)
        plan = fitting_plan(seconds_left, pace, self.base_config, step, self.config.validate_every)
        has_same_interval = plan.validate_every == self.config.validate_every
        is_new = not (has_same_interval and self._is_about_planned(plan.num_steps, step))

        last_step = plan.num_steps if is_new else self.config.max_steps
        self._is_checked = True
        self._next_check = seconds_spent + min(CHECK_SHARE * self.limit, seconds_left / CHECKS_TO_THE_END)
        self._check_at = last_step - (last_step - step) // 2
        return plan if is_new else None

    def _is_about_planned(self, num_steps: int, step: int) -> bool:
        """Return True if there is a plan for the limits of the config, and it has about this number of steps."""
        if self.limit_minutes is None or self.num_steps is None:
            return False
        planned_steps_left = max(1, self.num_steps - step)
        return abs(num_steps - self.num_steps) <= TOLERANCE * planned_steps_left

    def _apply(self, plan: Plan, step: int) -> None:
        """Follow a plan from now on."""
        if plan.point is not None:
            self.schedule.restore(plan.point)
        else:
            if self.is_left_from_other_limits:
                self.schedule.rewind(step, plan.num_steps)
            self.schedule.plan(step, plan.num_steps)

        self._planned_at = step
        self.limit_minutes = self.base_config.max_minutes
        self.limit_steps = self.base_config.max_steps
        self._set_length(plan.num_steps, plan.validate_every)

    def _set_length(self, num_steps: int, validate_every: int | None) -> None:
        self.num_steps = num_steps
        interval = validate_every or self.base_config.validate_every
        self.config = self.base_config.model_copy(update={"max_steps": num_steps, "validate_every": interval})

    def _report(self, step: int) -> None:
        """Log the number of steps if it is new, or differs much from that in the last line."""
        assert self.num_steps is not None, "there is a plan"
        change = abs(self.num_steps - self._reported_steps)
        if change <= REPORTED_CHANGE * self._reported_steps:
            return
        self._reported_steps = self.num_steps
        log.info(
            "step %d: %d steps in all fit in %g minutes, with a validation every %d steps",
            *(step, self.num_steps, self.base_config.max_minutes, self.config.validate_every),
        )

    def seconds_left(self, step: int, num_steps: int, seconds_per_step: float, seconds_spent: float) -> float:
        """Return the expected time until the end of training, including validations.

        Args:
            step: The current step, which may still have to be validated.
            num_steps: Number of steps of the run.
            seconds_per_step: Seconds of the current step; used until more are known.
            seconds_spent: Seconds since the start of the run.
        """
        last_step = max(step, num_steps)
        own_cost = relative_cost(self.config, step - 1, step)
        current_seconds = seconds_per_step / own_cost
        horizon = current_seconds * relative_cost(self.config, step, last_step)
        pace = Pace(self.speed.step_seconds(horizon) or current_seconds, self.speed.validation_seconds)
        seconds = needed_seconds(pace, self.config, step, last_step)
        if step % self.config.validate_every == 0 and step < last_step:
            seconds += pace.validation_seconds
        return max(0.0, min(seconds, self.limit - seconds_spent))

    def apply_limits(self, position: TrainPosition) -> None:
        """Adapt a restored plan to the limits of the config, which may have changed since it was made.

        If they have changed, the schedule stays the same until the next plan, which needs some steps of this process.
        """
        planned = self.num_steps
        if planned is None or not self.is_limited:
            self._forget()
            return
        if self._has_limits_of_config():
            return

        self.limit_minutes = None
        fewest_steps = position.step
        minutes_spent = (position.seconds + position.seconds_before) / 60
        if minutes_spent < (self.base_config.max_minutes or math.inf):
            fewest_steps += self.base_config.log_every + 2 * FIRST_STEPS
        num_steps = min(max(planned, fewest_steps), self.base_config.max_steps)
        if num_steps != planned:
            self.schedule.plan(position.step, num_steps)
        self._set_length(num_steps, self.config.validate_every)

    def _forget(self) -> None:
        """Return to the number of steps and the schedule of the config."""
        self.num_steps = None
        self.limit_minutes = None
        self.config = self.base_config
        self.schedule = Schedule(self.base_config)

    def _has_limits_of_config(self) -> bool:
        has_max_steps = self.limit_steps is None or self.limit_steps == self.base_config.max_steps
        return has_max_steps and self.limit_minutes == self.base_config.max_minutes

    def state_dict(self) -> dict[str, Any]:
        """Return the values of this part in the entry `position` of a checkpoint."""
        values: dict[str, Any] = {
            "max_steps": self.num_steps,
            "max_minutes": self.limit_minutes,
            "given_steps": self.limit_steps,
            "validate_every": None if self.num_steps is None else self.config.validate_every,
        }
        if self.schedule.point is not None:
            values |= asdict(self.schedule.point)
        return {"position": values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the plan; call `apply_limits` next."""
        values = state["position"]
        saved = TypeAdapter(_SavedPlan).validate_python(values)
        self.limit_minutes = saved.max_minutes
        self.limit_steps = saved.given_steps
        self.num_steps = None
        if saved.max_steps is None:
            return

        self._set_length(saved.max_steps, saved.validate_every)
        step = TypeAdapter(int).validate_python(values["step"])
        # Version 0.3 saved no progress: the schedule had the planned length, and the step of the run.
        point = point_from(values) or first_point(self.base_config, step, saved.max_steps)
        self.schedule.restore(point)

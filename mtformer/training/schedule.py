"""Progress of a run in its learning rate schedule.

`optimizer.learning_rate` is a function of a step of the schedule. Without a plan, this is the step of the run. A plan
for `training.max_minutes` says how many steps there will be, so the schedule is passed faster or more slowly:

    progress after a step = progress before it + increment,    increment = (1 - progress) / planned steps that remain
    step of the schedule  = progress x length of the schedule

A new plan changes only the increment. Therefore the learning rate never jumps, and has decayed when the planned steps
end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtformer.config.schema import TrainingConfig

MAX_WARMUP_SHARE = 0.2
"""Largest share of the planned steps that the warmup takes."""
TO_THE_END = ("cosine", "linear", "warmup_stable_decay")
"""Schedules that depend on the number of steps."""


@dataclass(frozen=True)
class SchedulePoint:
    """Progress in a schedule and its increment, as saved in checkpoints and metrics.jsonl."""

    progress: float
    """From 0 to 1."""
    increment: float
    """Change of `progress` by a step."""
    schedule_steps: int
    """Length of the schedule."""
    schedule_warmup: int
    """Number of warmup steps of the schedule."""


class Schedule:
    """Schedule of a run, and the progress in it."""

    def __init__(self, config: TrainingConfig) -> None:
        self.base = config
        """Training settings of the experiment."""
        self.config = config
        """Training settings with the length and the warmup of the schedule."""
        self.progress: float | None = None
        """Progress from 0 to 1; None: there was no plan so far."""
        self.increment = 0.0
        """Change of `progress` by a step."""

    @property
    def point(self) -> SchedulePoint | None:
        """Progress, increment and length; None: there was no plan so far."""
        if self.progress is None:
            return None
        return SchedulePoint(self.progress, self.increment, self.config.max_steps, self.config.warmup_steps)

    def step_of(self, step: int) -> float:
        """Return the step of the schedule after the current step of the run, which is equal to it without a plan."""
        if self.progress is None:
            return step
        return self.progress * self.config.max_steps

    def next_step(self, step: int) -> float:
        """Return the step of the schedule for the next step of the run.

        Args:
            step: The current step of the run.
        """
        if self.progress is None:
            return step + 1
        return min(1.0, self.progress + self.increment) * self.config.max_steps

    def advance(self) -> None:
        """Count a step of the run."""
        if self.progress is not None:
            self.progress = min(1.0, self.progress + self.increment)

    def plan(self, step: int, num_steps: int) -> None:
        """Let the schedule end at another step of the run.

        The share of the warmup that is done remains, and afterwards the progress. Schedules without an end (noam,
        inverse_sqrt, constant) continue at the same step of the schedule.

        Args:
            step: The current step of the run.
            num_steps: Number of steps of the run in all.
        """
        place = self.step_of(step)
        if place < self.config.warmup_steps:
            config = with_steps(self.base, num_steps)
            place *= config.warmup_steps / self.config.warmup_steps
        elif self.config.schedule in TO_THE_END:
            config = self.config
        else:
            config = self.config.model_copy(update={"max_steps": num_steps})

        self.config = config
        self.progress = min(1.0, place / config.max_steps)
        self.increment = (1 - self.progress) / max(1, num_steps - step)

    def rewind(self, step: int, num_steps: int) -> None:
        """Reduce the progress to the share of the steps that is done, because there will be more than before.

        Args:
            step: The current step of the run.
            num_steps: Number of steps of the run in all.
        """
        is_in_warmup = self.step_of(step) < self.config.warmup_steps
        if self.progress is None or is_in_warmup or self.config.schedule not in TO_THE_END:
            return
        end_of_warmup = self.config.warmup_steps / self.config.max_steps
        share_done = max(end_of_warmup, step / num_steps)
        self.progress = min(self.progress, share_done)

    def restore(self, point: SchedulePoint) -> None:
        """Continue from a saved point."""
        self.progress = point.progress
        self.increment = point.increment
        self.config = with_steps(self.base, point.schedule_steps, point.schedule_warmup)


def with_steps(config: TrainingConfig, num_steps: int, warmup_steps: int | None = None) -> TrainingConfig:
    """Return the config with another number of steps, and a warmup of at most `MAX_WARMUP_SHARE` of them.

    Args:
        config: Training settings of the experiment.
        num_steps: Number of steps.
        warmup_steps: Number of warmup steps; None: choose it.
    """
    if warmup_steps is None:
        most_warmup_steps = max(1, int(num_steps * MAX_WARMUP_SHARE))
        warmup_steps = min(config.warmup_steps, most_warmup_steps)
    learning_rate = config.learning_rate
    if config.schedule == "noam" and config.warmup_steps:  # its peak is proportional to warmup_steps^-0.5
        learning_rate *= (warmup_steps / config.warmup_steps) ** 0.5
    changes = {"max_steps": num_steps, "warmup_steps": warmup_steps, "learning_rate": learning_rate}
    return config.model_copy(update=changes)


def point_from(values: Mapping[str, Any]) -> SchedulePoint | None:
    """Return the point in a record or a checkpoint; None if it has none, like those of earlier versions."""
    progress = values.get("progress")
    if progress is None:
        return None
    return SchedulePoint(
        progress=float(progress),
        increment=float(values["increment"]),
        schedule_steps=int(values["schedule_steps"]),
        schedule_warmup=int(values["schedule_warmup"]),
    )


def first_point(config: TrainingConfig, step: int, num_steps: int) -> SchedulePoint:
    """Return the point of a run with a schedule of the planned length from its first step on.

    Args:
        config: Training settings of the experiment.
        step: The current step.
        num_steps: Planned number of steps.
    """
    schedule = with_steps(config, num_steps)
    progress = min(1.0, step / num_steps)
    increment = (1 - progress) / max(1, num_steps - step)
    return SchedulePoint(progress, increment, num_steps, schedule.warmup_steps)

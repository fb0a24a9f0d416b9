"""Speed of the training in this process: seconds of a step and of a validation, measured in windows of several steps.

Other processes slow a training down for a while, and the first steps are always slow. Estimates for the remaining time
are therefore means over windows that cover about as much time as remains, without the slowest and the fastest windows.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from mtformer.config.schema import TrainingConfig

FIRST_STEPS = 5
"""Number of first steps of a process that are not timed, because they are slower; also of those timed next, before the
speed is known."""
PLAIN_COST = 0.55
"""Time of a step without consistency regularization, relative to one with it: it has one pass instead of two. 0.50 and
0.59 were measured (docs/log/quality.md)."""
MAX_WINDOWS = 100
"""Number of windows that are kept."""
MIN_WINDOWS = 3
"""Minimum number of windows of an estimate, if there are as many."""
TRIMMED_SHARE = 0.1
"""Share of the windows that an estimate leaves out as the slowest, and as the fastest; at least one of three."""
NUM_VALIDATIONS = 3
"""Number of last validations whose median is the time of the next ones."""


class Window(NamedTuple):
    """Time of consecutive steps."""

    seconds: float
    cost: float
    """Number of steps, relative to steps with consistency regularization, if used."""

    @property
    def step_seconds(self) -> float:
        """Seconds of a step of relative cost 1."""
        return self.seconds / self.cost


class Pace(NamedTuple):
    """Expected times, in seconds."""

    step_seconds: float
    """Seconds of a step of relative cost 1."""
    validation_seconds: float


def relative_cost(config: TrainingConfig, first: int, last: int) -> float:
    """Return the time of some steps, relative to a step with consistency regularization, if used.

    Args:
        config: Settings of the training.
        first: Step before the first of these steps.
        last: Last of these steps.
    """
    num_plain_steps = max(0, min(last, config.consistency_start) - first)
    return last - first - (1 - PLAIN_COST) * num_plain_steps


class Speed:
    """Measures the steps and validations of this process.

    Args:
        config: Settings of the training.
        validation_seconds: Time of a validation: an estimate, until one is measured.
        max_first_seconds: Time after which steps are timed even if they are among the first.
    """

    def __init__(
        self, config: TrainingConfig, validation_seconds: float = 0.0, max_first_seconds: float = math.inf
    ) -> None:
        self.config = config
        self.max_first_seconds = max_first_seconds
        self.num_timed_steps = 0
        """Number of timed steps in all windows."""
        self._estimated_validation = validation_seconds
        self._validations: deque[float] = deque(maxlen=NUM_VALIDATIONS)
        self._windows: deque[Window] = deque(maxlen=MAX_WINDOWS)
        self._num_first_steps = 0
        self._start = time.perf_counter()
        """Start of the current window."""
        self._paused = 0.0
        """Seconds of validations in the current window."""
        self._cost = 0.0
        """Relative cost of the steps in the current window."""

    @property
    def is_known(self) -> bool:
        """True if enough steps were timed for an estimate."""
        if self.num_timed_steps >= FIRST_STEPS:
            return True
        return self.num_timed_steps > 0 and self._window_seconds() >= self.max_first_seconds

    @property
    def validation_seconds(self) -> float:
        """Time of a validation."""
        return median(self._validations) if self._validations else self._estimated_validation

    def add_step(self, step: int) -> None:
        """Time the step that has just ended."""
        is_timed = self._num_first_steps >= FIRST_STEPS or self.num_timed_steps > 0
        if is_timed:
            self.num_timed_steps += 1
            self._cost += relative_cost(self.config, step - 1, step)
            return

        self._num_first_steps += 1
        if self._num_first_steps == FIRST_STEPS or self._window_seconds() >= self.max_first_seconds:
            self._num_first_steps = FIRST_STEPS
            self._start_window()

    def end_window(self) -> None:
        """Keep the time of the steps since the last window; the device must have finished them."""
        if self._cost:
            self._windows.append(Window(self._window_seconds(), self._cost))
            self._start_window()

    def add_validation(self, seconds: float) -> None:
        """Exclude a validation that has just ended from the time of the steps."""
        self._validations.append(seconds)
        self._paused += seconds

    def add_saving(self, seconds: float) -> None:
        """Add the time of saving a checkpoint to the last validation."""
        self._validations[-1] += seconds
        self._paused += seconds

    def step_seconds(self, horizon: float) -> float | None:
        """Return the expected seconds of a step of relative cost 1; None: it is not known yet.

        Args:
            horizon: Seconds for which it is expected; the windows cover about as much time.
        """
        recent: list[Window] = []
        covered_seconds = 0.0
        for window in reversed(self._windows):
            if covered_seconds >= horizon and len(recent) >= MIN_WINDOWS:
                break
            recent.append(window)
            covered_seconds += window.seconds
        return _trimmed_mean(recent) if recent else None

    def _window_seconds(self) -> float:
        return time.perf_counter() - self._start - self._paused

    def _start_window(self) -> None:
        self._start = time.perf_counter()
        self._paused = 0.0
        self._cost = 0.0


def _trimmed_mean(windows: Sequence[Window]) -> float:
    """Return the mean seconds of a step without the slowest and the fastest windows."""
    ascending = sorted(windows, key=lambda window: window.step_seconds)
    num_trimmed = max(1, int(TRIMMED_SHARE * len(ascending))) if len(ascending) >= MIN_WINDOWS else 0
    kept = ascending[num_trimmed : len(ascending) - num_trimmed]
    seconds = sum(window.seconds for window in kept)
    cost = sum(window.cost for window in kept)
    return seconds / cost

"""Plans on machines whose speed changes: they spend the given time, and the learning rate decays without a jump.

Steps and validations take the time of a fake clock, and no model is trained.
"""

import itertools
import time
from collections.abc import Callable

import pytest

from mtformer.config.schema import TrainingConfig
from mtformer.training.budget import Plan, StepPlan
from mtformer.training.optimizer import learning_rate
from mtformer.training.ranks import ALONE

LIMIT = 600.0
"""Seconds of `max_minutes` in the simulated runs."""
PEAK = 1e-3
WARMUP = 50
Pattern = Callable[[float], float]
"""Function that returns how many times slower the machine is, at a share of the time."""


class SimulatedRun:
    """Runs the plan of a training on a machine that becomes slower and faster."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slowness: Pattern, **settings: object) -> None:
        values = {"max_minutes": LIMIT / 60, "max_steps": 100_000, "warmup_steps": WARMUP, "learning_rate": PEAK}
        self.config = TrainingConfig(**{"schedule": "warmup_stable_decay", **values, **settings})
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        self.plan = StepPlan(self.config)
        self.slowness = slowness
        self.rates: list[float] = []
        self.progress: list[float] = []
        self.plans: dict[int, Plan] = {}
        self.rates_around_plans: list[tuple[float, float]] = []
        self.validated: list[int] = []
        self.seconds: list[float] = []

    def train(self, step_seconds: float, validation_seconds: float, estimate: float, spent: float = 0.0) -> None:
        """Train until the end, and validate there.

        Args:
            step_seconds: Seconds of a step on the idle machine.
            validation_seconds: Seconds of a validation on the idle machine.
            estimate: Estimated seconds of a validation before training.
            spent: Seconds before training.
        """
        self.now = spent
        self.plan.start(estimate, None)
        step = 0
        while step < self.plan.config.max_steps:
            self._wait(step_seconds)
            self.seconds.append(self.now)
            rate = learning_rate(self.plan.schedule.next_step(step), self.plan.schedule.config, 512)
            self.rates.append(rate)
            self.plan.schedule.advance()
            step += 1
            self.plan.speed.add_step(step)
            self.progress.append(self.plan.schedule.progress or 0.0)
            if self.plan.is_due(step, self.now):
                self._plan(step)
            if step % self.plan.config.validate_every == 0:
                self._validate(step, validation_seconds)
        if step not in self.validated:
            self._validate(step, validation_seconds)
        for _ in range(int(self.config.average_last > 0)):
            self._wait(validation_seconds)

    def _wait(self, seconds: float) -> None:
        self.now += seconds * self.slowness(self.now / LIMIT)

    def _validate(self, step: int, seconds: float) -> None:
        start = self.now
        self._wait(seconds)
        self.validated.append(step)
        self.plan.speed.add_validation(self.now - start)
        self._plan(step)

    def _plan(self, step: int) -> None:
        if self.plan.update(step, self.now, ALONE):
            self.plans[step] = self.plan.plan
            schedule = self.plan.schedule
            rate = learning_rate(schedule.step_of(step), schedule.config, 512)
            self.rates_around_plans.append((self.rates[-1], rate))

    def steps_until(self, share: float) -> int:
        """Return the number of steps up to a share of the time."""
        return sum(second < share * LIMIT for second in self.seconds)


PATTERNS: dict[str, Pattern] = {
    "constant": lambda share: 1,
    "slower in the middle": lambda share: 3 if 0.3 < share < 0.6 else 1,
    "faster in the middle": lambda share: 1 if 0.3 < share < 0.6 else 3,
    "busy at the start": lambda share: 3 if share < 0.2 else 1,
    "busy for the first seconds": lambda share: 3 if share < 0.03 else 1,
    "slower in the second half": lambda share: 3 if share > 0.5 else 1,
    "faster in the second half": lambda share: 3 if share < 0.5 else 1,
    "slower at the end": lambda share: 3 if share > 0.9 else 1,
    "faster at the end": lambda share: 3 if share < 0.9 else 1,
    "slower just before the end": lambda share: 3 if share > 0.97 else 1,
    "a process that comes and goes": lambda share: 3 if share % 0.2 < 0.1 else 1,
    "short interruptions": lambda share: 3 if share % 0.01 < 0.002 else 1,
    "stalls": lambda share: 30 if 0.1 < share % 0.25 < 0.101 else 1,
}


@pytest.mark.parametrize("schedule", ["warmup_stable_decay", "cosine", "linear"])
@pytest.mark.parametrize("step_seconds", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_time_is_spent_and_the_rate_decays(
    monkeypatch: pytest.MonkeyPatch, pattern: str, step_seconds: float, schedule: str
) -> None:
    run = SimulatedRun(monkeypatch, PATTERNS[pattern], schedule=schedule, average_last=2)
    run.train(step_seconds, validation_seconds=5.0, estimate=60.0, spent=15.0)
    slowest_steps = 2 * 3 * step_seconds
    slowest_validations = 2 * 2 * 5.0  # up to three times as long as expected
    assert 0.9 * LIMIT <= run.now <= LIMIT + slowest_steps + slowest_validations
    assert run.rates[-1] < 0.1 * PEAK
    assert max(run.rates) == pytest.approx(PEAK, rel=0.05)


@pytest.mark.parametrize("schedule", ["warmup_stable_decay", "cosine", "linear", "noam", "inverse_sqrt", "constant"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_plan_changes_only_the_increment(monkeypatch: pytest.MonkeyPatch, pattern: str, schedule: str) -> None:
    run = SimulatedRun(monkeypatch, PATTERNS[pattern], schedule=schedule)
    run.train(0.5, validation_seconds=5.0, estimate=60.0)
    assert run.rates_around_plans
    for last_rate, rate_with_plan in run.rates_around_plans:
        assert rate_with_plan == pytest.approx(last_rate, rel=1e-9)
    for before, after in itertools.pairwise(run.rates[: run.steps_until(0.9)]):
        assert abs(after - before) < 0.05 * max(run.rates)

"""Plans on machines whose speed changes: they spend the given time, and the learning rate decays without a jump.

Steps and validations take the time of a fake clock, and no model is trained.
"""

import itertools
import json
import time
from collections.abc import Callable

import pytest

from mtformer.config.schema import TrainingConfig
from mtformer.training.budget import Plan, StepPlan
from mtformer.training.optimizer import learning_rate
from mtformer.training.ranks import ALONE
from mtformer.training.schedule import with_steps
from mtformer.training.state import TrainPosition

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
        self.estimates: list[tuple[float, float]] = []
        """Seconds so far and expected seconds left, at log lines."""

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
            if step % self.config.log_every == 0:
                self._log(step, step_seconds)
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

    def _log(self, step: int, step_seconds: float) -> None:
        num_steps = self.plan.num_steps or self.config.max_steps
        left = self.plan.seconds_left(step, num_steps, step_seconds * self.slowness(self.now / LIMIT), self.now)
        self.estimates.append((self.now, left))
        if not self.plan.is_limited:
            self.plan.speed.end_window()

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
    slowest_steps = 4 * 3 * step_seconds
    slowest_validations = 2 * 2 * 5.0  # up to three times as long as expected
    assert 0.9 * LIMIT <= run.now <= LIMIT + slowest_steps + slowest_validations
    assert len(run.validated) >= 3
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


@pytest.mark.parametrize("pattern", ["constant", "busy for the first seconds", "stalls"])
@pytest.mark.parametrize(
    "limits",
    [{}, {"max_steps": 400}, {"max_minutes": None, "max_steps": 700}, {"max_minutes": None, "max_steps": 3000}],
)
def test_the_time_left_is_right_within_a_quarter(
    monkeypatch: pytest.MonkeyPatch, pattern: str, limits: dict[str, object]
) -> None:
    """It includes validations, and the earlier one of both limits ends it."""
    settings = {"log_every": 20, "validate_every": 100, "average_last": 2, **limits}
    run = SimulatedRun(monkeypatch, PATTERNS[pattern], **settings)
    run.train(0.5, validation_seconds=10.0, estimate=12.0)
    assert len(run.estimates) > 10
    for seconds, estimate in run.estimates:
        left = run.now - seconds
        if seconds > 0.2 * run.now:  # afterwards, the speed is known
            assert estimate == pytest.approx(left, rel=0.25, abs=5.0)


@pytest.mark.parametrize("validation_seconds", [0.0, 5.0, 30.0])
def test_a_short_run_validates_several_times(monkeypatch: pytest.MonkeyPatch, validation_seconds: float) -> None:
    run = SimulatedRun(monkeypatch, PATTERNS["constant"], validate_every=1000)
    run.train(1.0, validation_seconds, estimate=validation_seconds)
    assert 4 <= len(run.validated) <= 24
    assert 0.9 * LIMIT <= run.now <= LIMIT + 1


def test_validations_are_not_rarer_than_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimulatedRun(monkeypatch, PATTERNS["constant"], validate_every=10)
    run.train(1.0, validation_seconds=1.0, estimate=1.0)
    assert run.validated[:3] == [10, 20, 30]


def test_a_validation_that_takes_longer_than_the_limit_ends_training(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimulatedRun(monkeypatch, PATTERNS["constant"])
    run.train(1.0, validation_seconds=2 * LIMIT, estimate=1.0)
    assert len(run.validated) == 1


def test_steps_longer_than_the_limit_end_training(monkeypatch: pytest.MonkeyPatch) -> None:
    run = SimulatedRun(monkeypatch, PATTERNS["constant"])
    run.train(0.7 * LIMIT, validation_seconds=1.0, estimate=1.0)
    assert len(run.rates) == 2


def test_without_a_limit_the_schedule_has_the_steps_of_the_run() -> None:
    for schedule in ("warmup_stable_decay", "cosine", "linear", "noam", "inverse_sqrt", "constant"):
        config = TrainingConfig(schedule=schedule, max_steps=100, warmup_steps=7)
        plan = StepPlan(config)
        for step in range(100):
            rate = learning_rate(plan.schedule.next_step(step), plan.schedule.config, 512)
            assert rate == learning_rate(step + 1, config, 512)
            plan.schedule.advance()


@pytest.mark.parametrize("schedule", ["cosine", "noam", "warmup_stable_decay"])
def test_a_checkpoint_of_version_0_3_continues_its_schedule(schedule: str) -> None:
    config = TrainingConfig(schedule=schedule, max_minutes=2.0, max_steps=10_000, warmup_steps=50, learning_rate=PEAK)
    plan = StepPlan(config)
    plan.load_state_dict({"position": {"step": 30, "max_steps": 120, "max_minutes": 2.0, "given_steps": 10_000}})
    plan.apply_limits(TrainPosition(step=30, seconds=30.0))
    assert (plan.num_steps, plan.config.max_steps, plan.config.validate_every) == (120, 120, config.validate_every)
    shape = with_steps(config, 120)
    for step in range(30, 120):
        rate = learning_rate(plan.schedule.next_step(step), plan.schedule.config, 512)
        assert rate == pytest.approx(learning_rate(step + 1, shape, 512), rel=1e-9, abs=1e-15)
        plan.schedule.advance()


def test_a_plan_is_recorded_and_read_again() -> None:
    plan = StepPlan(TrainingConfig(max_minutes=2.0, warmup_steps=50))
    plan.schedule.plan(12, 345)
    record = json.loads(json.dumps(plan.plan.record()))
    assert Plan.from_record(record) == plan.plan
    assert Plan.from_record({"kind": "plan", "step": 10, "max_steps": 120}) == Plan(120)  # version 0.3

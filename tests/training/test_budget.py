"""`training.max_minutes`: the number of steps is planned by the measured speed, and plans are restored and replayed."""

import time
from pathlib import Path
from typing import Any

import pytest
from toy_run import Killed, Quiet, assert_same_run, resumed, trainer
from toy_training import toy_config

from mtformer.config.schema import TrainingConfig
from mtformer.errors import InterruptedRunError
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.training.budget import Plan, fitting_steps
from mtformer.training.history import read_records
from mtformer.training.optimizer import learning_rate
from mtformer.training.schedule import with_steps
from mtformer.training.speed import Pace, relative_cost

SETTINGS = {
    "max_minutes": 2.0, "max_steps": 10_000, "schedule": "cosine", "validate_every": 25, "log_every": 5,
}  # fmt: skip


class Clock:
    """Replaces `time.perf_counter`: each training step takes `seconds_of(step)` seconds, everything else no time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_of: Any = lambda step: 1.0) -> None:
        self.now, self.seconds_of = 0.0, seconds_of
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


class Timed(Quiet):
    """Progress display that advances a clock, and can send a signal."""

    def __init__(self, clock: Clock, signal_at: int | None = None) -> None:
        super().__init__(signal_at)
        self.clock = clock

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        self.clock.now += self.clock.seconds_of(step)
        super().advance(step, num_steps, epoch, figures)


def plans(folder: Path) -> dict[int, int]:
    records = read_records(RunDir(folder).metrics)
    return {record["step"]: record["max_steps"] for record in records if record["kind"] == "plan"}


def recorded(folder: Path) -> dict[int, Plan]:
    records = read_records(RunDir(folder).metrics)
    return {record["step"]: Plan.from_record(record) for record in records if record["kind"] == "plan"}


def rates(folder: Path) -> list[float]:
    return [one["learning_rate"] for one in read_records(RunDir(folder).metrics) if one["kind"] == "train"]


def test_steps_that_fit_in_a_time_leave_room_for_validations() -> None:
    config = TrainingConfig(validate_every=10)
    assert fitting_steps(100.0, Pace(1.0, 0.0), config) == 100
    assert fitting_steps(100.0, Pace(1.0, 10.0), config) == 50  # 4 validations between them and one at the end
    averaging = config.model_copy(update={"average_last": 2})
    assert fitting_steps(100.0, Pace(1.0, 10.0), averaging) == 40  # 3 validations between them and two at the end
    assert fitting_steps(-5.0, Pace(1.0, 10.0), config) == 0
    assert fitting_steps(100.0, Pace(1.0, 0.0), config.model_copy(update={"max_steps": 70})) == 70


def test_steps_without_consistency_take_55_percent_of_the_time() -> None:
    config = TrainingConfig(validate_every=10, consistency="rdrop", consistency_start=60)
    assert relative_cost(config, 0, 50) == pytest.approx(27.5)
    assert relative_cost(config, 50, 80) == pytest.approx(5.5 + 20)
    assert relative_cost(config, 70, 80) == 10
    assert fitting_steps(100.0, Pace(1.0, 0.0), config) == 127
    assert fitting_steps(100.0, Pace(1.0, 0.0), config, step=50) == 104
    assert fitting_steps(20.0, Pace(1.0, 0.0), config) == 36
    assert fitting_steps(100.0, Pace(1.0, 10.0), config) == 60  # 33 seconds, 5 validations and one at the end


def test_the_warmup_is_shortened_for_few_steps() -> None:
    config = TrainingConfig(warmup_steps=100, max_steps=1000)
    assert [with_steps(config, number).warmup_steps for number in (1000, 500, 100)] == [100, 100, 20]
    assert with_steps(config, 300).max_steps == 300


def test_training_ends_in_time_with_a_decayed_learning_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    subject = trainer(toy_config(**SETTINGS), tmp_path, Timed(clock))
    position = subject.train(seconds_before=20.0)
    assert plans(tmp_path) == {8: 100}  # 20 of 120 seconds were spent before
    assert (position.step, subject.plan.num_steps, clock.now) == (100, 100, 100.0)
    assert rates(tmp_path)[-1] < 1e-3 * max(rates(tmp_path))


def test_the_plan_does_not_wait_for_a_log_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    settings = {**SETTINGS, "log_every": 1_000, "validate_every": 1_000}
    trainer(toy_config(**settings), tmp_path, Timed(clock)).train()
    assert (plans(tmp_path), clock.now) == ({8: 120}, 120.0)


def test_the_plan_includes_the_later_start_of_consistency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, lambda step: 1.1 if step <= 41 else 2.0)
    progress = Timed(clock)
    trainer(toy_config(**SETTINGS, consistency="rdrop", consistency_start=41), tmp_path, progress).train()
    assert plans(tmp_path) == {8: 78}
    assert clock.now == pytest.approx(41 * 1.1 + 37 * 2)
    left = [figures["seconds_left"] for figures in progress.figures]
    assert [left[step // 5 - 1] for step in (20, 40, 50, 75)] == pytest.approx([21 * 1.1 + 37 * 2, 1.1 + 37 * 2, 56, 6])


def test_the_plan_changes_if_the_machine_becomes_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, lambda step: 1.0 if step < 50 else 2.0)
    trainer(toy_config(**SETTINGS), tmp_path, Timed(clock)).train()
    assert len(plans(tmp_path)) > 1
    assert 110 <= clock.now <= 130
    assert rates(tmp_path)[-1] < 0.03 * max(rates(tmp_path))  # the last log line may be 4 steps before the end


def test_max_steps_remains_the_upper_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    position = trainer(toy_config(**{**SETTINGS, "max_steps": 30}), tmp_path, Timed(Clock(monkeypatch))).train()
    assert (position.step, plans(tmp_path)) == (30, {8: 30})


@pytest.mark.parametrize("stop", [7, 25, 60])
def test_a_resumed_run_keeps_its_plan_and_the_time_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
) -> None:
    config, clock = toy_config(**SETTINGS), Clock(monkeypatch)
    trainer(config, tmp_path / "whole", Timed(clock)).train()
    with pytest.raises(InterruptedRunError):
        trainer(config, tmp_path / "parts", Timed(clock, stop)).train()
    clock.now += 1000  # between the two processes
    again = resumed(config, tmp_path / "parts", Timed(clock))
    again.plans = recorded(tmp_path / "whole")
    position = again.train()
    assert position.seconds == position.step == 120
    assert_same_run(RunDir(tmp_path / "whole"), RunDir(tmp_path / "parts"))


@pytest.mark.parametrize("kill_at", [33, 58])
def test_a_killed_run_follows_its_plans_and_their_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    config = toy_config(**{**SETTINGS, "max_minutes": 1.5})
    clock = Clock(monkeypatch, lambda step: 1.0 if step < 50 else 2.0)
    trainer(config, tmp_path / "whole", Timed(clock)).train()
    assert len(plans(tmp_path / "whole")) > 2

    killed = Timed(clock)
    killed.kill_at = kill_at
    clock.now = 0.0
    with pytest.raises(Killed):
        trainer(config, tmp_path / "parts", killed).train()
    again = resumed(config, tmp_path / "parts", Timed(clock))
    again.plans = recorded(tmp_path / "whole")
    again.train()
    assert_same_run(RunDir(tmp_path / "whole"), RunDir(tmp_path / "parts"))


def test_replayed_plans_give_the_same_run_at_another_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy_config(**SETTINGS)
    trainer(config, tmp_path / "one", Timed(Clock(monkeypatch, lambda step: 1.0 if step < 50 else 2.0))).train()
    other = trainer(config, tmp_path / "other", Timed(Clock(monkeypatch, lambda step: 0.1)))
    other.plans = recorded(tmp_path / "one")
    other.train()
    assert_same_run(RunDir(tmp_path / "one"), RunDir(tmp_path / "other"))


def test_a_finished_run_continues_with_more_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    trainer(toy_config(**{**SETTINGS, "max_steps": 30}), tmp_path, Timed(clock)).train()
    more = resumed(toy_config(**{**SETTINGS, "max_steps": 60}), tmp_path, Timed(clock))
    assert more.train().step == 60
    unlimited = resumed(toy_config(**{**SETTINGS, "max_steps": 70, "max_minutes": None}), tmp_path, Timed(clock))
    assert unlimited.train().step == 70


def test_the_schedule_stays_until_a_new_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(monkeypatch)
    with pytest.raises(InterruptedRunError):
        trainer(toy_config(**SETTINGS), tmp_path, Timed(clock, 101)).train()
    config = toy_config(**{**SETTINGS, "max_minutes": 4.0})
    stopped = resumed(config, tmp_path, Timed(clock, 103))
    assert stopped.config.max_steps == 120
    with pytest.raises(InterruptedRunError):
        stopped.train()
    longer = resumed(config, tmp_path, Timed(clock))
    assert longer.config.max_steps == 120
    with caplog.at_level("WARNING"):
        assert longer.train().step == 240
    assert "because training.max_minutes or training.max_steps changed" in caplog.text
    found = rates(tmp_path)  # at steps 5, 10 and so on
    assert found[20] < found[19] < found[23]
    assert plans(tmp_path) == {8: 120, 101: 120, 103: 120, 113: 240}
    changes = [one.get("changes") for one in read_records(RunDir(tmp_path).metrics) if one["kind"] == "plan"]
    assert changes[:3] == [None, None, None]
    assert changes[3].keys() == {"training.current_learning_rate"}


def test_plans_after_a_changed_limit_are_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, config = Clock(monkeypatch), toy_config(**{**SETTINGS, "max_minutes": 3.0})
    trainer(toy_config(**SETTINGS), tmp_path / "one", Timed(clock)).train()
    resumed(config, tmp_path / "one", Timed(clock)).train()
    assert plans(tmp_path / "one") == {8: 120, 120: 135, 129: 180}
    other = trainer(config, tmp_path / "other", Timed(clock))
    other.plans = recorded(tmp_path / "one")
    other.train()
    run, again = RunDir(tmp_path / "one"), RunDir(tmp_path / "other")
    assert run.steps() == again.steps() == [156, 162, 168, 174, 180]
    for step in run.steps():
        assert (run.checkpoint(step) / WEIGHTS).read_bytes() == (again.checkpoint(step) / WEIGHTS).read_bytes()


def test_the_peak_of_noam_does_not_depend_on_the_plan() -> None:
    config = TrainingConfig(schedule="noam", learning_rate=2.0, warmup_steps=400)
    peaks = [learning_rate(one.warmup_steps, one, 64) for one in (config, with_steps(config, 1000))]
    assert peaks[0] == pytest.approx(peaks[1])


@pytest.mark.parametrize(("minutes", "expected"), [(2.0, 120), (3.0, 180)])
def test_a_finished_run_continues_with_a_later_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float, expected: int
) -> None:
    clock = Clock(monkeypatch)
    trainer(toy_config(**SETTINGS), tmp_path, Timed(clock)).train()
    longer = resumed(toy_config(**{**SETTINGS, "max_minutes": minutes}), tmp_path, Timed(clock))
    assert longer.is_done() == (minutes == 2.0)
    assert longer.train().step == expected

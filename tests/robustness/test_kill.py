"""Attacks on training: a run that is repeatedly stopped at random times ends like one that is never stopped."""

import itertools
import os
import random
import re
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed
from forked import PATIENCE_SECONDS, Program

from mtformer.experiment.verify import compare_runs
from mtformer.files import read_meta
from mtformer.run_dir import WEIGHTS, RunDir

SEED = 1
NUM_STEPS = 36
KILLS_PER_RUN, SIGTERMS_PER_RUN = 4, 1
SETTINGS = (
    "data.test=", "training.precision=fp32", "training.batch_tokens=512", "training.accumulation_steps=2",
    f"training.max_steps={NUM_STEPS}", "training.validate_every=4", "training.log_every=2", "training.keep_last=2",
    "training.average_last=2", "training.sample_sentences=1", "decoding.max_length=6",
)  # fmt: skip
"""About 14 steps per epoch, with a validation, a checkpoint and a deletion every few tenths of a second."""
LAST_TARGET = NUM_STEPS - 12
"""Latest step at which a run is stopped; no run finishes before its last stop."""


@dataclass(frozen=True)
class Moment:
    """Time at which a process is stopped: a short delay after an event."""

    kind: str
    """start: the process runs; prepare: it writes its log; step: a step is logged; save: a checkpoint is written."""
    delay: float
    step: int = 0


@dataclass
class StoppedRun:
    """A run that is stopped at these moments, and what was observed."""

    run: RunDir
    arguments: list[object]
    number: signal.Signals
    moments: list[Moment]
    exit_codes: list[int] = field(default_factory=list)
    last_words: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Latest checkpoint after each stop."""


def kill_moments(chance: random.Random) -> list[Moment]:
    """Return one moment during preparation, one during start or resume, and the others during training."""
    late = training_moments(chance, KILLS_PER_RUN - 2)
    late.insert(chance.randrange(len(late)), Moment("start", chance.uniform(0.0, 0.5)))
    return [Moment("prepare", chance.uniform(0.0, 0.4)), *late]


def training_moments(chance: random.Random, count: int) -> list[Moment]:
    """Return moments spread over the run; every second one occurs while a checkpoint is being written or deleted.

    Half of those have no delay, because on an idle machine saving may be faster than a delay.
    """
    steps = sorted(chance.sample(range(1, LAST_TARGET), count))
    kinds = [("save", 0.0), ("step", 0.1), ("save", 0.015), ("step", 0.1)]
    return [
        Moment(kind, chance.uniform(0.0, longest), step)
        for step, (kind, longest) in zip(steps, kinds * count, strict=False)
    ]


def last_step(run: RunDir) -> int:
    """Return the step of the last line of the metrics, even if the line is incomplete."""
    if not run.metrics.is_file():
        return 0
    with run.metrics.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        return int([0, *re.findall(rb'"step": (\d+),', file.read())][-1])


def sign_of(moment: Moment, run: RunDir) -> Callable[[], bool]:
    """Return a function that checks whether the moment has come, given the files before the process starts."""
    log_size = run.log.stat().st_size if run.log.is_file() else 0
    step = max(moment.step, last_step(run) + 1)
    if moment.kind == "start":
        return lambda: True
    if moment.kind == "prepare":
        return lambda: run.log.is_file() and run.log.stat().st_size > log_size
    if moment.kind == "step":
        return lambda: last_step(run) >= step
    return lambda: last_step(run) >= step and any(run.checkpoints.glob(".step-*"))


def stop_at(moment: Moment, stopped: StoppedRun, cache: Path) -> None:
    has_come = sign_of(moment, stopped.run)
    program = Program(*stopped.arguments, stderr=cache.with_suffix(".stderr"), MTFORMER_CACHE=str(cache))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not has_come():
        if program.exit_code is not None or time.monotonic() > deadline:
            raise AssertionError(f"seed {SEED}: {moment} did not occur: {program.stderr.read_text()}")
        time.sleep(0.006)
    time.sleep(moment.delay)
    assert program.exit_code is None, f"seed {SEED}: ended before {moment}: {program.stderr.read_text()}"
    program.signal(stopped.number)
    stopped.exit_codes.append(program.wait())
    stopped.last_words.append(program.stderr.read_text().strip().split("\n")[-1])
    stopped.steps.append(max(stopped.run.steps(), default=0))


def run_to_end(stopped: StoppedRun, cache: Path) -> StoppedRun:
    """Start the program repeatedly, stop it at each moment, and finally let it finish."""
    for moment in stopped.moments:
        stop_at(moment, stopped, cache)
    program = Program(*stopped.arguments, stderr=cache.with_suffix(".stderr"), MTFORMER_CACHE=str(cache))
    assert program.wait() == 0, f"seed {SEED}: {program.stderr.read_text()}"
    assert f"done at step {NUM_STEPS} of {NUM_STEPS}" in program.stderr.read_text()
    return stopped


@pytest.fixture(scope="module")
def stopped_runs(
    corpus: Path, attacks: Attacks, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[StoppedRun]]:
    """Return the uninterrupted run and the stopped runs; two are executed at a time."""
    folder, chance = tmp_path_factory.mktemp("kill"), random.Random(SEED)
    plans = {
        "whole": [(signal.SIGTERM, list[Moment]())],
        "killed": [(signal.SIGKILL, kill_moments(chance)) for _ in range(attacks(1))],
        "terminated": [(signal.SIGTERM, training_moments(chance, SIGTERMS_PER_RUN)) for _ in range(attacks(1))],
    }
    futures = dict[str, list[Future[StoppedRun]]]()
    with ThreadPoolExecutor(2) as pool:
        several = [(name, *plan) for name, some in plans.items() for plan in some]
        for number, (name, sent, moments) in enumerate(several):
            run = RunDir(folder / f"run {number}")
            arguments = ["train", corpus / "small.yaml", *SETTINGS, "--run-dir", run.path, "--resume", "auto"]
            stopped = StoppedRun(run, arguments, sent, moments)
            futures.setdefault(name, []).append(pool.submit(run_to_end, stopped, folder / f"cache {number}"))
    return {name: [task.result() for task in tasks] for name, tasks in futures.items()}


def is_same(whole: RunDir, other: RunDir) -> bool:
    """Check that weights, optimizer, random state, position, metrics and checkpoints are equal to the last bit."""
    differences = {part.what: part.difference for part in compare_runs(whole, other) if part.difference}
    assert differences == {}, f"seed {SEED}"
    assert whole.regular_steps() == whole.steps() == other.steps() == other.regular_steps()
    assert {NUM_STEPS - 4, NUM_STEPS} <= set(whole.steps())
    assert len(whole.steps()) <= 3  # the last two and the best
    for step in whole.steps():
        assert read_meta(whole.checkpoint(step))["metrics"] == read_meta(other.checkpoint(step))["metrics"]
    for folder in (whole.averaged, *map(whole.checkpoint, whole.steps())):
        assert (folder / WEIGHTS).read_bytes() == (other.checkpoints / folder.name / WEIGHTS).read_bytes()
    assert sorted(p.name for p in whole.path.iterdir()) == sorted(p.name for p in other.path.iterdir())
    assert sorted(p.name for p in whole.checkpoints.iterdir()) == sorted(p.name for p in other.checkpoints.iterdir())
    return True


@pytest.mark.process
def test_killed_runs_end_like_an_uninterrupted_one(stopped_runs: dict[str, list[StoppedRun]], passed: Passed) -> None:
    (whole,), killed = stopped_runs["whole"], stopped_runs["killed"]
    codes = [code for stopped in killed for code in stopped.exit_codes]
    assert codes == [-signal.SIGKILL] * KILLS_PER_RUN * len(killed)
    assert all(len(set(stopped.steps)) > 1 for stopped in killed), f"seed {SEED}: too few steps between the stops"
    num_passed = sum(len(stopped.exit_codes) for stopped in killed if is_same(whole.run, stopped.run))
    passed("kills during training: the resumed run is bitwise equal", num_passed, len(codes))


@pytest.mark.process
def test_terminated_runs_save_and_print_how_to_resume(
    stopped_runs: dict[str, list[StoppedRun]], passed: Passed
) -> None:
    (whole,), terminated = stopped_runs["whole"], stopped_runs["terminated"]
    num_passed = 0
    for words, step, code in itertools.chain.from_iterable(
        zip(stopped.last_words, stopped.steps, stopped.exit_codes, strict=True) for stopped in terminated
    ):
        assert code == 128 + signal.SIGTERM
        assert words.startswith(f"stopped at step {step}, checkpoint saved; resume with: mtformer train")
        assert words.endswith("--resume auto")
        num_passed += 1
    assert all(is_same(whole.run, stopped.run) for stopped in terminated)
    num_tried = SIGTERMS_PER_RUN * len(terminated)
    passed("SIGTERM during training: saved, and the resumed run is equal", num_passed, num_tried)

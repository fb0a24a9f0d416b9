"""A training process that is stopped at random moments, again and again, ends as a run that never stopped."""

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
from attack_tools import Attacks, Held
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
"""About 14 steps an epoch; a validation, a checkpoint and a deletion every few tenths of a second."""
LAST_TARGET = NUM_STEPS - 12
"""The latest step at which a run is stopped; no run is finished before its last stop."""


@dataclass(frozen=True)
class Moment:
    """The moment at which a process is stopped: a short time after an event."""

    kind: str
    """start: the process runs; prepare: it writes its log; step: a step is logged; save: a checkpoint is written."""
    delay: float
    step: int = 0


@dataclass
class Story:
    """A run that is stopped at these moments, and what was seen."""

    run: RunDir
    arguments: list[object]
    number: signal.Signals
    moments: list[Moment]
    exit_codes: list[int] = field(default_factory=list)
    last_words: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """The newest checkpoint after each stop."""


def kill_moments(chance: random.Random) -> list[Moment]:
    """One while tokenizer or data are prepared, one while the process starts or resumes, the others in training."""
    late = training_moments(chance, KILLS_PER_RUN - 2)
    late.insert(chance.randrange(len(late)), Moment("start", chance.uniform(0.0, 0.5)))
    return [Moment("prepare", chance.uniform(0.0, 0.4)), *late]


def training_moments(chance: random.Random, count: int) -> list[Moment]:
    """Spread over the run; every second one falls into a checkpoint being written or an old one being deleted.

    Every second one of these comes at once: on an idle machine a save takes no longer than a delay.
    """
    steps = sorted(chance.sample(range(1, LAST_TARGET), count))
    kinds = [("save", 0.0), ("step", 0.1), ("save", 0.015), ("step", 0.1)]
    return [
        Moment(kind, chance.uniform(0.0, longest), step)
        for step, (kind, longest) in zip(steps, kinds * count, strict=False)
    ]


def last_step(run: RunDir) -> int:
    """The step of the newest line of the metrics, whether or not the line is whole."""
    if not run.metrics.is_file():
        return 0
    with run.metrics.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        return int([0, *re.findall(rb'"step": (\d+),', file.read())][-1])


def sign_of(moment: Moment, run: RunDir) -> Callable[[], bool]:
    """Return a function that tests whether the moment has come; call it before the process starts."""
    log_size = run.log.stat().st_size if run.log.is_file() else 0
    step = max(moment.step, last_step(run) + 1)
    if moment.kind == "start":
        return lambda: True
    if moment.kind == "prepare":
        return lambda: run.log.is_file() and run.log.stat().st_size > log_size
    if moment.kind == "step":
        return lambda: last_step(run) >= step
    return lambda: last_step(run) >= step and any(run.checkpoints.glob(".step-*"))


def stop_at(moment: Moment, story: Story, cache: Path) -> None:
    has_come = sign_of(moment, story.run)
    program = Program(*story.arguments, stderr=cache.with_suffix(".stderr"), MTFORMER_CACHE=str(cache))
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not has_come():
        if program.exit_code is not None or time.monotonic() > deadline:
            raise AssertionError(f"seed {SEED}: {moment} never came: {program.stderr.read_text()}")
        time.sleep(0.006)
    time.sleep(moment.delay)
    assert program.exit_code is None, f"seed {SEED}: ended by itself before {moment}: {program.stderr.read_text()}"
    program.signal(story.number)
    story.exit_codes.append(program.wait())
    story.last_words.append(program.stderr.read_text().strip().split("\n")[-1])
    story.steps.append(max(story.run.steps(), default=0))


def tell(story: Story, cache: Path) -> Story:
    """Start the program again and again, stop it at each moment, and then let it come to its end."""
    for moment in story.moments:
        stop_at(moment, story, cache)
    program = Program(*story.arguments, stderr=cache.with_suffix(".stderr"), MTFORMER_CACHE=str(cache))
    assert program.wait() == 0, f"seed {SEED}: {program.stderr.read_text()}"
    assert f"done at step {NUM_STEPS} of {NUM_STEPS}" in program.stderr.read_text()
    return story


@pytest.fixture(scope="module")
def stories(corpus: Path, attacks: Attacks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Story]]:
    """The run that never stopped, and the others; two at a time."""
    folder, chance = tmp_path_factory.mktemp("kill"), random.Random(SEED)
    plans = {
        "whole": [(signal.SIGTERM, list[Moment]())],
        "killed": [(signal.SIGKILL, kill_moments(chance)) for _ in range(attacks(1))],
        "terminated": [(signal.SIGTERM, training_moments(chance, SIGTERMS_PER_RUN)) for _ in range(attacks(1))],
    }
    told = dict[str, list[Future[Story]]]()
    with ThreadPoolExecutor(2) as pool:
        several = [(name, *plan) for name, some in plans.items() for plan in some]
        for number, (name, sent, moments) in enumerate(several):
            run = RunDir(folder / f"run {number}")
            arguments = ["train", corpus / "small.yaml", *SETTINGS, "--run-dir", run.path, "--resume", "auto"]
            story = Story(run, arguments, sent, moments)
            told.setdefault(name, []).append(pool.submit(tell, story, folder / f"cache {number}"))
    return {name: [task.result() for task in tasks] for name, tasks in told.items()}


def is_same(whole: RunDir, other: RunDir) -> bool:
    """Weights, optimizer, random state, position, metrics and the set of checkpoints, to the last bit."""
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
def test_runs_killed_at_random_moments_end_as_one_that_never_stopped(
    stories: dict[str, list[Story]], held: Held
) -> None:
    (whole,), killed = stories["whole"], stories["killed"]
    codes = [code for story in killed for code in story.exit_codes]
    assert codes == [-signal.SIGKILL] * KILLS_PER_RUN * len(killed)
    assert all(len(set(story.steps)) > 1 for story in killed), f"seed {SEED}: hardly any step between the stops"
    num_held = sum(len(story.exit_codes) for story in killed if is_same(whole.run, story.run))
    held("kills of a training: the resumed run is the same to the bit", num_held, len(codes))


@pytest.mark.process
def test_runs_terminated_at_random_moments_save_and_say_how_to_resume(
    stories: dict[str, list[Story]], held: Held
) -> None:
    (whole,), terminated = stories["whole"], stories["terminated"]
    num_held = 0
    for words, step, code in itertools.chain.from_iterable(
        zip(story.last_words, story.steps, story.exit_codes, strict=True) for story in terminated
    ):
        assert code == 128 + signal.SIGTERM
        assert words.startswith(f"stopped at step {step}, saved; resume with: mtformer train")
        assert words.endswith("--resume auto")
        num_held += 1
    assert all(is_same(whole.run, story.run) for story in terminated)
    held("SIGTERM in a training: saved, and the resumed run is the same", num_held, SIGTERMS_PER_RUN * len(terminated))

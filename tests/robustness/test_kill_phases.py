"""Attacks on all commands: killed at a random time and repeated, they leave the same files as an undisturbed call."""

import contextlib
import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed, is_good_error, tree
from forked import PATIENCE_SECONDS, Program
from writing import CALLS, SMALL, SOURCE_LINES, Call, Place, converting
from writing import result_of as written

from mtformer.experiment.run_state import read_state
from mtformer.files import LEFTOVER
from mtformer.run_dir import WEIGHTS, RunDir

SEED = 1
Undisturbed = tuple[str, object, float, Place]
"""A phase, its result without an attack, its duration in seconds, and its place."""


@dataclass(frozen=True)
class Phase:
    """A command; `result` returns its output after checking that all files are complete."""

    arguments: Call
    result: Callable[[Place], object]


def prepared(place: Place) -> object:
    """Return the cache without its locks; the names of prepared corpora are hashes of their contents."""
    cache = place.out.parent / "cache"
    assert not list(cache.glob("*.building"))
    return {name: data for name, data in tree(cache).items() if not name.startswith(".locks")}


def copied(place: Place) -> Path:
    """Return a copy of the run without averaged weights."""
    if not place.out.exists():
        shutil.copytree(place.run, place.out)
        shutil.rmtree(RunDir(place.out).averaged)
    return place.out


def averaged(place: Place) -> object:
    folder = RunDir(place.out).averaged
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    return (folder / WEIGHTS).read_bytes(), meta["metrics"]


def translated(place: Place) -> object:
    """Return the translations; the file exists only if it is complete."""
    text = place.out.read_text(encoding="utf-8")
    assert text.count("\n") == SOURCE_LINES
    return text


def converted(place: Place) -> object:
    """Return the converted model, whose folder is named by a checksum."""
    [folder] = (place.out.parent / "cache" / "ctranslate2").iterdir()
    return tree(folder)


PHASES = {name: Phase(call, partial(written, name)) for name, call in CALLS.items()} | {
    "preparing": Phase(lambda place: ["train", place.config, "--dry-run", *SMALL, "data.dev=[]"], prepared),
    "preparing a corpus": Phase(lambda place: ["data", "prepare", place.config, *SMALL, "data.dev=[]"], prepared),
    "averaging": Phase(
        lambda place: ["train", place.config, "--run-dir", copied(place), "--resume", "auto", *SMALL], averaged
    ),
    "translating": Phase(CALLS["translating"], translated),
    "converting to CTranslate2": Phase(converting, converted),
}

SAMPLE = ("training a tokenizer", "preparing", "averaging", "translating", "exporting a bundle")
SAMPLE_OF_TWO = ("preparing", "translating")
ONLY_MORE = "not in the sample: needs --attacks of at least 2"


def start(phase: Phase, place: Place, number: int = 0) -> Program:
    folder = place.out.parent
    folder.mkdir(exist_ok=True)
    cache, stderr = str(folder / "cache"), folder.with_suffix(f".stderr{number}")
    return Program(*phase.arguments(place), stderr=stderr, MTFORMER_CACHE=cache)


def finish(phase: Phase, place: Place) -> object:
    """Let the command finish; if its output is already complete, it may refuse to overwrite the folder."""
    program = start(phase, place)
    code, words = program.wait(), program.stderr.read_text()
    assert code == 0 or "already exists" in words or "exists already" in words, words
    return result_of(phase, place)


def result_of(phase: Phase, place: Place) -> object:
    """Return the output of the command after checking that there are no other files."""
    left = [path for path in place.out.parent.rglob(".*") if LEFTOVER.fullmatch(path.name)]
    assert not left, f"seed {SEED}: remaining temporary files: {left}"
    return phase.result(place)


@pytest.fixture(scope="module", params=PHASES)
def undisturbed(
    request: pytest.FixtureRequest,
    corpus: Path,
    trained: tuple[Path, object],
    attacks: Attacks,
    tmp_path_factory: pytest.TempPathFactory,
) -> Undisturbed:
    """Return a phase, its result without an attack, its duration, and its place."""
    name: str = request.param
    if name not in SAMPLE and attacks(1) == 1:
        pytest.skip(ONLY_MORE)
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "inputs").mkdir()
    place = Place(corpus, trained[0], folder / "inputs", folder / "whole" / "out")
    PHASES[name].arguments(place)  # writes further inputs, which others use too

    begin = time.monotonic()
    result = finish(PHASES[name], place)
    return name, result, time.monotonic() - begin, place


@pytest.mark.process
def test_killed_and_repeated_commands(
    undisturbed: Undisturbed, attacks: Attacks, passed: Passed, tmp_path: Path
) -> None:
    name, expected, seconds, whole = undisturbed
    phase, chance = PHASES[name], random.Random(f"{SEED} {name}")
    count, num_killed, num_passed, number = attacks(1), 0, 0, 0
    while num_killed < count:
        place, number = replace(whole, out=tmp_path / str(number) / "out"), number + 1
        program = start(phase, place)
        time.sleep(chance.uniform(0.0, seconds))
        program.signal(signal.SIGKILL)
        if program.wait() == 0:  # finished before the signal
            seconds *= 0.7
            continue
        num_killed += 1
        num_passed += finish(phase, place) == expected
    passed(f"kills while {name}", num_passed, count)


@pytest.mark.process
def test_two_processes_with_the_same_output(
    undisturbed: Undisturbed, attacks: Attacks, passed: Passed, tmp_path: Path
) -> None:
    """Both succeed, or one is rejected in one line; the output is that of a single process."""
    name, expected, seconds, whole = undisturbed
    if name not in SAMPLE_OF_TWO and attacks(1) == 1:
        pytest.skip(ONLY_MORE)
    phase, chance, num_passed = PHASES[name], random.Random(f"{SEED} {name}"), 0
    for number in range(attacks(1)):
        place = replace(whole, out=tmp_path / str(number) / "out")
        first = start(phase, place)
        time.sleep(chance.uniform(0.0, seconds / 2))
        second = start(phase, place, 1)
        codes = [program.wait() for program in (first, second)]
        words = [program.stderr.read_text() for program in (first, second)]
        assert 0 in codes, words
        is_answered = all(code == 0 or is_good_error(code, text) for code, text in zip(codes, words, strict=True))
        num_passed += is_answered and result_of(phase, place) == expected
    passed(f"two processes at a time: {name}", num_passed, attacks(1))


@pytest.mark.process
def test_two_training_processes_of_the_same_run(corpus: Path, attacks: Attacks, passed: Passed, tmp_path: Path) -> None:
    """One process trains, and the other is rejected."""
    num_passed, settings = 0, ["data.test={}", "training.max_steps=4", "training.average_last=1"]
    for number in range(attacks(1)):
        arguments = ["train", corpus / "small.yaml", *settings, "--run-dir", tmp_path / f"run{number}"]
        programs = [Program(*arguments, stderr=tmp_path / f"{number}.{one}") for one in range(2)]
        codes = [program.wait() for program in programs]
        words = [program.stderr.read_text() for program in programs]
        assert sorted(codes) == [0, 2], words
        num_passed += is_good_error(2, words[codes.index(2)]) and RunDir(tmp_path / f"run{number}").steps() == [4]
    passed("two training processes of the same run", num_passed, attacks(1))


def children(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started."""
    with contextlib.suppress(OSError):  # the process has ended
        files = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for file in files for child in file.read_text().split()]
    return []


@pytest.mark.process
def test_a_killed_sweep_can_be_resumed(corpus: Path, attacks: Attacks, passed: Passed, tmp_path: Path) -> None:
    """The training process that the killed sweep started survives, and ends before the sweep is resumed."""
    chance, count, num_passed = random.Random(SEED), attacks(1), 0
    for number in range(count):
        folder = tmp_path / str(number)
        folder.mkdir()
        settings = "{data.test: {}, training.average_last: 0, training.precision: fp32, training.max_steps: 8}"
        file = folder / "study.yaml"
        file.write_text(f"config: {corpus}/small.yaml\nrun_dir: {folder}/runs\nset: {settings}\nseeds: [1]\n")
        program = Program("sweep", file, stderr=folder / "stderr")
        wait_until(lambda program=program: children(program.pid))
        time.sleep(chance.uniform(0.0, 4.0))
        training = children(program.pid)
        program.signal(signal.SIGKILL)
        program.wait()
        run = RunDir(folder / "runs" / "seed=1")
        wait_until(lambda training=training: not any(Path(f"/proc/{pid}/exe").exists() for pid in training))
        again = Program("sweep", file, "--resume", stderr=folder / "stderr")
        assert again.wait() == 0, again.stderr.read_text()
        num_passed += read_state(run).state == "finished" and run.steps()[-1] == 8
    passed("kills during a sweep", num_passed, count)


def wait_until(happens: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""Attacks on all commands: killed at a random time and repeated, they leave the same files as an undisturbed call."""

import contextlib
import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from attack_tools import Attacks, Passed, is_good_error, tree
from forked import PATIENCE_SECONDS, Program

from mtformer.experiment.run_state import read_state
from mtformer.files import LEFTOVER
from mtformer.run_dir import WEIGHTS, RunDir

SEED = 1
SOURCE_LINES = 300
SMALL = ("data.num_workers=1", "data.test={}")


@dataclass(frozen=True)
class Files:
    """Files of a phase: its input, and its own output folder."""

    corpus: Path
    run: Path
    """A finished run, which must be copied before it is changed."""
    folder: Path

    @property
    def config(self) -> Path:
        return self.corpus / "small.yaml"


@dataclass(frozen=True)
class Phase:
    """A command; `result` returns its output after checking that all files are complete."""

    arguments: Callable[[Files], list[object]]
    result: Callable[[Files], object]


def prepared(files: Files) -> object:
    """Return the cache without its locks; the names of prepared corpora are hashes of their contents."""
    assert not list((files.folder / "cache").glob("*.building"))
    return {name: data for name, data in tree(files.folder / "cache").items() if not name.startswith(".locks")}


def copied(files: Files) -> Path:
    """Return a copy of the run without averaged weights."""
    run = files.folder / "run"
    if not run.exists():
        shutil.copytree(files.run, run)
        shutil.rmtree(RunDir(run).averaged)
    return run


def averaged(files: Files) -> object:
    run = RunDir(files.folder / "run")
    meta = json.loads((run.averaged / "meta.json").read_text(encoding="utf-8"))
    return (run.averaged / WEIGHTS).read_bytes(), meta["metrics"]


def sources(files: Files) -> Path:
    path = files.folder / "sources.txt"
    if not path.exists():
        lines = (files.corpus / "train.en").read_text(encoding="utf-8").splitlines()[:SOURCE_LINES]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def translated(files: Files) -> object:
    """Return the translations; the file exists only if it is complete."""
    text = (files.folder / "out.txt").read_text(encoding="utf-8")
    assert text.count("\n") == SOURCE_LINES
    return text


def exporting(name: str) -> Phase:
    return Phase(
        lambda files: ["export", files.run, "--format", name, "--output", files.folder / "out"],
        lambda files: tree(files.folder / "out"),
    )


PHASES = {
    "training a tokenizer": Phase(
        lambda files: ["tokenizer", "train", files.config, "--output", files.folder / "out"],
        lambda files: tree(files.folder / "out"),
    ),
    "preparing": Phase(lambda files: ["train", files.config, "--dry-run", *SMALL, "data.dev=[]"], prepared),
    "averaging": Phase(
        lambda files: ["train", files.config, "--run-dir", copied(files), "--resume", "auto", *SMALL], averaged
    ),
    "translating": Phase(
        lambda files: ["translate", files.run, "--input", sources(files), "--output", files.folder / "out.txt"],
        translated,
    ),
    "exporting a bundle": exporting("bundle"),
    "exporting to CTranslate2": exporting("ctranslate2"),
    "exporting to Hugging Face": exporting("huggingface"),
    "cleaning": Phase(
        lambda files: ["data", "clean", files.config, files.folder / "out", *SMALL],
        lambda files: tree(files.folder / "out"),
    ),
}

SAMPLE = ("training a tokenizer", "preparing", "averaging", "translating", "exporting a bundle")
SAMPLE_OF_TWO = ("preparing", "translating")
ONLY_MORE = "not in the sample: needs --attacks of at least 2"


def start(phase: Phase, files: Files, number: int = 0) -> Program:
    files.folder.mkdir(exist_ok=True)
    cache, stderr = str(files.folder / "cache"), files.folder.with_suffix(f".stderr{number}")
    return Program(*phase.arguments(files), stderr=stderr, MTFORMER_CACHE=cache)


def finish(phase: Phase, files: Files) -> object:
    """Let the command finish; if its output is already complete, it may refuse to overwrite the folder."""
    program = start(phase, files)
    code, words = program.wait(), program.stderr.read_text()
    assert code == 0 or "already exists" in words or "exists already" in words, words
    return result_of(phase, files)


def result_of(phase: Phase, files: Files) -> object:
    """Return the output of the command after checking that there are no other files."""
    left = [path for path in files.folder.rglob(".*") if LEFTOVER.fullmatch(path.name)]
    assert not left, f"seed {SEED}: remaining temporary files: {left}"
    return phase.result(files)


@pytest.fixture(scope="module", params=PHASES)
def undisturbed(
    request: pytest.FixtureRequest,
    corpus: Path,
    trained: tuple[Path, object],
    attacks: Attacks,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, object, float]:
    """Return a phase, its result without an attack, and its duration."""
    name: str = request.param
    if name not in SAMPLE and attacks(1) == 1:
        pytest.skip(ONLY_MORE)
    begin = time.monotonic()
    result = finish(PHASES[name], Files(corpus, trained[0], tmp_path_factory.mktemp("undisturbed") / "whole"))
    return name, result, time.monotonic() - begin


@pytest.mark.process
def test_killed_and_repeated_commands(
    undisturbed: tuple[str, object, float],
    corpus: Path,
    trained: tuple[Path, object],
    attacks: Attacks,
    passed: Passed,
    tmp_path: Path,
) -> None:
    name, expected, seconds = undisturbed
    phase, chance = PHASES[name], random.Random(f"{SEED} {name}")
    count, num_killed, num_passed, number = attacks(1), 0, 0, 0
    while num_killed < count:
        files, number = Files(corpus, trained[0], tmp_path / str(number)), number + 1
        program = start(phase, files)
        time.sleep(chance.uniform(0.0, seconds))
        program.signal(signal.SIGKILL)
        if program.wait() == 0:  # finished before the signal
            seconds *= 0.7
            continue
        num_killed += 1
        num_passed += finish(phase, files) == expected
    passed(f"kills while {name}", num_passed, count)


@pytest.mark.process
def test_two_processes_with_the_same_output(
    undisturbed: tuple[str, object, float],
    corpus: Path,
    trained: tuple[Path, object],
    attacks: Attacks,
    passed: Passed,
    tmp_path: Path,
) -> None:
    """Both succeed, or one is rejected in one line; the output is that of a single process."""
    name, expected, seconds = undisturbed
    if name not in SAMPLE_OF_TWO and attacks(1) == 1:
        pytest.skip(ONLY_MORE)
    phase, chance, num_passed = PHASES[name], random.Random(f"{SEED} {name}"), 0
    for number in range(attacks(1)):
        files = Files(corpus, trained[0], tmp_path / str(number))
        first = start(phase, files)
        time.sleep(chance.uniform(0.0, seconds / 2))
        second = start(phase, files, 1)
        codes = [program.wait() for program in (first, second)]
        words = [program.stderr.read_text() for program in (first, second)]
        assert 0 in codes, words
        is_answered = all(code == 0 or is_good_error(code, text) for code, text in zip(codes, words, strict=True))
        num_passed += is_answered and result_of(phase, files) == expected
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

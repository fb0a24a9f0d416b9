"""Tests of the processes of a sweep, with a fake program instead of `mtformer train`."""

import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from mtformer.config.loading import dump_config, resolve_paths
from mtformer.errors import CheckpointError
from mtformer.experiment import sweep_runner
from mtformer.experiment.run_state import record_state
from mtformer.experiment.sweep import Sweep, plan_sweep
from mtformer.experiment.sweep_runner import finishing_time, is_done, run_sweep, threads_each
from mtformer.run_dir import RunDir

pytestmark = pytest.mark.process

PROGRAM = """
import json, os, signal, sys, time
words = sys.argv[1:]
name = os.path.basename(words[words.index("--run-dir") + 1])
role = json.loads(os.environ["ROLES"]).get(name, {})
def note(what):
    with open(os.environ["NOTES"], "a") as file:
        seen = {key: os.environ.get(key) for key in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
        seen |= {"name": name, "what": what, "pid": os.getpid(), "sid": os.getsid(0), "words": words}
        file.write(json.dumps(seen) + "\\n")
def save(number, frame):
    note("asked " + signal.Signals(number).name)
    if role.get("is_busy") and number == signal.SIGTERM:
        return
    time.sleep(0.3)
    note("saved")
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
note("start")
print(role.get("says", "hello"), flush=True)
time.sleep(role.get("seconds", 0))
if "kill" in role:
    os.kill(os.getpid(), signal.SIGKILL)
note("end")
sys.exit(role.get("exit", 0))
"""


class Stage:
    """A sweep over seeds, with control over its processes and a record of their actions."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.notes_file = folder / "notes"
        (folder / "program.py").write_text(PROGRAM)
        (folder / "base.yaml").write_text("data: {src_lang: en, tgt_lang: de}\n")
        monkeypatch.setattr(sweep_runner, "PROGRAM", (sys.executable, "-S", str(folder / "program.py")))
        monkeypatch.setattr(sweep_runner, "POLL_SECONDS", 0.01)
        monkeypatch.setenv("NOTES", str(self.notes_file))
        self.roles()

    def roles(self, **roles: dict[str, Any]) -> None:
        """Set the actions of the run with each seed, as in s1={"exit": 2}."""
        self.monkeypatch.setenv("ROLES", json.dumps({f"seed={name[1:]}": role for name, role in roles.items()}))

    def sweep(self, num_runs: int, *overrides: str) -> Sweep:
        path = self.folder / "study.yaml"
        seeds = list(range(1, num_runs + 1))
        path.write_text(f"config: base.yaml\nrun_dir: {self.folder}/runs\nseeds: {seeds}\n")
        return plan_sweep(path, overrides)

    def notes(self, what: str | None = None) -> list[dict[str, Any]]:
        lines = self.notes_file.read_text().splitlines() if self.notes_file.exists() else []
        notes = [json.loads(line) for line in lines]
        return [note for note in notes if what in (None, note["what"])]

    def signal_when(self, num_started: int, number: signal.Signals) -> threading.Thread:
        """Send the signal to this process once `num_started` runs have started."""

        def wait_and_send() -> None:
            while len(self.notes("start")) < num_started:
                time.sleep(0.01)
            os.kill(os.getpid(), number)

        thread = threading.Thread(target=wait_and_send)
        thread.start()
        return thread

    def record(self) -> dict[str, Any]:
        return {run["name"]: run for run in json.loads((self.folder / "runs" / "sweep.json").read_text())["runs"]}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def most_at_once(notes: list[dict[str, Any]]) -> int:
    counts = [0]
    for note in notes:
        counts.append(counts[-1] + {"start": 1, "end": -1}[note["what"]])
    return max(counts)


@pytest.mark.parametrize(("jobs", "threads"), [(None, "6"), (1, "6"), (3, "2")])
def test_parallel_runs_share_the_cores(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, jobs: int | None, threads: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    stage.roles(**{f"s{seed}": {"seconds": 0.3} for seed in (1, 2, 3)})
    ended: list[int] = []
    sweep = stage.sweep(3)
    outcome = run_sweep(sweep, jobs, advance=lambda: ended.append(len(stage.notes("end"))))
    assert sorted(outcome.finished) == ["seed=1", "seed=2", "seed=3"]
    assert most_at_once(stage.notes()) == (jobs or 1)
    assert {note["OMP_NUM_THREADS"] for note in stage.notes()} == {threads}
    assert len(ended) == 3
    assert all(note["sid"] == note["pid"] for note in stage.notes())  # so Ctrl-C in a terminal does not reach them
    assert [note["words"] for note in stage.notes("start") if note["name"] == "seed=2"] == [
        sweep.arguments(sweep.runs[1])
    ]


@pytest.mark.parametrize(("asked", "jobs", "each"), [("", 2, 4), ("5", 2, 2), ("1", 4, 1), ("0", 1, 8), ("4,2", 1, 8)])
def test_threads_per_process(monkeypatch: pytest.MonkeyPatch, asked: str, jobs: int, each: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert threads_each(jobs) == each


@pytest.mark.parametrize(("visible", "seen"), [(None, ["0", "1"]), ("5,3", ["5", "3"])])
def test_each_process_has_its_own_cuda_device(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, visible: str | None, seen: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    stage.roles(s1={"seconds": 0.5})
    run_sweep(stage.sweep(4))  # one run per device at a time; the long run keeps its device
    starts = {note["name"]: note["CUDA_VISIBLE_DEVICES"] for note in stage.notes("start")}
    assert [starts[f"seed={number}"] for number in (1, 2, 3, 4)] == [seen[0], seen[1], seen[1], seen[1]]
    assert sweep_runner.devices(stage.sweep(1, "training.device=cpu")) == []


def test_a_failed_run_does_not_stop_the_others(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.roles(
        s1={"exit": 2, "says": "warning: odd\nerror: no such file\nerror: nor this\nbye"},
        s2={"exit": 1, "says": "Traceback\nZeroDivisionError: oh\n"},
        s3={"kill": True},
        s4={"exit": 143},
    )
    with caplog.at_level(logging.INFO, logger="mtformer"):
        outcome = run_sweep(stage.sweep(5), 2)
    assert outcome.finished == ["seed=5"]
    assert outcome.failed == {
        "seed=1": "no such file",
        "seed=2": "ZeroDivisionError: oh",
        "seed=3": "killed by SIGKILL (out of memory?)",
        "seed=4": "stopped by a signal after saving a checkpoint",
    }
    assert outcome.stopped_by is None
    assert "seed=1: failed: no such file" in caplog.text
    record = stage.record()
    assert {name: run["exit_code"] for name, run in record.items()} == {
        "seed=1": 2, "seed=2": 1, "seed=3": -9, "seed=4": 143, "seed=5": 0,
    }  # fmt: skip
    assert {name: run["error"] for name, run in record.items()} == {**outcome.failed, "seed=5": None}
    assert record["seed=2"]["values"] == {"training.seed": 2}
    assert "--resume auto training.seed=2" in record["seed=2"]["command"]


def test_errors_of_earlier_attempts_are_not_reported_again(stage: Stage) -> None:
    stage.roles(s1={"exit": 2, "says": "error: old"})
    run_sweep(stage.sweep(1))
    stage.roles(s1={"exit": 2, "says": "error: new"})
    assert run_sweep(stage.sweep(1), resume=True).failed == {"seed=1": "new"}
    assert (stage.folder / "runs" / "seed=1.log").read_text() == "error: old\nerror: new\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_all_runs_once_and_the_sweep_waits(stage: Stage, number: signal.Signals) -> None:
    stage.roles(**{f"s{seed}": {"seconds": 60} for seed in (1, 2, 3)})
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored under nohup
    try:
        thread = stage.signal_when(2, number)
        outcome = run_sweep(stage.sweep(3), 2)
        thread.join()
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert outcome.stopped_by == (signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)
    assert len(stage.notes("start")) == 2
    assert len(stage.notes("asked SIGTERM")) == 2
    assert len(stage.notes("saved")) == 2
    assert not outcome.finished
    assert not outcome.failed


def test_a_second_interrupt_does_not_wait_for_checkpoints(stage: Stage) -> None:
    """A run may need minutes until it can save a checkpoint, for example during validation."""
    stage.roles(s1={"seconds": 60, "is_busy": True}, s2={"seconds": 60, "is_busy": True})
    first = stage.signal_when(2, signal.SIGINT)

    def interrupt_again() -> None:
        while len(stage.notes("asked SIGTERM")) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    second = threading.Thread(target=interrupt_again)
    second.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_sweep(stage.sweep(2), 2)
    first.join()
    second.join()
    assert len(stage.notes("asked SIGINT")) == 2
    assert not stage.notes("end")
    assert time.monotonic() - start < 50
    for note in stage.notes("start"):
        with pytest.raises(ProcessLookupError):
            os.kill(note["pid"], 0)


def test_an_ignored_hangup_signal_remains_ignored(stage: Stage) -> None:
    stage.roles(s1={"seconds": 0.3})
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        thread = stage.signal_when(1, signal.SIGHUP)
        assert run_sweep(stage.sweep(1)).finished == ["seed=1"]
        thread.join()
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_no_process_keeps_running_if_the_sweep_fails(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.roles(s1={"seconds": 60}, s2={"seconds": 0.3})

    def advance() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_sweep(stage.sweep(2), 2, advance=advance)
    assert [note["name"] for note in stage.notes("saved")] == ["seed=1"]
    for note in stage.notes("start"):
        with pytest.raises(ProcessLookupError):
            os.kill(note["pid"], 0)


def test_a_folder_in_use_is_rejected(stage: Stage) -> None:
    sweep = stage.sweep(1)
    sweep.folder.mkdir()
    with FileLock(sweep.folder / ".sweep.lock"), pytest.raises(CheckpointError, match="another sweep is running here"):
        run_sweep(sweep)
    assert not stage.notes()


def test_a_folder_with_runs_is_rejected_without_resume(stage: Stage) -> None:
    sweep = stage.sweep(2)
    sweep.runs[1].run.path.mkdir(parents=True)
    with pytest.raises(CheckpointError, match="1 of the 2 runs already exist; continue with --resume"):
        run_sweep(sweep)
    sweep.runs[1].run.path.rmdir()
    run_sweep(sweep)
    with pytest.raises(CheckpointError, match="a sweep already exists; continue with --resume"):
        run_sweep(sweep)
    assert len(stage.notes("start")) == 2


def finished_run(sweep: Sweep) -> RunDir:
    run = sweep.runs[0].run
    run.path.mkdir(parents=True, exist_ok=True)
    run.config.write_text(dump_config(resolve_paths(sweep.runs[0].config)))
    with record_state(run):
        pass
    return run


def test_finished_runs_are_skipped(stage: Stage) -> None:
    finished_run(stage.sweep(2))
    assert run_sweep(stage.sweep(2), resume=True).finished == ["seed=1", "seed=2"]
    assert [note["name"] for note in stage.notes("start")] == ["seed=2"]
    assert {run["exit_code"] for run in stage.record().values()} == {0}


def test_a_run_is_done_if_it_finished_with_this_config_and_is_scored(stage: Stage) -> None:
    sweep = stage.sweep(1)
    assert not is_done(sweep.runs[0])
    run = finished_run(sweep)
    assert is_done(sweep.runs[0])
    assert not is_done(stage.sweep(1, "training.max_steps=7").runs[0])
    test_set = "data.test={flickr: {src: a.en, tgt: a.de}}"
    tested = stage.sweep(1, test_set)
    finished_run(tested)
    assert not is_done(tested.runs[0])
    run.evaluation("flickr").mkdir(parents=True)
    (run.evaluation("flickr") / "scores.json").write_text("{}")
    assert is_done(tested.runs[0])
    os.utime(run.evaluation("flickr") / "scores.json", (0, 0))  # the scores of an earlier training
    assert not is_done(tested.runs[0])
    os.utime(run.evaluation("flickr") / "scores.json")
    with_report = stage.sweep(1, test_set, "training.report=true")
    run.config.write_text(dump_config(resolve_paths(with_report.runs[0].config)))
    assert not is_done(with_report.runs[0])
    run.report.write_text("<html></html>")
    assert is_done(with_report.runs[0])
    both = stage.sweep(1, test_set, "data.both_directions=true", "data.language_tags=source")
    run.config.write_text(dump_config(resolve_paths(both.runs[0].config)))
    assert not is_done(both.runs[0])
    run.evaluation("flickr.de-en").mkdir()
    (run.evaluation("flickr.de-en") / "scores.json").write_text("{}")
    assert is_done(both.runs[0])
    run.config.write_text(dump_config(resolve_paths(tested.runs[0].config)))
    with pytest.raises(KeyboardInterrupt), record_state(run):
        raise KeyboardInterrupt
    assert not is_done(tested.runs[0])
    run.config.write_text("of: another version\n")
    assert not is_done(tested.runs[0])


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 10.0), (2, 7.0), (3, 5.0), (9, 4.0)])
def test_finishing_time(jobs: int, seconds: float) -> None:
    assert finishing_time([3.0, 2.0, 1.0, 4.0], jobs) == seconds

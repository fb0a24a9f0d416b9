"""`mtformer sweep`, with real trainings."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import invoke

from mtformer.experiment import preflight
from mtformer.experiment.run_state import read_state
from mtformer.run_dir import RunDir

PATIENCE_SECONDS = 900.0


@pytest.fixture
def study(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes a sweep over the small config, whose runs lie in tmp_path/runs."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    def write(axes: str) -> Path:
        common = "{data.test: {}, training.max_steps: 2, training.average_last: 0, training.precision: fp32}"
        path = tmp_path / "study.yaml"
        path.write_text(f"config: {corpus}/small.yaml\nrun_dir: {tmp_path}/runs\nset: {common}\n{axes}\n")
        return path

    return write


def run_of(tmp_path: Path, name: str) -> RunDir:
    return RunDir(tmp_path / "runs" / name)


def wait_for(happens: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happens():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(process.communicate())
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_one_of_three_fails_and_is_made_good(study: Callable[[str], Path], tmp_path: Path) -> None:
    axes = "list: [{name: a, model.d_ff: 32}, {name: b, tokenizer.vocab_size: 9999}, {name: c}]"
    result = invoke("sweep", study(axes), "--jobs", 2)
    assert result.exit_code == 1, result.stderr
    assert "a: finished: bleu " in result.stderr
    assert "error: b: " in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: 1 of 3 runs failed; mend what they say, and go on with: mtformer sweep ")
    assert last.endswith(" --jobs 2 --resume")
    assert "done at step 2 of 2" in (tmp_path / "runs" / "a.log").read_text()
    rows = {row["name"]: row for row in json.loads(invoke("runs", tmp_path / "runs", "--json").stdout)}
    assert {name: row["state"] for name, row in rows.items()} == {"a": "finished", "b": "failed", "c": "finished"}
    assert rows["b"]["problem"] in result.stderr
    assert rows["a"]["config"]["model.d_ff"] == 32

    refused = invoke("sweep", study(axes))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: {tmp_path}/runs: 2 of the 3 runs are there already; --resume goes on")
    times = [run_of(tmp_path, name).log.stat().st_mtime_ns for name in "ac"]
    again = invoke("sweep", study(axes.replace("9999", "200")), "--resume")
    assert again.exit_code == 0, again.stderr
    assert "finished before: 2 of 3 runs" in again.stderr
    assert again.stderr.splitlines()[-1] == f"3 of 3 runs finished: {tmp_path}/runs"
    assert [run_of(tmp_path, name).log.stat().st_mtime_ns for name in "ac"] == times


@pytest.mark.process
def test_a_killed_run_and_a_stopped_one_go_on(study: Callable[[str], Path], tmp_path: Path) -> None:
    # What is waited for lies far before the end, which only the resumed runs reach, with fewer steps.
    path = study("seeds: [1, 2]")
    long = ["training.max_steps=100000", "training.log_every=1", "training.validate_every=100000"]
    command = [sys.executable, "-m", "mtformer", "sweep", str(path), *long]
    first, second = run_of(tmp_path, "seed=1"), run_of(tmp_path, "seed=2")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(first.metrics.exists, process)
    (training,) = children(process.pid)
    other = invoke("sweep", path, *long, "--resume")
    assert (other.exit_code, "another sweep is at work here" in other.stderr) == (2, True)
    os.kill(training, signal.SIGKILL)
    wait_for(second.metrics.exists, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 143, errors
    assert "seed=1: failed: killed by SIGKILL" in errors
    assert "stopped, 0 of 2 runs finished; go on with: mtformer sweep " in errors
    assert (read_state(first).state, read_state(second).state) == ("killed", "interrupted")
    stopped_at = second.steps()[-1]
    again = invoke("sweep", path, *long, f"training.max_steps={stopped_at + 1}", "--resume", "--jobs", 2)
    assert again.exit_code == 0, again.stderr
    assert first.steps()[-1] == second.steps()[-1] == stopped_at + 1
    assert f"resumed at step {stopped_at} of" in (tmp_path / "runs" / "seed=2.log").read_text()


@pytest.mark.process
def test_a_printed_command_is_one_that_works(study: Callable[[str], Path], tmp_path: Path) -> None:
    result = invoke("sweep", study("grid: {model.dropout: [0.2, 0.3]}"), "--print-commands", "model.d_ff=48")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert not (tmp_path / "runs").exists()
    lines = result.stdout.splitlines()
    assert len(lines) == 2
    program = tmp_path / "bin" / "mtformer"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mtformer "$@"\n')
    program.chmod(0o755)
    env = {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", lines[1]], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(invoke("runs", tmp_path / "runs", "--json").stdout)
    assert (row["name"], row["state"], row["step"]) == ("dropout=0.3", "finished", 2)
    assert "  d_ff: 48\n" in run_of(tmp_path, "dropout=0.3").config.read_text()


def test_a_dry_run_lists_the_runs_and_tries_each_kind_once(
    study: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_memory, made = preflight.check_memory, []

    def count(*some: Any) -> preflight.MemoryCheck:
        made.append(some[0].model.d_ff)
        return check_memory(*some)

    monkeypatch.setattr(preflight, "check_memory", count)
    axes = "grid: {model.d_ff: [32, 64]}\nlist: [{name: a}, {name: b, training.warmup_steps: 9}]\nseeds: [1, 2]"
    result = invoke("sweep", study(axes), "--dry-run", "--jobs", 2, "training.max_steps=1000")
    assert result.exit_code == 0, result.stderr
    assert made == [32, 64, 32, 64]
    base, header, *rows, total = result.stdout.splitlines()
    assert base.endswith("small.yaml with data.test={} training.max_steps=2 training.average_last=0 "
                         "training.precision=fp32 training.max_steps=1000")  # fmt: skip
    assert header.split() == ["run", "d_ff", "seed", "warmup_steps", "time", "disk"]
    assert [row.split()[0] for row in rows] == [
        f"{name},d_ff={width},seed={seed}" for name in "ab" for width in (32, 64) for seed in (1, 2)
    ]
    assert rows[0].split()[1:3] == ["32", "1"]
    assert total.startswith("8 runs, 2 at a time: about 0:")
    assert not (tmp_path / "runs").exists()


def test_an_error_that_a_dry_run_meets_names_the_run(study: Callable[[str], Path]) -> None:
    result = invoke("sweep", study("list: [{name: fits}, {name: large, tokenizer.vocab_size: 9999}]"), "--dry-run")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: run large: ")


def test_mistakes_are_told_before_anything_starts(study: Callable[[str], Path], tmp_path: Path) -> None:
    for axes, message in (
        ("grid: {model.dropuot: [0.1]}", "study.yaml:4: grid: model.dropuot: unknown key; did you mean 'dropout'?"),
        ("grid: {model.num_heads: [2, 5]}", "num_heads 5 does not divide d_model 24 (run num_heads=5)"),
    ):
        result = invoke("sweep", study(axes))
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert message in result.stderr
    result = invoke("sweep", study("seeds: [1]"), "--dry-run", "--print-commands")
    assert result.stderr == "error: --dry-run and --print-commands exclude each other; give one of them\n"
    assert not (tmp_path / "runs").exists()

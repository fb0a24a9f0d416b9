"""`mtformer sweep` with real training runs."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import Program
from program import invoke

from mtformer.experiment import preflight
from mtformer.experiment.run_state import read_state
from mtformer.run_dir import RunDir


@pytest.fixture
def study(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that writes a sweep file for the small config, with runs in tmp_path/runs."""
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


def wait_for(happens: Callable[[], object], program: Program) -> None:
    while not happens():
        assert program.exit_code is None, program.stderr.read_text()
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Return the processes that any thread of a process has started."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


def test_a_resumed_sweep_finishes_a_failed_run(study: Callable[[str], Path], tmp_path: Path) -> None:
    axes = "list: [{name: a, model.d_ff: 32}, {name: b, tokenizer.vocab_size: 9999}]"
    result = invoke("sweep", study(axes), "--jobs", 2)
    assert result.exit_code == 1, result.stderr
    assert "a: finished: bleu " in result.stderr
    assert "error: b: " in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: 1 of 2 runs failed; fix the errors and resume with: mtformer sweep ")
    assert last.endswith(" --jobs 2 --resume")
    assert "done at step 2 of 2" in (tmp_path / "runs" / "a.log").read_text()
    rows = {row["name"]: row for row in json.loads(invoke("runs", tmp_path / "runs", "--json").stdout)}
    assert {name: row["state"] for name, row in rows.items()} == {"a": "finished", "b": "failed"}
    assert rows["b"]["problem"] in result.stderr

    refused = invoke("sweep", study(axes))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"error: {tmp_path}/runs: 1 of the 2 runs already exist; continue with --resume")
    written = run_of(tmp_path, "a").log.stat().st_mtime_ns
    again = invoke("sweep", study(axes.replace("9999", "200")), "--resume")
    assert again.exit_code == 0, again.stderr
    assert "already finished: 1 of 2 runs" in again.stderr
    folder = tmp_path / "runs"
    _, _, end = again.stderr.partition(f"2 of 2 runs finished: {folder}\nnext steps:\n")
    commands = [line.partition("  # ")[0].strip() for line in end.splitlines()]
    best = json.loads(invoke("runs", folder, "--json", "--sort", "best").stdout)[0]["path"]
    assert commands == [
        f"mtformer runs {folder} --sort best",
        f"mtformer report {folder}/a {folder}/b --out {folder}/report.html",
        f"mtformer eval {best} --src FILE --ref FILE",
        f"mtformer exam {best}",
    ]
    assert run_of(tmp_path, "a").log.stat().st_mtime_ns == written


@pytest.mark.process
def test_killed_and_stopped_runs_resume(study: Callable[[str], Path], tmp_path: Path) -> None:
    # The first runs have too many steps to finish before they are stopped; the resumed runs have fewer and finish.
    path = study("seeds: [1, 2]")
    long = ["training.max_steps=100000", "training.log_every=1", "training.validate_every=100000"]
    first, second = run_of(tmp_path, "seed=1"), run_of(tmp_path, "seed=2")
    program = Program("sweep", path, *long, stderr=tmp_path / "stderr")
    wait_for(first.metrics.exists, program)
    (training,) = children(program.pid)
    other = invoke("sweep", path, *long, "--resume")
    assert (other.exit_code, "another sweep is running here" in other.stderr) == (2, True)
    os.kill(training, signal.SIGKILL)
    wait_for(second.metrics.exists, program)
    program.signal(signal.SIGTERM)
    code, errors = program.wait(), program.stderr.read_text()
    assert code == 143, errors
    assert "seed=1: failed: killed by SIGKILL" in errors
    assert "stopped, 0 of 2 runs finished; resume with: mtformer sweep " in errors
    assert (read_state(first).state, read_state(second).state) == ("killed", "interrupted")
    stopped_at = second.steps()[-1]
    again = invoke("sweep", path, *long, f"training.max_steps={stopped_at + 1}", "--resume", "--jobs", 2)
    assert again.exit_code == 0, again.stderr
    assert first.steps()[-1] == second.steps()[-1] == stopped_at + 1
    assert f"resumed at step {stopped_at} of" in (tmp_path / "runs" / "seed=2.log").read_text()


def test_a_printed_command_trains_the_run(study: Callable[[str], Path], tmp_path: Path) -> None:
    result = invoke("sweep", study("grid: {model.dropout: [0.2, 0.3]}"), "--print-commands", "model.d_ff=48")
    assert (result.exit_code, result.stderr) == (0, "")
    assert not (tmp_path / "runs").exists()
    _, (program, *arguments) = map(shlex.split, result.stdout.splitlines())
    assert program == "mtformer"
    done = invoke(*arguments)
    assert done.exit_code == 0, done.stderr
    (row,) = json.loads(invoke("runs", tmp_path / "runs", "--json").stdout)
    assert (row["name"], row["state"], row["step"]) == ("dropout=0.3", "finished", 2)
    assert "  d_ff: 48\n" in run_of(tmp_path, "dropout=0.3").config.read_text()


def test_a_dry_run_lists_the_runs_and_checks_each_kind_once(
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
    assert header.split() == ["run", "d_ff", "seed", "warmup_steps", "test", "sets", "time", "disk"]
    assert [row.split()[0] for row in rows] == [
        f"{name},d_ff={width},seed={seed}" for name in "ab" for width in (32, 64) for seed in (1, 2)
    ]
    assert rows[0].split()[1:4] == ["32", "1", "none"]
    assert total.startswith("8 runs, 2 at a time: about 0:")
    assert not (tmp_path / "runs").exists()


def test_an_error_in_a_dry_run_names_the_run(study: Callable[[str], Path]) -> None:
    result = invoke("sweep", study("list: [{name: fits}, {name: large, tokenizer.vocab_size: 9999}]"), "--dry-run")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith("error: run large: ")


def test_user_errors_are_reported_before_training(study: Callable[[str], Path], tmp_path: Path) -> None:
    for axes, options, message in (
        (
            "grid: {model.num_heads: [2, 5]}",
            [],
            "num_heads: num_heads 5 does not divide d_model 24; change one of them\n",
        ),
        ("seeds: [1]", ["--dry-run", "--print-commands"], "cannot be combined; give only one of them\n"),
        ("seeds: [1]", ["--jobs", "2", "--print-commands"], "cannot be combined; give only one of them\n"),
    ):
        result = invoke("sweep", study(axes), *options)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert result.stderr.endswith(message)
    assert not (tmp_path / "runs").exists()

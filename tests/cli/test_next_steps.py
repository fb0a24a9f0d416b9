"""Commands that are proposed after a training."""

import os
import shlex
from pathlib import Path

import pytest

from mtformer.cli.commands import load_command
from mtformer.cli.next_steps import MAX_NAMED, Step, steps_after_sweep, steps_after_training
from mtformer.run_dir import SCORES, RunDir


def make_run(path: Path, test_set: str = "small") -> Path:
    """Create a run directory that has scores on a test set."""
    run = RunDir(path)
    run.evaluation(test_set).mkdir(parents=True)
    run.config.write_text("data: {src_lang: en, tgt_lang: de}\n")
    (run.evaluation(test_set) / SCORES).write_text('{"scores": [], "checkpoints": []}')
    return path


def commands(steps: list[Step]) -> dict[str, list[str]]:
    """Return the arguments of each command by its name, after parsing them as the program does."""
    parsed = {}
    for line, purpose in steps:
        program, name, *arguments = shlex.split(line)
        assert program == "mtformer"
        assert purpose
        load_command(name).make_context(name, [*arguments])
        parsed[name] = arguments
    return parsed


def test_a_run_is_compared_with_the_latest_run_with_a_common_test_set(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("old one", "older", "new")]
    make_run(tmp_path / "elsewhere", "large")
    os.utime(RunDir(runs[1]).evaluation("small") / SCORES, (1, 1))
    found = commands(steps_after_training(runs[2]))
    assert found["compare"] == [str(runs[0]), str(runs[2])]
    assert found["eval"] == found["exam"] == found["report"] == found["export"] == [str(runs[2])]
    assert "report" not in commands(steps_after_training(runs[2], has_report=True))
    assert "compare" not in commands(steps_after_training(tmp_path / "elsewhere"))


@pytest.mark.parametrize("number", [2, MAX_NAMED + 1])
def test_the_runs_of_a_sweep_are_compared(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "a sweep"
    runs = [make_run(folder / f"seed={seed}") for seed in range(number)]
    steps = steps_after_sweep(folder, runs)
    [compare] = [line for line, _ in steps if " compare " in line]
    arguments = compare.removeprefix("mtformer compare ")
    if number == 2:
        assert shlex.split(arguments) == [str(run) for run in runs]
    else:
        assert arguments == f"{shlex.quote(str(folder))}/*/"
        assert sorted(folder.glob("*/")) == sorted(runs)
    found = commands([step for step in steps if "*" not in step[0]])
    assert found["runs"] == [str(folder), "--sort", "best"]
    assert found["exam"] == [str(runs[0])]

"""`mtformer sweep`."""

import logging
import shlex
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from mtformer.cli.options import OnOption, OverridesArgument, argument, optional, require_at_most_one
from mtformer.cli.output import echo, error_lines, table_lines
from mtformer.errors import log
from mtformer.experiment.sweep import Sweep, plan_sweep, short_keys
from mtformer.experiment.sweep_runner import devices, estimate, finishing_time, run_sweep, threads_each
from mtformer.formatting import format_bytes, format_duration, format_value


def sweep(
    file: Annotated[Path, argument("YAML file of the sweep.")],
    overrides: OverridesArgument = None,
    jobs: Annotated[
        int | None, optional("Number of concurrent runs (default: number of CUDA devices, or 1).", min=1)
    ] = None,
    resume: Annotated[bool, optional("Skip finished runs and resume the others.", "--resume")] = False,
    dry_run: Annotated[
        bool, optional("List the runs with estimated time and disk space, without training.", "--dry-run")
    ] = False,
    print_commands: Annotated[
        bool, optional("Print one command line per run, for a scheduler, without training.", "--print-commands")
    ] = False,
    on: OnOption = None,
) -> None:
    """Train many runs: a base config with combinations of values.

    A failed run does not stop the others; the exit code is then 1. On SIGTERM or Ctrl-C, all runs save a checkpoint and
    the exit code is 143 or 130; --resume continues. `mtformer runs` shows the state of the runs.
    """
    for others in ({"--resume": resume, "--dry-run": dry_run}, {"--on": on, "--dry-run": dry_run}, {"--jobs": jobs}):
        require_at_most_one({**others, "--print-commands": print_commands})
    planned = plan_sweep(file, overrides or [])
    if print_commands:
        echo(*map(planned.command_line, planned.runs))
    elif dry_run:
        _dry_run(planned, jobs)
    else:
        _train(planned, jobs, resume, on, ["mtformer", "sweep", str(file), *(overrides or [])])


def _dry_run(planned: Sweep, jobs: int | None) -> None:
    jobs = jobs or max(1, len(devices(planned)))
    log.setLevel(logging.WARNING)  # each check would log the same lines
    with tqdm(total=len(planned.runs), desc="memory check", unit="run", disable=None, leave=False) as bar:
        needs = estimate(planned, threads_each(jobs), bar.update)
    keys = short_keys(dict.fromkeys(key for run in planned.runs for key in run.values))
    rows = [["run", *keys.values(), "test sets", "time", "disk"]]
    for run, need in zip(planned.runs, needs, strict=True):
        values = [format_value(run.values[key]) if key in run.values else "" for key in keys]
        tests = ", ".join(run.config.data.test) or "none"
        rows.append([run.name, *values, tests, format_duration(need.total_seconds), format_bytes(need.disk_bytes)])
    common = f" with {' '.join(planned.common)}" if planned.common else ""
    echo(f"base: {planned.config}{common}")
    echo(*table_lines(rows))
    time = format_duration(finishing_time([need.total_seconds for need in needs], jobs))
    disk, free = sum(need.disk_bytes for need in needs), min(need.free_bytes for need in needs)
    space = f"up to {format_bytes(disk)} for checkpoints, {format_bytes(free)} free"
    echo(f"{len(needs)} runs, {jobs} at a time: about {time}; {space}")


def _train(planned: Sweep, jobs: int | None, resume: bool, on: str | None, command: list[str]) -> None:
    with tqdm(total=len(planned.runs), desc="sweep", unit="run", disable=None, dynamic_ncols=True) as bar:
        outcome = run_sweep(planned, jobs, resume, bar.update, on)
    num_finished, num_runs = len(outcome.finished), len(planned.runs)
    given = [str(word) for option in (("--jobs", jobs), ("--on", on)) if option[1] for word in option]
    again = shlex.join([*command, *given, "--resume"])
    for name, error in outcome.failed.items():
        error_lines(f"{name}: {error}")
    if outcome.stopped_by is not None:
        echo(f"stopped, {num_finished} of {num_runs} runs finished; resume with: {again}", err=True)
        raise typer.Exit(128 + outcome.stopped_by)
    if outcome.failed:
        error_lines(f"{len(outcome.failed)} of {num_runs} runs failed; fix the errors and resume with: {again}")
        raise typer.Exit(1)
    echo(f"{num_finished} of {num_runs} runs finished: {planned.folder}", err=True)

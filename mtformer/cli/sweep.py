"""`mtformer sweep`: train many runs."""

import logging
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from tqdm import tqdm

from mtformer.cli.next_steps import echo_next_steps, steps_after_sweep
from mtformer.cli.options import OnOption, OverridesArgument, argument, optional, require_at_most_one
from mtformer.cli.output import echo, error_lines, table_lines
from mtformer.cli.runs import rows_of, with_narrow_names
from mtformer.cli.train import SIGNAL_BASE
from mtformer.errors import log
from mtformer.experiment.sweep import Sweep, plan_sweep, short_keys
from mtformer.experiment.sweep_runner import devices, estimate, finishing_time, run_sweep, threads_each
from mtformer.formatting import format_bytes, format_duration, format_value


def sweep(
    file: Annotated[Path, argument("YAML file of the sweep.", "SWEEP")],
    overrides: OverridesArgument = None,
    jobs: Annotated[
        int | None,
        optional("Number of concurrent runs (default: number of CUDA devices, or 1).", metavar="N", min=1),
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
    """Train the other runs even if one fails; the exit code is then 1.

    On SIGTERM or Ctrl-C, all runs save a checkpoint and the exit code is 143 or 130; --resume continues. `mtformer
    runs` shows the state of the runs.
    """
    for option, value in {"--resume": resume, "--on": on}.items():
        require_at_most_one({option: value, "--dry-run": dry_run, "--print-commands": print_commands})
    require_at_most_one({"--jobs": jobs, "--print-commands": print_commands})

    planned = plan_sweep(file, overrides or [])
    if print_commands:
        echo(*map(planned.command_line, planned.runs))
    elif dry_run:
        _dry_run(planned, jobs)
    else:
        command = ["mtformer", "sweep", str(file), *(overrides or [])]
        if jobs is not None:
            command += ["--jobs", str(jobs)]
        if on is not None:
            command += ["--on", on]
        _train(planned, jobs, resume, on, resume_command=[*command, "--resume"])


def _dry_run(planned: Sweep, jobs: int | None) -> None:
    """Print a table of the runs with their estimated time and disk space."""
    jobs = jobs or max(1, len(devices(planned)))
    log.setLevel(logging.WARNING)  # each check would log the same lines
    with tqdm(total=len(planned.runs), desc="memory check", unit="run", disable=None, leave=False) as bar:
        needs = estimate(planned, threads_each(jobs), bar.update)

    all_keys: dict[str, None] = {}  # in order, each once
    for run in planned.runs:
        all_keys |= dict.fromkeys(run.values)
    labels = short_keys(all_keys)
    rows = [["run", *labels.values(), "test sets", "time", "disk"]]
    for run, need in zip(planned.runs, needs, strict=True):
        values = [format_value(run.values[key]) if key in run.values else "" for key in labels]
        test_sets = ", ".join(run.config.data.test) or "none"
        rows.append([run.name, *values, test_sets, format_duration(need.total_seconds), format_bytes(need.disk_bytes)])
    common = f" with {' '.join(planned.common)}" if planned.common else ""
    echo(f"base: {planned.config}{common}")
    columns = {str(header): [header, *cells] for header, *cells in zip(*rows, strict=True)}
    if sys.stdout.isatty():
        columns = with_narrow_names(columns, shutil.get_terminal_size().columns)
    echo(*table_lines(rows_of(columns)))

    time = format_duration(finishing_time([need.total_seconds for need in needs], jobs))
    disk = format_bytes(sum(need.disk_bytes for need in needs))
    free = format_bytes(min(need.free_bytes for need in needs))
    echo(f"{len(needs)} runs, {jobs} at a time: about {time}; up to {disk} for checkpoints, {free} free")


def _train(planned: Sweep, jobs: int | None, resume: bool, on: str | None, resume_command: list[str]) -> None:
    """Train the runs, and report which of them finished; `resume_command` is shown if not all did."""
    num_runs = len(planned.runs)
    with tqdm(total=num_runs, desc="sweep", unit="run", disable=None, dynamic_ncols=True) as bar:
        outcome = run_sweep(planned, jobs, resume, bar.update, on)
    for name, error in outcome.failed.items():
        error_lines(f"{name}: {error}")

    num_finished = len(outcome.finished)
    advice = f"resume with: {shlex.join(resume_command)}"
    if outcome.stopped_by is not None:
        echo(f"stopped, {num_finished} of {num_runs} runs finished; {advice}", err=True)
        raise typer.Exit(SIGNAL_BASE + outcome.stopped_by)
    if outcome.failed:
        error_lines(f"{len(outcome.failed)} of {num_runs} runs failed; fix the errors and {advice}")
        raise typer.Exit(1)
    echo(f"{num_finished} of {num_runs} runs finished: {planned.folder}", err=True)
    echo_next_steps(steps_after_sweep(planned.folder, [run.run.path for run in planned.runs]))

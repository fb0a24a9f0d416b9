"""`mtformer reproduce`."""

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

DIFFERENT = 1
"""Exit code when a figure is not the same."""


def reproduce(
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, help="Steps to take once more; default: 50, or to the first log line.", show_default=False
        ),
    ] = None,
) -> None:
    """Train the first steps of a run once more, from its config, and compare losses to the last digit.

    Tokenizer, data and model are made anew in a temporary folder. Exits with 0 when all figures are equal, with 1 when
    one is not, and tells which, and what differs in data, versions and device.
    """
    from mtformer.cli.output import error_lines
    from mtformer.cli.progress import TrainingProgress
    from mtformer.errors import InterruptedRunError
    from mtformer.experiment import verify
    from mtformer.run_dir import RunDir

    opened = RunDir.open(run)
    num_steps = verify.steps_to_reproduce(opened, steps)
    # Without a handler SIGTERM would leave the temporary folder behind.
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with TrainingProgress(num_steps) as progress:
            found = verify.reproduce(opened, num_steps, progress)
    except InterruptedRunError as stopped:
        typer.echo(f"stopped at step {stopped.step} of {num_steps}", err=True)
        raise typer.Exit(128 + stopped.signal_number) from None
    finally:
        signal.signal(signal.SIGTERM, previous)
    for what, then, now in found.environment or ():
        typer.echo(f"not as it was: {what}: {then} -> {now}", err=True)
    if found.first is None:
        counts = f"{found.num_figures} figures in {found.num_records} records"
        typer.echo(f"steps 1 to {num_steps}: equal to the last digit ({counts})")
        return
    first = found.first
    typer.echo(f"{first.name} was {first.then!r} and is {first.now!r}")
    if found.environment:
        why = "what is not as it was stands above"
    elif found.environment is None:
        why = "it has no checkpoint that tells its data, versions and device"
    elif found.is_deterministic:
        why = "data, versions and device are the same, so its config may have been changed since"
    else:
        why = "data, versions and device are the same, but training.deterministic is off"
    error_lines(f"{run} is not reproduced: {why}")
    raise typer.Exit(DIFFERENT)

"""`mtformer reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from mtformer.cli.options import argument, optional
from mtformer.cli.output import clean_up_on_sigterm, echo, error_lines
from mtformer.errors import InterruptedRunError

DIFFERENT = 1
"""Exit code if a value differs."""


def reproduce(
    run: Annotated[Path, argument("Run directory.")],
    steps: Annotated[
        int | None, optional("Number of steps to repeat (default: 50, or more to reach the first log line).", min=1)
    ] = None,
) -> None:
    """Repeat the first steps of a run from its config and compare the losses exactly.

    The tokenizer, data and model are created again in a temporary folder. The exit code is 0 if all values are equal
    and 1 otherwise; the output then shows the first difference, and changes to data, versions and device.
    """
    from mtformer.cli.progress import TrainingProgress
    from mtformer.experiment import verify
    from mtformer.run_dir import RunDir

    opened = RunDir.open(run)
    num_steps = verify.steps_to_reproduce(opened, steps)
    try:
        with clean_up_on_sigterm(), TrainingProgress() as progress:
            found = verify.reproduce(opened, num_steps, progress)
    except InterruptedRunError as stopped:
        echo(f"stopped at step {stopped.step} of {num_steps}", err=True)
        raise typer.Exit(128 + stopped.signal_number) from None
    echo(*(f"changed since: {what}: {then} -> {now}" for what, then, now in found.environment or ()), err=True)
    if found.first is None:
        counts = f"{found.num_figures} values in {found.num_records} records"
        echo(f"steps 1 to {num_steps}: exactly equal ({counts})")
        return
    first = found.first
    echo(f"{first.name} was {first.then!r} and is now {first.now!r}")
    if found.environment:
        why = "the changes since the run are listed above"
    elif found.environment is None:
        why = "the run has no checkpoint that records its data, versions and device"
    elif found.is_deterministic:
        why = "data, versions and device are the same; its config may have been edited"
    else:
        why = "data, versions and device are the same, but training.deterministic is off"
    error_lines(f"{run} was not reproduced: {why}")
    raise typer.Exit(DIFFERENT)

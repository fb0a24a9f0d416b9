"""`mtformer reproduce`: repeat the first steps of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtformer.cli.options import argument, optional
from mtformer.cli.output import clean_up_on_sigterm, echo, error_lines
from mtformer.cli.train import SIGNAL_BASE
from mtformer.errors import InterruptedRunError
from mtformer.run_dir import RunDir

if TYPE_CHECKING:
    from mtformer.experiment.verify import Reproduced


def reproduce(
    run: Annotated[Path, argument("Run directory.", "RUN")],
    steps: Annotated[
        int | None,
        optional("Number of steps to repeat (default: 50, or more to reach the first log line).", metavar="N", min=1),
    ] = None,
) -> None:
    """Create the tokenizer, data and model again, from the config of the run, in a temporary folder.

    The exit code is 0 if all values are equal and 1 otherwise; the output then shows the first difference, and changes
    to data, versions and device.
    """
    from mtformer.cli.progress import TrainingProgress
    from mtformer.experiment import verify

    opened = RunDir.open(run)
    num_steps = verify.steps_to_reproduce(opened, steps)
    clean_up_on_sigterm()
    try:
        with TrainingProgress() as progress:
            result = verify.reproduce(opened, num_steps, progress)
    except InterruptedRunError as stopped:
        echo(f"stopped at step {stopped.step} of {num_steps}", err=True)
        raise typer.Exit(SIGNAL_BASE + stopped.signal_number) from None

    for name, then, now in result.environment or ():
        echo(f"changed since: {name}: {then} -> {now}", err=True)
    if result.first is None:
        echo(f"steps 1 to {num_steps}: exactly equal ({result.num_figures} values in {result.num_records} records)")
        return
    name, then, now = result.first
    echo(f"{name} was {then!r} and is now {now!r}")
    error_lines(f"{run} was not reproduced: {_reason(result)}")
    raise typer.Exit(1)


def _reason(result: "Reproduced") -> str:
    """Return what may explain a difference."""
    if result.environment:
        return "the changes since the run are listed above"
    if result.environment is None:
        return "the run has no checkpoint that records its data, versions and device"
    if result.is_deterministic:
        return "data, versions and device are the same; its config may have been edited, or changed by --resume"
    return "data, versions and device are the same, but training.deterministic is off"

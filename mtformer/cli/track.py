"""`mtformer track`: send runs to trackers."""

from pathlib import Path
from typing import Annotated

import typer

from mtformer.cli.options import argument, optional
from mtformer.cli.output import echo
from mtformer.config.schema import TrackerName
from mtformer.run_dir import RunDir


def track(
    run: Annotated[Path, argument("Run directory.", "RUN")],
    to: Annotated[TrackerName, typer.Option(help="tensorboard, wandb, trackio or mlflow.", metavar="NAME")],
    again: Annotated[bool, optional("Send all steps, to a new run in the tracker.", "--again")] = False,
) -> None:
    """Send the steps that the tracker does not have yet; training does this itself with training.trackers.

    The project is mtformer, or the one that the package's own environment variable names, such as WANDB_PROJECT.
    """
    from mtformer.experiment.track import track as send

    num_steps = send(RunDir.open(run), to, again)
    echo(f"{run}: sent the values of {num_steps} steps to {to}", err=True)

"""`mtformer average`."""

from pathlib import Path
from typing import Annotated

import typer


def average(
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    last: Annotated[int, typer.Option("--last", min=1, help="How many of the newest checkpoints.")] = 5,
) -> None:
    """Average the weights of the newest checkpoints of a run, without validating the average.

    Use it with --checkpoint averaged. Training validates its own average, see training.average_last.
    """
    from mtformer.run_dir import RunDir
    from mtformer.training.average import average_last

    opened = RunDir.open(run)
    steps = average_last(opened, last)
    typer.echo(
        f"{opened.averaged}: average of steps {', '.join(map(str, steps))}; use it with --checkpoint averaged", err=True
    )

"""`mtformer export`."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


class Format(str, Enum):
    """What a run can be exported to."""

    BUNDLE = "bundle"


def export(
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    format_: Annotated[
        Format, typer.Option("--format", help="bundle: weights, tokenizer and config in one folder.")
    ] = Format.BUNDLE,
    output: Annotated[
        Path | None, typer.Option("--output", help="The folder to write; default: RUN/FORMAT.", show_default=False)
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            help="best, last, averaged, a step, or a path; default: the first there is of averaged, best, last.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a run in a form that can be given away."""
    from mtformer.export.bundle import export_bundle
    from mtformer.rundir import RunDir

    target = output or run / format_.value
    export_bundle(RunDir.open(run), target, checkpoint)
    typer.echo(str(target))

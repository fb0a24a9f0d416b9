"""`mtformer import`."""

from pathlib import Path
from typing import Annotated

import typer


def import_model(
    marian_dir: Annotated[
        Path, typer.Argument(help="Hugging Face folder of a Marian model (OPUS-MT).", show_default=False)
    ],
    run: Annotated[Path, typer.Argument(help="The bundle to write.", show_default=False)],
) -> None:
    """Make a Marian model from Hugging Face a bundle: translates the same, and `training.init_from` trains it on."""
    from mtformer.export.marian import import_marian

    import_marian(marian_dir, run)
    typer.echo(str(run))

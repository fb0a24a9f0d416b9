"""`mtformer data`."""

from pathlib import Path
from typing import Annotated

import typer

from mtformer.cli.data_check_command import check
from mtformer.cli.data_clean_command import clean

app = typer.Typer(help="Corpora.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Corpora."""


app.command("check")(check)
app.command("clean")(clean)


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write to.", show_default=False)],
    seed: Annotated[int, typer.Option(min=0, help="Another seed gives other sentences.")] = 1,
) -> None:
    """Write a small English-German corpus, made by a grammar, for a first training."""
    from mtformer.data.demo import write_demo

    for path in write_demo(folder, seed).values():
        typer.echo(str(path))

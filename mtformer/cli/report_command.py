"""`mtformer report`, also at the end of a training."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run directory or bundle; several are laid over one another.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The HTML file; default: RUN/report.html, of several runs ./report.html.", show_default=False
        ),
    ] = None,
) -> None:
    """One HTML file about a run, or several: curves, scores, sentences, attention, config; it needs no network."""
    from mtformer.report.report import write_report
    from mtformer.rundir import RunDir

    file = out or (RunDir(runs[0]).report if len(runs) == 1 else Path("report.html"))
    write_report(runs, file)
    typer.echo(f"report: {file}", err=True)

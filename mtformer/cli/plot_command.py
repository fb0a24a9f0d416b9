"""`mtformer plot`."""

from pathlib import Path
from typing import Annotated

import typer


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The file; .pdf, .svg or .png.", show_default=False)],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            help="A key of metrics.jsonl, such as bleu, chrf, perplexity, train.loss; several are panels. "
            "Default: loss and bleu, on dev.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Curves for a paper: one column wide, several runs in each panel."""
    from mtformer.report.paper import DEFAULT_METRICS
    from mtformer.report.paper import plot as plot_runs

    plot_runs(runs, out, metric or DEFAULT_METRICS)
    typer.echo(f"plot: {out}", err=True)

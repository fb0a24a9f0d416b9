"""`mtformer report`, also at the end of a training."""

from pathlib import Path
from typing import Annotated

from mtformer.cli.options import argument, optional, require_at_most_one
from mtformer.cli.output import echo
from mtformer.errors import ConfigError

METRIC_HELP = (
    "With --plot: a key of metrics.jsonl, such as bleu, chrf, perplexity, train.loss; several are panels. "
    "Default: loss and bleu, on dev."
)


def report(
    runs: Annotated[list[Path], argument("Run directory or bundle; the curves of several share the panels.")],
    out: Annotated[
        Path | None, optional("The HTML file; default: RUN/report.html, of several runs ./report.html.")
    ] = None,
    plot: Annotated[
        Path | None,
        optional(
            "Instead of the report write curves for a paper, one column wide: .pdf, .svg or .png.", metavar="FILE"
        ),
    ] = None,
    metric: Annotated[list[str] | None, optional(METRIC_HELP)] = None,
) -> None:
    """Write an HTML file on a run, or several: curves, scores, sentences, attention, config; it needs no network."""
    from mtformer.run_dir import RunDir

    require_at_most_one({"--plot": plot, "--out": out})
    if plot is not None:
        from mtformer.report.plot import DEFAULT_METRICS
        from mtformer.report.plot import plot as plot_runs

        plot_runs(runs, plot, metric or DEFAULT_METRICS)
        echo(f"plot: {plot}", err=True)
        return
    if metric:
        raise ConfigError("--metric is for plots; give --plot FILE too")
    from mtformer.report.run_report import write_report

    file = out or (RunDir(runs[0]).report if len(runs) == 1 else Path("report.html"))
    write_report(runs, file)
    echo(f"report: {file}", err=True)

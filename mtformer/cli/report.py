"""`mtformer report`, which also runs at the end of training."""

from pathlib import Path
from typing import Annotated

from mtformer.cli.options import argument, optional, require_at_most_one
from mtformer.cli.output import echo
from mtformer.errors import ConfigError

METRIC_HELP = "With --plot: metric, such as bleu, perplexity or train.loss; repeat for more (default: loss and bleu)."


def report(
    runs: Annotated[list[Path], argument("Run directories or bundles.")],
    out: Annotated[
        Path | None, optional("HTML file to write (default: RUN/report.html, or report.html for several runs).")
    ] = None,
    plot: Annotated[
        Path | None, optional("Instead of a report, plot the curves to this file, one column wide: .pdf, .svg or .png.")
    ] = None,
    metric: Annotated[list[str] | None, optional(METRIC_HELP)] = None,
) -> None:
    """Write a self-contained HTML report about runs: curves, scores, sentences, attention and config."""
    from mtformer.run_dir import RunDir

    require_at_most_one({"--plot": plot, "--out": out})
    if plot is not None:
        from mtformer.report.plot import DEFAULT_METRICS
        from mtformer.report.plot import plot as plot_runs

        plot_runs(runs, plot, metric or DEFAULT_METRICS)
        echo(f"plot: {plot}", err=True)
        return
    if metric:
        raise ConfigError("--metric requires --plot FILE; add it")
    from mtformer.report.run_report import write_report

    file = out or (RunDir(runs[0]).report if len(runs) == 1 else Path("report.html"))
    write_report(runs, file)
    echo(f"report: {file}", err=True)

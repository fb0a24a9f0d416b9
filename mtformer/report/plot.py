"""Plot curves of metrics.jsonl for a paper, with matplotlib."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtformer.errors import ConfigError, require_extra
from mtformer.experiment.runs import RunContents, read_run
from mtformer.files import atomic_file
from mtformer.report.curves import Points, points_of, thin
from mtformer.run_dir import run_names
from mtformer.training.figures import axis_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#A07800", "#444444")
"""From Okabe and Ito (2008); the last two replace yellow and black, which are hard to see or look like text."""
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif", "text.parse_math": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "grid.color": "#DDDDDD",
    "savefig.dpi": 300, "pdf.fonttype": 42, "svg.hashsalt": "mtformer",
}  # fmt: skip
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
MARKERS = "osD^vP"
"""Markers; with these and the dashes, runs can be distinguished without color."""
DEFAULT_METRICS = ("loss", "bleu")
DATES = {".pdf": {"CreationDate": None}, ".png": {}, ".svg": {"Date": None}}
"""Plot formats, each with metadata settings that omit the date."""
log = logging.getLogger("mtformer")


def plot(paths: Sequence[Path], out: Path, metrics: Sequence[str] = DEFAULT_METRICS) -> None:
    """Draw the curves of runs for a paper as .pdf, .png or .svg, one column wide, with a panel for each metric.

    Metrics are keys in the dev lines of metrics.jsonl, or else in the train lines; `train.loss` is the loss on train.
    Raise MtformerError if the format or a metric is unknown, a path is not a run, or matplotlib is not installed.
    """
    suffix, metrics = out.suffix.lower(), list(dict.fromkeys(metrics))
    if suffix not in DATES:
        raise ConfigError(f"--plot {out}: unknown format; use one of {', '.join(DATES)}")
    require_extra("a plot", "report", "matplotlib")
    runs = [read_run(path, name) for path, name in zip(paths, run_names(paths), strict=True)]
    for metric in metrics:
        _check_metric(metric, runs)
    import matplotlib

    with matplotlib.rc_context(SETTINGS), atomic_file(out) as temporary:
        _panels(runs, metrics).savefig(temporary, format=suffix[1:], metadata=DATES[suffix])


def _check_metric(metric: str, runs: Sequence[RunContents]) -> None:
    """Raise ConfigError if no run has the metric; warn about each run that does not have it."""
    without = [run.name for run in runs if not _points(run, metric)]
    if len(without) < len(runs):
        for name in without:
            log.warning("%s has no %s yet and is omitted from the plot of this metric", name, metric)
        return
    keys = {key for run in runs for record in run.records for key in record if key != "step"} | {"perplexity"}
    known = {key for key in keys for run in runs if points_of(run, "dev", key)}
    known |= {f"train.{key}" for key in keys for run in runs if points_of(run, "train", key)}
    if not known:
        raise ConfigError(f"{', '.join(run.name for run in runs)}: nothing is logged yet, so there is nothing to plot")
    raise ConfigError(f"--metric {metric}: no run has this metric; available metrics: {', '.join(sorted(known))}")


def _points(run: RunContents, metric: str) -> Points:
    if not metric.startswith("train.") and (points := run.points("dev", metric)):
        return points
    return points_of(run, "train", metric.removeprefix("train."))


def _panels(runs: Sequence[RunContents], metrics: Sequence[str]) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = 1 if max(len(run.name) for run in runs) > 12 else 3
    names_height = 0.16 * -(-len(runs) // columns) if len(runs) > 1 else 0.0
    figure = Figure(figsize=(3.3, 0.3 + names_height + 1.6 * len(metrics)), layout="constrained")
    panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
    styles = [
        {
            "color": COLORS[number % len(COLORS)],
            "linestyle": DASHES[(number + number // len(COLORS)) % len(DASHES)],
            "marker": MARKERS[number % len(MARKERS)],
        }
        for number in range(len(runs))
    ]
    for axes, metric in zip(panels, metrics, strict=True):
        is_train = not any(run.points("dev", metric) for run in runs)
        for run, style in zip(runs, styles, strict=True):
            if points := _points(run, metric):
                steps, values = zip(*thin(points), strict=True)
                drawn = {**style, "marker": ""} if is_train and len(steps) > 1 else style
                size, every = 3 if len(steps) > 20 else 4, max(1, len(steps) // 15)
                axes.plot(steps, values, **drawn, markersize=size, markevery=every, linewidth=1.5)
        _format_axes(axes, is_log=metric.endswith("perplexity"))
        axes.set_ylabel(axis_label(metric))
    panels[-1].set_xlabel("step")
    if len(runs) > 1:
        named = zip(runs, styles, strict=True)
        lines = [Line2D([], [], **style, markersize=4, linewidth=1.5, label=run.name) for run, style in named]
        figure.legend(handles=lines, loc="outside upper center", ncols=columns, frameon=False, handlelength=4)
    figure.align_ylabels()
    return figure


def _format_axes(axes: "Axes", is_log: bool) -> None:
    """Set the scale, ticks and grid of axes on which the curves have already been drawn."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, ScalarFormatter

    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    lowest, high = float(axes.dataLim.ymin), float(axes.dataLim.ymax)
    if is_log and 0 < 10 * lowest < high:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / lowest < 200 else (1,)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif high >= 1000:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(axis="y", linewidth=0.6)

"""Curves for a paper: one column wide, in readable fonts, and colors that the color-blind tell apart."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtformer.errors import ConfigError
from mtformer.experiment.runs import RunContents, read_run, run_names
from mtformer.files import atomic_file
from mtformer.report.curves import Points, draw, format_axes, points_of, require_matplotlib, style_of
from mtformer.training.figures import axis_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_METRICS = ("loss", "bleu")
FORMATS = (".pdf", ".png", ".svg")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#A07800", "#444444")
"""Of Okabe and Ito (2008); the last two replace yellow and black, which are hard to see or look like text."""
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "grid.color": "#DDDDDD",
    "text.parse_math": False, "savefig.dpi": 300, "pdf.fonttype": 42, "svg.hashsalt": "mtformer",
}  # fmt: skip
log = logging.getLogger("mtformer")


def plot(paths: Sequence[Path], out: Path, metrics: Sequence[str] = DEFAULT_METRICS) -> None:
    """Draw the curves of runs into a file, a panel for each metric.

    Args:
        paths: run directories.
        out: the file; its suffix is the format: .pdf, .png or .svg.
        metrics: keys of the dev lines of metrics.jsonl, else of the train lines; `train.loss` is that of train.

    Raises:
        MtformerError: for an unknown format or metric, a path that is no run, and without matplotlib.
    """
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--plot {out}: unknown format; end the name in one of {', '.join(FORMATS)}")
    require_matplotlib("a plot")
    runs = [read_run(path, name) for path, name in zip(paths, run_names(paths), strict=True)]
    for metric in dict.fromkeys(metrics):
        _check(metric, runs)
    import matplotlib

    with matplotlib.rc_context(SETTINGS), atomic_file(out) as temporary:
        date = {".png": {}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}[out.suffix.lower()]
        figure = _figure(runs, list(dict.fromkeys(metrics)))
        figure.savefig(temporary, format=out.suffix.lower()[1:], metadata=date)


def _check(metric: str, runs: Sequence[RunContents]) -> None:
    """Raise ConfigError if no run has the metric; warn about those that do not have it."""
    without = [run.name for run in runs if not _points(run, metric)]
    if len(without) < len(runs):
        for name in without:
            log.warning("%s: has no %s yet and is missing from that panel", name, metric)
        return
    named = {f"train.{key}" if kind == "train" else key for run in runs for kind, key in _keys(run)}
    known = ", ".join(sorted(named))
    if not known:
        raise ConfigError(f"{', '.join(run.name for run in runs)}: nothing is logged yet, so there is nothing to plot")
    raise ConfigError(f"--metric {metric}: no run has it; known are {known}")


def _keys(run: RunContents) -> set[tuple[str, str]]:
    """Return the kinds of records, and the keys in them that have points."""
    keys = {(record["kind"], key) for record in run.records for key in record if key not in ("kind", "step")}
    found = {(kind, key) for kind, key in keys if kind in ("train", "dev") and run.points(kind, key)}
    return found | {("train", "perplexity") for kind, key in found if (kind, key) == ("train", "nll")}


def _points(run: RunContents, metric: str) -> Points:
    if not metric.startswith("train.") and (points := run.points("dev", metric)):
        return points
    return points_of(run, "train", metric.removeprefix("train."))


def _figure(runs: Sequence[RunContents], metrics: Sequence[str]) -> "Figure":
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = 1 if max(len(run.name) for run in runs) > 12 else 3
    names_height = 0.16 * -(-len(runs) // columns) if len(runs) > 1 else 0.0
    figure = Figure(figsize=(3.3, 0.3 + names_height + 1.6 * len(metrics)), layout="constrained")
    panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
    for axes, metric in zip(panels, metrics, strict=True):
        is_train = not any(run.points("dev", metric) for run in runs)
        for number, run in enumerate(runs):
            draw(axes, _points(run, metric), style_of(number, COLORS), is_train=is_train)
        format_axes(axes, is_log=metric.endswith("perplexity"))
        axes.set_ylabel(axis_label(metric))
    panels[-1].set_xlabel("step")
    if len(runs) > 1:
        lines = [
            Line2D([], [], **style_of(number, COLORS), markersize=4, linewidth=1.5, label=run.name)
            for number, run in enumerate(runs)
        ]
        figure.legend(handles=lines, loc="outside upper center", ncols=columns, frameon=False, handlelength=4)
    figure.align_ylabels()
    return figure

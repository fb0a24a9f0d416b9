"""Curves of metrics.jsonl by matplotlib: figures for a report, and files for a paper."""

import io
import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from mtformer.errors import ConfigError, MtformerError
from mtformer.experiment.runs import RunContents, read_run, run_names
from mtformer.files import atomic_file
from mtformer.training.figures import FIGURES, TrainingFigure, axis_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, LINE = "#010203", "#020304"
"""Colors of text and grid that matplotlib draws in; `svg` replaces them by those of the page."""
SERIES = tuple(f"#0{number}0000" for number in range(1, 7))
"""Likewise, of curves."""
OF_PAGE = {INK: "currentColor", LINE: "var(--line)"} | {
    color: f"var(--series-{number})" for number, color in enumerate(SERIES, start=1)
}
PAPER_SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#A07800", "#444444")
"""Of Okabe and Ito (2008); the last two replace yellow and black, which are hard to see or look like text."""
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif", "text.parse_math": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
}  # fmt: skip
PAGE = SETTINGS | {
    "font.size": 9, "text.color": INK, "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK,
    "ytick.color": INK, "grid.color": LINE, "svg.fonttype": "none",
}  # fmt: skip
PAPER = SETTINGS | {
    "font.size": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "axes.linewidth": 0.6, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "grid.color": "#DDDDDD",
    "savefig.dpi": 300, "pdf.fonttype": 42, "svg.hashsalt": "mtformer",
}  # fmt: skip
MAX_POINTS = 300
"""Number of points of a curve; neighbors of a longer one are averaged."""
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
MARKERS = "osD^vP"
"""With dashes and markers, runs can be told apart without colors."""
DEFAULT_METRICS = ("loss", "bleu")
DATES = {".pdf": {"CreationDate": None}, ".png": {}, ".svg": {"Date": None}}
"""Formats of plots, with metadata that leave out the date."""
Points = Sequence[tuple[int, float]]
log = logging.getLogger("mtformer")


@dataclass(frozen=True)
class Curves:
    """The figures of a page.

    Args:
        legend: name and key of each run.
        figures: those charts that any of the runs has points of.
        are_averaged: points of train are means of neighbors.
    """

    legend: list[tuple[str, Markup]]
    figures: list[tuple[TrainingFigure, Markup]]
    are_averaged: bool


def require_matplotlib(what: str) -> None:
    """Raise MtformerError if the package that draws is not installed; `what` needs it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MtformerError(f"{what} needs matplotlib: pip install 'mtformer[report]'") from error


def draw_curves(runs: Sequence[RunContents]) -> Curves | None:
    """Draw the charts of a page; None if there is nothing to draw."""
    charts = [
        one
        for one in FIGURES
        if one.chart and any(points_of(run, kind, one.key) for run in runs for kind in ("train", "dev"))
    ]
    if not charts:
        return None
    return Curves(
        [(run.name, _legend_key(number)) for number, run in enumerate(runs)],
        [(chart, _chart(chart, runs)) for chart in charts],
        max(len(run.points("train", "loss")) for run in runs) > MAX_POINTS,
    )


def plot(paths: Sequence[Path], out: Path, metrics: Sequence[str] = DEFAULT_METRICS) -> None:
    """Draw the curves of runs for a paper, one column wide, with a panel for each metric.

    Args:
        paths: run directories.
        out: the file; its suffix is the format: .pdf, .png or .svg.
        metrics: keys of the dev lines of metrics.jsonl, else of the train lines; `train.loss` is that of train.

    Raises:
        MtformerError: for an unknown format or metric, a path that is no run, and without matplotlib.
    """
    suffix, metrics = out.suffix.lower(), list(dict.fromkeys(metrics))
    if suffix not in DATES:
        raise ConfigError(f"--plot {out}: unknown format; end the name in one of {', '.join(DATES)}")
    require_matplotlib("a plot")
    runs = [read_run(path, name) for path, name in zip(paths, run_names(paths), strict=True)]
    for metric in metrics:
        _check_metric(metric, runs)
    import matplotlib

    with matplotlib.rc_context(PAPER), atomic_file(out) as temporary:
        _panels(runs, metrics).savefig(temporary, format=suffix[1:], metadata=DATES[suffix])


def style_of(number: int, colors: Sequence[str] = SERIES) -> dict[str, Any]:
    """Return the style of the run of this number, from 0, in matplotlib's terms."""
    return {
        "color": colors[number % len(colors)],
        "linestyle": DASHES[(number + number // len(colors)) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def thin(points: Points, max_points: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Return the points, or means of neighbors if there are more than `max_points`."""
    size = math.ceil(len(points) / max_points)
    groups = [points[first : first + size] for first in range(0, len(points), max(1, size))]
    return [(sum(s for s, _ in group) / len(group), sum(v for _, v in group) / len(group)) for group in groups]


def points_of(run: RunContents, kind: str, key: str) -> Points:
    """Return (step, value) of a figure; the lines of train have no perplexity, so it comes from the log-likelihood."""
    if (kind, key) == ("train", "perplexity"):
        return [(step, math.exp(nll)) for step, nll in run.points("train", "nll") if nll < 700]
    return run.points(kind, key)


@contextmanager
def page_style() -> Iterator[None]:
    """Inside, matplotlib's figures are made for `svg`: in the page's ink, and text as text."""
    import matplotlib

    with matplotlib.rc_context(PAGE):
        yield


def svg(figure: "Figure", prefix: str) -> Markup:
    """Return a matplotlib figure as inline SVG in the page's colors.

    Args:
        figure: made inside `page_style`, in INK, LINE and SERIES.
        prefix: of the ids inside, so that they differ from those of other figures of the page.
    """
    text = io.StringIO()
    with page_style():
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    for color, own in OF_PAGE.items():
        drawn = drawn.replace(color, own)
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawn).replace("xlink:href", "href")
    drawn = re.sub(r"\n\s*", "\n", drawn)
    return Markup(re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}-", drawn))


def _chart(chart: TrainingFigure, runs: Sequence[RunContents]) -> Markup:
    """Draw the train lines of all runs, then their dev lines."""
    from matplotlib.figure import Figure

    with page_style():
        figure = Figure(figsize=(4, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for kind in ("train", "dev"):
            for number, run in enumerate(runs):
                is_train = kind == "train"
                points = points_of(run, kind, chart.key)
                _draw(axes, points, style_of(number), is_train=is_train, is_faint=is_train and chart.on_dev)
        _format_axes(axes, chart.is_log)
        return svg(figure, f"curve-{chart.key}")


def _legend_key(number: int) -> Markup:
    from matplotlib.figure import Figure

    with page_style():
        figure = Figure(figsize=(0.45, 0.16))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.plot([0, 0.5, 1], [0, 0, 0], **style_of(number), markevery=[1], markersize=5, linewidth=1.8)
        return svg(figure, f"key-{number}")


def _check_metric(metric: str, runs: Sequence[RunContents]) -> None:
    """Raise ConfigError if no run has the metric; warn about those that do not have it."""
    without = [run.name for run in runs if not _points(run, metric)]
    if len(without) < len(runs):
        for name in without:
            log.warning("%s: has no %s yet and is missing from that panel", name, metric)
        return
    keys = {key for run in runs for record in run.records for key in record if key != "step"} | {"perplexity"}
    kinds = {"dev": "", "train": "train."}
    known = {
        prefix + key for run in runs for kind, prefix in kinds.items() for key in keys if points_of(run, kind, key)
    }
    if not known:
        raise ConfigError(f"{', '.join(run.name for run in runs)}: nothing is logged yet, so there is nothing to plot")
    raise ConfigError(f"--metric {metric}: no run has it; known are {', '.join(sorted(known))}")


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
    styles = [style_of(number, PAPER_SERIES) for number in range(len(runs))]
    for axes, metric in zip(panels, metrics, strict=True):
        is_train = not any(run.points("dev", metric) for run in runs)
        for run, style in zip(runs, styles, strict=True):
            _draw(axes, _points(run, metric), style, is_train=is_train)
        _format_axes(axes, is_log=metric.endswith("perplexity"))
        axes.set_ylabel(axis_label(metric))
    panels[-1].set_xlabel("step")
    if len(runs) > 1:
        named = zip(runs, styles, strict=True)
        lines = [Line2D([], [], **style, markersize=4, linewidth=1.5, label=run.name) for run, style in named]
        figure.legend(handles=lines, loc="outside upper center", ncols=columns, frameon=False, handlelength=4)
    figure.align_ylabels()
    return figure


def _draw(axes: "Axes", points: Points, style: dict[str, Any], *, is_train: bool, is_faint: bool = False) -> None:
    """Draw a curve in the style of its run, if it has points; those of train have no markers."""
    if not points:
        return
    steps, values = zip(*thin(points), strict=True)
    drawn = {**style, "marker": ""} if is_train and len(steps) > 1 else style
    axes.plot(
        steps, values, **drawn, markersize=3 if len(steps) > 20 else 4, markevery=max(1, len(steps) // 15),
        linewidth=1.0 if is_faint else 1.5, alpha=0.65 if is_faint else 1.0,
    )  # fmt: skip


def _format_axes(axes: "Axes", is_log: bool) -> None:
    """Set scale, ticks and grid of axes whose curves are drawn."""
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

"""Curves of metrics.jsonl for the page, by matplotlib: one run, or several in each picture."""

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from mtformer.errors import MtformerError
from mtformer.experiment.runs import RunContents
from mtformer.training.figures import FIGURES, TrainingFigure

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
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif", "font.size": 9, "text.parse_math": False, "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "grid.color": LINE,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "svg.fonttype": "none",
}  # fmt: skip
MAX_POINTS = 300
"""Number of points of a curve; neighbors of a longer one are averaged."""
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
MARKERS = "osD^vP"
"""With dashes and markers, runs can be told apart without colors."""
Points = Sequence[tuple[int, float]]


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
        [(chart, _figure(chart, runs)) for chart in charts],
        max(len(run.points("train", "loss")) for run in runs) > MAX_POINTS,
    )


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


def draw(
    axes: "Axes", points: Points, style: dict[str, Any], *, is_train: bool = False, is_faint: bool = False
) -> None:
    """Draw a curve in the style of its run, if it has points; those of train have no markers."""
    if not points:
        return
    steps, values = zip(*thin(points), strict=True)
    drawn = {**style, "marker": ""} if is_train and len(steps) > 1 else style
    axes.plot(
        steps, values, **drawn, markersize=3 if len(steps) > 20 else 4, markevery=max(1, len(steps) // 15),
        linewidth=1.0 if is_faint else 1.5, alpha=0.65 if is_faint else 1.0,
    )  # fmt: skip


def format_axes(axes: "Axes", is_log: bool) -> None:
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


@contextmanager
def page_style() -> Iterator[None]:
    """Inside, matplotlib's figures are made for `svg`: in the page's ink, and text as text."""
    import matplotlib

    with matplotlib.rc_context(SETTINGS):
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


def _figure(chart: TrainingFigure, runs: Sequence[RunContents]) -> Markup:
    from matplotlib.figure import Figure

    with page_style():
        figure = Figure(figsize=(4, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for number, run in enumerate(runs):
            points = points_of(run, "train", chart.key)
            draw(axes, points, style_of(number), is_train=True, is_faint=chart.on_dev)
        for number, run in enumerate(runs):
            draw(axes, points_of(run, "dev", chart.key), style_of(number))
        format_axes(axes, chart.is_log)
        return svg(figure, f"curve-{chart.key}")


def _legend_key(number: int) -> Markup:
    from matplotlib.figure import Figure

    with page_style():
        figure = Figure(figsize=(0.45, 0.16))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.plot([0, 0.5, 1], [0, 0, 0], **style_of(number), markevery=[1], markersize=5, linewidth=1.8)
        return svg(figure, f"key-{number}")

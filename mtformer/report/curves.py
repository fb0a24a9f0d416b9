"""Curves of metrics.jsonl for the page, by matplotlib: how a training went, or several in each picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from mtformer.experiment.runs import RunContents
from mtformer.page import SERIES, drawing, svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 300
"""Of a curve; neighbours of a longer one are averaged."""
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
MARKERS = "osD^vP"
"""With dashes and markers, runs can be told apart without colours."""
Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Chart:
    """A figure of a page: the keys of metrics.jsonl that it shows."""

    name: str
    caption: str
    train: str | None = None
    dev: str | None = None
    is_log: bool = False


CHARTS = (
    Chart("loss", "Loss per target token, with label smoothing", "loss", "loss"),
    Chart("perplexity", "Perplexity", "perplexity", "perplexity", is_log=True),
    Chart("bleu", "BLEU on dev", dev="bleu"),
    Chart("chrf", "chrF2++ on dev", dev="chrf"),
    Chart("learning-rate", "Learning rate", "learning_rate"),
    Chart("gradient-norm", "Gradient norm, before clipping", "grad_norm"),
    Chart("speed", "Tokens per second, source and target", "tokens_per_second"),
    Chart("memory", "Memory in GB", "memory_gb"),
)


def curves_html(runs: Sequence[RunContents]) -> str:
    """A legend and a figure for each chart that any of the runs has points of; nothing when there are none."""
    charts = [chart for chart in CHARTS if any(_of(run, chart, kind) for run in runs for kind in ("train", "dev"))]
    if not charts:
        return ""
    figures = "\n".join(_figure(chart, runs) for chart in charts)
    longest = max(len(run.points("train", "loss")) for run in runs)
    averaged = "; points of train are means of neighbouring log lines" if longest > MOST_POINTS else ""
    return (
        f'{_legend(runs)}\n<p class="faint">By step. Without markers: on train, over the steps between two log lines'
        f'{averaged}. With markers: on dev, at each validation.</p>\n<div class="charts">\n{figures}\n</div>'
    )


def style_of(number: int, colours: Sequence[str] = SERIES) -> dict[str, Any]:
    """How the run of this number, from 0, is drawn; matplotlib's names."""
    return {
        "color": colours[number % len(colours)],
        "linestyle": DASHES[(number + number // len(colours)) % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
    }


def thinned(points: Points, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """The points, or means of as many neighbours as leave `most` of them."""
    size = math.ceil(len(points) / most)
    groups = [points[first : first + size] for first in range(0, len(points), max(1, size))]
    return [(sum(s for s, _ in group) / len(group), sum(v for _, v in group) / len(group)) for group in groups]


def perplexities(points: Points) -> list[tuple[int, float]]:
    """Of log-likelihoods, as far as they are finite numbers."""
    return [(step, math.exp(value)) for step, value in points if value < 700]


def _of(run: RunContents, chart: Chart, kind: str) -> Points:
    key = chart.train if kind == "train" else chart.dev
    if key is None:
        return []
    if (kind, key) == ("train", "perplexity"):  # its lines have the log-likelihood only
        return perplexities(run.points("train", "nll"))
    return run.points(kind, key)


def _figure(chart: Chart, runs: Sequence[RunContents]) -> str:
    from matplotlib.figure import Figure

    name = f"curve-{chart.name}"
    with drawing():
        figure = Figure(figsize=(4, 2.4), layout="constrained")
        axes = figure.add_subplot()
        for number, run in enumerate(runs):
            draw(axes, _of(run, chart, "train"), style_of(number), is_train=True, is_faint=chart.dev is not None)
        for number, run in enumerate(runs):
            draw(axes, _of(run, chart, "dev"), style_of(number))
        dress(axes, chart.is_log)
        drawn = svg(figure, name)
    return f'<figure id="{name}">{drawn}<figcaption>{escape(chart.caption)}</figcaption></figure>'


def draw(
    axes: "Axes", points: Points, style: dict[str, Any], *, is_train: bool = False, is_faint: bool = False
) -> None:
    """A curve in the style of its run, if it has points; those of train have no markers."""
    if not points:
        return
    steps, values = zip(*thinned(points), strict=True)
    drawn = {**style, "marker": ""} if is_train and len(steps) > 1 else style
    axes.plot(
        steps, values, **drawn, markersize=3 if len(steps) > 20 else 4, markevery=max(1, len(steps) // 15),
        linewidth=1.0 if is_faint else 1.5, alpha=0.65 if is_faint else 1.0,
    )  # fmt: skip


def dress(axes: "Axes", is_log: bool) -> None:
    """Axes that one can read, whatever the sizes."""
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


def _legend(runs: Sequence[RunContents]) -> str:
    from matplotlib.figure import Figure

    keys = []
    for number, run in enumerate(runs):
        with drawing():
            figure = Figure(figsize=(0.45, 0.16))
            axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
            axes.set_axis_off()
            axes.plot([0, 0.5, 1], [0, 0, 0], **style_of(number), markevery=[1], markersize=5, linewidth=1.8)
            drawn = svg(figure, f"key-{number}")
        keys.append(f'<li><span class="key" aria-hidden="true">{drawn}</span>{escape(run.name)}</li>')
    return f'<ul class="legend">{"".join(keys)}</ul>'

"""Curves of metrics.jsonl as charts of a page: positions in an SVG, which the template draws in the page's colors."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from mtformer.experiment.runs import RunContents
from mtformer.training.figures import FIGURES, TrainingFigure

LEFT, RIGHT, TOP, BOTTOM = 44, 396, 8, 206
"""Edges of the curves in the SVG of a chart."""
NUM_COLORS = 6
"""Number of colors of curves in base.css."""
DASHES = ("none", "7 3", "2 2", "7 2 2 2", "14 4", "5 6")
"""With these, the first runs can be told apart without colors."""
MAX_POINTS = 300
"""Number of points of a curve; neighbors of a longer one are averaged."""
MAX_MARKERS = 15
MAX_TICKS = 5
UNITS = {"G": 1e9, "M": 1e6, "k": 1e3}
Points = Sequence[tuple[int, float]]


def charts(runs: Sequence[RunContents]) -> dict[str, Any] | None:
    """Return the legend and the charts that any of the runs has points of; None if there is nothing to draw."""
    figures = [
        one
        for one in FIGURES
        if one.chart and any(points_of(run, kind, one.key) for run in runs for kind in ("train", "dev"))
    ]
    if not figures:
        return None
    return {
        "legend": [(run.name, style_of(number)) for number, run in enumerate(runs)],
        "charts": [_chart(figure, runs) for figure in figures],
        "are_averaged": max(len(run.points("train", "loss")) for run in runs) > MAX_POINTS,
    }


def points_of(run: RunContents, kind: str, key: str) -> Points:
    """Return (step, value) of a figure; the lines of train have no perplexity, so it comes from the log-likelihood."""
    if (kind, key) == ("train", "perplexity"):
        return [(step, math.exp(nll)) for step, nll in run.points("train", "nll") if nll < 700]
    return run.points(kind, key)


def thin(points: Points, max_points: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Return the points, or means of neighbors if there are more than `max_points`."""
    size = math.ceil(len(points) / max_points)
    groups = [points[first : first + size] for first in range(0, len(points), max(1, size))]
    return [(sum(s for s, _ in group) / len(group), sum(v for _, v in group) / len(group)) for group in groups]


def style_of(number: int) -> str:
    """Return the CSS of the curves of a run, counted from 0."""
    dash = DASHES[(number + number // NUM_COLORS) % len(DASHES)]
    return f"--color: var(--series-{1 + number % NUM_COLORS}); stroke-dasharray: {dash}"


def axis(
    values: Sequence[float], start: float, end: float, is_log: bool = False
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Return the function from a value to its position on an axis, and position and label of the ticks.

    Args:
        values: those to show.
        start, end: positions of the ends of the axis.
        is_log: logarithmic if the values span more than a factor of 10.
    """
    is_log = is_log and 0 < 10 * min(values) < max(values)
    scale = math.log10 if is_log else float
    low, high = scale(min(values)), scale(max(values))
    margin = 0.05 * (high - low) or abs(high) or 1.0
    low, high = low - margin, high + margin

    def position(value: float) -> float:
        return round(start + (scale(value) - low) / (high - low) * (end - start), 1)

    if is_log:
        powers = [10.0**power for power in range(math.floor(low), math.ceil(high), math.ceil((high - low) / MAX_TICKS))]
        ticks = [factor * power for power in powers for factor in ((1, 2, 5) if high - low < 2 else (1,))]
        ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
    else:
        power = 10.0 ** math.floor(math.log10((high - low) / MAX_TICKS))
        size = next(power * factor for factor in (1, 2, 5, 10) if (high - low) / (power * factor) <= MAX_TICKS)
        ticks = [number * size for number in range(math.ceil(low / size), math.floor(high / size) + 1)]
    return position, [(position(tick), _label(tick)) for tick in ticks]


def _label(value: float) -> str:
    unit = next((unit for unit, size in UNITS.items() if abs(value) >= size), "")
    return f"{value / UNITS.get(unit, 1):g}{unit}"


def _chart(figure: TrainingFigure, runs: Sequence[RunContents]) -> dict[str, Any]:
    """Return the train curves of all runs, then their dev curves, with the ticks of the axes."""
    found = [
        (kind == "train", number, thin(points))
        for kind in ("train", "dev")
        for number, run in enumerate(runs)
        if (points := points_of(run, kind, figure.key))
    ]
    steps, values = zip(*(point for _, _, points in found for point in points), strict=True)
    x_of, x_ticks = axis(steps, LEFT, RIGHT)
    y_of, y_ticks = axis(values, BOTTOM, TOP, figure.is_log)
    curves = []
    for is_train, number, thinned in found:
        drawn = [(x_of(step), y_of(value)) for step, value in thinned]
        curves.append({
            "style": style_of(number),
            "is_faint": is_train and figure.on_dev,
            "points": drawn,
            "markers": [] if is_train and len(drawn) > 1 else drawn[:: max(1, len(drawn) // MAX_MARKERS)],
        })  # fmt: skip
    return {"id": figure.key, "caption": figure.chart, "x_ticks": x_ticks, "y_ticks": y_ticks, "curves": curves}

"""Charts of metrics.jsonl for the run report: SVG coordinates, which the template draws in the colors of the page."""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from statistics import fmean
from typing import Any

from mtformer.experiment.runs import RunContents
from mtformer.report.tables import Systems, describe_changes, resumes
from mtformer.training.figures import FIGURES, TrainingFigure

LEFT, RIGHT, TOP, BOTTOM = 44, 396, 8, 206  # bounds of the plot area in the SVG of a chart
NUM_COLORS = 6  # number of curve colors in base.css
DASHES = ("none", "7 3", "2 2", "7 2 2 2", "14 4", "5 6")
"""Dash patterns, so that curves can be distinguished without color."""
MAX_POINTS = 300  # maximum number of points of a curve; neighboring points of a longer curve are averaged
MAX_MARKERS = 15
MAX_TICKS = 5
UNITS = {"G": 1e9, "M": 1e6, "k": 1e3}
Points = Sequence[tuple[int, float]]


def charts(systems: Systems) -> dict[str, Any] | None:
    """Return the legend, and a chart for each metric for which any run has values; None if there is nothing to draw."""
    drawn = [chart for figure in FIGURES if figure.chart and (chart := _chart(figure, systems))]
    if not drawn:
        return None
    runs = [run for _, some in systems for run in some]
    return {
        "legend": [(label, style_of(number)) for number, (label, _) in enumerate(systems)],
        "charts": drawn,
        "are_averaged": max(len(run.points("train", "loss")) for run in runs) > MAX_POINTS,
        "has_bands": len(runs) > len(systems),
    }


def points_of(run: RunContents, kind: str, key: str) -> Points:
    """Return the (step, value) points of a metric; train perplexity is not logged but computed from `nll`."""
    if (kind, key) == ("train", "perplexity"):
        return [(step, math.exp(nll)) for step, nll in run.points("train", "nll") if nll < 700]
    return run.points(kind, key)


def mean_points(runs: Sequence[Points]) -> list[tuple[float, ...]]:
    """Return (step, mean, lowest, highest value) at each step, if all runs that reached the step have a value."""
    by_step: dict[int, list[float]] = {}
    for step, value in sorted(chain(*runs)):
        by_step.setdefault(step, []).append(value)
    ends = [points[-1][0] for points in runs if points]
    found = [(step, values) for step, values in by_step.items() if len(values) >= sum(end >= step for end in ends)]
    return [(step, fmean(values), min(values), max(values)) for step, values in found]


def thin(points: Sequence[Sequence[float]], max_points: int = MAX_POINTS) -> list[tuple[float, ...]]:
    """Return the points, or means of neighbors if there are more than `max_points`."""
    size = math.ceil(len(points) / max_points)
    groups = [points[first : first + size] for first in range(0, len(points), max(1, size))]
    return [tuple(sum(column) / len(group) for column in zip(*group, strict=True)) for group in groups]


def style_of(number: int) -> str:
    """Return the CSS for the curves of a run, given its number from 0."""
    dash = DASHES[(number + number // NUM_COLORS) % len(DASHES)]
    return f"--color: var(--series-{1 + number % NUM_COLORS}); stroke-dasharray: {dash}"


def axis(
    values: Sequence[float], start: float, end: float, is_log: bool = False
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """Return a function that maps a value to its position on an axis, and the (position, label) of each tick.

    The axis goes from `start` to `end`. A logarithmic scale is used only if the values span more than a factor of 10.
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


def _chart(figure: TrainingFigure, systems: Systems) -> dict[str, Any] | None:
    """Return a chart with the train curves of all systems, then their dev curves; None if there are no curves."""
    found = [
        (kind == "train", number, thin(points))
        for kind in ("train", "dev")
        for number, (_, runs) in enumerate(systems)
        if (points := mean_points([points_of(run, kind, figure.key) for run in runs]))
    ]
    if not found:
        return None
    x_of, x_ticks = axis([point[0] for *_, points in found for point in points], LEFT, RIGHT)
    values = [value for *_, points in found for point in points for value in point[1:]]
    y_of, y_ticks = axis(values, BOTTOM, TOP, figure.is_log)
    curves = []
    for is_train, number, points in found:
        steps, *means_lows_highs = zip(*points, strict=True)
        x = [x_of(step) for step in steps]
        drawn, lows, highs = ([*zip(x, map(y_of, column), strict=True)] for column in means_lows_highs)
        is_faint = is_train and figure.on_dev
        curves.append({
            "style": style_of(number),
            "is_faint": is_faint,
            "points": drawn,
            "band": [*lows, *highs[::-1]] if len(systems[number][1]) > 1 and not is_faint else [],
            "markers": [] if is_train and len(drawn) > 1 else drawn[:: max(1, len(drawn) // MAX_MARKERS)],
        })  # fmt: skip
    every = [
        (style_of(n), run.name, x)
        for n, (_, runs) in enumerate(systems)
        for run in runs
        for x in (*resumes(run), *resumes(run, "plan"))
    ]
    changed = [(step, style, name, describe_changes(one, "training.")) for style, name, (step, _, one) in every]
    marks = [(x_of(step), style, f"{name}, step {step:,}", text) for step, style, name, text in changed if text]
    return {
        "id": figure.key, "caption": figure.chart, "x_ticks": x_ticks, "y_ticks": y_ticks, "curves": curves,
        "changes": marks if figure.key == "learning_rate" else [],
    }  # fmt: skip

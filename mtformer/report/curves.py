"""Charts of metrics.jsonl for the run report: SVG coordinates, which the template draws in the colors of the page."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

from mtformer.experiment.runs import RunContents
from mtformer.report.tables import Systems, describe_changes, resumes
from mtformer.training.figures import FIGURES, TrainingFigure

LEFT = 44
"""Left edge of the plot area in the SVG of a chart."""
RIGHT = 396
"""Right edge of the plot area."""
TOP = 8
"""Upper edge of the plot area."""
BOTTOM = 206
"""Lower edge of the plot area."""
NUM_COLORS = 6
"""Number of curve colors in base.css."""
DASHES = ("none", "7 3", "2 2", "7 2 2 2", "14 4", "5 6")
"""Dash patterns, so that curves can be distinguished without color."""
MAX_POINTS = 300
"""Maximum number of points of a curve; neighboring points of a longer curve are averaged."""
MAX_MARKERS = 15
"""Approximate maximum number of markers on a curve."""
MAX_TICKS = 5
"""Maximum number of ticks of a linear axis."""
MARGIN = 0.05
"""Margin at both ends of an axis, as a share of the range of its values."""
UNITS = {"G": 1e9, "M": 1e6, "k": 1e3}
"""Units of tick labels, largest first."""
MAX_NLL = 700
"""Loss above which the perplexity does not fit in a float."""
Points = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Curve:
    """The curve of a system in a chart."""

    is_train: bool
    """True for training, False for dev data."""
    number: int
    """Number of the system, which determines the style of the curve."""
    num_runs: int
    points: list[tuple[float, ...]]
    """(step, mean, lowest, highest value) over the runs of the system."""


@dataclass(frozen=True)
class Axis:
    """An axis of a chart: a function from values to positions, and the (position, label) of each tick."""

    position: Callable[[float], float]
    ticks: list[tuple[float, str]]


def charts(systems: Systems) -> dict[str, Any] | None:
    """Return the legend, and a chart for each metric for which any run has values; None if there is nothing to draw."""
    drawn_charts = []
    for figure in FIGURES:
        curves = _curves(figure, systems) if figure.chart else []
        if curves:
            drawn_charts.append(_chart(figure, curves, systems))
    if not drawn_charts:
        return None

    runs = list(chain.from_iterable(runs for _, runs in systems))
    longest = max(len(run.points("train", "loss")) for run in runs)
    return {
        "legend": [(label, style_of(number)) for number, (label, _) in enumerate(systems)],
        "charts": drawn_charts,
        "are_averaged": longest > MAX_POINTS,
        "has_bands": len(runs) > len(systems),
    }


def points_of(run: RunContents, kind: str, key: str) -> Points:
    """Return the (step, value) points of a metric; train perplexity is not logged but computed from `nll`."""
    if (kind, key) == ("train", "perplexity"):
        return [(step, math.exp(nll)) for step, nll in run.points("train", "nll") if nll < MAX_NLL]
    return run.points(kind, key)


def mean_points(runs: Sequence[Points]) -> list[tuple[float, ...]]:
    """Return (step, mean, lowest, highest value) at each step, if all runs that reached the step have a value."""
    values_at: dict[int, list[float]] = {}
    for step, value in sorted(chain(*runs)):
        values_at.setdefault(step, []).append(value)
    last_steps = [points[-1][0] for points in runs if points]

    means: list[tuple[float, ...]] = []
    for step, values in values_at.items():
        num_runs = sum(last_step >= step for last_step in last_steps)
        if len(values) >= num_runs:
            means.append((step, fmean(values), min(values), max(values)))
    return means


def thin(points: Sequence[Sequence[float]], max_points: int = MAX_POINTS) -> list[tuple[float, ...]]:
    """Return the points, or means of neighbors if there are more than `max_points`."""
    size = max(1, math.ceil(len(points) / max_points))
    means = []
    for start in range(0, len(points), size):
        neighbors = points[start : start + size]
        columns = zip(*neighbors, strict=True)
        means.append(tuple(sum(column) / len(neighbors) for column in columns))
    return means


def style_of(number: int) -> str:
    """Return the CSS for the curves of a run, given its number from 0."""
    dash = DASHES[(number + number // NUM_COLORS) % len(DASHES)]
    return f"--color: var(--series-{1 + number % NUM_COLORS}); stroke-dasharray: {dash}"


def axis(values: Sequence[float], start: float, end: float, is_log: bool = False) -> Axis:
    """Return the axis for some values.

    Args:
        values: the values to show.
        start: position of the beginning of the axis.
        end: position of the end of the axis.
        is_log: use a logarithmic scale if the values span more than a factor of 10.
    """
    is_log = is_log and 0 < 10 * min(values) < max(values)
    scale = math.log10 if is_log else float
    lowest = scale(min(values))
    highest = scale(max(values))
    margin = MARGIN * (highest - lowest) or abs(highest) or 1.0
    low = lowest - margin
    high = highest + margin

    def position(value: float) -> float:
        share = (scale(value) - low) / (high - low)
        return round(start + share * (end - start), 1)

    ticks = _log_ticks(low, high) if is_log else _linear_ticks(low, high)
    return Axis(position, [(position(tick), _label(tick)) for tick in ticks])


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, and with a short axis 2 and 5 times these; the bounds are logarithms."""
    factors = (1, 2, 5) if high - low < 2 else (1,)
    distance = math.ceil((high - low) / MAX_TICKS)
    ticks: list[float] = []
    for power in range(math.floor(low), math.ceil(high), distance):
        ticks += [factor * 10.0**power for factor in factors]
    positive_ticks = [tick for tick in ticks if tick > 0]  # a very small power of ten is rounded to 0
    return [tick for tick in positive_ticks if low <= math.log10(tick) <= high]


def _linear_ticks(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2, 5 or 10 times a power of ten, at most `MAX_TICKS` apart."""
    power = 10.0 ** math.floor(math.log10((high - low) / MAX_TICKS))
    distances = [power * factor for factor in (1, 2, 5, 10)]
    distance = next(distance for distance in distances if (high - low) / distance <= MAX_TICKS)
    numbers = range(math.ceil(low / distance), math.floor(high / distance) + 1)
    return [number * distance for number in numbers]


def _label(value: float) -> str:
    """Return the label of a tick, such as 20k."""
    for unit, size in UNITS.items():
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _curves(figure: TrainingFigure, systems: Systems) -> list[Curve]:
    """Return the train curves of all systems, then their dev curves, without empty ones."""
    curves = []
    for kind in ("train", "dev"):
        for number, (_, runs) in enumerate(systems):
            points = mean_points([points_of(run, kind, figure.key) for run in runs])
            if points:
                curves.append(Curve(kind == "train", number, len(runs), thin(points)))
    return curves


def _chart(figure: TrainingFigure, curves: Sequence[Curve], systems: Systems) -> dict[str, Any]:
    """Return the template values of a chart."""
    steps: list[float] = []
    values: list[float] = []
    for curve in curves:
        for step, *means_and_bounds in curve.points:
            steps.append(step)
            values += means_and_bounds
    x_axis = axis(steps, LEFT, RIGHT)
    y_axis = axis(values, BOTTOM, TOP, figure.is_log)

    shows_changes = figure.key == "learning_rate"
    return {
        "id": figure.key,
        "caption": figure.chart,
        "x_ticks": x_axis.ticks,
        "y_ticks": y_axis.ticks,
        "curves": [_drawn(curve, figure, x_axis, y_axis) for curve in curves],
        "changes": list(_change_marks(systems, x_axis)) if shows_changes else [],
    }


def _drawn(curve: Curve, figure: TrainingFigure, x_axis: Axis, y_axis: Axis) -> dict[str, Any]:
    """Return the template values of a curve: its points, the band between lowest and highest values, and markers."""
    x = [x_axis.position(point[0]) for point in curve.points]

    def points_at(column: int) -> list[tuple[float, float]]:
        return [(left, y_axis.position(point[column])) for left, point in zip(x, curve.points, strict=True)]

    means = points_at(1)
    lowest = points_at(2)
    highest = points_at(3)
    is_faint = curve.is_train and figure.on_dev
    has_band = curve.num_runs > 1 and not is_faint
    has_markers = not curve.is_train or len(means) == 1
    return {
        "style": style_of(curve.number),
        "is_faint": is_faint,
        "points": means,
        "band": [*lowest, *highest[::-1]] if has_band else [],
        "markers": means[:: max(1, len(means) // MAX_MARKERS)] if has_markers else [],
    }


def _change_marks(systems: Systems, x_axis: Axis) -> Iterator[tuple[float, str, str, str]]:
    """Yield position, style, place and description of each resume or new plan that changed settings of training."""
    for number, (_, runs) in enumerate(systems):
        for run in runs:
            for step, _, changes in (*resumes(run), *resumes(run, "plan")):
                description = describe_changes(changes, "training.")
                if description:
                    yield x_axis.position(step), style_of(number), f"{run.name}, step {step:,}", description

"""Charts of metrics.jsonl for the run report: SVG coordinates, which the template draws in the colors of the page."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any, NamedTuple

from mtformer.experiment.runs import RunContents
from mtformer.report.tables import ReportedSystem, describe_changes, resumes
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
"""(step, value) of each point of a metric of a run."""


class MeanPoint(NamedTuple):
    """A point of the curve of a system: a step, and statistics of the values of its runs at this step."""

    x: float
    """The step, or the minutes of training until it."""
    mean: float
    lowest: float
    highest: float


@dataclass(frozen=True)
class Curve:
    """The curve of a system in a chart."""

    is_train: bool
    """True for training, False for dev data."""
    number: int
    """Number of the system, which determines the style of the curve."""
    num_runs: int
    points: list[MeanPoint]


class Tick(NamedTuple):
    """A tick of an axis."""

    position: float
    label: str


@dataclass(frozen=True)
class Axis:
    """An axis of a chart."""

    position: Callable[[float], float]
    """Function from values to positions in the SVG."""
    ticks: list[Tick]


class ChangeMark(NamedTuple):
    """A vertical line at a step at which settings of the training changed."""

    position: float
    style: str
    place: str
    """Run, step, and what happened."""
    description: str
    """The settings that changed."""


def charts(systems: Sequence[ReportedSystem]) -> dict[str, Any] | None:
    """Return the legend, and a chart for each metric for which any run has values; None if there is nothing to draw."""
    drawn_charts = []
    for figure in FIGURES:
        curves = _curves(figure, systems) if figure.chart else []
        if curves:
            drawn_charts.append(_chart(figure, curves, systems))
        if curves and figure.has_time_chart:
            drawn_charts += _time_charts(figure, curves, systems)
    if not drawn_charts:
        return None

    runs = list(chain.from_iterable(system.runs for system in systems))
    longest_curve = max(len(run.points("train", "loss")) for run in runs)
    return {
        "legend": [(system.label, style_of(number)) for number, system in enumerate(systems)],
        "charts": drawn_charts,
        "are_averaged": longest_curve > MAX_POINTS,
        "has_bands": len(runs) > len(systems),
    }


def points_of(run: RunContents, kind: str, key: str) -> Points:
    """Return the (step, value) points of a metric; train perplexity is not logged but computed from `nll`.

    Args:
        run: the run.
        kind: kind of the log records, `train` or `dev`.
        key: key of the metric in these records.
    """
    if (kind, key) == ("train", "perplexity"):
        nll_points = run.points("train", "nll")
        return [(step, math.exp(nll)) for step, nll in nll_points if nll < MAX_NLL]
    return run.points(kind, key)


def mean_points(runs: Sequence[Points]) -> list[MeanPoint]:
    """Return the mean over runs at each step for which all runs that reached the step have a value.

    A run that stopped early does not end the curve of its system.
    """
    values_at: dict[int, list[float]] = {}
    for step, value in sorted(chain(*runs)):
        values_at.setdefault(step, []).append(value)

    last_steps = []
    for points in runs:
        if points:
            last_step, _ = points[-1]
            last_steps.append(last_step)

    means: list[MeanPoint] = []
    for step, values in values_at.items():
        num_running = sum(last_step >= step for last_step in last_steps)
        if len(values) >= num_running:
            means.append(MeanPoint(step, fmean(values), min(values), max(values)))
    return means


def thin(points: Sequence[Sequence[float]], max_points: int = MAX_POINTS) -> list[tuple[float, ...]]:
    """Return the points, or means of neighbors if there are more than `max_points`."""
    group_size = max(1, math.ceil(len(points) / max_points))
    means = []
    for start in range(0, len(points), group_size):
        neighbors = points[start : start + group_size]
        columns = zip(*neighbors, strict=True)
        mean = tuple(sum(column) / len(neighbors) for column in columns)
        means.append(mean)
    return means


def style_of(number: int) -> str:
    """Return the CSS for the curves of a system, given its number from 0."""
    color = 1 + number % NUM_COLORS
    # Each color has another dash pattern when it is used again.
    num_reuses = number // NUM_COLORS
    dash = DASHES[(number + num_reuses) % len(DASHES)]
    return f"--color: var(--series-{color}); stroke-dasharray: {dash}"


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
    margin = MARGIN * (highest - lowest)
    if not margin:  # all values are equal, but the axis needs a range
        margin = abs(highest) or 1.0
    low = lowest - margin
    high = highest + margin

    def position(value: float) -> float:
        share = (scale(value) - low) / (high - low)
        coordinate = start + share * (end - start)
        return round(coordinate, 1)

    ticks = _log_ticks(low, high) if is_log else _linear_ticks(low, high)
    return Axis(position, [Tick(position(value), _label(value)) for value in ticks])


def _log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten, and with a short axis 2 and 5 times these; the bounds are logarithms."""
    num_powers = high - low
    factors = (1, 2, 5) if num_powers < 2 else (1,)
    distance = math.ceil(num_powers / MAX_TICKS)
    first = math.floor(low)
    end = math.ceil(high)
    ticks: list[float] = []
    for exponent in range(first, end, distance):
        power = 10.0**exponent
        ticks += [factor * power for factor in factors]

    positive_ticks = [tick for tick in ticks if tick > 0]  # a very small power of ten is rounded to 0
    return [tick for tick in positive_ticks if low <= math.log10(tick) <= high]


def _linear_ticks(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2, 5 or 10 times a power of ten: the smallest distance with at most `MAX_TICKS`."""
    span = high - low
    exponent = math.floor(math.log10(span / MAX_TICKS))
    power = 10.0**exponent
    distances = [power * factor for factor in (1, 2, 5, 10)]
    distance = next(distance for distance in distances if span / distance <= MAX_TICKS)

    first = math.ceil(low / distance)
    last = math.floor(high / distance)
    return [number * distance for number in range(first, last + 1)]


def _label(value: float) -> str:
    """Return the label of a tick, such as 20k."""
    for unit, size in UNITS.items():
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _curves(figure: TrainingFigure, systems: Sequence[ReportedSystem]) -> list[Curve]:
    """Return the train curves of all systems, then their dev curves, without empty ones."""
    curves = []
    for kind in ("train", "dev"):
        is_train = kind == "train"
        for number, system in enumerate(systems):
            points_of_runs = [points_of(run, kind, figure.key) for run in system.runs]
            means = mean_points(points_of_runs)
            if means:
                points = [MeanPoint(*point) for point in thin(means)]
                num_runs = len(system.runs)
                curves.append(Curve(is_train, number, num_runs, points))
    return curves


def _chart(figure: TrainingFigure, curves: Sequence[Curve], systems: Sequence[ReportedSystem]) -> dict[str, Any]:
    """Return the template values of a chart over the training steps."""
    drawing = _drawing(figure, curves)
    shows_changes = figure.key == "learning_rate"
    changes = list(_change_marks(systems, drawing["x_axis"])) if shows_changes else []
    return {**drawing, "id": figure.key, "caption": figure.chart, "x_unit": "step", "changes": changes}


def _time_charts(
    figure: TrainingFigure, curves: Sequence[Curve], systems: Sequence[ReportedSystem]
) -> Iterator[dict[str, Any]]:
    """Yield the template values of a chart over the minutes of training, if the time of each system is known."""
    timed_curves = []
    for curve in curves:
        runs = systems[curve.number].runs
        points = [point._replace(x=_mean_minutes(runs, point.x)) for point in curve.points]
        timed_curves.append(replace(curve, points=points))
    are_timed = all(curve.points[-1].x for curve in timed_curves)
    if are_timed:
        drawing = _drawing(figure, timed_curves)
        caption = f"{figure.chart}, over training time"
        x_unit = "minutes of training, without validation"
        yield {**drawing, "id": f"{figure.key}-time", "caption": caption, "x_unit": x_unit, "changes": []}


def _mean_minutes(runs: Sequence[RunContents], step: float) -> float:
    """Return the minutes of training until a step, the mean over runs."""
    seconds = [run.seconds_until(step) for run in runs]
    return fmean(seconds) / 60


def _drawing(figure: TrainingFigure, curves: Sequence[Curve]) -> dict[str, Any]:
    """Return the axes and the curves of a chart."""
    positions: list[float] = []
    values: list[float] = []
    for point in chain.from_iterable(curve.points for curve in curves):
        positions.append(point.x)
        values += (point.mean, point.lowest, point.highest)
    x_axis = axis(positions, LEFT, RIGHT)
    y_axis = axis(values, BOTTOM, TOP, figure.is_log)
    return {
        "y_unit": figure.unit,
        "x_axis": x_axis,
        "x_ticks": x_axis.ticks,
        "y_ticks": y_axis.ticks,
        "curves": [_drawn(curve, figure, x_axis, y_axis) for curve in curves],
    }


def _drawn(curve: Curve, figure: TrainingFigure, x_axis: Axis, y_axis: Axis) -> dict[str, Any]:
    """Return the template values of a curve: its points, the band between lowest and highest values, and markers."""
    x_positions = [x_axis.position(point.x) for point in curve.points]

    def positions_of(values: Iterable[float]) -> list[tuple[float, float]]:
        return list(zip(x_positions, map(y_axis.position, values), strict=True))

    means = positions_of(point.mean for point in curve.points)
    lowest = positions_of(point.lowest for point in curve.points)
    highest = positions_of(point.highest for point in curve.points)

    is_faint = curve.is_train and figure.on_dev
    has_band = curve.num_runs > 1 and not is_faint
    has_markers = not curve.is_train or len(means) == 1
    marker_distance = max(1, len(means) // MAX_MARKERS)
    return {
        "style": style_of(curve.number),
        "is_faint": is_faint,
        "points": means,
        "band": [*lowest, *highest[::-1]] if has_band else [],
        "markers": means[::marker_distance] if has_markers else [],
    }


def _change_marks(systems: Sequence[ReportedSystem], x_axis: Axis) -> Iterator[ChangeMark]:
    """Yield a mark for each resume or new plan that changed settings of the training."""
    events = {"resume": "resumed with", "plan": "new plan for max_minutes"}
    for number, system in enumerate(systems):
        style = style_of(number)
        for run in system.runs:
            for kind, event in events.items():
                for change in resumes(run, kind):
                    description = describe_changes(change.changes, "training.")
                    if description:
                        place = f"{run.name}, step {change.step:,}, {event}"
                        yield ChangeMark(x_axis.position(change.step), style, place, description)

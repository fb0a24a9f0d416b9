"""Charts of the run report: curves, axes and colors; test_run_report.py tests them in a browser."""

import math
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from small_run import begin_run

from mtformer.experiment.runs import RunContents
from mtformer.report.curves import (
    DASHES,
    MAX_POINTS,
    MAX_TICKS,
    NUM_COLORS,
    axis,
    charts,
    mean_points,
    points_of,
    style_of,
    thin,
)
from mtformer.report.tables import ReportedSystem
from mtformer.templating import TEMPLATES
from mtformer.training.history import append_record


@pytest.mark.parametrize("count", [1, MAX_POINTS, MAX_POINTS + 1, 10 * MAX_POINTS + 7])
def test_thinning_keeps_the_mean_and_limits_the_number_of_points(count: int) -> None:
    points = [(step, math.sin(step) + step) for step in range(count)]
    found = thin(points)
    assert len(found) <= MAX_POINTS
    assert (found == points) == (count <= MAX_POINTS)
    size = math.ceil(count / MAX_POINTS)
    whole = found[: count // size]
    for mean, first, last in zip(whole, points[::size], points[size - 1 :: size], strict=False):
        assert first[0] <= mean[0] <= last[0]
    assert sum(v for _, v in whole) * size == pytest.approx(sum(v for _, v in points[: len(whole) * size]))


def test_means_over_seeds_end_where_the_last_run_ends_and_skip_steps_that_a_run_lacks() -> None:
    runs = [[(1, 2.0), (2, 5.0), (3, 1.0), (4, 7.0)], [(1, 4.0), (3, 2.0)], []]
    assert mean_points(runs) == [(1, 3.0, 2.0, 4.0), (3, 1.5, 1.0, 2.0), (4, 7.0, 7.0, 7.0)]
    assert mean_points(runs[:1]) == [(step, value, value, value) for step, value in runs[0]]
    assert mean_points([[], []]) == []


def test_each_of_many_runs_has_its_own_style_in_colors_of_the_page() -> None:
    assert len({style_of(number) for number in range(NUM_COLORS * len(DASHES))}) == NUM_COLORS * len(DASHES)
    assert len({style_of(number).partition(";")[2] for number in range(NUM_COLORS)}) == NUM_COLORS
    style_sheet = (TEMPLATES / "base.css").read_text()
    for number in range(NUM_COLORS):
        assert f"var(--series-{1 + number})" in style_of(number)
        assert style_sheet.count(f"--series-{1 + number}:") == 2  # in light and in dark mode


@given(st.lists(st.floats(-1e12, 1e12), min_size=1), st.booleans())
@example([1.0, 2.225073858507e-311], True)
def test_an_axis_contains_all_values_in_order_and_has_a_few_ticks(values: list[float], is_log: bool) -> None:
    assume(max(values) == min(values) or max(values) - min(values) > 1e-6 * max(map(abs, values)))
    made = axis(values, 206, 8, is_log)
    position, ticks = made.position, made.ticks
    found = [position(value) for value in sorted(values)]
    assert found == sorted(found, reverse=True)
    for place in (*found, *(tick for tick, _ in ticks)):
        assert 8 <= place <= 206
    assert 1 <= len(ticks) <= 2 * MAX_TICKS
    assert len({label for _, label in ticks}) == len(ticks)


@pytest.mark.parametrize(("values", "is_log", "labels"), [
    ([100, 2000], False, ["500", "1k", "1.5k", "2k"]),
    ([0.0001, 0.0003], False, ["0.0001", "0.00015", "0.0002", "0.00025", "0.0003"]),
    ([7], False, ["0", "5", "10"]),
    ([4, 30], True, ["10", "20", "30"]),  # a factor below 10: not logarithmic
    ([4, 90], True, ["5", "10", "20", "50", "100"]),
    ([2, 40_000], True, ["10", "100", "1k", "10k"]),
])  # fmt: skip
def test_ticks_are_round_numbers(values: list[float], is_log: bool, labels: list[str]) -> None:
    assert [label for _, label in axis(values, 0, 100, is_log).ticks] == labels


def test_charts_without_points_are_omitted_and_long_curves_are_averaged(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run")
    assert charts([ReportedSystem("run", [RunContents(run.path)])]) is None
    append_record(run.metrics, "train", 4, loss=3.0, nll=1e9, learning_rate=1e-3)
    read = RunContents(run.path)
    assert points_of(read, "train", "perplexity") == []  # the values exceed the range of a float
    short = charts([ReportedSystem("run", [read])])
    assert short is not None
    assert [chart["id"] for chart in short["charts"]] == ["loss", "learning_rate"]
    assert [len(chart["curves"][0]["markers"]) for chart in short["charts"]] == [1, 1]
    lines = [f'{{"kind": "train", "step": {n}, "loss": {math.sin(n)}, "grad_norm": {n % 7}}}' for n in range(100, 9000)]
    lines += [f'{{"kind": "dev", "step": {n}, "loss": 1}}' for n in (100, 4500, 8900)]
    run.metrics.write_text("\n".join(lines) + "\n")
    long = charts([ReportedSystem("run", [RunContents(run.path)])])
    assert long is not None
    assert (short["are_averaged"], long["are_averaged"]) == (False, True)
    train, dev = long["charts"][0]["curves"]
    assert len(train["points"]) <= MAX_POINTS
    assert (train["markers"], dev["markers"]) == ([], dev["points"])
    (x1, _), (x2, _), (x3, _) = dev["points"]
    assert (x2 - x1) / (x3 - x1) == pytest.approx(0.5, abs=0.01)

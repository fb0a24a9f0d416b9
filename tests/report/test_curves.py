"""Curves: which there are, and what a thinned one keeps."""

import math
import re
from pathlib import Path

import pytest
from small_run import begin_run, write_history

from mtformer.experiment.runs import read_run
from mtformer.page import SERIES
from mtformer.report.curves import MOST_POINTS, curves_html, perplexities, style_of, thinned
from mtformer.training.history import append_record


@pytest.mark.parametrize("count", [1, MOST_POINTS, MOST_POINTS + 1, 10 * MOST_POINTS + 7])
def test_thinning_keeps_the_mean_and_bounds_the_number(count: int) -> None:
    points = [(step, math.sin(step) + step) for step in range(count)]
    found = thinned(points)
    assert len(found) <= MOST_POINTS
    assert (found == points) == (count <= MOST_POINTS)
    size = math.ceil(count / MOST_POINTS)
    whole = found[: count // size]
    for values in zip(whole, points[::size], points[size - 1 :: size], strict=False):
        mean, first, last = values
        assert first[0] <= mean[0] <= last[0]
    assert sum(v for _, v in whole) * size == pytest.approx(sum(v for _, v in points[: len(whole) * size]))


def test_perplexities_that_no_number_can_hold_are_left_out() -> None:
    assert perplexities([(1, 0.0), (2, 1e9)]) == [(1, 1.0)]


def test_each_of_many_runs_has_its_own_style() -> None:
    styles = [style_of(number) for number in range(4 * len(SERIES))]
    assert len({str(style) for style in styles}) == len(styles)
    assert len({str(style["linestyle"]) + style["marker"] for style in styles[: len(SERIES)]}) == len(SERIES)


def test_only_what_is_there_is_drawn(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run")
    assert curves_html([read_run(run.path, "run")]) == ""
    append_record(run.metrics, "train", 4, loss=3.0, learning_rate=1e-3)
    html = curves_html([read_run(run.path, "run")])
    assert re.findall(r'<figure id="([^"]*)"', html) == ["curve-loss", "curve-learning-rate"]


def test_a_long_run_stays_small_and_says_so(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run")
    write_history(run)
    short = curves_html([read_run(run.path, "run")])
    lines = [f'{{"kind": "train", "step": {n}, "loss": {math.sin(n)}, "grad_norm": {n % 7}}}' for n in range(100, 9000)]
    run.metrics.write_text("\n".join(lines) + "\n")
    long = curves_html([read_run(run.path, "run")])
    assert len(long) < 100_000
    assert "means of neighbouring log lines" in long
    assert "means of neighbouring log lines" not in short

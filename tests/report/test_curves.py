"""The curves of a page and their figures."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from small_run import begin_run

from mtformer.errors import MtformerError
from mtformer.experiment.runs import read_run
from mtformer.report.curves import (
    INK,
    LINE,
    MAX_POINTS,
    SERIES,
    draw_curves,
    page_style,
    points_of,
    require_matplotlib,
    style_of,
    svg,
    thin,
)
from mtformer.templating import TEMPLATES
from mtformer.training.history import append_record


@pytest.mark.parametrize("count", [1, MAX_POINTS, MAX_POINTS + 1, 10 * MAX_POINTS + 7])
def test_thinning_keeps_the_mean_and_bounds_the_number(count: int) -> None:
    points = [(step, math.sin(step) + step) for step in range(count)]
    found = thin(points)
    assert len(found) <= MAX_POINTS
    assert (found == points) == (count <= MAX_POINTS)
    size = math.ceil(count / MAX_POINTS)
    whole = found[: count // size]
    for values in zip(whole, points[::size], points[size - 1 :: size], strict=False):
        mean, first, last = values
        assert first[0] <= mean[0] <= last[0]
    assert sum(v for _, v in whole) * size == pytest.approx(sum(v for _, v in points[: len(whole) * size]))


def test_each_of_many_runs_has_its_own_style() -> None:
    styles = [style_of(number) for number in range(4 * len(SERIES))]
    assert len({str(style) for style in styles}) == len(styles)
    assert len({str(style["linestyle"]) + style["marker"] for style in styles[: len(SERIES)]}) == len(SERIES)


def test_only_charts_with_points_are_drawn_and_long_curves_averaged(tmp_path: Path) -> None:
    run = begin_run(tmp_path / "run")
    assert draw_curves([read_run(run.path)]) is None
    append_record(run.metrics, "train", 4, loss=3.0, nll=1e9, learning_rate=1e-3)
    read = read_run(run.path)
    assert points_of(read, "train", "perplexity") == []  # no float can hold it
    short = draw_curves([read])
    assert short is not None
    assert [chart.key for chart, _ in short.figures] == ["loss", "learning_rate"]
    lines = [f'{{"kind": "train", "step": {n}, "loss": {math.sin(n)}, "grad_norm": {n % 7}}}' for n in range(100, 9000)]
    run.metrics.write_text("\n".join(lines) + "\n")
    long = draw_curves([read_run(run.path)])
    assert long is not None
    assert (short.are_averaged, long.are_averaged) == (False, True)
    assert sum(len(drawn) for _, drawn in long.figures) < 100_000


def figure(label: str = "a label") -> Any:
    from matplotlib.figure import Figure

    with page_style():
        made = Figure(figsize=(3, 2))
        axes = made.add_subplot()
        for number, color in enumerate(SERIES):
            axes.plot([0, 1], [number, 1], color=color, marker="o")
        axes.grid()
        axes.set_xlabel(label)
    return made


def test_a_figure_is_in_the_colors_of_the_page() -> None:
    drawn = svg(figure(), "one")
    for color in (INK, LINE, *SERIES):
        assert color not in drawn
    colors = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", drawn))
    series = {f"var(--series-{number})" for number in range(1, 1 + len(SERIES))}
    assert colors == {"none", "currentColor", "var(--line)", *series}
    style = (TEMPLATES / "base.css").read_text()
    for name in (*series, "var(--line)"):
        assert style.count(f"{name[4:-1]}:") == 2  # in light and in dark


def test_ids_of_figures_differ_and_text_stays_text() -> None:
    both = svg(figure(), "one") + svg(figure("$x^2$ </script><script>document.title='broken'</script><!--"), "two")
    names = re.findall(r' id="([^"]*)"', both)
    assert len(names) == len(set(names))
    links = {*re.findall(r'href="#([^"]*)"', both), *re.findall(r"url\(#([^)]*)\)", both)}
    assert links
    assert links <= set(names)
    assert "<script" not in both
    assert "$x^2$" in both


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_one_line_says_what_to_install() -> None:
    with pytest.raises(MtformerError, match=r"^a plot needs matplotlib: pip install 'mtformer\[report\]'$"):
        require_matplotlib("a plot")

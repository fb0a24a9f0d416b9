"""The common look of all pages: whole, in the page's colours, and no text in it can become markup."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Browser

from mtformer.errors import MtformerError
from mtformer.page import BAR, INK, LINE, SERIES, data_script, drawing, page, require_matplotlib, svg, table

HOSTILE = "</script><script>document.title='broken'</script><!--"


def figure(label: str = "a label") -> Any:
    from matplotlib.figure import Figure

    with drawing():
        made = Figure(figsize=(3, 2))
        axes = made.add_subplot()
        axes.bar([0, 1], [1, 2], color=BAR)
        for number, colour in enumerate(SERIES):
            axes.plot([0, 1], [number, 1], color=colour, marker="o")
        axes.grid()
        axes.set_xlabel(label)
    return made


def test_data_comes_back_whatever_it_says(chromium: Browser) -> None:
    value = {"text": [HOSTILE, "<!--", "é\u2028 𝄞"], "number": [0, 1.5, None]}
    script = "document.body.dataset.found = JSON.stringify(JSON.parse(document.getElementById('d').textContent));"
    opened = chromium.new_page()
    opened.set_content(page(HOSTILE, f"<p>there</p>{data_script('d', value)}", script=script))
    assert json.loads(opened.locator("body").get_attribute("data-found") or "") == value
    assert opened.title() == HOSTILE
    assert opened.locator("body").inner_text().strip() == "there"
    opened.close()


def test_numbers_that_json_has_not_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        data_script("d", float("nan"))


def test_a_figure_is_in_the_colours_of_the_page() -> None:
    drawn = svg(figure(), "one")
    for colour in (INK, LINE, BAR, *SERIES):
        assert colour not in drawn
    colours = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", drawn))
    series = {f"var(--series-{number})" for number in range(1, 1 + len(SERIES))}
    assert colours == {"none", "currentColor", "var(--bar)", "var(--line)", *series}
    style = page("", "")
    for name in (*series, "var(--bar)", "var(--line)"):
        assert style.count(f"{name[4:-1]}:") == 2  # in light and in dark


def test_names_in_figures_do_not_meet() -> None:
    both = svg(figure(), "one") + svg(figure(), "two")
    names = re.findall(r' id="([^"]*)"', both)
    assert len(names) == len(set(names))
    links = {*re.findall(r'href="#([^"]*)"', both), *re.findall(r"url\(#([^)]*)\)", both)}
    assert links
    assert links <= set(names)


def test_text_in_a_figure_stays_text() -> None:
    drawn = svg(figure(f"$x^2$ {HOSTILE}"), "one")
    assert "<script" not in drawn
    assert "$x^2$" in drawn


def test_the_same_figure_is_the_same_text() -> None:
    assert re.sub(r"[0-9a-f]{8,}", "", svg(figure(), "one")) == re.sub(r"[0-9a-f]{8,}", "", svg(figure(), "one"))


def test_tables_name_rows_and_columns() -> None:
    html = table(("", "n"), [("a", "1"), ("b", "2")], numbers=(1,))
    assert html.count('<th scope="row">') == 2
    assert html.count(' scope="col"') == 2
    assert html.count('<td class="number">') == 2
    assert table((), [("a", "1")]).count("<tr>") == 1


def test_a_phone_scrolls_the_table_and_not_the_page(chromium: Browser) -> None:
    opened = chromium.new_page(viewport={"width": 390, "height": 844})
    opened.set_content(page("wide", table((), [["word"] * 40])))
    assert opened.evaluate("document.documentElement.scrollWidth") == 390
    assert opened.evaluate("document.querySelector('.wide').scrollWidth") > 390
    opened.close()


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_one_line_says_what_to_install() -> None:
    with pytest.raises(MtformerError, match=r"^a plot needs matplotlib: pip install 'mtformer\[report\]'$"):
        require_matplotlib("a plot")

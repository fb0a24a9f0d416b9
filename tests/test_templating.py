"""Parts shared by all pages: they are complete, and no text in them can become markup."""

import json
import sys
from pathlib import Path

import pytest
from jinja2 import DictLoader
from playwright.sync_api import Browser

from mtformer import templating
from mtformer.templating import Table, render

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = templating.TEMPLATES.parent
HOSTILE = "</script><script>document.title='broken'</script><!--"
PAGE = """{% extends "base.html" %}{% from "macros.html" import table %}{% block body %}
<p>there</p><script type="application/json" id="d">{{ value | tojson }}</script>{{ table(cells) }}{% endblock %}
{% block script %}
document.body.dataset.found = JSON.stringify(JSON.parse(document.getElementById("d").textContent));
{% endblock %}"""


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> str:
    """Add a template and return its name."""
    files = {path.name: path.read_text(encoding="utf-8") for path in templating.TEMPLATES.iterdir()}
    monkeypatch.setattr(templating.ENVIRONMENT, "loader", DictLoader({**files, "page.html": PAGE}))
    return "page.html"


def test_any_data_and_text_are_shown_unchanged(page: str, chromium: Browser) -> None:
    value = {"text": [HOSTILE, "<!--", "é\u2028 𝄞"], "number": [0, 1.5, None]}
    opened = chromium.new_page()
    opened.set_content(render(page, title=HOSTILE, value=value, cells=Table(("", HOSTILE), [(HOSTILE, "1")], (1,))))
    assert json.loads(opened.locator("body").get_attribute("data-found") or "") == value
    assert opened.title() == HOSTILE
    assert opened.locator("p").inner_text() == "there"
    assert opened.locator("th").all_inner_texts() == ["", HOSTILE, HOSTILE]
    opened.close()


def test_numbers_that_json_cannot_represent_are_errors(page: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        render(page, title="", value=float("nan"), cells=Table((), []))


def test_tables_have_row_and_column_headers(page: str) -> None:
    html = render(page, title="", value=0, cells=Table(("", "n"), [("a", "1"), ("b", "2")], (1,)))
    assert html.count('<th scope="row">') == 2
    assert html.count(' scope="col"') == 2
    assert html.count('<td class="number">') == 2
    assert render(page, title="", value=0, cells=Table((), [("a", "1")])).count("<tr>") == 1


def test_names_break_at_commas_slashes_and_dots_of_keys_only() -> None:
    broken = templating.ENVIRONMENT.filters["breakable"]
    assert broken("a.b_c,d=0.1/e<") == "a.<wbr>b_c,<wbr>d=0.1/<wbr>e&lt;"


def test_on_a_phone_the_table_scrolls_and_the_page_does_not(page: str, chromium: Browser) -> None:
    opened = chromium.new_page(viewport={"width": 390, "height": 844})
    opened.set_content(render(page, title="wide", value=0, cells=Table((), [["word"] * 40])))
    assert opened.evaluate("document.documentElement.scrollWidth") == 390
    assert opened.evaluate("document.querySelector('.wide').scrollWidth") > 390
    opened.close()


def test_wheels_contain_all_data_files() -> None:
    patterns = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    declared = {path for name, some in patterns.items() for one in some for path in _folder(name).glob(one)}
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path for path in files if path.suffix != ".py"} <= declared


def _folder(package: str) -> Path:
    return PACKAGE.parent.joinpath(*package.split("."))

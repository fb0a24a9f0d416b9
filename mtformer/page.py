"""HTML pages: each is one file that works without a network, in light and dark mode, and on a phone.

The templates, style sheets and scripts are in the folder `templates`; `base.html` and `base.css` are common to all.
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mtformer.errors import MtformerError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """Return a page.

    Args:
        template: name of a file in the folder of templates.
        values: variables of the template; text is escaped.
    """
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    # The filter tojson, for the data of scripts, escapes whatever could end the script.
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    return environment


INK, LINE, BAR = "#010203", "#020304", "#040506"
"""Colours that matplotlib draws in and the page's own replace: of text, of the grid, of bars."""
SERIES = tuple(f"#0{number}0000" for number in range(1, 7))
"""Likewise, of curves."""
OF_PAGE = {INK: "currentColor", LINE: "var(--line)", BAR: "var(--bar)"} | {
    colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)
}
# The colours of curves are those of Okabe and Ito (2008), made darker or lighter until they stand out on their ground.
STYLE = """
:root { color-scheme: light dark; --back: #fff; --ink: #1c1e21; --faint: #5c636b; --line: #d9dde2; --bar: #3d6fb4;
  --bad: #b3261e; --good: #1d6f42; --soft: #f3f5f7; --added: #fbe3c3; --missing: #d5e6f7;
  --series-1: #0072b2; --series-2: #c85200; --series-3: #007a5a; --series-4: #a4498b; --series-5: #866400;
  --series-6: #4d555e; }
@media (prefers-color-scheme: dark) { :root { --back: #16181b; --ink: #e6e8ea; --faint: #9aa2ab; --line: #363b41;
  --bar: #7ba7e0; --bad: #ff8a80; --good: #7fd6a4; --soft: #202429; --added: #5c3d10; --missing: #1d4266;
  --series-1: #56b4e9; --series-2: #f5914e; --series-3: #2fc79e; --series-4: #e59bcc; --series-5: #e5d44a;
  --series-6: #b9c0c8; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); max-width: 62rem;
  margin: 0 auto; padding: 1.25rem 1rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0 1rem; } h2 { font-size: 1.25rem; margin: 2.75rem 0 1rem;
  border-top: 1px solid var(--line); padding-top: 1.25rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { margin: .5rem 0; } a { color: var(--bar); }
:focus-visible { outline: 2px solid var(--bar); outline-offset: 2px; }
.faint { color: var(--faint); font-weight: normal; } .bad { color: var(--bad); font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } th, td { text-align: left; vertical-align: top;
  padding: .25rem 1.1rem .25rem 0; border-bottom: 1px solid var(--line); font-weight: normal; }
.wide th, .wide td { overflow-wrap: normal; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1.5rem 1.25rem;
  margin: 1.25rem 0; }
figure { margin: 0; } figcaption { font-size: .9rem; } figure svg { display: block; width: 100%; height: auto; }
summary { cursor: pointer; padding: .35rem 0; } details { border-bottom: 1px solid var(--line); }
"""


def page(title: str, body_html: str, *, style: str = "", script: str = "") -> str:
    """A whole HTML text.

    Args:
        title: plain text.
        body_html: what stands in the body.
        style: CSS besides the common one, which has the colours as variables.
        script: JavaScript that runs when the body is there.
    """
    code = f"<script>\n{script.strip()}\n</script>\n" if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n"
        f"<body>\n{body_html}\n{code}</body>\n</html>\n"
    )


def data_script(name: str, value: Any) -> str:
    """A value for the page's script, as JSON that no text in it can end; `name` is the element's id."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f'<script type="application/json" id="{escape(name)}">{text.replace("<", chr(92) + "u003c")}</script>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table that scrolls by itself where the screen is narrow; the first cell of each row heads it.

    Args:
        head, rows: cells as HTML; without a head there is no such row.
        numbers: positions of the columns that hold numbers.
    """

    def cell(tag: str, position: int, content: str, scope: str = "") -> str:
        kind = ' class="number"' if position in numbers else ""
        return f"<{tag}{scope}{kind}>{content}</{tag}>"

    def row(cells: Sequence[str]) -> str:
        first = cell("th", 0, cells[0], ' scope="row"')
        return f"<tr>{first}{''.join(cell('td', n, text) for n, text in enumerate(cells[1:], start=1))}</tr>"

    top = "".join(cell("th", n, text, ' scope="col"') for n, text in enumerate(head))
    lines = [f"<tr>{top}</tr>"] if head else []
    return '<div class="wide"><table>\n' + "\n".join([*lines, *map(row, rows)]) + "\n</table></div>"


def require_matplotlib(what: str) -> None:
    """Raises MtformerError when the package that draws is not there; `what` needs it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MtformerError(f"{what} needs matplotlib: pip install 'mtformer[report]'") from error


@contextmanager
def drawing() -> Iterator[None]:
    """Inside, matplotlib's figures are made for `svg`: in the page's ink, and text as it stands."""
    import matplotlib

    settings: dict[Any, Any] = {
        "font.family": "sans-serif", "font.size": 9, "text.parse_math": False, "text.color": INK,
        "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "grid.color": LINE,
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "svg.fonttype": "none",
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        yield


def svg(figure: "Figure", prefix: str) -> str:
    """A matplotlib figure as inline SVG in the page's colours.

    Args:
        figure: drawn inside `drawing`, in INK, LINE, BAR and SERIES.
        prefix: keeps the names inside apart from those of other figures of the page.
    """
    text = io.StringIO()
    with drawing():
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    for colour, own in OF_PAGE.items():
        drawn = drawn.replace(colour, own)
    drawn = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r' xmlns(:xlink)?="[^"]*"', "", drawn).replace("xlink:href", "href")
    drawn = re.sub(r"\n\s*", "\n", drawn)
    return re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{prefix}-", drawn)

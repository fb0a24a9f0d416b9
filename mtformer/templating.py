"""HTML pages: each is one file that works without a network, in light and dark mode, and on a phone.

The templates, style sheets and scripts are in the folder `templates`; `base.html` and `base.css` are common to all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Table:
    """A table of text cells; without a head it has no such row.

    Args:
        head, rows: cells; the first of each row is its header.
        numbers: positions of the columns that hold numbers.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


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
    # The filter tojson, for the data of scripts, escapes everything that could end the script.
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    return environment

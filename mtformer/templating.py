"""HTML pages, each a single file that needs no network access and supports light mode, dark mode and phones.

The templates, style sheets and scripts are in the `templates` folder; all pages share `base.html` and `base.css`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
BREAKS = re.compile(r"(?<=[,/])|(?<=\.)(?=[^\W\d]|\*)")  # where a line may break in names of runs, keys and files


@dataclass(frozen=True)
class Table:
    """A table of text cells.

    Args:
        head, rows: cells; the first of each row is its header, and an empty `head` is omitted.
        numbers: positions of the columns that hold numbers, which are aligned to the right.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()


def render(template: str, **values: Any) -> str:
    """Return the page of a file in the `templates` folder; text in its variables is escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["breakable"] = lambda text: Markup("<wbr>").join(BREAKS.split(text))
    # The `tojson` filter, used for data in scripts, escapes everything that could end the script.
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    return environment

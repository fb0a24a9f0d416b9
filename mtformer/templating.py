"""HTML pages, each a single file that needs no network access and supports light mode, dark mode and phones.

The templates, style sheets and scripts are in the `templates` folder; all pages share `base.html` and `base.css`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"
"""Folder of the templates."""
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
"""Environment that escapes text and raises an error for an undefined variable."""
# The `tojson` filter, used for data in scripts, escapes everything that could end the script.
ENVIRONMENT.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
BREAKS = re.compile(r"(?<=[,/])|(?<=\.)(?=[^\W\d]|\*)")
"""Positions at which a line may break in names of runs, keys and files."""
ENVIRONMENT.filters["breakable"] = lambda text: Markup("<wbr>").join(BREAKS.split(text))


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first cell of each row is its header, and an empty `head` is omitted."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()
    """Positions of the columns that hold numbers, which are aligned to the right."""


def render(template: str, **values: Any) -> str:
    """Return the page of a file in the `templates` folder; text in its variables is escaped."""
    page = ENVIRONMENT.get_template(template)
    return page.render(values)

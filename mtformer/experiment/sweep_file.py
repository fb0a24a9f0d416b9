"""The file of a sweep, typed; what is wrong with it is told by line and key, as with a config."""

import json
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import ErrorDetails

from mtformer.config.fields import nearest
from mtformer.config.section import Count, Positive, Section
from mtformer.config.yaml_text import KeyPath, dotted, read_yaml
from mtformer.errors import ConfigError

NAME = "name"
"""The key of a variant that is no key of the config."""
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")


class Range(Section):
    """Numbers to draw from, both ends included: whole ones when `min`, `max` and `step` are."""

    min: int | float
    max: int | float
    log: bool = False
    """As many draws between 1 and 10 as between 10 and 100."""
    step: Annotated[int | float, Field(gt=0)] | None = None
    """Only min, min + step, and so on."""

    @property
    def is_whole(self) -> bool:
        return all(isinstance(number, int | None) for number in (self.min, self.max, self.step))

    @model_validator(mode="after")
    def _fits(self) -> "Range":
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.log and self.min <= 0:
            raise ValueError(f"log needs a min above 0, not {self.min}")
        if self.log and self.step is not None:
            raise ValueError("log and step exclude each other; leave one out")
        return self


class Choice(Section):
    """Values to draw from."""

    choice: Annotated[list[Any], Field(min_length=1)]


def _kind(value: Any) -> str:
    return "choice" if isinstance(value, Choice) or (isinstance(value, dict) and "choice" in value) else "range"


class Random(Section):
    """Draws of several keys together."""

    count: Positive
    """Draws."""
    seed: Count = 1
    """One seed, one sweep."""
    keys: Annotated[
        dict[str, Annotated[Annotated[Range, Tag("range")] | Annotated[Choice, Tag("choice")], Discriminator(_kind)]],
        Field(min_length=1),
    ]
    """What each key is drawn from."""


class SweepFile(Section):
    """A sweep file as it stands."""

    config: str
    """The base, relative to the sweep file."""
    run_dir: str | None = None
    """Folder of the runs; default `runs/` and the name of the sweep file."""
    common: dict[str, Any] = Field({}, alias="set")
    """Values that all runs have."""
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field({})
    """Values by key."""
    variants: list[dict[str, Any]] = Field([], alias="list")
    """Each with a `name` and values by key."""
    random: Random | None = None
    """Draws."""
    seeds: list[Count] = Field([])
    """Values of training.seed."""

    @model_validator(mode="after")
    def _variants_have_names(self) -> "SweepFile":
        for number, variant in enumerate(self.variants, 1):
            name = variant.get(NAME)
            if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
                raise ValueError(
                    f"list: variant {number} needs a name of letters, digits and ._+=- (in quotes when it is a number)"
                )
        return self


Lines = dict[KeyPath, int]
WANTED = {
    "config": "the name of a config, relative to this file",
    "run_dir": "the name of a folder",
    "set": "a mapping of dotted keys, such as model.dropout, to values",
    "grid": "a mapping of dotted keys, such as model.dropout, to lists of at least one value",
    "list": "a list of mappings, each with a name and dotted keys, such as model.dropout, with values",
    "random": "a mapping with count and keys",
    "count": "a whole number of at least 1",
    "seed": "a whole number of at least 0",
    "keys": "a mapping of dotted keys to {min, max} or {choice}",
    "min": "a number",
    "max": "a number",
    "step": "a number above 0",
    "log": "true or false",
    "choice": "a list of at least one value",
    "seeds": "a list of whole numbers of at least 0",
}


def read_sweep_file(path: Path) -> tuple[SweepFile, Lines]:
    """The file and the lines of its keys; raises ConfigError, one line for each mistake."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such sweep file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; a sweep is a YAML file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    lines: Lines = {}
    tree = read_yaml(text, lambda line: f"{path}:{line}" if line else str(path), lines.__setitem__)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: a sweep is a mapping of {', '.join(_keys(SweepFile))}, not {_shown(tree)}")
    try:
        return SweepFile.model_validate(tree, strict=True), lines
    except ValidationError as error:
        mistakes = [_describe(details, path, lines) for details in error.errors(include_url=False)]
        raise ConfigError("\n".join(mistakes)) from error


def line_of(lines: Lines, keys: KeyPath) -> int | None:
    """The line of a key, or of the innermost one around it that has one."""
    return next((lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in lines), None)


def _describe(details: ErrorDetails, path: Path, lines: Lines) -> str:
    location = details["loc"]
    is_drawn = location[:2] == ("random", "keys") and len(location) > 3
    keys = (*location[:3], *location[4:]) if is_drawn else location  # without pydantic's tag of the union
    kind, message = details["type"], details["msg"]
    if kind == "extra_forbidden":
        message = _unknown(str(keys[-1]), location)
    elif kind == "missing":
        message = f"is missing: {WANTED[str(keys[-1])]}"
    elif kind == "value_error":
        message = str(details["ctx"]["error"])
    else:
        known = [str(key) for key in keys if key in WANTED]
        message = f"must be {WANTED[known[-1]]}, not {_shown(details['input'])}"
    line = line_of(lines, keys)
    where = str(path) if line is None else f"{path}:{line}"
    return f"{where}: {dotted(keys)}: {message}" if keys else f"{where}: {message}"


def _unknown(key: str, location: KeyPath) -> str:
    sections: dict[int, type[Section]] = {1: SweepFile, 2: Random}
    section = sections.get(len(location)) or (Range if location[3] == "range" else Choice)
    allowed = _keys(section)
    meant = nearest(key, allowed)
    question = f"did you mean '{meant}'? " if meant else ""
    return f"unknown key; {question}allowed: {', '.join(allowed)}"


def _keys(section: type[Section]) -> list[str]:
    """As they stand in the file."""
    return [field.alias or name for name, field in section.model_fields.items()]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."

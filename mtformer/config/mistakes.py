"""What pydantic finds wrong, as one line for each mistake: place, dotted path, what is wrong, what is allowed."""

import json
import re
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mtformer.config.fields import (
    alternatives,
    fields,
    is_optional,
    limits,
    nearest,
    nearest_key,
    parse_location,
    plain,
    section_keys,
    unwrapped,
)
from mtformer.config.origins import Origin, Origins, nearest_origin
from mtformer.config.schema import Config
from mtformer.config.section import Section
from mtformer.config.yaml_text import KeyPath, dotted

SOURCE_FORMS = "src and tgt (two text files), or tsv, or jsonl, or dataset (Hugging Face)"

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping of keys to values",
    "model": "a section (a mapping of keys to values)",
}


def describe_mistakes(error: ValidationError, origins: Origins, root: type[Section] = Config) -> str:
    """Return the errors of a file that was read as `root`, one a line."""
    found = error.errors(include_url=False)
    # A value that fits no member of a union of scalars has an error for each of them; the last one says it.
    lines = {parse_location(one["loc"], root)[0]: _describe(one, origins, root) for one in found}
    return "\n".join(lines.values())


def _describe(details: ErrorDetails, origins: Origins, root: type[Section]) -> str:
    path, annotation = parse_location(details["loc"], root)
    kind, value = details["type"], details["input"]
    if kind == "value_error":
        return _describe_combination(str(details["ctx"]["error"]), path, origins, root)
    if kind == "extra_forbidden":
        what = _unknown_key(path, parse_location(details["loc"][:-1], root)[1], root)
    elif kind == "missing":
        what = "is missing"
    elif kind == "union_tag_not_found":
        what = f"a source is a mapping with {SOURCE_FORMS}; not {_shown(value)}"
    elif kind == "literal_error":
        meant = nearest(str(value), alternatives(annotation))
        what = f"must be {limits(annotation)}, not {_shown(value)}{_meant(meant)}"
    elif kind == "string_pattern_mismatch":
        what = "a set's name holds only letters, digits, '_' and '-'"
    elif kind == "too_long":
        what = f"must be a list of {details['ctx']['max_length']}, not {_shown(value)}"
    else:
        what = f"must be {_wanted(kind, annotation)}, not {_shown(value)}{_remedy(kind, value)}"
    return f"{nearest_origin(origins, path)}: {dotted(path)}: {what}"


def _unknown_key(path: KeyPath, section: Any, root: type[Section]) -> str:
    allowed = list(fields(unwrapped(section)))
    return f"unknown key{_meant(nearest_key(str(path[-1]), allowed, root)) or ';'} allowed: {', '.join(allowed)}"


def _meant(word: str | None) -> str:
    return f"; did you mean '{word}'?" if word else ""


def _wanted(kind: str, annotation: Any) -> str:
    """What a value must be, its range included."""
    words = _KINDS.get(kind.partition("_")[0], "")
    limit = limits(annotation)
    between = " of " if limit.startswith("at") else " "  # a number of at least 0, a number above 0
    wanted = between.join(filter(None, [words, limit])) or str(plain(annotation))
    return wanted + (" or null" if is_optional(annotation) else "")


def _remedy(kind: str, value: Any) -> str:
    if kind.startswith("string") and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if kind.startswith("list") and isinstance(value, dict):
        return "; begin each item with '- '"
    return ""


def _shown(value: Any) -> str:
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _describe_combination(message: str, path: KeyPath, origins: Origins, root: type[Section]) -> str:
    """A mistake in how several keys go together: its place is the first of them that was given."""
    known = set(section_keys(root))
    given: list[tuple[Origin, KeyPath]] = []
    for word in re.findall(r"[a-z][a-z0-9_.]*[a-z0-9]", message):
        key = (*path, *word.split("."))
        if key in origins and key in known:
            given.append((origins[key], key))
    if not given:
        where = f"{dotted(path)}: " if path else ""
        return f"{nearest_origin(origins, path)}: {where}{message}"
    # An override is what the user has typed last, and a file comes before those that it extends.
    given.sort(key=lambda entry: (entry[0].kind != "override", entry[0].file != nearest_origin(origins, ()).file))
    origin, key = given[0]
    return f"{origin}: {dotted(key)}: {message}"

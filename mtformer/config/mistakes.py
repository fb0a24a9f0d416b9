"""Errors of pydantic as one line each: place, dotted path, problem, and allowed values."""

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
from mtformer.config.schema import Config
from mtformer.config.section import Section
from mtformer.config.yaml_text import KeyPath, Origins, dotted, nearest_origin

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
    """Return the errors of a file whose schema is `root`, one per line."""
    found = error.errors(include_url=False)
    # A value that fits no member of a union of scalars has an error for each member; the last one is kept.
    lines = {parse_location(one["loc"], root)[0]: _describe(one, origins, root) for one in found}
    return "\n".join(lines.values())


def _describe(details: ErrorDetails, origins: Origins, root: type[Section]) -> str:
    path, annotation = parse_location(details["loc"], root)
    kind, value = details["type"], details["input"]
    if kind == "value_error":
        return _describe_combination(str(details["ctx"]["error"]), path, origins, root)
    if kind == "extra_forbidden":
        allowed = list(fields(unwrapped(parse_location(details["loc"][:-1], root)[1])))
        meant = _meant(nearest_key(str(path[-1]), allowed, root)) or ";"
        what = f"unknown key{meant} allowed: {', '.join(allowed)}"
    elif kind == "missing":
        what = "is missing"
    elif kind == "union_tag_not_found":
        what = f"a source is a mapping with {SOURCE_FORMS}; not {_shown(value)}"
    elif kind == "literal_error":
        meant = _meant(nearest(str(value), alternatives(annotation)))
        what = f"must be {limits(annotation)}, not {_shown(value)}{meant}"
    elif kind == "string_pattern_mismatch":
        what = "a set's name holds only letters, digits, '_' and '-'"
    elif kind == "too_long":
        what = f"must be a list of {details['ctx']['max_length']}, not {_shown(value)}"
    else:
        what = f"must be {_wanted(kind, annotation)}, not {_shown(value)}{_remedy(kind, value)}"
    return f"{nearest_origin(origins, path)}: {dotted(path)}: {what}"


def _meant(word: str | None) -> str:
    return f"; did you mean '{word}'?" if word else ""


def _wanted(kind: str, annotation: Any) -> str:
    """Return the type and range of a value in words."""
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
    """Describe a conflict of several keys, with the origin of the first of them that was given."""
    known = set(section_keys(root))
    named = [(*path, *word.split(".")) for word in re.findall(r"[a-z][a-z0-9_.]*[a-z0-9]", message)]
    given = [key for key in named if key in origins and key in known]
    if not given:
        where = f"{dotted(path)}: " if path else ""
        return f"{nearest_origin(origins, path)}: {where}{message}"
    # An override is what the user typed last, and a file comes before those that it extends.
    top = nearest_origin(origins, ()).file
    key = min(given, key=lambda key: (origins[key].kind != "override", origins[key].file != top))
    return f"{origins[key]}: {dotted(key)}: {message}"

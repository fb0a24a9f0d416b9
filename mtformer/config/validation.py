"""Validation of config values, with a line for each error: origin, dotted key, problem, allowed values."""

import re
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mtformer.config.annotations import (
    allowed_values,
    child,
    fields,
    is_optional,
    is_union,
    keys_below,
    limits,
    members,
    plain,
    unwrapped,
)
from mtformer.config.section import Section, format_value, nearest
from mtformer.config.yaml_text import KeyPath, Origins, dotted, nearest_origin
from mtformer.errors import ConfigError
from mtformer.files import require_text
from mtformer.formatting import printable

SectionT = TypeVar("SectionT", bound=Section)
SOURCE_FORMS = "src and tgt (two text files), or tsv, or jsonl, or dataset (Hugging Face)"
"""Keys that identify the types of sources."""
TYPES = {
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
"""Descriptions of types, by the first word of pydantic's error types."""


def validated(values: Any, origins: Origins, section: type[SectionT]) -> SectionT:
    """Return the section with these values.

    Args:
        values: values by key, as nested mappings and lists.
        origins: origins of the values, for errors.
        section: type of the section.

    Raise ConfigError with a line for each error.
    """
    try:
        result = section.model_validate(values, strict=True)
    except ValidationError as error:
        raise ConfigError(describe_errors(error, origins, section)) from error

    for path, text in _texts(values):
        origin = nearest_origin(origins, path)
        require_text(text, f"{origin}: {dotted(path)}: ")
    return result


def _texts(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield all strings in nested mappings and lists, with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))


def describe_errors(error: ValidationError, origins: Origins, root: type[Section]) -> str:
    """Describe validation errors, one per line.

    Args:
        error: the errors.
        origins: origins of the values.
        root: type of the section that was validated.
    """
    lines: dict[KeyPath, str] = {}
    for details in error.errors(include_url=False):
        described = _Error(details, root)
        # A value that matches no member of a union of scalars has one error per member; the last one is kept.
        lines[described.path] = described.line(origins)
    return "\n".join(lines.values())


def first_message(error: ValidationError) -> str:
    """Return the message of the first error in our own words where a validator raised it.

    Pydantic puts the name of its error class before such a message.
    """
    details = error.errors(include_url=False)[0]
    if details["type"] in ("value_error", "assertion_error"):
        return str(details["ctx"]["error"])
    return details["msg"].replace("Input should be", "must be")


class _Error:
    """A validation error of a value in the section `root`."""

    def __init__(self, details: ErrorDetails, root: type[Section]) -> None:
        self.details = details
        self.root = root
        self.kind = details["type"]
        self.value = details["input"]
        self.path, self.annotation = _parse_location(details["loc"], root)

    def line(self, origins: Origins) -> str:
        """Return the line with the origin of the value, its key and the problem."""
        if self.kind == "value_error":
            message = str(self.details["ctx"]["error"])
            return _describe_combination(message, self.path, origins, self.root)
        origin = nearest_origin(origins, self.path)
        return f"{origin}: {dotted(self.path)}: {self._problem()}"

    def _problem(self) -> str:
        match self.kind:
            case "extra_forbidden":
                return self._unknown_key()
            case "missing":
                return "is missing; set it"
            case "union_tag_not_found":
                return f"a source is a mapping with {SOURCE_FORMS}; not {printable(format_value(self.value))}"
            case "literal_error":
                expected = limits(self.annotation)
                suggestion = nearest(str(self.value), allowed_values(self.annotation))
                return f"must be {expected}, not {printable(format_value(self.value))}{suggestion}"
            case "string_pattern_mismatch":
                return "a set name may only contain letters, digits, '_' and '-'; rename the set"
            case "too_short":
                return "must have at least one item"
            case "too_long":
                max_length = self.details["ctx"]["max_length"]
                return f"must be a list of {max_length} items, not {printable(format_value(self.value))}"
            case _:
                return self._wrong_type()

    def _unknown_key(self) -> str:
        name = self.path[-1]
        section_path = self.details["loc"][:-1]
        _, section = _parse_location(section_path, self.root)
        section_type = unwrapped(section)
        if name in section_type.renamed:
            present_name = section_type.renamed[name]
            return f"unknown key; earlier versions of mtformer call {present_name} by this name; write {present_name}"
        if name in section_type.removed:
            return "unknown key; only earlier versions of mtformer have it; remove it"

        allowed = list(fields(section_type))
        suggestion = nearest(str(name), allowed) or ";"
        is_in_source = len(self.path) >= 4
        if not is_in_source:
            inner_keys = [key for key in keys_below(self.root) if len(key) > 1]
            keys_of_this_name = [dotted(key) for key in inner_keys if key[-1] == name]
            if keys_of_this_name:
                suggestion = f"; did you mean '{keys_of_this_name[0]}'?"
        return f"unknown key{suggestion} allowed: {', '.join(allowed)}"

    def _wrong_type(self) -> str:
        first_word, _, _ = self.kind.partition("_")
        type_name = TYPES.get(first_word)
        limit = limits(self.annotation)
        between = " of " if limit.startswith("at") else " "  # a number of at least 0, a number above 0
        expected = between.join(filter(None, [type_name, limit]))
        if not expected:
            expected = str(plain(self.annotation))
        if is_optional(self.annotation):
            expected += " or null"
        remedy = _remedy(self.kind, self.value)
        return f"must be {expected}, not {printable(format_value(self.value))}{remedy}"


def _parse_location(location: KeyPath, root: type[Section]) -> tuple[KeyPath, Any]:
    """Convert the location in a pydantic error, which has union tags, to a path; also return its annotation."""
    path: list[str | int] = []
    annotation: Any = root
    for item in location:
        if item == "[key]" or annotation is None:
            break
        by_tag = members(annotation)
        if by_tag:
            annotation = by_tag[str(item)]
        elif is_union(unwrapped(annotation)):
            break  # a member of a union of scalars
        else:
            path.append(item)
            annotation = child(annotation, item)
    return tuple(path), annotation


def _remedy(kind: str, value: Any) -> str:
    if kind.startswith("string") and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if kind.startswith("list") and isinstance(value, dict):
        return "; begin each item with '- '"
    return ""


def _describe_combination(message: str, path: KeyPath, origins: Origins, root: type[Section]) -> str:
    """Describe a conflict between several keys, and give the origin of the first one that was set."""
    known_keys = set(keys_below(root))
    keys_set: list[KeyPath] = []
    for word in re.findall(r"[a-z][a-z0-9_.]*[a-z0-9]", message):
        key = (*path, *word.split("."))
        if key in origins and key in known_keys:
            keys_set.append(key)
    if not keys_set:
        origin = nearest_origin(origins, path)
        where = f"{dotted(path)}: " if path else ""
        return f"{origin}: {where}{message}"

    top_file = nearest_origin(origins, ()).name

    def precedence(key: KeyPath) -> tuple[bool, bool]:
        # Overrides come first, and a file comes before the files that it extends.
        origin = origins[key]
        return origin.kind != "override", origin.name != top_file

    first_key = min(keys_set, key=precedence)
    return f"{origins[first_key]}: {dotted(first_key)}: {message}"

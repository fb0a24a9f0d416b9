"""Look up metadata, help texts and ranges of config keys, and describe validation errors."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import Discriminator, Tag, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mtformer.config.schema import Config
from mtformer.config.section import Key, OnResume, Section, key_of, nearest
from mtformer.config.yaml_text import KeyPath, Origins, dotted, nearest_origin

DEFAULT_ON_RESUME: OnResume = "warn"
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
SOURCE_FORMS = "src and tgt (two text files), or tsv, or jsonl, or dataset (Hugging Face)"
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


@cache
def fields(section: type[Section]) -> dict[str, Any]:
    """Return the annotations of the keys of a section, including ranges, by key name in config files."""
    hints = get_type_hints(section, include_extras=True)
    return {field.alias or name: hints[name] for name, field in section.model_fields.items()}


def plain(annotation: Any) -> Any:
    """Return the annotation without ranges."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def unwrapped(annotation: Any) -> Any:
    """Return the annotation without ranges and without null."""
    annotation = plain(annotation)
    options = [option for option in get_args(annotation) if option is not NoneType]
    return plain(options[0]) if _is_optional(annotation) and len(options) == 1 else annotation


def _is_optional(annotation: Any) -> bool:
    """Return True if the value may be null."""
    return get_origin(plain(annotation)) in (Union, UnionType) and NoneType in get_args(plain(annotation))


def is_section(annotation: Any) -> bool:
    """Return True if the annotation is a subclass of `Section`."""
    return isinstance(annotation, type) and issubclass(annotation, Section)


def members(annotation: Any) -> dict[str, Any]:
    """Return the members of a tagged union (sources, dev sets) by tag; empty for other annotations."""
    tagged = [(one, extra) for one in get_args(plain(annotation)) for extra in getattr(one, "__metadata__", ())]
    return {extra.tag: plain(one) for one, extra in tagged if isinstance(extra, Tag)}


def narrow(annotation: Any, value: Any) -> Any:
    """Return the member of a tagged union that fits the value, or None; return other annotations unchanged."""
    for extra in getattr(annotation, "__metadata__", ()):
        if isinstance(extra, Discriminator) and callable(extra.discriminator):
            return members(annotation).get(str(extra.discriminator(value)))
    return annotation


def child(annotation: Any, key: str | int) -> Any:
    """Return the annotation of a key or list item inside `annotation`; None if the schema has no such key or item."""
    annotation = unwrapped(annotation)
    if found := [one for member in members(annotation).values() if (one := child(member, key)) is not None]:
        return found[0]
    if is_section(annotation):
        return fields(annotation).get(str(key))
    arguments = get_args(annotation)
    if get_origin(annotation) in (list, tuple) and isinstance(key, int):  # all items of our tuples are alike
        return arguments[0]
    return arguments[1] if get_origin(annotation) is dict else None


def _sections_on(path: KeyPath) -> Iterator[tuple[type[Section] | None, str, Any]]:
    """Yield each key of a path with its section (None for list items and mapping keys) and its annotation."""
    annotation: Any = Config
    for name in path:
        candidates = members(annotation).values() or [plain(annotation)]
        section = next((kind for kind in candidates if is_section(kind) and name in kind.model_fields), None)
        annotation = child(section or annotation, name)
        yield section, str(name), annotation


def key_metadata(path: str) -> Key:
    """Return the metadata of a dotted key, including an inherited `on_resume`; unknown keys have default metadata."""
    key, on_resume = Key(), DEFAULT_ON_RESUME
    for section, name, annotation in _sections_on(tuple(int(n) if n.isdecimal() else n for n in path.split("."))):
        key = Key() if section is None else key_of(section, name)
        inherited = plain(annotation).on_resume if is_section(plain(annotation)) else None
        on_resume = key.on_resume or inherited or on_resume
    return replace(key, on_resume=on_resume)


def documentation(path: KeyPath) -> str | None:
    """Return the help text of a key and its range; None for list items and mapping keys."""
    *_, (section, name, annotation) = _sections_on(path)
    if section is None:
        return None
    text = " ".join((section.model_fields[name].description or "").split())
    limit = limits(annotation)
    return f"{text} ({limit})" if limit else text


def section_keys(section: type[Section] = Config, prefix: KeyPath = (), leaves_only: bool = False) -> Iterator[KeyPath]:
    """Yield the paths of all keys below `section`, except in sources; `leaves_only` omits the sections themselves."""
    for key, annotation in fields(section).items():
        has_keys = is_section(plain(annotation))
        if not (has_keys and leaves_only):
            yield (*prefix, key)
        if has_keys:
            yield from section_keys(plain(annotation), (*prefix, key), leaves_only)


def limits(annotation: Any) -> str:
    """Describe the range or the allowed values; return an empty string if there are none."""
    bounds, values = list[str](), list[str]()
    for one in _constraints(annotation):
        if isinstance(one, tuple):
            values.append(("one of " if len(one) > 1 else "") + ", ".join(map(str, one)))
        bounds += [f"{word} {getattr(one, bound):g}" for bound, word in BOUNDS.items() if hasattr(one, bound)]
    return " or ".join(filter(None, [" and ".join(bounds), *values]))


def _constraints(annotation: Any) -> Iterator[Any]:
    """Yield the bounds in the annotation of a scalar, and the values of Literals as tuples."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _constraints(get_args(annotation)[0])
        for extra in annotation.__metadata__:
            yield from extra.metadata if isinstance(extra, FieldInfo) else [extra]
    elif origin is Literal:
        yield get_args(annotation)
    elif origin in (Union, UnionType):
        for option in get_args(annotation):
            yield from _constraints(option)


# ---- validation errors ----------------------------------------------------------------------------------------------


def describe_errors(error: ValidationError, origins: Origins, root: type[Section] = Config) -> str:
    """Describe validation errors, one per line: location, dotted path, problem, allowed values."""
    found = error.errors(include_url=False)
    # A value that matches no member of a union of scalars has one error per member; the last one is kept.
    lines = {_parse_location(one["loc"], root)[0]: _describe(one, origins, root) for one in found}
    return "\n".join(lines.values())


def _parse_location(location: KeyPath, root: type[Section]) -> tuple[KeyPath, Any]:
    """Convert the location in a pydantic error, which has union tags, to a path; also return its annotation."""
    path: list[str | int] = []
    annotation: Any = root
    for item in location:
        if item == "[key]" or annotation is None:
            break
        if tagged := members(annotation):
            annotation = tagged[str(item)]
        elif get_origin(unwrapped(annotation)) in (Union, UnionType):
            break  # a member of a union of scalars
        else:
            path.append(item)
            annotation = child(annotation, item)
    return tuple(path), annotation


def _describe(details: ErrorDetails, origins: Origins, root: type[Section]) -> str:
    path, annotation = _parse_location(details["loc"], root)
    kind, value = details["type"], details["input"]
    if kind == "value_error":
        return _describe_combination(str(details["ctx"]["error"]), path, origins, root)
    if kind == "extra_forbidden":
        allowed = list(fields(unwrapped(_parse_location(details["loc"][:-1], root)[1])))
        keys = section_keys(root) if len(path) < 4 else []  # sources have other keys
        elsewhere = [dotted(key) for key in keys if key[-1] == path[-1] and len(key) > 1]
        meant = f"; did you mean '{elsewhere[0]}'?" if elsewhere else nearest(str(path[-1]), allowed) or ";"
        what = f"unknown key{meant} allowed: {', '.join(allowed)}"
    elif kind == "missing":
        what = "is missing"
    elif kind == "union_tag_not_found":
        what = f"a source is a mapping with {SOURCE_FORMS}; not {_format(value)}"
    elif kind == "literal_error":
        allowed = [str(one) for found in _constraints(annotation) if isinstance(found, tuple) for one in found]
        what = f"must be {limits(annotation)}, not {_format(value)}{nearest(str(value), allowed)}"
    elif kind == "string_pattern_mismatch":
        what = "a set name may only contain letters, digits, '_' and '-'"
    elif kind == "too_short":
        what = "must have at least one item"
    elif kind == "too_long":
        what = f"must be a list of {details['ctx']['max_length']} items, not {_format(value)}"
    else:
        limit, null = limits(annotation), " or null" if _is_optional(annotation) else ""
        between = " of " if limit.startswith("at") else " "  # a number of at least 0, a number above 0
        expected = between.join(filter(None, [TYPES.get(kind.partition("_")[0]), limit])) or str(plain(annotation))
        what = f"must be {expected}{null}, not {_format(value)}{_remedy(kind, value)}"
    return f"{nearest_origin(origins, path)}: {dotted(path)}: {what}"


def _remedy(kind: str, value: Any) -> str:
    if kind.startswith("string") and isinstance(value, bool | int | float):
        return "; put it in quotes"
    if kind.startswith("int") and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if kind.startswith("list") and isinstance(value, dict):
        return "; begin each item with '- '"
    return ""


def _format(value: Any) -> str:
    text = f"'{value}'" if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _describe_combination(message: str, path: KeyPath, origins: Origins, root: type[Section]) -> str:
    """Describe a conflict between several keys, and give the origin of the first one that was set."""
    known = set(section_keys(root))
    named = [(*path, *word.split(".")) for word in re.findall(r"[a-z][a-z0-9_.]*[a-z0-9]", message)]
    given = [key for key in named if key in origins and key in known]
    if not given:
        where = f"{dotted(path)}: " if path else ""
        return f"{nearest_origin(origins, path)}: {where}{message}"
    # Overrides take precedence, and a file comes before the files that it extends.
    top = nearest_origin(origins, ()).name
    key = min(given, key=lambda key: (origins[key].kind != "override", origins[key].name != top))
    return f"{origins[key]}: {dotted(key)}: {message}"

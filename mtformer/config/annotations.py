"""Annotations of config keys: the keys of a section, the types of their values, their ranges and allowed values."""

from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import Discriminator, Tag
from pydantic.fields import FieldInfo

from mtformer.config.section import Section
from mtformer.config.yaml_text import KeyPath

BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
"""Description of each kind of bound in an annotation."""


@cache
def fields(section: type[Section]) -> dict[str, Any]:
    """Return the annotations of the keys of a section, including ranges, by key name in files."""
    hints = get_type_hints(section, include_extras=True)
    annotations: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        name_in_files = field.alias or name
        annotations[name_in_files] = hints[name]
    return annotations


def plain(annotation: Any) -> Any:
    """Return the annotation without ranges."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def unwrapped(annotation: Any) -> Any:
    """Return the annotation without ranges and without null."""
    annotation = plain(annotation)
    if not is_optional(annotation):
        return annotation
    options = [option for option in get_args(annotation) if option is not NoneType]
    return plain(options[0]) if len(options) == 1 else annotation


def is_optional(annotation: Any) -> bool:
    """Return True if the value may be null."""
    return is_union(annotation) and NoneType in get_args(plain(annotation))


def is_union(annotation: Any) -> bool:
    """Return True for an annotation of several types, including `X | None`."""
    return get_origin(plain(annotation)) in (Union, UnionType)


def is_section(annotation: Any) -> bool:
    """Return True if the annotation is a subclass of `Section`."""
    return isinstance(annotation, type) and issubclass(annotation, Section)


def members(annotation: Any) -> dict[str, Any]:
    """Return the members of a tagged union (sources, dev sets) by tag; empty for other annotations."""
    by_tag: dict[str, Any] = {}
    for option in get_args(plain(annotation)):
        for extra in getattr(option, "__metadata__", ()):
            if isinstance(extra, Tag):
                by_tag[extra.tag] = plain(option)
    return by_tag


def narrow(annotation: Any, value: Any) -> Any:
    """Return the member of a tagged union that fits the value, or None; return other annotations unchanged."""
    for extra in getattr(annotation, "__metadata__", ()):
        if isinstance(extra, Discriminator) and callable(extra.discriminator):
            return members(annotation).get(str(extra.discriminator(value)))
    return annotation


def child(annotation: Any, key: str | int) -> Any:
    """Return the annotation of a key or list item inside `annotation`; None if the schema has no such key or item."""
    annotation = unwrapped(annotation)
    for member in members(annotation).values():
        inner = child(member, key)
        if inner is not None:
            return inner

    if is_section(annotation):
        return fields(annotation).get(str(key))
    arguments = get_args(annotation)
    collection = get_origin(annotation)
    if collection in (list, tuple) and isinstance(key, int):  # all items of our tuples are alike
        return arguments[0]
    return arguments[1] if collection is dict else None


def keys_below(section: type[Section], prefix: KeyPath = (), leaves_only: bool = False) -> Iterator[KeyPath]:
    """Yield the paths of all keys below a section, except in sources.

    Args:
        section: type of the section.
        prefix: path of the section, with which the paths begin.
        leaves_only: omit the sections themselves.
    """
    for key, annotation in fields(section).items():
        value_type = plain(annotation)
        path = (*prefix, key)
        if not (is_section(value_type) and leaves_only):
            yield path
        if is_section(value_type):
            yield from keys_below(value_type, path, leaves_only)


def limits(annotation: Any) -> str:
    """Describe the range or the allowed values; return an empty string if there are none."""
    bounds = list[str]()
    values = list[str]()
    for constraint in _constraints(annotation):
        if isinstance(constraint, tuple):
            listed = ", ".join(map(str, constraint))
            values.append(f"one of {listed}" if len(constraint) > 1 else listed)
        for bound, description in BOUNDS.items():
            if hasattr(constraint, bound):
                bounds.append(f"{description} {getattr(constraint, bound):g}")

    described = [" and ".join(bounds), *values]
    return " or ".join(filter(None, described))


def allowed_values(annotation: Any) -> list[str]:
    """Return the values of the Literals in the annotation of a scalar, as text."""
    allowed = list[str]()
    for constraint in _constraints(annotation):
        if isinstance(constraint, tuple):
            allowed += map(str, constraint)
    return allowed


def _constraints(annotation: Any) -> Iterator[Any]:
    """Yield the bounds in the annotation of a scalar, and the values of Literals as tuples."""
    if get_origin(annotation) is Annotated:
        yield from _constraints(plain(annotation))
        for extra in annotation.__metadata__:
            yield from extra.metadata if isinstance(extra, FieldInfo) else [extra]
    elif get_origin(annotation) is Literal:
        yield get_args(annotation)
    elif is_union(annotation):
        for option in get_args(annotation):
            yield from _constraints(option)

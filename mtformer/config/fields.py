"""Look up declarations in the schema: keys of a section, metadata, help text, range and alternatives."""

import difflib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import Discriminator, Tag
from pydantic.fields import FieldInfo

from mtformer.config.data import Source
from mtformer.config.schema import Config
from mtformer.config.section import Key, OnResume, Section, key_of
from mtformer.config.yaml_text import KeyPath, dotted

DEFAULT_ON_RESUME: OnResume = "warn"
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@cache
def fields(section: type[Section]) -> dict[str, Any]:
    """Return the annotations, ranges included, of the keys of a section, as files name them."""
    hints = get_type_hints(section, include_extras=True)
    return {field.alias or name: hints[name] for name, field in section.model_fields.items()}


def kinds(annotation: Any) -> dict[str, type[Section]]:
    """Return the sections of a discriminated union by their tags; empty for any other annotation."""
    if not (get_origin(annotation) is Annotated and any(isinstance(m, Discriminator) for m in annotation.__metadata__)):
        return {}
    members = get_args(get_args(annotation)[0])
    return {one.tag: get_args(member)[0] for member in members for one in member.__metadata__ if isinstance(one, Tag)}


SOURCES = kinds(Source)
"""Kinds of sources by the key that distinguishes them."""


def is_source(annotation: Any) -> bool:
    """Return True for the union of all kinds of sources."""
    return kinds(annotation) == SOURCES


def plain(annotation: Any) -> Any:
    """Return the annotation without its ranges."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def unwrapped(annotation: Any) -> Any:
    """Return the annotation without its ranges, and without null."""
    annotation = plain(annotation)
    options = [option for option in get_args(annotation) if option is not NoneType]
    return plain(options[0]) if is_optional(annotation) and len(options) == 1 else annotation


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def child(annotation: Any, key: str | int) -> Any:
    """Return the annotation of a key or list item below `annotation`; None if the schema has none."""
    annotation = unwrapped(annotation)
    if is_section(annotation):
        return fields(annotation).get(str(key))
    arguments = get_args(annotation)
    if get_origin(annotation) is list and isinstance(key, int):
        return arguments[0]
    if get_origin(annotation) is tuple and isinstance(key, int):
        return arguments[key] if 0 <= key < len(arguments) else None
    return arguments[1] if get_origin(annotation) is dict else None


def _sections_on(path: KeyPath) -> Iterator[tuple[type[Section] | None, str, Any]]:
    """Yield each key of a path with the section that declares it (None: list item, mapping key) and its annotation."""
    annotation: Any = Config
    for name in path:
        candidates = SOURCES.values() if is_source(annotation) else [plain(annotation)]
        section = next((kind for kind in candidates if is_section(kind) and name in kind.model_fields), None)
        annotation = child(section or annotation, name)
        yield section, str(name), annotation


def key_metadata(path: str) -> Key:
    """Return the metadata of a dotted key of the config, with `on_resume` resolved; a default for an unknown key."""
    key, on_resume = Key(), DEFAULT_ON_RESUME
    for section, name, annotation in _sections_on(tuple(int(n) if n.isdecimal() else n for n in path.split("."))):
        key = Key() if section is None else key_of(section, name)
        inherited = plain(annotation).on_resume if is_section(plain(annotation)) else None
        on_resume = key.on_resume or inherited or on_resume
    return replace(key, on_resume=on_resume)


def documentation(path: KeyPath) -> str | None:
    """Return the help text of a key and its range; None for list items and keys of mappings."""
    *_, (section, name, annotation) = _sections_on(path)
    if section is None:
        return None
    text = " ".join((section.model_fields[name].description or "").split())
    limit = limits(annotation)
    return f"{text} ({limit})" if limit else text


def parse_location(location: KeyPath, root: type[Section] = Config) -> tuple[KeyPath, Any]:
    """Return path and annotation of a location in an error of pydantic, without its tags of unions."""
    path: list[str | int] = []
    annotation: Any = root
    for item in location:
        if item == "[key]" or annotation is None:
            break
        if kinds(annotation):
            annotation = kinds(annotation)[str(item)]
        elif get_origin(unwrapped(annotation)) in (Union, UnionType):
            break  # a member of a union of scalars
        else:
            path.append(item)
            annotation = child(annotation, item)
    return tuple(path), annotation


def section_keys(section: type[Section] = Config, prefix: KeyPath = (), leaves_only: bool = False) -> Iterator[KeyPath]:
    """Yield the paths of all keys of the sections below `section`, without sources and, if asked, without sections."""
    for key, annotation in fields(section).items():
        has_keys = is_section(plain(annotation))
        if not (has_keys and leaves_only):
            yield (*prefix, key)
        if has_keys:
            yield from section_keys(plain(annotation), (*prefix, key), leaves_only)


def nearest(word: str, allowed: list[str]) -> str | None:
    """Return the allowed word that is most similar to `word`, if any is."""
    found = difflib.get_close_matches(word, allowed, n=1, cutoff=0.6)
    return found[0] if found else None


def nearest_key(key: str, allowed: list[str], root: type[Section] = Config) -> str | None:
    """Return the key that was probably meant: the same key of another section, else the nearest of this one."""
    elsewhere = [dotted(path) for path in section_keys(root) if path[-1] == key and len(path) > 1]
    return elsewhere[0] if elsewhere else nearest(key, allowed)


def limits(annotation: Any) -> str:
    """Return the range or the alternatives of a value in words; empty if there are none."""
    found: list[str] = []
    for one in _constraints(annotation):
        if isinstance(one, tuple):
            found.append("one of " + ", ".join(map(str, one)))
        found += [f"{word} {getattr(one, bound):g}" for bound, word in BOUNDS.items() if hasattr(one, bound)]
    return " and ".join(found)


def alternatives(annotation: Any) -> list[str]:
    """Return the values of a Literal."""
    return [str(value) for found in _constraints(annotation) if isinstance(found, tuple) for value in found]


def _constraints(annotation: Any) -> Iterator[Any]:
    """Yield the bounds of a scalar's annotation, and the values of Literals as tuples."""
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


def is_optional(annotation: Any) -> bool:
    """Return True if the value may be null."""
    return get_origin(plain(annotation)) in (Union, UnionType) and NoneType in get_args(plain(annotation))

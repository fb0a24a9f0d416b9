"""Metadata and help texts of the keys of a config, by dotted name."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mtformer.config.annotations import child, is_section, keys_below, limits, members, plain
from mtformer.config.schema import Config
from mtformer.config.section import Key, OnResume, Section, key_of
from mtformer.config.yaml_text import KeyPath

DEFAULT_ON_RESUME: OnResume = "warn"
"""`Key.on_resume` of keys for which neither the key nor a section around it sets one."""


def section_keys(leaves_only: bool = False) -> Iterator[KeyPath]:
    """Yield the paths of all keys of a config, except in sources; `leaves_only` omits the sections themselves."""
    return keys_below(Config, leaves_only=leaves_only)


def key_metadata(path: str) -> Key:
    """Return the metadata of a dotted key, including an inherited `on_resume`; unknown keys have default metadata."""
    key = Key()
    on_resume = DEFAULT_ON_RESUME
    for section, name, annotation in _sections_on(_parse_path(path)):
        key = Key() if section is None else key_of(section, name)
        inner_section = plain(annotation)
        inherited = inner_section.on_resume if is_section(inner_section) else None
        on_resume = key.on_resume or inherited or on_resume
    return replace(key, on_resume=on_resume)


def documentation(path: KeyPath) -> str | None:
    """Return the help text of a key and its range; None for list items and mapping keys."""
    *_, (section, name, annotation) = _sections_on(path)
    if section is None:
        return None
    description = section.model_fields[name].description or ""
    text = " ".join(description.split())
    limit = limits(annotation)
    return f"{text} ({limit})" if limit else text


def _parse_path(path: str) -> KeyPath:
    parts: list[str | int] = []
    for name in path.split("."):
        part = int(name) if name.isdecimal() else name
        parts.append(part)
    return tuple(parts)


def _sections_on(path: KeyPath) -> Iterator[tuple[type[Section] | None, str, Any]]:
    """Yield each key of a path with its section (None for list items and mapping keys) and its annotation."""
    annotation: Any = Config
    for name in path:
        section = _section_with(annotation, name)
        annotation = child(section or annotation, name)
        yield section, str(name), annotation


def _section_with(annotation: Any, name: str | int) -> type[Section] | None:
    """Return the section, or the first member of a tagged union of sections, that has a key of this name."""
    for candidate in members(annotation).values() or [plain(annotation)]:
        if is_section(candidate) and name in candidate.model_fields:
            section: type[Section] = candidate
            return section
    return None

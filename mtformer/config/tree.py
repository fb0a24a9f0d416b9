"""Values of a config before they are validated: files are merged, overrides applied, and values replaced.

Files and overrides are merged into the values: mappings key by key; all other values, including lists, are replaced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_origin

from mtformer.config.annotations import child, fields, is_section, narrow, plain
from mtformer.config.data import SOURCES, Source, source_kind
from mtformer.config.section import Section
from mtformer.config.yaml_text import KeyPath, Origin, Origins, dotted, read_yaml
from mtformer.errors import ConfigError

MOST_KEYS = 20
"""Maximum number of keys in a dotted path."""
Container = dict[str, Any] | list[Any]
"""A mapping of a tree from keys to values, or a list of values."""


class _Place:
    """A key in a mapping, or an index in a list, which may not exist yet.

    Args:
        container: the mapping or list.
        container_type: annotation of the container.
        path: path of the key; its last part is the key or index.
    """

    def __init__(self, container: Any, container_type: Any, path: KeyPath) -> None:
        self.container = container
        self.container_type = container_type
        self.path = path
        self.key: Any = path[-1]
        # The first keys of a source or dev set decide its type, so it is determined before the container changes.
        narrow_type = narrow(container_type, container)
        self.value_type = child(narrow_type, self.key)
        """Annotation of the value; None if the schema has no such key."""
        self.is_named_item = get_origin(plain(narrow_type)) is dict
        """True for an item of a mapping from names to items, such as a test set."""

    @property
    def exists(self) -> bool:
        if isinstance(self.container, list):
            return int(self.key) < len(self.container)
        return self.key in self.container

    def get(self) -> Any:
        """Return the value, or None if there is none."""
        return self.container[self.key] if self.exists else None

    def set(self, value: Any) -> None:
        if isinstance(self.container, list) and not self.exists:
            self.container.append(value)
        else:
            self.container[self.key] = value


@dataclass
class Tree:
    """Values of a section as nested mappings and lists, with their origins."""

    section: type[Section]
    values: dict[str, Any] = field(default_factory=dict)
    origins: Origins = field(default_factory=dict)

    def merge(self, values: Mapping[str, Any], origins: Origins) -> None:
        """Merge the values of a file, which take precedence over the present ones."""
        for key, value in values.items():
            place = _Place(self.values, self.section, (key,))
            self._put(place, value)
        self.origins.update(origins)

    def apply(self, override: str) -> None:
        """Apply an override, `section.key=value`, where value is YAML and an index names a list item."""
        origin = Origin("override", override)
        name, equals, text = override.partition("=")
        keys = name.strip().split(".")
        is_dotted_key = "" not in keys and len(keys) <= MOST_KEYS
        if not equals or not is_dotted_key:
            raise ConfigError(f"{origin}: write section.key=value, such as training.seed=2")

        place = self._find(keys, origin)
        value, origins = read_yaml(text, lambda line: origin, place.path)
        origins[place.path] = origin
        self._set(place, value, origins)

    def replace(self, name: str, value: Any, origin: Origin) -> None:
        """Replace a value, without merging mappings.

        Args:
            name: dotted key; an index names a list item.
            value: new value.
            origin: origin of the new value, and of sections that it needs.
        """
        place = self._find(name.split("."), origin)
        if place.exists:
            place.set(None)
        self._set(place, value, {place.path: origin})

    def copy_origins(self, tree: "Tree", path: KeyPath) -> None:
        """Copy the origins of a value, and of everything in it, from another tree."""
        for known_path in _paths_below(path, tree.origins):
            self.origins[known_path] = tree.origins[known_path]

    def _set(self, place: _Place, value: Any, origins: Origins) -> None:
        outer_path = place.path[:-1]
        if place.container_type == Source:
            self._remove_other_kind(place.container, {place.key: value}, outer_path)
        self._put(place, value)
        self.origins.update(origins)
        if isinstance(place.container, list):
            self.origins[outer_path] = origins[place.path]

    def _find(self, keys: Sequence[str], origin: Origin) -> _Place:
        """Return the place of a key, given its dotted parts; sections and items that it needs are created."""
        place = _place_in(self.values, self.section, (), keys[0], origin)
        for key in keys[1:]:
            if not place.exists:
                place.set(_empty_container(place, key))
                self.origins[place.path] = origin
            place = _place_in(place.get(), place.value_type, place.path, key, origin)
        return place

    def _put(self, place: _Place, value: Any) -> None:
        """Merge mappings, replace all other values, and drop the origins of replaced values.

        Null is read as an empty section, list or mapping, as when all of its keys or items are commented out. In a
        mapping from names to items, null removes an item.
        """
        if value is None and place.is_named_item and place.exists:
            self._forget(place.path)
            del place.container[place.key]
            return

        value_type = plain(narrow(place.value_type, value))
        collection = get_origin(value_type)
        is_mapping = collection is dict or is_section(value_type)
        if value is None and collection is list:
            value = []
        elif value is None and is_mapping:
            value = {}

        replaces_mapping = value == {} and collection is dict
        if isinstance(value, dict) and not replaces_mapping:
            self._merge_mapping(place, value)
        else:
            self._forget(place.path)
            place.set(value)

    def _merge_mapping(self, place: _Place, mapping: dict[Any, Any]) -> None:
        if not isinstance(place.get(), dict):
            self._forget(place.path)
            place.set({})
        present = place.get()
        if place.value_type == Source:
            self._remove_other_kind(present, mapping, place.path)
        for key, value in mapping.items():
            inner_place = _Place(present, place.value_type, (*place.path, key))
            self._put(inner_place, value)

    def _remove_other_kind(self, source: dict[str, Any], addition: dict[Any, Any], path: KeyPath) -> None:
        """Remove the keys of the old type if a source changes its type."""
        old_kind = source_kind(source)
        new_kind = source_kind(addition)
        if old_kind is None or new_kind is None or old_kind == new_kind:
            return

        keys_of_old_kind = fields(SOURCES[old_kind]).keys() - {"src_lang", "tgt_lang"}
        for key in keys_of_old_kind:
            source.pop(key, None)
            self._forget((*path, key))

    def _forget(self, path: KeyPath) -> None:
        """Drop the origins of a value and of everything in it."""
        for known_path in _paths_below(path, self.origins):
            del self.origins[known_path]


def _paths_below(path: KeyPath, origins: Origins) -> list[KeyPath]:
    """Return the paths of a value and of everything in it that have an origin."""
    return [known_path for known_path in origins if known_path[: len(path)] == path]


def _place_in(container: Any, container_type: Any, path: KeyPath, key: str, origin: Origin) -> _Place:
    """Return the place of a part of a dotted key; an index equal to the length of a list appends an item."""
    if isinstance(container, dict):
        return _Place(container, container_type, (*path, key))
    if not isinstance(container, list):
        problem = f"is a single value and has no key '{key}'"
        raise ConfigError(f"{origin}: {dotted(path)} {problem}; set {dotted(path)} itself")

    # The number of digits is limited first, as the conversion of thousands of digits is an error.
    num_items = len(container)
    max_digits = len(str(num_items))
    is_number = key.isdecimal() and len(key) <= max_digits
    if not is_number or int(key) > num_items:
        problem = f"'{key}' is neither the index of an item (from 0) nor the next index; use 0 to {num_items}"
        raise ConfigError(f"{origin}: {dotted(path)} is a list of {num_items} items; {problem}")
    return _Place(container, container_type, (*path, int(key)))


def _empty_container(place: _Place, key: str) -> Container:
    """Return a new list or mapping for a place below which `key` is set."""
    if isinstance(place.container, list):
        return {}
    # The first item of a list has index 0; dev may be a list or a mapping.
    example: Container = [] if key == "0" else {}
    container_type = plain(narrow(place.value_type, example))
    return [] if get_origin(container_type) is list else {}

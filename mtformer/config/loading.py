"""A config file, what it extends, and overrides, made into one validated `Config`; each value knows its origin."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from pydantic import ValidationError

from mtformer.config.data import DataConfig, source_kind
from mtformer.config.fields import SOURCES, child, fields, is_section, is_source, plain
from mtformer.config.mistakes import describe_mistakes
from mtformer.config.origins import DEFAULT, REQUIRED, Origin, Origins
from mtformer.config.schema import Config
from mtformer.config.writing import config_diff, dump_config, json_schema, leaves, resolve_paths
from mtformer.config.yaml_text import KeyPath, dotted, read_yaml
from mtformer.errors import ConfigError

__all__ = [
    "LoadedConfig",
    "Origin",
    "config_diff",
    "dump_config",
    "json_schema",
    "load_config",
    "load_defaults",
    "resolve_paths",
]


@dataclass(frozen=True)
class LoadedConfig:
    """A config and, for each of its values by dotted path, where it comes from."""

    config: Config
    origins: dict[str, Origin]


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Reads a YAML file and what it extends, applies overrides, and validates.

    Sections are merged key by key, and so are test sets by name; lists are replaced. A source that changes its kind
    (files instead of a data set) loses the other kind's keys. An empty `test:` removes all test sets.

    Args:
        path: The file.
        overrides: Each `section.key=value` with a YAML value; list items by their position: `data.train.0.src=a.en`.

    Raises:
        ConfigError: One line for each mistake: its place, the dotted path, what is wrong and what is allowed.
    """
    origins: Origins = {}
    tree = _read_file(str(path), origins, ())
    # Whatever has no line of its own, such as a missing section, is a matter of the file as a whole.
    origins[()] = Origin("file", str(path))
    for override in overrides:
        _apply(override, tree, origins)
    try:
        config = Config.model_validate(tree, strict=True)
    except ValidationError as error:
        raise ConfigError(describe_mistakes(error, origins)) from error
    return LoadedConfig(config, {dotted(leaf): origins.get(leaf, DEFAULT) for leaf in leaves(config)})


def load_defaults() -> LoadedConfig:
    """Return the defaults of all keys; a key that has none is None, with `REQUIRED` as its origin."""
    required = [key for key, field in DataConfig.model_fields.items() if field.is_required()]
    config = Config(data=DataConfig.model_construct(**dict.fromkeys(required)))
    origins = {dotted(leaf): DEFAULT for leaf in leaves(config)}
    return LoadedConfig(config, {**origins, **{f"data.{key}": REQUIRED for key in required}})


def _read_file(path: str, origins: Origins, extended_by: tuple[str, ...]) -> dict[str, Any]:
    """The tree of one file, laid over that of the file it extends; adds the origins of its keys."""

    def place(line: int | None) -> str:
        return str(Origin("file", path, line))

    own: Origins = {}
    value = read_yaml(_read_text(path), place, lambda key, line: own.update({key: Origin("file", path, line)}))
    if not isinstance(value, dict | None):
        raise ConfigError(f"{place(1)}: a config is a mapping of sections (data, model, ...), not {value!r:.40}")
    tree: dict[str, Any] = _null_is_empty(value, Config)
    if "extends" in tree:
        origin = own.pop(("extends",))
        base = _read_base(path, tree.pop("extends"), origin, origins, (*extended_by, path))
        for key, value in tree.items():
            _put(base, key, value, child(Config, key), (key,), origins)
        tree = base
    origins.update(own)
    return tree


def _read_base(
    path: str, extends: Any, origin: Origin, origins: Origins, extended_by: tuple[str, ...]
) -> dict[str, Any]:
    """The tree of the file that `path` extends."""
    if not isinstance(extends, str):
        raise ConfigError(f"{origin}: extends: must be the name of one file, not {extends!r:.40}")
    base = os.path.normpath(Path(path).parent / Path(extends).expanduser())
    if os.path.realpath(base) in map(os.path.realpath, extended_by):
        raise ConfigError(f"{origin}: extends: goes round in a circle: {' -> '.join((*extended_by, base))}")
    if not os.path.exists(base):
        raise ConfigError(f"{origin}: extends: no such file: {base} (the name is relative to {path})")
    return _read_file(base, origins, extended_by)


def _read_text(path: str) -> str:
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such config file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; a config is a YAML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from error


def _apply(override: str, tree: dict[str, Any], origins: Origins) -> None:
    """Puts one `section.key=value` into the tree."""
    origin = Origin("override", override=override)
    name, equals, text = override.partition("=")
    keys = name.strip().split(".")
    if not equals or "" in keys:
        raise ConfigError(f"{origin}: write section.key=value")
    container: Any = tree
    annotation: Any = Config
    path: KeyPath = ()
    for depth, key in enumerate(keys):
        position = _position(container, key, path, origin)
        around, annotation = annotation, child(_narrow(annotation, container), position)
        path = (*path, position)
        if depth + 1 < len(keys):
            if isinstance(position, int) and position == len(container):
                container.append({})
                origins[path] = origin
            elif isinstance(container, dict) and position not in container:
                container[position] = [] if get_origin(plain(annotation)) is list else {}
                origins[path] = origin
            container = container[position]
    own: Origins = {path: origin}
    value = read_yaml(text, lambda line: str(origin), lambda key, line: own.update({key: origin}), path)
    if is_source(around):
        _leave_other_kind(container, {path[-1]: value}, path[:-1], origins)
    if isinstance(container, list):
        own[path[:-1]] = origin
    _put(container, path[-1], _null_is_empty(value, annotation), annotation, path, origins)
    origins.update(own)


def _position(container: Any, key: str, path: KeyPath, origin: Origin) -> str | int:
    """The key of a mapping, or the position in a list (its length: one more item)."""
    if isinstance(container, dict):
        return key
    if not isinstance(container, list):
        raise ConfigError(f"{origin}: {dotted(path)} is a single value, it has no '{key}'")
    if not key.isdecimal() or int(key) > len(container):
        raise ConfigError(
            f"{origin}: {dotted(path)} is a list of {len(container)}; '{key}' is neither one of its positions "
            f"(from 0) nor the next"
        )
    return int(key)


def _put(container: Any, key: str | int, value: Any, annotation: Any, path: KeyPath, origins: Origins) -> None:
    """Merges mappings into what is there, replaces everything else; forgets the origins of what is replaced."""
    if isinstance(key, int) and key == len(container):
        container.append(None)
    old = container.get(key) if isinstance(container, dict) else container[key]
    clears = get_origin(plain(annotation)) is dict and not value
    if isinstance(old, dict) and isinstance(value, dict) and not clears:
        if is_source(annotation):
            _leave_other_kind(old, value, path, origins)
        for name, below in value.items():
            _put(old, name, below, child(_narrow(annotation, old), name), (*path, name), origins)
    else:
        _forget(path, origins)
        container[key] = value


def _leave_other_kind(source: dict[str, Any], addition: dict[Any, Any], path: KeyPath, origins: Origins) -> None:
    """Takes the keys of the old kind out of a source that becomes one of another kind."""
    old, new = source_kind(source), source_kind(addition)
    if old and new and old != new:
        for key in fields(SOURCES[old]):
            source.pop(key, None)
            _forget((*path, key), origins)


def _forget(path: KeyPath, origins: Origins) -> None:
    for known in [known for known in origins if known[: len(path)] == path]:
        del origins[known]


def _null_is_empty(value: Any, annotation: Any) -> Any:
    """A section, list or mapping whose keys are all commented out is YAML's null; here it is empty."""
    if value is None and is_section(plain(annotation)):
        return {}
    if value is None and get_origin(plain(annotation)) in (dict, list):
        return get_origin(plain(annotation))()
    if isinstance(value, dict):
        narrow = _narrow(annotation, value)
        return {key: _null_is_empty(below, child(narrow, key)) for key, below in value.items()}
    if isinstance(value, list):
        return [_null_is_empty(below, child(annotation, index)) for index, below in enumerate(value)]
    return value


def _narrow(annotation: Any, value: Any) -> Any:
    """For a source, its kind; else the annotation itself."""
    return SOURCES.get(source_kind(value) or "") if is_source(annotation) else annotation

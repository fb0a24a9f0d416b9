"""Read, write, change and compare configs; the origin of each value is recorded."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from mtformer.config.annotations import child, is_section, plain
from mtformer.config.data import DataConfig
from mtformer.config.fields import key_metadata
from mtformer.config.schema import Config
from mtformer.config.section import Key, Section, key_of
from mtformer.config.tree import Tree
from mtformer.config.validation import validated
from mtformer.config.yaml_text import (
    CHANGED,
    DEFAULT,
    REQUIRED,
    KeyPath,
    Origin,
    Origins,
    dotted,
    read_yaml,
    write_yaml,
)
from mtformer.errors import ConfigError, log
from mtformer.files import FORMAT, beside, expand_user, read_bytes, require_format, require_saved_config

SectionT = TypeVar("SectionT", bound=Section)
_warn_once = cache(log.warning)
MOST_BYTES = 1_000_000
"""Maximum size of a config in bytes; reading YAML of this size takes a minute."""


PACKAGE = Path(__file__).resolve().parents[1]
"""Folder of the package."""
SHIPPED = "configs"
"""Folder of the configs that come with mtformer: inside the package, or beside it in the repository."""


@dataclass(frozen=True)
class LoadedConfig:
    """A config and the origins of its values."""

    config: Config
    origins: dict[str, Origin]


def find_config(path: str | Path) -> Path:
    """Return the path of a file; one in `configs` that does not exist is looked up among those of the package."""
    path = Path(path)
    if path.parts[:1] != (SHIPPED,) or path.exists():
        return path
    for folder in (PACKAGE, PACKAGE.parent):
        shipped = folder / path
        if shipped.is_file():
            return shipped
    return path


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a YAML file and the files it extends, apply overrides, and validate the result.

    The file is looked up by `find_config`.

    Sections are merged key by key, and test sets, named dev sets and corpora by name; lists are replaced. If a source
    changes its type (files instead of a dataset), the keys of the old type are removed. `NAME: null` removes a set or
    corpus, and an empty `test:` removes all test sets. Overrides are `section.key=value`, where value is YAML; an index
    names a list item, as in `data.train.0.src=a.en`.

    Raise ConfigError if the config is invalid, with a line per error: location, dotted path, problem, allowed values.
    """
    tree = _read_file(str(find_config(path)))
    for override in overrides:
        tree.apply(override)
    _take_pretrained(tree)

    config = validated(tree.values, tree.origins, Config)
    origins: dict[str, Origin] = {}
    for path_of_value in leaves(config):
        origins[dotted(path_of_value)] = tree.origins.get(path_of_value, DEFAULT)
    return LoadedConfig(config, origins)


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """Return the config with overrides, which are applied as in `load_config`.

    Raise ConfigError with a line for each error.
    """
    tree = Tree(Config, config.model_dump(mode="json"), {(): CHANGED})
    for override in overrides:
        tree.apply(override)
    return validated(tree.values, tree.origins, Config)


def load_defaults() -> LoadedConfig:
    """Return the defaults of all keys; required keys are None, with origin `REQUIRED`."""
    data_fields = DataConfig.model_fields.items()
    required_keys = [key for key, field in data_fields if field.is_required()]
    data = DataConfig.model_construct(**dict.fromkeys(required_keys))
    config = Config(data=data)
    origins = {dotted(leaf): DEFAULT for leaf in leaves(config)}
    for key in required_keys:
        origins[f"data.{key}"] = REQUIRED
    return LoadedConfig(config, origins)


def read_tree(path: str, kind: str) -> tuple[Any, Origins]:
    """Return the contents of a YAML file and the origins of its keys; raise ConfigError if it cannot be read.

    Args:
        path: the file.
        kind: what the file should be, for errors, such as `config`.
    """
    try:
        data = read_bytes(path, MOST_BYTES)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such {kind} file; check the path") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; a {kind} must be a YAML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; give a {kind} file that you can read") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8; save the file as UTF-8") from error

    value, origins = read_yaml(text, lambda line: Origin("file", path, line))
    origins[()] = Origin("file", path)  # for keys without a line, such as a missing section
    return value, origins


def _read_file(path: str, extended_by: tuple[str, ...] = ()) -> Tree:
    """Return the values of a file, merged into those of the file it extends.

    Args:
        path: the file.
        extended_by: the files that extend it, outermost first.
    """
    content, origins = read_tree(path, "config")
    if not isinstance(content, dict | None):
        raise ConfigError(f"{path}:1: a config is a mapping of sections (data, model, ...), not {content!r:.40}")

    values = dict[str, Any](content or {})
    if "format" in values:
        require_format(origins.pop(("format",)), values.pop("format"), ConfigError)
        values = with_present_keys(values, Config, path)
        origins = {_present_path(key_path): origin for key_path, origin in origins.items()}

    tree = Tree(Config)
    if "extends" in values:
        chain = (*extended_by, path)
        base = _base_file(values.pop("extends"), origins.pop(("extends",)), chain)
        tree = _read_file(base, chain)
    tree.merge(values, origins)
    return tree


def _base_file(extends: Any, origin: Origin, chain: tuple[str, ...]) -> str:
    """Return the path of the file that `extends` names; `chain` has the files read so far, outermost first."""
    path = chain[-1]
    if not isinstance(extends, str):
        raise ConfigError(f"{origin}: extends: must be the name of one file, not {extends!r:.40}")
    base = str(beside(path, extends))
    real_paths = map(os.path.realpath, chain)  # a file may have several names
    if os.path.realpath(base) in real_paths:
        cycle = " -> ".join((*chain, base))
        raise ConfigError(f"{origin}: extends: circular reference: {cycle}; remove one extends")
    if not os.path.exists(base):
        raise ConfigError(f"{origin}: extends: no such file: {base} (the name is relative to {path}); check the name")
    return base


def with_present_keys(value: Any, annotation: Any, path: str) -> Any:
    """Return the values of a config that an earlier version saved, without the keys that exist no more.

    Renamed keys get their present names. A warning is logged for each missing key that was not off.

    Args:
        value: a value of the config, such as a mapping with the values of a section.
        annotation: annotation of the value.
        path: the file, for the warnings.
    """
    if not isinstance(value, dict):
        return value

    section = plain(annotation)
    removed = section.removed if is_section(section) else {}
    for key in removed.keys() & value.keys():
        if value[key] != removed[key]:
            _warn_once("%s: %s is not supported anymore and is ignored", path, key)

    renamed = section.renamed if is_section(section) else {}
    kept: dict[Any, Any] = {}
    for key, item in value.items():
        if key not in removed:
            name = renamed.get(key, key)
            kept[name] = with_present_keys(item, child(annotation, name), path)
    return kept


def _present_path(path: KeyPath) -> KeyPath:
    """Return the path of a key in a config that an earlier version saved, with the present names of renamed keys."""
    present_path: KeyPath = ()
    annotation: Any = Config
    for key in path:
        section = plain(annotation)
        present_key = section.renamed.get(key, key) if is_section(section) else key
        present_path = (*present_path, present_key)
        annotation = child(annotation, present_key)
    return present_path


def _take_pretrained(tree: Tree) -> None:
    """Add the model and tokenizer settings of the run `training.init_from`, if set."""
    training = tree.values.get("training")
    run = training.get("init_from") if isinstance(training, dict) else None
    if not isinstance(run, str):
        return
    config_file = expand_user(run) / "config.yaml"
    if not config_file.is_file():
        return

    require_saved_config(config_file)
    pretrained = _read_file(str(config_file))
    for section in ("model", "tokenizer"):
        own_values = tree.values.setdefault(section, {})
        if not isinstance(own_values, dict):
            continue  # an error, which the validation reports
        for key, value in pretrained.values.get(section, {}).items():
            metadata = key_metadata(f"{section}.{key}")
            is_setting = metadata.path in (None, "name or file")
            if is_setting and key not in own_values:
                own_values[key] = value
                tree.copy_origins(pretrained, (section, key))


def dump_config(config: Config) -> str:
    """Return the complete config as YAML; `load_config` restores the same config."""
    return write_yaml({"format": FORMAT, **config.model_dump()})


def resolve_paths(section: SectionT) -> SectionT:
    """Return the section with local paths made absolute, so that it is valid in any working directory."""
    return _map_values(section, _resolve_path)


def _resolve_path(key: Key, value: Any) -> Any:
    if value is None or not _is_path(key, value):
        return value
    return os.path.abspath(expand_user(value))


def without_files(section: SectionT) -> SectionT:
    """Return the section without paths, sources and corpora, so that it is valid on other machines."""
    return _map_values(section, _remove_files)


def _remove_files(key: Key, value: Any) -> Any:
    if _holds_sections(value):
        return type(value)()
    if key.path == "name or file":
        return os.path.basename(value)
    return None if key.path is not None else value


def _is_path(key: Key, value: str) -> bool:
    """Return True if the value of a key is the path of a file or folder."""
    match key.path:
        case "folder or name":
            return expand_user(value).is_dir()
        case "name or file":
            return os.path.splitext(value)[1] != ""
        case _:
            return key.path is not None


def _map_values(section: SectionT, change: Callable[[Key, Any], Any]) -> SectionT:
    """Replace each value with `change(metadata of the key, value)`, recursively."""
    changed: dict[str, Any] = {}
    for name, value in section:
        key = key_of(type(section), name)
        changed[name] = _map_value(key, value, change)
    return section.model_copy(update=changed)


def _map_value(key: Key, value: Any, change: Callable[[Key, Any], Any]) -> Any:
    if isinstance(value, Section):
        return _map_values(value, change)

    value = change(key, value)
    if isinstance(value, dict):
        return {name: _map_value(key, item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_map_value(key, item, change) for item in value]
    return value


def without_side_outputs(config: Config, **training: Any) -> Config:
    """Return the config with side outputs reset to defaults, and with the given values in the `training` section."""
    sections: dict[str, Section] = {}
    for name, section in config:
        changes: dict[str, Any] = {}
        for key, field in type(section).model_fields.items():
            if key_of(type(section), key).side_output:
                changes[key] = field.default
        if name == "training":
            changes |= training
        sections[name] = section.model_copy(update=changes)
    return config.model_copy(update=sections)


def leaves(value: Any, path: KeyPath = ()) -> dict[KeyPath, Any]:
    """Return all values of a section by path; a list of scalars is one value."""
    items: Iterable[tuple[str | int, Any]]
    if isinstance(value, Section):
        items = value
    elif not _holds_sections(value):
        return {path: value}
    else:
        items = value.items() if isinstance(value, dict) else enumerate(value)

    values: dict[KeyPath, Any] = {}
    for name, item in items:
        values |= leaves(item, (*path, name))
    return values


def _holds_sections(value: Any) -> bool:
    """Return True for a list or mapping of sections, such as that of the test sets."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return any(isinstance(item, Section) for item in value)


def config_diff(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """Return all differences as (dotted path, old value, new value); missing and empty values are None."""
    old_values = _values_or_none(old)
    new_values = _values_or_none(new)
    differences: list[tuple[str, Any, Any]] = []
    for path in old_values | new_values:  # the paths of the old config, then those that only the new one has
        old_value = old_values.get(path)
        new_value = new_values.get(path)
        if old_value != new_value:
            differences.append((dotted(path), old_value, new_value))
    return differences


def _values_or_none(config: Config) -> dict[KeyPath, Any]:
    """Return all values by path; None for empty lists and mappings."""
    values = leaves(config)
    for path, value in values.items():
        if value in ({}, []):
            values[path] = None
    return values

"""A config as YAML, with absolute paths, beside another one, and as a JSON schema."""

import os
from pathlib import Path
from typing import Any, TypeVar

from mtformer.config.schema import Config
from mtformer.config.section import Section, key_of
from mtformer.config.yaml_text import KeyPath, dotted, read_yaml, write_yaml

SectionT = TypeVar("SectionT", bound=Section)


def dump_config(config: Config) -> str:
    """All values as YAML; `load_config` makes the same config of it."""
    return write_yaml(config.model_dump())


def key_lines(text: str) -> dict[int, KeyPath]:
    """Return the path of the key in each line, from 1, of a dumped config."""
    lines: dict[int, KeyPath] = {}
    read_yaml(text, str, lambda path, line: lines.update({line: path} if isinstance(path[-1], str) else {}))
    return lines


def resolve_paths(config: Config) -> Config:
    """Return the config with absolute local paths, so that it holds in any working directory."""
    return _with_absolute_paths(config)


def _with_absolute_paths(section: SectionT) -> SectionT:
    changes: dict[str, Any] = {}
    for name in type(section).model_fields:
        value, path = getattr(section, name), key_of(type(section), name).path
        if isinstance(value, Section):
            changes[name] = _with_absolute_paths(value)
        elif isinstance(value, list) and _holds_sections(value):
            changes[name] = [_with_absolute_paths(item) for item in value]
        elif isinstance(value, dict) and _holds_sections(value):
            changes[name] = {key: _with_absolute_paths(item) for key, item in value.items()}
        elif value is not None and path is not None:
            is_path = path == "file" or Path(value).expanduser().is_dir()
            changes[name] = os.path.abspath(os.path.expanduser(value)) if is_path else value
    return section.model_copy(update=changes)


def without_files(section: SectionT) -> SectionT:
    """Return the section without paths, sources and corpora: what is left holds on any machine."""
    changes: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            changes[name] = without_files(value)
        elif isinstance(value, dict | list) and _holds_sections(value):
            changes[name] = type(value)()
        elif key_of(type(section), name).path is not None:
            changes[name] = None
    return section.model_copy(update=changes)


def without_side_outputs(config: Config, **training: Any) -> Config:
    """Return the config with the side outputs at their defaults, and with these values in the training section."""
    changes: dict[str, Section] = {}
    for name, section in config:
        fields = type(section).model_fields
        defaults = {key: field.default for key, field in fields.items() if key_of(type(section), key).side_output}
        changes[name] = section.model_copy(update={**defaults, **(training if name == "training" else {})})
    return config.model_copy(update=changes)


def leaves(section: Section, prefix: KeyPath = ()) -> dict[KeyPath, Any]:
    """All values by path; sections, sources and test sets are opened, lists of scalars are values."""
    found: dict[KeyPath, Any] = {}
    for key in type(section).model_fields:
        path = (*prefix, key)
        value = getattr(section, key)
        if isinstance(value, Section):
            found |= leaves(value, path)
        elif isinstance(value, dict | list) and _holds_sections(value):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for name, item in items:
                found |= leaves(item, (*path, name))
        else:
            found[path] = value
    return found


def _holds_sections(value: dict[str, Any] | list[Any]) -> bool:
    return any(isinstance(item, Section) for item in (value.values() if isinstance(value, dict) else value))


def config_diff(old: Config, new: Config) -> list[tuple[str, Any, Any]]:
    """The dotted paths whose values differ, with both values; None stands for what one of them does not have."""
    before, after = ({path: _or_none(value) for path, value in leaves(config).items()} for config in (old, new))
    paths = [*before, *(path for path in after if path not in before)]
    return [(dotted(path), before.get(path), after.get(path)) for path in paths if before.get(path) != after.get(path)]


def _or_none(value: Any) -> Any:
    """No sources at all differ from some by the sources themselves."""
    return None if value == {} or value == [] else value


def json_schema() -> dict[str, Any]:
    """A JSON Schema of config files, for editors; what a file may leave to the one it extends is not required."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "mtformer experiment"
    extends = {"type": "string", "description": "A config, relative to this file, that this one changes."}
    schema["properties"] = {"extends": extends, **schema["properties"]}
    schema["$defs"]["DataConfig"]["properties"]["test"]["additionalProperties"] = False
    for section in (schema, *schema["$defs"].values()):
        if section.get("properties", {}).keys().isdisjoint({"src", "tsv", "jsonl", "dataset"}):
            section.pop("required", None)
    return schema

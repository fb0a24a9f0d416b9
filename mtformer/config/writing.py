"""A config as YAML, with absolute paths, beside another one, and as a JSON schema."""

import os
from pathlib import Path
from typing import Any

from mtformer.config.data import JsonlFile, Source, TextFiles, TsvFile
from mtformer.config.schema import Config
from mtformer.config.section import Section
from mtformer.config.yaml_text import KeyPath, dotted, read_yaml, write_yaml


def dump_config(config: Config) -> str:
    """All values as YAML; `load_config` makes the same config of it."""
    return write_yaml(config.model_dump())


def value_lines(text: str) -> dict[str, int]:
    """The line, from 1, in which each dotted path of a dumped config stands."""
    lines: dict[str, int] = {}
    read_yaml(text, str, lambda path, line: lines.update({dotted(path): line}))
    return lines


def resolve_paths(config: Config) -> Config:
    """The config with absolute local paths, so that it holds in any working directory.

    A data set that is no existing folder is a name on the hub and stays as it is.
    """
    data, tokenizer, training = config.data, config.tokenizer, config.training
    absolute_data = {
        "train": [_absolute_source(source) for source in data.train],
        "corpora": {
            name: corpus.model_copy(update={"sources": [_absolute_source(source) for source in corpus.sources]})
            for name, corpus in data.corpora.items()
        },
        "dev": [_absolute_source(source) for source in data.dev],
        "test": {name: _absolute_source(source) for name, source in data.test.items()},
        "cache_dir": data.cache_dir and _absolute(data.cache_dir),
    }
    absolute_tokenizer = {
        "src_model": tokenizer.src_model and _absolute(tokenizer.src_model),
        "tgt_model": tokenizer.tgt_model and _absolute(tokenizer.tgt_model),
    }
    return config.model_copy(
        update={
            "data": data.model_copy(update=absolute_data),
            "tokenizer": tokenizer.model_copy(update=absolute_tokenizer),
            "training": training.model_copy(update={"init_from": training.init_from and _absolute(training.init_from)}),
        }
    )


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _absolute_source(source: Source) -> Source:
    if isinstance(source, TextFiles):
        return source.model_copy(update={"src": _absolute(source.src), "tgt": _absolute(source.tgt)})
    if isinstance(source, TsvFile):
        return source.model_copy(update={"tsv": _absolute(source.tsv)})
    if isinstance(source, JsonlFile):
        return source.model_copy(update={"jsonl": _absolute(source.jsonl)})
    is_folder = Path(source.dataset).expanduser().is_dir()
    return source.model_copy(update={"dataset": _absolute(source.dataset)}) if is_folder else source


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

"""The JSON Schema accepts the configs that mtformer accepts, and refuses others as an editor would."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from mtformer.config.json_schema import json_schema
from mtformer.config.loading import dump_config, load_config

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))
SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
NEWER_KEYWORDS = {
    "$defs",
    "prefixItems",
    "unevaluatedProperties",
    "dependentRequired",
    "dependentSchemas",
    "minContains",
}
"""Keywords that draft 7 ignores."""


def parts(value: Any) -> list[dict[str, Any]]:
    """Return all mappings in a schema."""
    if isinstance(value, list):
        return [part for item in value for part in parts(item)]
    if not isinstance(value, dict):
        return []
    return [value, *(part for item in value.values() for part in parts(item))]


def test_the_schema_is_valid_and_has_what_the_catalog_requires() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert SCHEMA["$id"] == "https://json.schemastore.org/mtformer.json"
    assert SCHEMA["title"]
    assert SCHEMA["description"]


def test_draft_7_understands_all_keywords() -> None:
    for part in parts(SCHEMA):
        assert part.keys().isdisjoint(NEWER_KEYWORDS)
        assert "$ref" not in part or part.keys() == {"$ref"}, "keywords beside a reference are ignored"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_valid(path: Path) -> None:
    VALIDATOR.validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    VALIDATOR.validate(yaml.safe_load(dump_config(load_config(path).config)))


@pytest.mark.parametrize(("text", "place"), [
    ("training: {max_steps: many}", "training.max_steps"),
    ("training: {betas: [0.9, nan-]}", "training.betas.1"),
    ("model: {d_modle: 128}", "model"),
    ("data: {src_lang: en, tgt_lang: de, train: [{src: a.en}]}", "data.train.0"),
    ("data: {test: {a b: {tsv: x}}}", "data.test"),
    ("decoding: {beam_size: 0}", "decoding.beam_size"),
    ("extends: [a, b]", "extends"),
    ("modle: {}", ""),
])  # fmt: skip
def test_mistakes_are_found_at_their_place(text: str, place: str) -> None:
    errors = list(VALIDATOR.iter_errors(yaml.safe_load(text)))
    assert [".".join(map(str, error.absolute_path)) for error in errors] == [place]

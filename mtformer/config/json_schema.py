"""The JSON Schema of config files, with which editors complete and check them.

It has the form that the catalog of SchemaStore takes: draft 7, in which the keywords beside a reference are ignored,
and the names of definitions and tuples differ from those that pydantic writes.
"""

from typing import Any

from mtformer.config.data import SOURCES
from mtformer.config.schema import Config
from mtformer.files import FORMAT

DRAFT = "http://json-schema.org/draft-07/schema#"
"""Version of JSON Schema."""
IDENTIFIER = "https://json.schemastore.org/mtformer.json"
"""Address that the schema would have in the catalog."""
REFERENCE = "$ref"
"""Keyword of a reference to a definition."""


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of config files; keys that may be set in an extended file are optional."""
    schema = Config.model_json_schema()
    definitions = schema.pop("$defs")

    # These keys of files are not keys of the config.
    file_keys = {
        "format": {"const": FORMAT, "description": "Format of this file."},
        "extends": {"type": "string", "description": "Path of the config to extend, relative to this file."},
    }
    schema["properties"] = {**file_keys, **schema["properties"]}

    # Without this, editors accept names of sets with other characters.
    data_keys = definitions["DataConfig"]["properties"]
    data_keys["test"]["additionalProperties"] = False
    named_dev_sets = data_keys["dev"]["oneOf"][1]
    named_dev_sets["additionalProperties"] = False

    # Only sources keep their required keys, which tell their types apart.
    for section in (schema, *definitions.values()):
        keys = section.get("properties", {}).keys()
        if keys.isdisjoint(SOURCES):
            section.pop("required", None)

    head = {"$schema": DRAFT, "$id": IDENTIFIER}
    head["title"] = "mtformer experiment"
    head["description"] = "Training of a translation model with mtformer"
    return _in_draft_7({**schema, **head, "definitions": definitions})


def _in_draft_7(value: Any) -> Any:
    """Return a part of a schema with the keywords of draft 7."""
    if isinstance(value, list):
        return [_in_draft_7(item) for item in value]
    if not isinstance(value, dict):
        return value

    converted = {key: _in_draft_7(item) for key, item in value.items()}
    reference = converted.pop(REFERENCE, None)
    if reference is not None:
        target = {REFERENCE: reference.replace("#/$defs/", "#/definitions/")}
        converted = {"allOf": [target], **converted} if converted else target
    if "prefixItems" in converted:
        converted["items"] = converted.pop("prefixItems")
    return converted

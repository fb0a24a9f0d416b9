"""Reverse the direction of a config: languages, both sides of all sources, and the tokenizers of both sides."""

from typing import Any

from mtformer.config.data import TsvFile
from mtformer.config.schema import Config
from mtformer.config.section import Section
from mtformer.errors import ConfigError

LANGUAGE_SPECIFIC = ("zh", "ja-mecab", "ko-mecab")
"""Values of `evaluation.bleu_tokenizer` that are for one target language."""
OPPOSITES = {"src": "tgt", "tgt": "src"}
"""Sides by the start of the names of their keys, as in `src`, `src_lang` and `src_model`."""


def reversed_values(config: Config) -> dict[str, Any]:
    """Return the values that a config sets, with source and target exchanged, as the sections of a file.

    Raise ConfigError for a config that fine-tunes a model, which has a direction.
    """
    if config.training.init_from is not None:
        raise ConfigError("training.init_from names a model of the direction of this config; remove it first")

    values: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    values["data"] = _swapped(config.data)
    pairs = config.data.language_pairs
    if pairs:
        values["data"]["language_pairs"] = [" ".join(reversed(pair.split())) for pair in pairs]
    if not config.tokenizer.joint:
        values["tokenizer"] = _swapped(config.tokenizer)
    if config.evaluation.bleu_tokenizer in LANGUAGE_SPECIFIC:
        values["evaluation"]["bleu_tokenizer"] = "auto"

    # The name of a direction is part of the name of a metric, as in `bleu en-de`.
    new_names = Config.model_validate(values | {"training": {}}).data.dev_names
    name_of = dict(zip(config.data.dev_names, new_names, strict=True))
    metric, _, dev_name = config.training.best_metric.partition(" ")
    if dev_name:
        values["training"]["best_metric"] = f"{metric} {name_of[dev_name]}"
    return values


def _swapped(value: Any) -> Any:
    """Return the keys that are set in a section, with the keys of both sides exchanged; recursively."""
    if isinstance(value, dict):
        return {name: _swapped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_swapped(item) for item in value]
    if not isinstance(value, Section):
        return value

    keys = value.model_fields_set
    if isinstance(value, TsvFile):
        keys = keys | {"src_column", "tgt_column"}  # their defaults are different columns
    swapped: dict[str, Any] = {}
    for key in type(value).model_fields:
        opposite = _opposite(key)
        if opposite in keys:
            swapped[key] = _swapped(getattr(value, opposite))
    return swapped


def _opposite(key: str) -> str:
    """Return the key of the other side; a key of both sides is its own opposite."""
    side, underscore, rest = key.partition("_")
    return f"{OPPOSITES.get(side, side)}{underscore}{rest}"

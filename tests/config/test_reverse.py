"""The opposite direction of a config."""

from pathlib import Path
from typing import Any

import pytest

from mtformer.config.loading import config_diff, load_config
from mtformer.config.reverse import reversed_values
from mtformer.config.schema import Config
from mtformer.errors import ConfigError

CONFIGS = sorted((Path(__file__).resolve().parents[2] / "configs").glob("*.yaml"))


def reverse(values: dict[str, Any]) -> dict[str, Any]:
    languages = {"src_lang": "ja", "tgt_lang": "en"}
    config = Config.model_validate({**values, "data": {**languages, **values.get("data", {})}})
    reversed_config = reversed_values(config)
    Config.model_validate(reversed_config)
    return reversed_config


@pytest.mark.parametrize(("source", "expected"), [
    ({"src": "a.ja", "tgt": "a.en"}, {"src": "a.en", "tgt": "a.ja"}),
    ({"tsv": "a.tsv"}, {"tsv": "a.tsv", "src_column": 2, "tgt_column": 1}),
    ({"tsv": "a.tsv", "src_column": 4}, {"tsv": "a.tsv", "src_column": 2, "tgt_column": 4}),
    ({"jsonl": "a.jsonl"}, {"jsonl": "a.jsonl"}),
    ({"jsonl": "a.jsonl", "src_field": "x.y"}, {"jsonl": "a.jsonl", "tgt_field": "x.y"}),
    ({"dataset": "name", "src_lang": "ko", "split": "dev"}, {"dataset": "name", "tgt_lang": "ko", "split": "dev"}),
])  # fmt: skip
def test_both_sides_of_a_source_are_exchanged(source: dict[str, Any], expected: dict[str, Any]) -> None:
    tags = {"language_tags": "source"}
    sets = {"train": [source], "dev": {"x": source}, "test": {"tgt": source}, "corpora": {"x": {"sources": [source]}}}
    data = reverse({"data": {**sets, **tags}})["data"]
    assert (data["src_lang"], data["tgt_lang"]) == ("en", "ja")
    assert data["train"] == [expected]
    assert data["dev"] == {"x": expected}
    assert data["test"] == {"tgt": expected}, "names of sets stay"
    assert data["corpora"] == {"x": {"sources": [expected]}}


def test_tokenizers_of_both_sides_are_exchanged_unless_there_is_one() -> None:
    separate = reverse({"tokenizer": {"joint": False, "src_model": "ja.model"}, "model": {"tie_embeddings": "none"}})
    assert separate["tokenizer"] == {"joint": False, "tgt_model": "ja.model"}
    joint = reverse({"tokenizer": {"src_model": "both.model"}})
    assert joint["tokenizer"] == {"src_model": "both.model"}


def test_what_is_for_one_target_language_is_reset_and_directions_are_renamed() -> None:
    values = {
        "data": {
            "language_pairs": ["ko en"],
            "language_tags": "source",
            "dev": [{"src": "a", "tgt": "b"}, {"src": "c", "tgt": "d", "src_lang": "ko"}],
        },
        "training": {"best_metric": "bleu ko-en", "seed": 3},
        "evaluation": {"bleu_tokenizer": "ja-mecab"},
    }
    reversed_config = reverse(values)
    assert reversed_config["data"]["language_pairs"] == ["en ko"]
    assert reversed_config["training"] == {"best_metric": "bleu en-ko", "seed": 3}
    assert reversed_config["evaluation"] == {"bleu_tokenizer": "auto"}
    assert reverse({"evaluation": {"bleu_tokenizer": "none"}})["evaluation"] == {"bleu_tokenizer": "none"}


def test_a_config_that_fine_tunes_a_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^training\.init_from names a model of the direction of this config"):
        reverse({"training": {"init_from": "runs/ja_en"}})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_that_is_reversed_twice_is_the_same(path: Path) -> None:
    config = load_config(path).config
    once = Config.model_validate(reversed_values(config))
    assert once.data.src_lang == config.data.tgt_lang
    assert config_diff(config, Config.model_validate(reversed_values(once))) == []

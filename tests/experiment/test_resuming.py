"""Tests of resuming with differences: they are logged as old -> new, or rejected if the weights depend on them."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from mtformer.config.schema import Config
from mtformer.errors import CheckpointError
from mtformer.experiment.resume import INEXACT, compare_configs, compare_environments
from mtformer.run_dir import RunDir

RUN = RunDir("runs/x")
BASE: dict[str, Any] = {
    "data": {"src_lang": "en", "tgt_lang": "de", "train": [{"src": "a.en", "tgt": "a.de"}]},
    "model": {},
    "tokenizer": {},
    "training": {"schedule": "inverse_sqrt"},
    "decoding": {},
    "evaluation": {},
}


def config(**changes: object) -> Config:
    """Return the base config with other values at dotted keys, given as section__key."""
    tree = {name: dict(section) for name, section in BASE.items()}
    for key, value in changes.items():
        section, name = key.split("__")
        tree[section][name] = value
    return Config.model_validate(tree)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[Config, Config], list[str]]:
    """Return a function that compares two configs and returns the warnings."""

    def compare(old: Config, new: Config) -> list[str]:
        caplog.clear()
        compare_configs(RUN, old, new)
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    return compare


Warnings = Callable[[Config, Config], list[str]]


@pytest.mark.parametrize(
    ("change", "line", "note"),
    [
        ({"training__max_steps": 7}, "training.max_steps 100000 -> 7", ""),
        ({"training__keep_last": 2}, "training.keep_last 5 -> 2", ""),
        ({"training__patience": 3}, "training.patience None -> 3", ""),
        ({"decoding__beam_size": 2}, "decoding.beam_size 5 -> 2", ""),
        ({"data__cache_dir": "/x"}, "data.cache_dir None -> '/x'", ""),
        ({"data__train": [{"src": "b.en", "tgt": "a.de"}]}, "data.train.0.src 'a.en' -> 'b.en'", ""),
        ({"training__max_minutes": 9.0}, "training.max_minutes None -> 9.0", INEXACT),
        ({"training__seed": 2}, "training.seed 1 -> 2", INEXACT),
        ({"training__eps": 1e-8}, "training.eps 1e-09 -> 1e-08", INEXACT),
        ({"training__compile": "never"}, "training.compile 'auto' -> 'never'", INEXACT),
        ({"model__dropout": 0.3}, "model.dropout 0.1 -> 0.3", INEXACT),
    ],
)
def test_differences_are_logged(change: dict[str, object], line: str, note: str, warnings: Warnings) -> None:
    assert warnings(config(), config(**change)) == [f"resuming with {line}{note}"]
    assert warnings(config(**change), config(**change)) == []


def test_more_steps_make_a_resumed_run_inexact_if_the_schedule_depends_on_them(warnings: Warnings) -> None:
    for schedule, note in (("cosine", INEXACT), ("linear", INEXACT), ("constant", ""), ("noam", "")):
        old, new = (config(training__schedule=schedule, training__max_steps=steps) for steps in (10, 20))
        assert warnings(old, new) == [f"resuming with training.max_steps 10 -> 20{note}"]


@pytest.mark.parametrize(
    "change",
    [
        {"model__d_model": 256},
        {"model__activation": "gelu"},
        {"tokenizer__vocab_size": 100},
        {"training__optimizer": "adamw"},
        {"data__tgt_lang": "fr"},
    ],
)
def test_changes_that_the_weights_depend_on_are_rejected(change: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=r"runs/x: cannot resume with .* -> .*; restore the old value, .*--over"):
        compare_configs(RUN, config(), config(**change))


HERE = {
    "training data": "aa",
    "dev data": None,
    "tokenizer": "cc",
    "processes": 1,
    "device": "cpu, AVX2, 2 threads",
    "precision": "fp32",
    "dev BLEU tokenizers": {"zh-CN": "13a"},
    "mtformer": "1.0",
    "torch": "2.13",
    "sentencepiece": "0.2.1",
}


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("training data", "ab", "training data aa -> ab"),
        ("dev data", "bb", "dev data None -> bb"),
        ("processes", 4, "processes 1 -> 4"),
        ("device", "cuda, NVIDIA H200", "device cpu, AVX2, 2 threads -> cuda, NVIDIA H200"),
        ("precision", "bf16", "precision fp32 -> bf16"),
        ("mtformer", "1.1", "mtformer 1.0 -> 1.1"),
        ("torch", "2.14", "torch 2.13 -> 2.14"),
        ("sentencepiece", "0.2.2", "sentencepiece 0.2.1 -> 0.2.2"),
        ("dev BLEU tokenizers", {"zh-CN": "zh"}, "dev BLEU tokenizers {'zh-CN': '13a'} -> {'zh-CN': 'zh'}"),
        ("dev BLEU tokenizers", {}, "dev BLEU tokenizers {'zh-CN': '13a'} -> {}"),
    ],
)
def test_environment_differences_are_logged(
    name: str, value: object, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    compare_environments(RUN, HERE, dict(HERE))
    assert caplog.messages == []
    compare_environments(RUN, HERE, {**HERE, name: value})
    assert caplog.messages == [f"resuming with {line}{INEXACT}"]


def test_a_different_tokenizer_is_rejected() -> None:
    message = r"runs/x/tokenizer: differs from .* \(SHA-256 cc -> dd\); restore that tokenizer"
    with pytest.raises(CheckpointError, match=message):
        compare_environments(RUN, HERE, {**HERE, "tokenizer": "dd"})

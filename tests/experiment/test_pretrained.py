"""Tests of `training.init_from`: a run initialized from another one."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from small_experiment import make_config, train, write_corpus

from mtformer.config.loading import load_config
from mtformer.config.schema import Config
from mtformer.errors import CheckpointError, ConfigError, InterruptedRunError
from mtformer.experiment.preflight import dry_run
from mtformer.experiment.prepare import load_pretrained
from mtformer.experiment.verify import StopAt
from mtformer.export.bundle import export
from mtformer.run_dir import WEIGHTS, RunDir, write_config
from mtformer.text.tokenizer import TokenizerPair
from mtformer.weights import read_weights


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), train=200)


class KillAt(StopAt):
    """Progress reporter that ends training at a step, without saving a checkpoint."""

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        if step == self.step:
            raise InterruptedRunError(step, 0)


def small(corpus: Path, **changes: dict[str, Any]) -> Config:
    training = {"validate_every": 2, **changes.pop("training", {})}
    return make_config(corpus, data={"dev": []}, training=training, **changes)


@pytest.fixture(scope="module")
def base(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a finished run, which tests must not modify."""
    run = RunDir(tmp_path_factory.mktemp("base") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        train(small(corpus), run)
    return run


def weights(run: RunDir, step: int) -> dict[str, torch.Tensor]:
    return read_weights(run.checkpoint(step) / WEIGHTS)


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def other_corpus(corpus: Path, folder: Path) -> Path:
    """Write lines from which a different tokenizer would be trained, and return their folder."""
    folder.mkdir()
    for name in ("train.en", "train.de"):
        lines = (corpus / name).read_text(encoding="utf-8").splitlines()[100:]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", ["run", "bundle"])
def test_a_run_starts_with_the_weights_and_tokenizer_of_init_from(
    kind: str, base: RunDir, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After one step with learning rate 0 the weights still equal those of the other run."""
    if kind == "bundle":
        export(base, tmp_path / "bundle")
    start = tmp_path / "bundle" if kind == "bundle" else base.path
    run, corpus = RunDir(tmp_path / "run"), other_corpus(corpus, tmp_path / "corpus")
    still = {"init_from": str(start), "max_steps": 1, "learning_rate": 1e-30, "warmup_steps": 0}
    with caplog.at_level(logging.INFO, "mtformer"):
        train(small(corpus, training=still), run)
    assert_same(weights(run, 1), weights(base, 4))
    assert [path.read_bytes() for path in run.tokenizer.iterdir()] == [
        path.read_bytes() for path in base.tokenizer.iterdir()
    ]
    path = start / WEIGHTS if kind == "bundle" else base.checkpoint(4) / WEIGHTS
    assert f"initializing the weights from {path}" in caplog.messages


def test_an_initialized_run_can_be_resumed(base: RunDir, corpus: Path, tmp_path: Path) -> None:
    """It can be resumed even before its first checkpoint; after that checkpoint, the other run is no longer needed."""
    start = Path(shutil.copytree(base.path, tmp_path / "start"))
    config = small(corpus, training={"init_from": str(start)})
    whole, halves = RunDir(tmp_path / "whole"), RunDir(tmp_path / "halves")
    train(config, whole)
    with pytest.raises(InterruptedRunError):
        train(config, halves, progress=KillAt(1))
    assert halves.steps() == []
    with pytest.raises(InterruptedRunError):
        train(config, halves, resume=True, progress=KillAt(3))
    assert halves.steps() == [2]
    shutil.rmtree(start)
    train(config, halves, resume=True)
    assert_same(weights(whole, 4), weights(halves, 4))
    with pytest.raises(CheckpointError, match=r"cannot resume with training.init_from .*, since the saved weights"):
        train(small(corpus), halves, resume=True)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model": {"d_ff": 64}}, r".*/run has model\.d_ff 32 \(here 64\); leave these"),
        ({"model": {"num_heads": 4}}, r".*/run has model\.num_heads 2 \(here 4\); leave these"),
        ({"model": {"output_bias": True}}, r".*/run has model\.output_bias False \(here True\); leave these"),
        (
            {"model": {"tie_embeddings": "output"}, "tokenizer": {"joint": False}},
            r".* 'all' \(here 'output'\), tokenizer\.joint ",
        ),
        (
            {"tokenizer": {"vocab_size": 300, "model_type": "bpe"}},
            r".* has tokenizer\.model_type 'unigram' \(here 'bpe'\), "
            r"tokenizer\.vocab_size 200 \(here 300\); leave these keys out",
        ),
        (
            {"tokenizer": {"user_symbols": ["<x>"]}, "model": {"d_ff": 64}},
            r".*d_ff 32 \(here 64\), tokenizer\.user_sym",
        ),
    ],
)
def test_different_model_settings_raise_config_error(
    changes: dict[str, dict[str, Any]], line: str, base: RunDir, corpus: Path, tmp_path: Path
) -> None:
    config = small(corpus, **changes, training={"init_from": str(base.path)})
    with pytest.raises(ConfigError, match=rf"^training\.init_from: {line}[^\n]*$"):
        train(config, RunDir(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_settings_that_are_not_given_are_taken_from_the_other_run(base: RunDir, corpus: Path, tmp_path: Path) -> None:
    given = {"data": small(corpus).data.model_dump(exclude_defaults=True), "training": {"init_from": str(base.path)}}
    (tmp_path / "new.yaml").write_text(yaml.safe_dump({**given, "model": {"dropout": 0.3}}), encoding="utf-8")
    loaded, its = load_config(tmp_path / "new.yaml"), load_config(base.config).config
    assert loaded.config.model == its.model.model_copy(update={"dropout": 0.3})
    assert loaded.config.tokenizer == its.tokenizer
    assert str(loaded.origins["model.d_model"]).startswith(str(base.config))
    config = load_config(tmp_path / "new.yaml", ["training.max_steps=1"]).config
    assert train(config, RunDir(tmp_path / "new")).position.step == 1


def test_a_different_kind_of_tokenizer_raises_config_error(base: RunDir, corpus: Path, tmp_path: Path) -> None:
    start = RunDir(shutil.copytree(base.path, tmp_path / "start"))
    text = start.config.read_text(encoding="utf-8")
    write_config(start, text.replace("tie_embeddings: all", "tie_embeddings: output"))
    changes = {"model": {"tie_embeddings": "output"}, "tokenizer": {"joint": False}}
    config = small(corpus, **changes, training={"init_from": str(start.path)})
    with pytest.raises(ConfigError, match=r"^training\.init_from: .*/start has tokenizer\.joint True \(here False\); "):
        train(config, RunDir(tmp_path / "new"))


def test_dropout_and_computed_positions_may_differ(base: RunDir, corpus: Path, tmp_path: Path) -> None:
    model = {
        "dropout": 0.3,
        "attention_dropout": 0.1,
        "activation_dropout": 0.1,
        "layer_drop": 0.1,
        "max_positions": 400,
    }
    config = small(corpus, model=model, training={"init_from": str(base.path), "max_steps": 1})
    assert train(config, RunDir(tmp_path / "new")).position.step == 1


def test_a_folder_that_is_not_a_run_raises_config_error(corpus: Path, tmp_path: Path) -> None:
    config = small(corpus, training={"init_from": str(tmp_path)})
    for start in (lambda: train(config, RunDir(tmp_path / "new")), lambda: dry_run(config, RunDir(tmp_path / "new"))):
        with pytest.raises(ConfigError, match=r"^training\.init_from: .*: not a run directory or bundle"):
            start()


def test_weights_and_tokenizer_are_from_the_same_run(base: RunDir, corpus: Path, tmp_path: Path) -> None:
    """The run is stopped before its first checkpoint, and then the tokenizer of the other run changes."""
    start = Path(shutil.copytree(base.path, tmp_path / "start"))
    config, run = small(corpus, training={"init_from": str(start)}), RunDir(tmp_path / "run")
    with pytest.raises(InterruptedRunError):
        train(config, run, progress=KillAt(1))
    other = RunDir(tmp_path / "other")
    train(small(other_corpus(corpus, tmp_path / "corpus"), training={"max_steps": 1}), other)
    shutil.rmtree(start / "tokenizer")
    shutil.copytree(other.tokenizer, start / "tokenizer")
    write_config(RunDir(start), RunDir(start).config.read_text(encoding="utf-8"))
    step: Any = None  # not used
    message = r"the tokenizer of .*/start differs from the tokenizer of this run; start over with --overwrite"
    with pytest.raises(ConfigError, match=message):
        load_pretrained(config, TokenizerPair.load(base.tokenizer), step)
    train(config, run, resume=True)
    assert TokenizerPair.load(run.tokenizer).src.sha256 == TokenizerPair.load(other.tokenizer).src.sha256


def test_init_from_cannot_be_combined_with_a_tokenizer_model(corpus: Path, base: RunDir) -> None:
    with pytest.raises(ValueError, match=r"training\.init_from provides the tokenizer"):
        small(corpus, tokenizer={"src_model": "x.model"}, training={"init_from": str(base.path)})


def test_a_relative_path_is_saved_as_an_absolute_one(
    base: RunDir, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(base.path.parent)
    train(small(corpus, training={"init_from": base.path.name, "max_steps": 1}), RunDir(tmp_path / "new"))
    assert load_config(tmp_path / "new" / "config.yaml").config.training.init_from == str(base.path)

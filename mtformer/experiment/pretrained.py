"""`training.init_from`: start a run with the tokenizer and the weights of another one."""

import logging
from typing import Any

from mtformer.config.fields import key_metadata
from mtformer.config.loading import load_config
from mtformer.config.schema import Config, ModelConfig
from mtformer.decoding.weights import find_weights
from mtformer.errors import CheckpointError, ConfigError
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import TokenizerPair
from mtformer.training.step import TrainingStep

log = logging.getLogger("mtformer")


def pretrained_tokenizers(config: Config) -> TokenizerPair:
    """Return the tokenizers of the run that `training.init_from` names.

    Raises:
        ConfigError: if there is no such run, or its model has another shape than the config.
    """
    base, its = _open(config)
    for key, there, here in _differences(its.model, config.model):
        raise ConfigError(
            f"training.init_from: model.{key} is {there!r} in {base.path} and {here!r} here; use the same"
        )
    tokenizers = TokenizerPair.load(base.tokenizer)
    if tokenizers.joint != config.tokenizer.joint:
        raise ConfigError(
            f"training.init_from: {base.path} needs tokenizer.joint: {str(tokenizers.joint).lower()}; set it so"
        )
    return tokenizers


def load_pretrained(config: Config, tokenizers: TokenizerPair, step: TrainingStep) -> None:
    """Load the weights of the run that `training.init_from` names into a new model.

    Raises:
        ConfigError: if there is no such run, or its tokenizer is not that of this run.
        CheckpointError: if its weights are missing, damaged, or of another shape.
    """
    base, its = _open(config)
    theirs = TokenizerPair.load(base.tokenizer)
    if (theirs.src.sha256, theirs.tgt.sha256) != (tokenizers.src.sha256, tokenizers.tgt.sha256):
        raise ConfigError(
            f"training.init_from: the tokenizer of {base.path} is not the one that this run has; start over with "
            "--overwrite"
        )
    [path] = find_weights(base, None, its.training.best_metric)
    step.load_weights(path)
    log.info("starting with the weights of %s", path)


def _open(config: Config) -> tuple[RunDir, Config]:
    """Return the run and its config."""
    assert config.training.init_from is not None
    try:
        base = RunDir.open(config.training.init_from)
    except CheckpointError as error:
        raise ConfigError(f"training.init_from: {error}") from error
    return base, load_config(base.config).config


def _differences(theirs: ModelConfig, own: ModelConfig) -> list[tuple[str, Any, Any]]:
    """Return (key, their value, own value) of the settings that weights depend on."""
    there, here = theirs.model_dump(), own.model_dump()
    different = [key for key in there if there[key] != here[key] and key_metadata(f"model.{key}").on_resume == "refuse"]
    if own.positions != "learned":  # computed positions have no weights
        different = [key for key in different if key != "max_positions"]
    return [(key, there[key], here[key]) for key in different]

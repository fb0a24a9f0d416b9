"""Support for `training.init_from`: start a run with the tokenizer and the weights of another run."""

import logging

from mtformer.config.fields import key_metadata
from mtformer.config.loading import load_config
from mtformer.config.schema import Config
from mtformer.decoding.weights import find_weights
from mtformer.errors import CheckpointError, ConfigError
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import TokenizerPair
from mtformer.training.step import TrainingStep

log = logging.getLogger("mtformer")


def pretrained_tokenizers(config: Config) -> TokenizerPair:
    """Return the tokenizers of the run given by `training.init_from`.

    Raises:
        ConfigError: if the run does not exist, or its model or tokenizer settings differ from the config.
    """
    base, its = _open(config)
    if different := _differences(its, config):
        raise ConfigError(f"training.init_from: {base.path} has {', '.join(different)}; leave these keys out")
    return TokenizerPair.load(base.tokenizer)


def load_pretrained(config: Config, tokenizers: TokenizerPair, step: TrainingStep) -> None:
    """Load the weights of the run given by `training.init_from` into a new model.

    Raises:
        ConfigError: if the run does not exist, or its tokenizer differs from the current one.
        CheckpointError: if its weights are missing, damaged, or have different shapes.
    """
    base, its = _open(config)
    theirs = TokenizerPair.load(base.tokenizer)
    if (theirs.src.sha256, theirs.tgt.sha256) != (tokenizers.src.sha256, tokenizers.tgt.sha256):
        raise ConfigError(
            f"training.init_from: the tokenizer of {base.path} differs from the tokenizer of this run; start over with "
            "--overwrite"
        )
    [path] = find_weights(base, None, its.training.best_metric)
    step.load_weights(path)
    log.info("initializing the weights from %s", path)


def _open(config: Config) -> tuple[RunDir, Config]:
    """Return the run and its config."""
    assert config.training.init_from is not None
    try:
        base = RunDir.open(config.training.init_from)
    except CheckpointError as error:
        raise ConfigError(f"training.init_from: {error}") from error
    return base, load_config(base.config).config


def _differences(theirs: Config, own: Config) -> list[str]:
    """Return a description of each differing setting that weights or tokenizers depend on."""
    ignored = {"tokenizer.src_model", "tokenizer.tgt_model"}  # the model is copied, so its path does not matter
    if own.model.positions != "learned":  # other positions have no weights
        ignored.add("model.max_positions")
    values = [
        (f"{section}.{key}", there, getattr(getattr(own, section), key))
        for section in ("model", "tokenizer")
        for key, there in getattr(theirs, section)
    ]
    return [
        f"{key} {there!r} (here {here!r})"
        for key, there, here in values
        if there != here and key not in ignored and key_metadata(key).on_resume == "refuse"
    ]

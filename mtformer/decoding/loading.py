"""Loading runs, bundles and CTranslate2 exports for a `Translator`."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mtformer.config.data import DataConfig
from mtformer.config.loading import load_config
from mtformer.config.schema import DecodingConfig
from mtformer.decoding.ctranslate2_engine import import_ctranslate2, open_model, unsupported
from mtformer.decoding.ctranslate2_model import cached_model
from mtformer.decoding.engine import Engine, OwnEngine
from mtformer.decoding.inference import InferenceModel
from mtformer.decoding.weights import find_weights
from mtformer.device import pick_device, pick_search_precision, set_up_memory
from mtformer.errors import CheckpointError, ConfigError
from mtformer.files import read_json
from mtformer.model.transformer import Transformer
from mtformer.run_dir import CT2_WEIGHTS, MULTI_SENTENCE_SHARE, RunDir
from mtformer.text.tokenizer import TokenizerPair
from mtformer.weights import load_weights

BACKENDS = ("mtformer", "ctranslate2")


class Loaded(NamedTuple):
    """Arguments of `Translator`, in order; the settings come from the first run."""

    engine: Engine
    tokenizers: TokenizerPair
    decoding: DecodingConfig
    trained_tokens: int
    multi_sentence_share: float | None
    weights: list[Path]
    data: DataConfig


def load(
    paths: Sequence[Path],
    checkpoints: Sequence[str | None],
    device: str = "auto",
    precision: str | None = None,
    backend: str | None = None,
) -> Loaded:
    """Load one model, or several as an ensemble. For arguments and errors see `Translator.load`."""
    runs = [RunDir.open(path) for path in paths]
    if backend not in (None, *BACKENDS):
        raise ConfigError(f"backend '{backend}': unknown backend; use {' or '.join(BACKENDS)}")
    is_int8_on_cpu = precision == "int8" and pick_device(device).type == "cpu"
    if backend is None and (is_int8_on_cpu or any(map(_is_export, runs))):
        backend = "ctranslate2"
    if backend == "ctranslate2":
        if len(runs) * len(checkpoints) > 1:
            raise ConfigError("CTranslate2 supports only one model at a time; give one run and one checkpoint")
        return _load_ctranslate2(runs[0], checkpoints[0], device, precision)
    return _load_own(runs, checkpoints, device, precision)


def _is_export(run: RunDir) -> bool:
    return (run.path / CT2_WEIGHTS).is_file()


def _load_own(
    runs: Sequence[RunDir], checkpoints: Sequence[str | None], device_name: str, precision: str | None
) -> Loaded:
    device = pick_device(device_name)
    if device.type == "cpu":
        set_up_memory()
    precision = pick_search_precision(precision, device)
    configs = [load_config(run.config).config for run in runs]
    tokenizers = TokenizerPair.load(runs[0].tokenizer)
    models, weights = [], []
    for run, config in zip(runs, configs, strict=True):
        theirs = TokenizerPair.load(run.tokenizer)
        if (theirs.src.sha256, theirs.tgt.sha256) != (tokenizers.src.sha256, tokenizers.tgt.sha256):
            raise CheckpointError(
                f"{run.path}: its tokenizer differs from that of {runs[0].path}; an ensemble needs identical tokenizers"
            )
        for checkpoint in checkpoints:
            paths = find_weights(run, checkpoint, config.training.best_metric)
            model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
            load_weights(model, *paths)
            models.append(InferenceModel.prepare(model, device, precision))
            weights += paths
    trained_tokens = min(config.data.filters.max_tokens for config in configs)
    first = configs[0]
    share = min(multi_sentence_share(run) or 0.0 for run in runs)
    return Loaded(OwnEngine(models, precision), tokenizers, first.decoding, trained_tokens, share, weights, first.data)


def _load_ctranslate2(run: RunDir, checkpoint: str | None, device: str, precision: str | None) -> Loaded:
    """Load an export, or a run or bundle, which is converted on first use."""
    import_ctranslate2()
    config, tokenizers = load_config(run.config).config, TokenizerPair.load(run.tokenizer)
    if config.data.language_tags == "target":
        raise unsupported("data.language_tags 'target'")
    if _is_export(run):
        if checkpoint is not None:
            raise ConfigError(f"{run.path}: a CTranslate2 export has one set of weights; leave --checkpoint out")
        folder, weights = run.path, [run.path / CT2_WEIGHTS]
    else:
        weights = find_weights(run, checkpoint, config.training.best_metric)
        folder = cached_model(weights, config.model, tokenizers)
    engine = open_model(folder, tokenizers, config.model.max_positions, device, precision)
    trained_tokens, share = config.data.filters.max_tokens, multi_sentence_share(run)
    return Loaded(engine, tokenizers, config.decoding, trained_tokens, share, weights, config.data)


def multi_sentence_share(run: RunDir) -> float | None:
    """Return the share of the model's training lines that have several sentences, or None if unknown."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(read_json(run.data_report)[MULTI_SENTENCE_SHARE])
    return None

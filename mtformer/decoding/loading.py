"""Loading of the models of runs, bundles and exports for a `Translator`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mtformer.config.schema import Config
from mtformer.config.section import CTRANSLATE2
from mtformer.config.support import require_export
from mtformer.decoding.ctranslate2.conversion import cached_model
from mtformer.decoding.ctranslate2.loading import open_model
from mtformer.decoding.search.engine import Engine
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.transformer_engine import TransformerEngine
from mtformer.decoding.weights import find_weights, verified_weights
from mtformer.device import pick_device, pick_search_precision, set_up_memory
from mtformer.errors import CheckpointError, ConfigError, log
from mtformer.files import CHECKSUMS, read_json, read_meta, unsealed
from mtformer.model.transformer import Transformer
from mtformer.run_dir import CT2_WEIGHTS, MULTI_SENTENCE_SHARE, TEXT_STYLE, RunDir
from mtformer.text.style import TrainingStyle
from mtformer.text.tags import with_tags
from mtformer.text.tokenizer import TokenizerPair
from mtformer.weights import load_weights

_warn_once = cache(log.warning)


@dataclass(frozen=True)
class Member:
    """A run, its config and a checkpoint; several form an ensemble."""

    run: RunDir
    config: Config
    checkpoint: str | None


@dataclass(frozen=True)
class LoadedEngine:
    """An engine, and the files from which its models were loaded."""

    engine: Engine
    weights: list[Path]
    weight_hashes: list[str]
    """SHA-256 of the files when they were loaded."""


def load_transformers(
    members: Sequence[Member], tokenizers: TokenizerPair, device_name: str, precision_name: str | None
) -> LoadedEngine:
    """Load the models of runs or bundles for our own search.

    Args:
        members: what to load; several form an ensemble.
        tokenizers: tokenizers of the first member, which the others must have too.
        device_name: see `Translator.load`.
        precision_name: see `Translator.load`.

    Raise CheckpointError or ConfigError if the members differ in their tokenizers or languages.
    """
    set_up_memory()
    device = pick_device(device_name)
    precision = pick_search_precision(precision_name, device)

    models = []
    weights: list[Path] = []
    weight_hashes: list[str] = []
    for member in members:
        _require_same_languages(member, members[0], tokenizers)
        paths = find_weights(member.run, member.checkpoint, member.config.training.best_metric)
        model = Transformer(member.config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
        with verified_weights(member.run, paths) as hashes:
            load_weights(model, *paths)
        models.append(InferenceModel.prepare(model, device, precision))
        weights += paths
        weight_hashes += hashes
    return LoadedEngine(TransformerEngine(models, precision), weights, weight_hashes)


def _require_same_languages(member: Member, first: Member, tokenizers: TokenizerPair) -> None:
    """Raise CheckpointError or ConfigError if a member cannot form an ensemble with the first one."""
    data = member.config.data
    first_data = first.config.data
    own_tokenizers = with_tags(TokenizerPair.load(member.run.tokenizer), data)
    if not own_tokenizers.equals(tokenizers):
        problem = f"its tokenizer differs from that of {first.run.path}"
        raise CheckpointError(
            f"{member.run.path}: {problem}; an ensemble needs identical tokenizers, so leave one of them out"
        )

    has_same_tags = data.language_tags == first_data.language_tags
    if not has_same_tags or data.directions != first_data.directions:
        problem = f"translates other languages, or has other tags, than {first.run.path}"
        raise ConfigError(
            f"{member.run.path}: {problem}; an ensemble needs models of the same languages, so leave one of them out"
        )


def load_ctranslate2(
    members: Sequence[Member], tokenizers: TokenizerPair, device: str, precision: str | None
) -> LoadedEngine:
    """Load an export for CTranslate2, or a run or bundle, which is converted on first use.

    Args:
        members: what to load, which must be a single member.
        tokenizers: tokenizers of the member.
        device: see `Translator.load`.
        precision: see `Translator.load`.

    Raise ConfigError for what CTranslate2 does not support.
    """
    if len(members) > 1:
        raise ConfigError("CTranslate2 supports only one model at a time; give one run and one checkpoint")
    [member] = members
    run = member.run
    require_export(member.config, CTRANSLATE2, alternative="use --backend mtformer")

    # An export.
    max_positions = member.config.model.max_positions
    exported_weights = run.path / CT2_WEIGHTS
    if exported_weights.is_file():
        if member.checkpoint is not None:
            raise ConfigError(f"{run.path}: a CTranslate2 export has one set of weights; leave --checkpoint out")
        engine = open_model(run.path, tokenizers, max_positions, device, precision)
        checksums = read_meta(run.path, CHECKSUMS)["sha256"]
        return LoadedEngine(engine, [exported_weights], [checksums[CT2_WEIGHTS]])

    # A run or bundle.
    weights = find_weights(run, member.checkpoint, member.config.training.best_metric)
    with verified_weights(run, weights) as weight_hashes:
        folder = cached_model(weights, member.config.model, tokenizers)
    engine = open_model(folder, tokenizers, max_positions, device, precision)
    return LoadedEngine(engine, weights, weight_hashes)


def from_data_report(run: RunDir, key: str) -> float | None:
    """Return a number in data_report.json, or None if it is unknown, with a warning if the file is damaged."""
    path = run.data_report
    try:
        number = float(unsealed(read_json(path))[key])
        if not 0 <= number < math.inf:
            raise ValueError(f"{key} is {number}")
        return number
    except KeyError:
        return None
    except FileNotFoundError:
        if not run.checkpoints.is_dir():  # a bundle or export may have none
            return None
        reason = "missing"
    except (OSError, ValueError, TypeError, OverflowError) as error:
        reason = f"damaged ({' '.join(str(error).split()):.80})"

    effect = f"the number '{key}' is unknown"
    if key == MULTI_SENTENCE_SHARE:
        effect = "lines with several sentences are split"
    _warn_once("%s: %s, so %s; restore it from a copy, or resume the run, which writes it again", path, reason, effect)
    return None


def style_of_training(run: RunDir) -> TrainingStyle | None:
    """Return the style of the training text in data_report.json, or None if it is unknown.

    For a missing or damaged file, `from_data_report` logs a warning.
    """
    try:
        return TrainingStyle.from_dict(unsealed(read_json(run.data_report))[TEXT_STYLE])
    except (OSError, LookupError, ValueError, TypeError, AttributeError):
        return None

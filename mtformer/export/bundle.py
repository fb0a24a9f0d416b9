"""Exports: bundles (weights, tokenizer, config), CTranslate2 and Hugging Face models, and Argos Translate packages.

Each export has a model card: README.md with the header of Hugging Face's model cards.
"""

import json
import shutil
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save

from mtformer.config import loading
from mtformer.config.schema import Config
from mtformer.config.section import ARGOS, CTRANSLATE2, HUGGINGFACE
from mtformer.config.support import require_export
from mtformer.decoding.ctranslate2.conversion import write_model
from mtformer.decoding.ctranslate2.loading import import_ctranslate2
from mtformer.decoding.lines.confidence import load_calibration
from mtformer.decoding.loading import from_data_report, style_of_training
from mtformer.decoding.weights import find_weights, is_adapted, is_default, verified_weights
from mtformer.errors import CheckpointError, ConfigError, explain_write_errors
from mtformer.export.argos import atomic_archive, write_argos
from mtformer.export.huggingface import write_huggingface
from mtformer.export.model_card import ExportDetails, model_card
from mtformer.export.vocabulary_map import write_vocabulary_map
from mtformer.files import atomic_folder, write_checksums
from mtformer.run_dir import CT2_VOCABULARY_MAP, MODEL_CARD, MULTI_SENTENCE_SHARE, TEXT_STYLE, RunDir
from mtformer.text.tags import with_tags
from mtformer.text.tokenizer import TokenizerPair
from mtformer.weights import average_weights

LIBRARIES = {"ctranslate2": CTRANSLATE2, "huggingface": HUGGINGFACE, "argos": ARGOS}
"""Library that loads each form of export except bundles, which support all settings."""
ADVICE = "choose another name with --output"
"""Remedy for a target that exists or cannot be written."""


@dataclass(frozen=True)
class _Model:
    """A model of a run."""

    run: RunDir
    config: Config
    tokenizers: TokenizerPair
    weights: list[Path]
    """Weight files; the model is their mean."""


def export(
    run: RunDir,
    target: Path,
    checkpoint: str | None = None,
    form: str = "bundle",
    quantization: str | None = None,
    vocabulary_map: bool = False,
) -> None:
    """Write a bundle, whose config has no file names, or a model for another library, with a model card.

    A CTranslate2 model gives the same translations; it has the tokenizer and config of the run. An `argos` package is a
    zip file for Argos Translate and LibreTranslate, which split text into sentences with their own model.

    Args:
        run: run directory, bundle or CTranslate2 export.
        target: folder to write, or file for `argos`.
        checkpoint: name of the checkpoint, see `find_weights`.
        form: `bundle`, `ctranslate2`, `huggingface` (see `write_huggingface`) or `argos`.
        quantization: type of the stored weights of `ctranslate2` and `argos`, such as `int8`; None: float32.
        vocabulary_map: make `ctranslate2` faster, with other translations of some lines.

    Raise CheckpointError if the target exists or the checkpoint does not, ConfigError if CTranslate2 is missing or the
    format does not support a setting, DataError if the target or the model card (see `model_card`) cannot be written.
    """
    if form not in ("bundle", *LIBRARIES):
        raise ConfigError(f"format '{form}': unknown format; use bundle, {', '.join(LIBRARIES)}")
    if target.exists():
        raise CheckpointError(f"{target}: already exists; {ADVICE}")
    if form in ("ctranslate2", "argos"):
        _require_quantization(quantization)

    config = loading.load_config(run.config).config
    if form in LIBRARIES:
        require_export(config, LIBRARIES[form], f"use {_supporting_formats(config)}")

    best_metric = config.training.best_metric
    weights = find_weights(run, checkpoint, best_metric)
    tokenizers = with_tags(TokenizerPair.load(run.tokenizer), config.data)
    model = _Model(run, config, tokenizers, weights)
    vocab_sizes = sorted({tokenizer.vocab_size for tokenizer in tokenizers})
    details = ExportDetails(form, target.name, vocab_sizes, quantization, vocabulary_map)
    card = model_card(run, config, weights, details)

    with (
        explain_write_errors(f"{target}:", ADVICE),
        _open_target(target, form, config) as folder,
        verified_weights(run, weights),
    ):
        _write_export(folder, model, form, quantization, vocabulary_map=vocabulary_map)
        if form == "bundle":
            write_checksums(folder, adapted=is_adapted(run, weights[0], best_metric))
        else:
            write_checksums(folder)
        (folder / MODEL_CARD).write_text(card, encoding="utf-8")  # has no checksum, because its owner completes it


def _supporting_formats(config: Config) -> str:
    """Return the formats that support all settings of a model, as options: `--format bundle or ctranslate2`."""
    formats = ["bundle"]
    for form, library in LIBRARIES.items():
        try:
            require_export(config, library, "")
        except ConfigError:
            continue
        formats.append(form)
    *first_formats, last_format = formats
    listed = f"{', '.join(first_formats)} or {last_format}" if first_formats else last_format
    return f"--format {listed}"


def _require_quantization(quantization: str | None) -> None:
    """Raise ConfigError if CTranslate2 is not installed, or does not support this type of weights."""
    ctranslate2 = import_ctranslate2()
    supported = ctranslate2.specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization not in (None, *supported):
        raise ConfigError(f"quantization '{quantization}': not supported by CTranslate2; use {', '.join(supported)}")


def _open_target(target: Path, form: str, config: Config) -> AbstractContextManager[Path]:
    """Return a context with a temporary folder that becomes the target."""
    if form == "argos":
        return atomic_archive(target, f"translate-{config.data.src_lang}_{config.data.tgt_lang}")
    return atomic_folder(target)


def _write_export(folder: Path, model: _Model, form: str, quantization: str | None, *, vocabulary_map: bool) -> None:
    """Write the files of an export except its checksums and model card."""
    config = model.config
    tokenizers = model.tokenizers
    weights = model.weights
    match form:
        case "argos":
            write_argos(folder, config, tokenizers, weights, quantization)
        case "huggingface":
            write_huggingface(folder, config, tokenizers, weights)
        case "ctranslate2":
            if vocabulary_map:
                write_vocabulary_map(model.run, config.data, tokenizers, folder)
            write_model(folder, weights, config.model, tokenizers, quantization)
            _write_companions(model, RunDir(folder))
        case _:
            bundle = RunDir(folder)
            bundle.bundle_weights.write_bytes(save(average_weights(weights)))
            _write_companions(model, bundle)


def _write_companions(model: _Model, target: RunDir) -> None:
    """Write everything but the weights: tokenizer, config without file names, confidence, number of sentences."""
    model.tokenizers.save(target.tokenizer)
    config = _config_of_export(model.config)
    target.config.write_text(loading.dump_config(config), encoding="utf-8")

    # The confidence is fitted to the scores of the default weights; a vocabulary map increases all probabilities.
    confidence = model.run.confidence
    has_default_weights = is_default(model.run, model.weights, model.config.training.best_metric)
    has_map = (target.path / CT2_VOCABULARY_MAP).exists()
    is_fitted = has_default_weights and not has_map
    if is_fitted and load_calibration(confidence) is not None:  # a damaged one is not copied
        shutil.copyfile(confidence, target.confidence)

    facts: dict[str, Any] = {}
    share = from_data_report(model.run, MULTI_SENTENCE_SHARE)
    if share is not None:
        facts[MULTI_SENTENCE_SHARE] = share
    style = style_of_training(model.run)
    if style is not None:
        facts[TEXT_STYLE] = style.to_dict()
    if facts:
        target.data_report.write_text(f"{json.dumps(facts)}\n", encoding="utf-8")


def _config_of_export(config: Config) -> Config:
    """Return the config without files, in which `data.language_pairs` lists the directions of the model."""
    more_directions = config.data.directions[1:]  # the first one is given by data.src_lang and data.tgt_lang
    language_pairs = [f"{src} {tgt}" for src, tgt in more_directions]
    without_files = loading.without_files(config)
    data = without_files.data.model_copy(update={"language_pairs": language_pairs, "both_directions": False})
    return without_files.model_copy(update={"data": data})

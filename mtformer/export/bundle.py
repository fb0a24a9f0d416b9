"""Export to formats that mtformer loads: bundles (weights, tokenizer, config) and CTranslate2 models."""

import json
import shutil
from pathlib import Path

from safetensors.torch import save

from mtformer.config.loading import dump_config, load_config, without_files
from mtformer.config.schema import Config
from mtformer.decoding.ctranslate2_engine import import_ctranslate2
from mtformer.decoding.ctranslate2_model import write_model
from mtformer.decoding.translator import multi_sentence_share
from mtformer.decoding.weights import find_weights
from mtformer.errors import CheckpointError, ConfigError, explain_write_errors
from mtformer.files import atomic_folder, write_checksums
from mtformer.run_dir import MULTI_SENTENCE_SHARE, RunDir
from mtformer.text.tokenizer import TokenizerPair
from mtformer.weights import average_weights


def export_bundle(run: RunDir, target: Path, checkpoint: str | None) -> None:
    """Write a bundle; its config does not include file names. For errors see `open_for_export`."""
    config, weights = open_for_export(run, target, checkpoint)
    with explain_write_errors(f"{target}:", "name another folder"), atomic_folder(target) as folder:
        inside = RunDir(folder)
        inside.bundle_weights.write_bytes(save(average_weights(weights)))
        write_companions(run, config, inside)
        write_checksums(folder)


def export_ctranslate2(run: RunDir, target: Path, checkpoint: str | None, quantization: str | None) -> None:
    """Write a CTranslate2 model that gives the same translations, with the tokenizer and config of the run.

    The type of the stored weights is float32, or `quantization`, such as `int8` or `float16`.

    Raises:
        CheckpointError: if the target exists, or the checkpoint does not exist.
        ConfigError: if CTranslate2 is not installed, or does not support a setting of the model.
    """
    kinds = import_ctranslate2().specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization is not None and quantization not in kinds:
        raise ConfigError(f"quantization '{quantization}': not supported by CTranslate2; use {', '.join(kinds)}")
    config, weights = open_for_export(run, target, checkpoint, "CTranslate2")
    with explain_write_errors(f"{target}:", "name another folder"), atomic_folder(target) as folder:
        write_model(folder, weights, config.model, TokenizerPair.load(run.tokenizer), quantization)
        write_companions(run, config, RunDir(folder))
        write_checksums(folder)


def open_for_export(
    run: RunDir, target: Path, checkpoint: str | None, library: str | None = None
) -> tuple[Config, list[Path]]:
    """Return the config, and the weight files whose mean is exported (see `find_weights`).

    `library` is the name of the library that will load the export; None if it supports several decoder start tokens.

    Raises:
        CheckpointError: if the target exists, or the checkpoint does not exist.
        ConfigError: if the start token of the decoder depends on the language, which the library does not support.
    """
    if target.exists():
        raise CheckpointError(f"{target}: already exists; choose another folder with --output")
    config = load_config(run.config).config
    if library is not None and config.data.language_tags == "target":
        raise ConfigError(f"data.language_tags 'target': not supported by {library}; train with 'source' to export")
    return config, find_weights(run, checkpoint, config.training.best_metric)


def write_companions(run: RunDir, config: Config, inside: RunDir) -> None:
    """Write everything but the weights: tokenizer, config without file names, share of multi-sentence lines."""
    languages = {"tgt_langs": config.data.target_languages[1:], "both_directions": False}
    data = without_files(config.data).model_copy(update=languages)
    inside.tokenizer.mkdir()
    for path in run.tokenizer.iterdir():
        shutil.copyfile(path, inside.tokenizer / path.name)
    text = dump_config(without_files(config).model_copy(update={"data": data}))
    inside.config.write_text(text, encoding="utf-8")
    if (share := multi_sentence_share(run)) is not None:
        inside.data_report.write_text(json.dumps({MULTI_SENTENCE_SHARE: share}) + "\n", encoding="utf-8")

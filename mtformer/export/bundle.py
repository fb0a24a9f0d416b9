"""Exports: bundles (weights, tokenizer, config), CTranslate2 and Hugging Face models, and Argos Translate packages.

Each export has a model card: README.md with the header of Hugging Face's model cards.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import save

from mtformer.config import loading
from mtformer.config.languages import language_name
from mtformer.config.schema import Config
from mtformer.data.corpus.sources import files_of
from mtformer.decoding.ctranslate2.conversion import write_model
from mtformer.decoding.ctranslate2.engine import import_ctranslate2
from mtformer.decoding.lines.confidence import load_calibration
from mtformer.decoding.loading import from_data_report
from mtformer.decoding.weights import find_weights, is_default, verified_weights
from mtformer.errors import CheckpointError, ConfigError, DataError, explain_write_errors, log
from mtformer.evaluation.card import read_card
from mtformer.export.huggingface import write_huggingface
from mtformer.export.vocabulary_map import write_vocabulary_map
from mtformer.files import atomic_file, atomic_folder, file_sha256, read_json, write_checksums
from mtformer.run_dir import CT2_VOCABULARY_MAP, MODEL_CARD, MULTI_SENTENCE_SHARE, SCORES, RunDir
from mtformer.templating import render
from mtformer.text.tags import language_tag, with_tags
from mtformer.text.tokenizer import BYTE_PIECE, TokenizerPair
from mtformer.weights import average_weights, read_weights


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

    `checkpoint` selects the weights (see `find_weights`), and `form` is `bundle`, `ctranslate2`, `huggingface` (see
    `write_huggingface`) or `argos`. `quantization` is the type of the stored weights of `ctranslate2` and `argos`, such
    as `int8` (None: float32). `vocabulary_map` makes `ctranslate2` faster, with other translations of some lines.

    Raise CheckpointError if the target exists or the checkpoint does not, ConfigError if CTranslate2 is missing or the
    format does not support a setting, DataError if the target or the model card (see `model_card`) cannot be written.
    """
    if target.exists():
        raise CheckpointError(f"{target}: already exists; choose another name with --output")
    if form in ("ctranslate2", "argos"):
        kinds = import_ctranslate2().specs.model_spec.ACCEPTED_MODEL_TYPES
        if quantization not in (None, *kinds):
            raise ConfigError(f"quantization '{quantization}': not supported by CTranslate2; use {', '.join(kinds)}")
    config = loading.load_config(run.config).config
    tags = config.data.language_tags
    if tags in {"bundle": (), "argos": ("source", "target")}.get(form, ("target",)):
        usable = "none" if form == "argos" else "source"
        raise ConfigError(f"data.language_tags '{tags}': not supported by --format {form}; train with '{usable}'")
    weights = find_weights(run, checkpoint, config.training.best_metric)
    tokenizers = with_tags(TokenizerPair.load(run.tokenizer), config.data)
    sizes = sorted({one.vocab_size for one in tokenizers})
    options = {"quantization": quantization, "vocabulary_map": vocabulary_map, "vocab_sizes": sizes}
    card = model_card(run, config, weights, format=form, name=target.name, **options)
    package = f"translate-{config.data.src_lang}_{config.data.tgt_lang}"
    opening = _atomic_archive(target, package) if form == "argos" else atomic_folder(target)
    with (
        explain_write_errors(f"{target}:", "choose another name with --output"),
        opening as folder,
        verified_weights(run, weights),
    ):
        if form == "argos":
            _write_argos(folder, config, tokenizers, weights, quantization)
        elif form == "huggingface":
            write_huggingface(folder, config, tokenizers, weights)
        elif form == "ctranslate2":
            if vocabulary_map:
                write_vocabulary_map(run, config.data, tokenizers, folder)
            write_model(folder, weights, config.model, tokenizers, quantization)
        else:
            RunDir(folder).bundle_weights.write_bytes(save(average_weights(weights)))
        if form in ("bundle", "ctranslate2"):
            write_companions(run, config, tokenizers, weights, RunDir(folder))
        write_checksums(folder)
        (folder / MODEL_CARD).write_text(card, encoding="utf-8")  # has no checksum, because its owner completes it


def _write_argos(
    folder: Path, config: Config, tokenizers: TokenizerPair, weights: Sequence[Path], quantization: str | None
) -> None:
    if not tokenizers.joint:
        raise ConfigError("tokenizer.joint false: not supported by Argos Translate; train with a joint vocabulary")
    if any(map(BYTE_PIECE.fullmatch, tokenizers.tgt.vocabulary())):
        log.warning("tokenizer.byte_fallback: Argos Translate shows a character spelled in bytes as <0x..>")
    metadata = {"package_version": "1.0", "argos_version": "1.10"}
    for side, code in (("from", config.data.src_lang), ("to", config.data.tgt_lang)):
        metadata |= {f"{side}_code": code, f"{side}_name": language_name(code)}
    (folder / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")
    (folder / "sentencepiece.model").write_bytes(tokenizers.src.model)
    tokenizers.save_rules(folder)
    (folder / "model").mkdir()
    write_model(folder / "model", weights, config.model, tokenizers, quantization)


@contextmanager
def _atomic_archive(target: Path, name: str) -> Iterator[Path]:
    """Yield a temporary folder; on success, write it to `target` as a zip file that contains it under `name`."""
    with atomic_file(target) as path, TemporaryDirectory(dir=path.parent, prefix=path.name) as parent:
        (folder := Path(parent, name)).mkdir()
        yield folder
        shutil.copyfile(shutil.make_archive(f"{parent}/archive", "zip", parent, name), path)


def write_companions(
    run: RunDir, config: Config, tokenizers: TokenizerPair, weights: Sequence[Path], inside: RunDir
) -> None:
    """Write everything but the weights: tokenizer, config without file names, confidence, number of sentences."""
    pairs = list(map(" ".join, config.data.directions[1:]))
    data = loading.without_files(config.data)
    data = data.model_copy(update={"language_pairs": pairs, "both_directions": False})
    tokenizers.save(inside.tokenizer)
    is_fitted = is_default(run, weights, config.training.best_metric)  # a vocabulary map increases all probabilities
    has_map = (inside.path / CT2_VOCABULARY_MAP).exists()
    if is_fitted and not has_map and load_calibration(run.confidence) is not None:  # a damaged one is not copied
        shutil.copyfile(run.confidence, inside.confidence)
    text = loading.dump_config(loading.without_files(config).model_copy(update={"data": data}))
    inside.config.write_text(text, encoding="utf-8")
    if (share := from_data_report(run, MULTI_SENTENCE_SHARE)) is not None:
        inside.data_report.write_text(json.dumps({MULTI_SENTENCE_SHARE: share}) + "\n", encoding="utf-8")


def model_card(run: RunDir, config: Config, weights: Sequence[Path], **export: object) -> str:
    """Return the model card of an export of these weights, with only their own scores.

    `export` has what the template shows of the export: format, name, quantization, vocabulary_map and vocab_sizes.
    Raise DataError if a score card, or the table in exam.json, is damaged.
    """
    data, own, hashes = config.data, loading.without_files(config), [file_sha256(path) for path in weights]
    cards = [read_card(path.parent) for path in sorted(run.evaluations.glob(f"*/{SCORES}"))]
    names = [path for source in data.sources for path in files_of(source) or [getattr(source, "dataset", "")]]
    try:
        exams = read_json(run.exam)["exams"] if run.exam.exists() else []
        own_rows = [one["rows"] for one in exams if one.get("weights", hashes) == hashes]  # it may compare several runs
        exam = [{"row": name, **row} for rows in own_rows[:1] for name, row in rows.items()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{run.exam}: not a table with rows ({error}); write it again, or move it away") from error
    return render(
        "card.md",
        **export,
        config=config,
        languages=list(dict.fromkeys(sum(data.directions, ()))),
        language_name=language_name,
        tag=language_tag(data.tgt_lang) if data.language_tags == "source" else None,
        corpora=[Path(name).name if Path(name).is_absolute() else name for name in names],
        num_pairs=from_data_report(run, "kept"),
        num_parameters=sum(weight.numel() for weight in read_weights(weights[0]).values()),
        # The mean of several checkpoints, and their ensemble, have the same files.
        cards=[card for card in cards if len(hashes) == 1 and [one.sha256 for one in card.checkpoints] == hashes],
        exam=exam,
        settings=loading.config_diff(loading.load_defaults().config, loading.without_side_outputs(own)),
    )

"""Score card: the scores of a test set, with all settings that affect them.

It is saved with the scored texts, so that both can be used without the corpus:

    RUN/eval/NAME/scores.json             the score card
    RUN/eval/NAME/hypotheses.txt          the translations, one per line
    RUN/eval/NAME/sources.txt             the sources
    RUN/eval/NAME/references.txt          the references (additional ones in references.2.txt and so on)
    RUN/eval/NAME/scores.METRIC.txt       the scores of the lines, by an external metric
"""

import hashlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ValidationError

from mtformer.config.loading import with_present_keys
from mtformer.config.schema import DecodingConfig, EvaluationConfig
from mtformer.config.section import key_of
from mtformer.config.validation import first_message
from mtformer.decoding.translator import Translator
from mtformer.errors import DataError, log
from mtformer.evaluation.scores import Score
from mtformer.files import (
    FORMAT,
    parse_json,
    read_bytes,
    require_format,
    sealed,
    unsealed,
    utc_now,
    write_json,
    write_text,
)
from mtformer.run_dir import HYPOTHESES, SCORES, SOURCES, RunDir, line_scores_name, references_name
from mtformer.version import __version__

MAX_REASON = 200
"""Maximum number of characters of the reason for which a score card cannot be read."""


class HashedFile(BaseModel, frozen=True, extra="forbid", strict=True):
    """A file and the SHA-256 hash of its contents."""

    file: str
    sha256: str


class TextHashes(BaseModel, frozen=True, extra="forbid", strict=True):
    r"""SHA-256 of each text as UTF-8 lines that end with \n, as printed by `sha256sum` for the saved files."""

    sources: str
    references: list[str]
    hypotheses: str


class ScoreCard(BaseModel, frozen=True, extra="forbid", strict=True):
    """Scores of a test set, with their settings."""

    format: Literal[1] = FORMAT
    name: str
    src_lang: str | None
    tgt_lang: str | None
    num_sentences: int
    scores: list[Score]
    evaluation: EvaluationConfig
    decoding: dict[str, Any]
    """`decoding` section of the config."""
    checkpoints: list[HashedFile]
    tokenizers: list[HashedFile]
    text: TextHashes
    line_scores: dict[str, str] = {}
    """SHA-256 of the file with the scores of the lines, by the name of the metric."""
    seconds: float
    """Translation time."""
    device: str
    dtype: str
    hardware: dict[str, Any]
    date: str
    versions: dict[str, str]


@dataclass(frozen=True)
class EvalSet:
    """A test set."""

    name: str
    sources: list[str]
    references: list[list[str]]
    """One list of lines per reference."""
    tgt_lang: str | None = None
    """None: the translator's target language; `auto` selects a BLEU tokenizer by the script of the references."""
    src_lang: str | None = None


@dataclass(frozen=True)
class ScoredTranslations:
    """The translations of a test set and their scores."""

    hypotheses: Sequence[str]
    scores: Sequence[Score]
    evaluation: EvaluationConfig
    """Settings of the metrics."""
    seconds: float
    """Translation time."""
    line_scores: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Score of each line by the name of the metric, of external metrics that have them."""


def write_card(folder: Path, test: EvalSet, result: ScoredTranslations, translator: Translator) -> ScoreCard:
    """Write the sources, hypotheses and references, and then the score card.

    Args:
        folder: the folder of this test set in the run directory.
        test: the test set.
        result: what `translator` produced for it.
        translator: its settings, weights and tokenizers are recorded in the card.
    """
    device = translator.engine.device
    card = ScoreCard(
        name=test.name,
        src_lang=test.src_lang,
        tgt_lang=test.tgt_lang,
        num_sentences=len(result.hypotheses),
        scores=list(result.scores),
        evaluation=result.evaluation,
        decoding=translator.decoding.model_dump(exclude={"validation_beam_size"}),
        checkpoints=_weights_of(translator),
        tokenizers=_tokenizers_of(translator),
        text=_write_texts(folder, test, result.hypotheses),
        line_scores=_write_line_scores(folder, result.line_scores),
        seconds=round(result.seconds, 2),
        device=device,
        dtype=translator.engine.dtype,
        hardware=describe_hardware(device),
        date=utc_now(),
        versions=_versions(),
    )
    write_json(folder / SCORES, sealed(card.model_dump()), indent=2)
    return card


def _weights_of(translator: Translator) -> list[HashedFile]:
    """Return the weight files with their hashes at the time when they were loaded."""
    files = zip(translator.weights, translator.weight_hashes, strict=True)
    return [HashedFile(file=str(path), sha256=sha256) for path, sha256 in files]


def _tokenizers_of(translator: Translator) -> list[HashedFile]:
    """Return the tokenizer files; a tokenizer that both languages share is listed once."""
    sha256_of = {}
    for tokenizer in (translator.tokenizers.src, translator.tokenizers.tgt):
        sha256_of[tokenizer.name] = tokenizer.sha256
    return [HashedFile(file=name, sha256=sha256) for name, sha256 in sha256_of.items()]


def _write_texts(folder: Path, test: EvalSet, hypotheses: Sequence[str]) -> TextHashes:
    """Write the texts of an evaluation, one file each, and return their hashes."""

    def write(name: str, lines: Sequence[str]) -> str:
        text = "".join(f"{line}\n" for line in lines)
        write_text(folder / name, text)
        return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()

    sources_hash = write(SOURCES, test.sources)
    hypotheses_hash = write(HYPOTHESES, hypotheses)
    reference_hashes = []
    for number, lines in enumerate(test.references):
        reference_hashes.append(write(references_name(number), lines))
    return TextHashes(sources=sources_hash, references=reference_hashes, hypotheses=hypotheses_hash)


def _write_line_scores(folder: Path, line_scores: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Write the scores of the lines, one file for each metric, and return their hashes; delete earlier files."""
    for path in folder.glob(line_scores_name("*")):
        path.unlink()
    hashes = {}
    for name, scores in line_scores.items():
        text = "".join(f"{score!r}\n" for score in scores)
        write_text(folder / line_scores_name(name), text)
        hashes[name] = hashlib.sha256(text.encode()).hexdigest()
    return hashes


def read_line_scores(folder: Path, card: ScoreCard) -> dict[str, list[float]]:
    """Return the score of each line by metric; raise DataError if a file is missing or was changed after scoring."""
    scores = {}
    for name, expected_sha256 in card.line_scores.items():
        path = folder / line_scores_name(name)
        try:
            contents = read_bytes(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); {_rewrite_hint(folder)}") from error
        if hashlib.sha256(contents).hexdigest() != expected_sha256:
            raise DataError(f"{path}: changed since it was written; {_rewrite_hint(folder)}")
        try:
            scores[name] = [float(line) for line in contents.split()]
        except ValueError as error:
            raise DataError(f"{path}: not one number per line ({error}); {_rewrite_hint(folder)}") from error
        num_scores = len(scores[name])
        if num_scores != card.num_sentences:
            raise DataError(f"{path}: {num_scores} lines for {card.num_sentences} sentences; {_rewrite_hint(folder)}")
    return scores


def _versions() -> dict[str, str]:
    """Return the versions of the packages that affect translations and scores."""
    packages = {package: version(package) for package in ("torch", "sentencepiece", "sacrebleu")}
    return {"mtformer": __version__, "python": platform.python_version(), **packages}


def read_card(folder: Path) -> ScoreCard:
    """Return the score card of an evaluation; raise DataError if it is missing or damaged.

    If only its checksum is wrong, as after a single changed digit, a warning is logged.
    """
    path = folder / SCORES
    remedy = _rewrite_hint(folder)
    try:
        contents = parse_json(read_bytes(path))
        fields = {key: value for key, value in contents.items() if key != "checksum"}
        card = ScoreCard.model_validate_json(json.dumps(fields))
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing; `mtformer eval` writes it") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    except ValidationError as error:
        reason = _reason_of(error, path)
        raise DataError(f"{path}: damaged ({reason}); {remedy}") from error
    except (ValueError, AttributeError) as error:  # not JSON, or not an object
        message = " ".join(str(error).split())
        raise DataError(f"{path}: damaged ({message[:MAX_REASON]}); {remedy}") from error

    try:
        unsealed(contents)
    except ValueError as error:
        log.warning("%s: %s, so its scores may be wrong; %s", path, error, remedy)
    return card


def _reason_of(error: ValidationError, path: Path) -> str:
    """Return the first mistake in a score card; raise DataError if a newer version wrote it."""
    first_mistake = error.errors()[0]
    if first_mistake["loc"] == ("format",):
        require_format(path, first_mistake["input"], DataError)
    key = ".".join(map(str, first_mistake["loc"]))
    message = first_message(error)
    return f"{key}: {message}" if key else message


def read_texts(folder: Path, card: ScoreCard) -> tuple[EvalSet, list[str]]:
    """Return the test set and the hypotheses; raise DataError if a file is missing or was changed after scoring."""
    remedy = _rewrite_hint(folder)

    def read(name: str, expected_sha256: str) -> list[str]:
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path}: missing; {remedy}")
        contents = path.read_bytes()
        sha256 = hashlib.sha256(contents).hexdigest()
        if sha256 != expected_sha256:
            raise DataError(f"{path}: changed since it was scored; {remedy}")
        try:
            lines = contents.decode().split("\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8; {remedy}") from error
        return lines[:-1]  # the last line ends with a line break, too

    hashes = card.text
    sources = read(SOURCES, hashes.sources)
    hypotheses = read(HYPOTHESES, hashes.hypotheses)
    references = [read(references_name(number), sha256) for number, sha256 in enumerate(hashes.references)]
    test = EvalSet(card.name, sources, references, card.tgt_lang, card.src_lang)
    return test, hypotheses


def score_differences(a: ScoreCard, b: ScoreCard) -> list[str]:
    """Return differences in text, signatures, decoding and precision that make the scores of two cards incomparable.

    The sacreBLEU version in a signature is ignored; `notes` reports it.
    """
    messages = []
    if a.num_sentences != b.num_sentences:
        messages.append(f"{a.num_sentences:,} and {b.num_sentences:,} sentences")
    if a.text.sources != b.text.sources:
        messages.append("different sources")
    if a.text.references != b.text.references:
        messages.append("different references")
    messages += _different_signatures(a, b)
    settings = _different_settings(a, b)
    messages += [text for key, text in settings.items() if key_of(DecodingConfig, key).has_effect]
    if a.dtype != b.dtype:
        messages.append(f"precision {a.dtype} and {b.dtype}")
    return messages


def notes(a: ScoreCard, b: ScoreCard) -> list[str]:
    """Return the remaining differences between two cards, which do not affect comparability."""
    settings = _different_settings(a, b)
    messages = [text for key, text in settings.items() if not key_of(DecodingConfig, key).has_effect]
    if a.device != b.device:
        messages.append(f"device {a.device} and {b.device}")

    packages = a.versions.keys() | b.versions.keys()
    for package in sorted(packages):
        version_a = a.versions.get(package)
        version_b = b.versions.get(package)
        if version_a != version_b:
            messages.append(f"{package} {version_a} and {version_b}")
    return messages


def _different_signatures(a: ScoreCard, b: ScoreCard) -> list[str]:
    """Return a message for each metric that two cards computed with different settings."""
    signatures_b = {score.name: score.signature for score in b.scores}
    messages = []
    for score in a.scores:
        signature_a = score.signature
        signature_b = signatures_b.get(score.name, signature_a)
        if _without_version(signature_a) != _without_version(signature_b):
            messages.append(f"{score.label} with different signatures ({signature_a} and {signature_b})")
    return messages


def _without_version(signature: str) -> str:
    """Return a signature without the version of sacreBLEU."""
    return re.sub(r"\|version:[^|]*", "", signature)


def _different_settings(a: ScoreCard, b: ScoreCard) -> dict[str, str]:
    """Return descriptions of the decoding settings that differ, by key."""
    descriptions = {}
    settings_a = with_present_keys(a.decoding, DecodingConfig, SCORES)
    settings_b = with_present_keys(b.decoding, DecodingConfig, SCORES)
    for key, key_field in DecodingConfig.model_fields.items():
        value_a = settings_a.get(key, key_field.default)  # old cards lack newer keys
        value_b = settings_b.get(key, key_field.default)
        if value_a != value_b:
            descriptions[key] = f"decoding.{key} {value_a} and {value_b}"
    return descriptions


def describe_hardware(device: str) -> dict[str, Any]:
    """Return the CPU, the number of threads, and the GPU if the device is `cuda`."""
    has_gpu = device == "cuda" and torch.cuda.is_available()
    return {
        "cpu": _cpu_name(),
        "num_threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
    }


def _cpu_name() -> str:
    """Return the name of the processor, or of its architecture if the system does not know it."""
    information = Path("/proc/cpuinfo")
    if information.is_file():
        line = re.search(r"model name\s*:\s*(.+)", information.read_text())
        if line is not None:
            return line[1].strip()
    return platform.processor() or platform.machine()


def _rewrite_hint(folder: Path) -> str:
    """Return the command that rewrites the card, for error messages."""
    command = "mtformer eval"
    run = folder.parent.parent
    is_in_run = folder == RunDir(run).evaluation(folder.name)
    if is_in_run:
        command += f" {run}"
    return f"`{command}` rewrites it"

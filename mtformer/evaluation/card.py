"""Score card: the scores of a test set, with all settings that affect them.

It is saved with the scored texts, so that both can be used without the corpus:

    RUN/eval/NAME/scores.json             the score card
    RUN/eval/NAME/hypotheses.txt          the translations, one per line
    RUN/eval/NAME/sources.txt             the sources
    RUN/eval/NAME/references.txt          the references (additional ones in references.2.txt and so on)
"""

import hashlib
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ValidationError

from mtformer.config.schema import DecodingConfig, EvaluationConfig
from mtformer.config.section import key_of
from mtformer.decoding.translator import Translator
from mtformer.errors import DataError, log
from mtformer.evaluation.scores import Score
from mtformer.files import (
    FORMAT,
    file_sha256,
    parse_json,
    read_bytes,
    require_format,
    sealed,
    unsealed,
    utc_now,
    write_json,
    write_text,
)
from mtformer.run_dir import HYPOTHESES, SCORES, SOURCES, RunDir, references_name
from mtformer.version import __version__


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
    seconds: float
    """Translation time."""
    device: str
    dtype: str
    hardware: dict[str, Any]
    date: str
    versions: dict[str, str]


@dataclass(frozen=True)
class EvalSet:
    """A test set; `references` contains one list of lines per reference."""

    name: str
    sources: list[str]
    references: list[list[str]]
    tgt_lang: str | None = None
    """None: the translator's target language; BLEU uses 13a unless the config sets a tokenizer."""
    src_lang: str | None = None


def write_card(
    folder: Path,
    test: EvalSet,
    hypotheses: Sequence[str],
    scores: Sequence[Score],
    evaluation: EvaluationConfig,
    translator: Translator,
    seconds: float,
    weight_hashes: Sequence[str] | None = None,
) -> ScoreCard:
    """Write the sources, hypotheses and references, and then the score card, to `folder`.

    `hypotheses` are what `translator` produced in `seconds`, and `evaluation` has the settings of the metrics.
    `weight_hashes` has the SHA-256 of its weight files when they were loaded; None: it is computed now.
    """
    if weight_hashes is None:
        weight_hashes = [file_sha256(path) for path in translator.weights]
    texts = {SOURCES: test.sources, HYPOTHESES: hypotheses}
    texts |= {references_name(number): lines for number, lines in enumerate(test.references)}
    hashes = []
    for file, lines in texts.items():
        write_text(folder / file, text := "".join(f"{line}\n" for line in lines))
        hashes.append(hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest())
    sources, hypotheses_hash, *references = hashes
    tokenizers = {one.name: one.sha256 for one in (translator.tokenizers.src, translator.tokenizers.tgt)}
    packages = {package: version(package) for package in ("torch", "sentencepiece", "sacrebleu")}
    card = ScoreCard(
        name=test.name,
        src_lang=test.src_lang,
        tgt_lang=test.tgt_lang,
        num_sentences=len(hypotheses),
        scores=list(scores),
        evaluation=evaluation,
        decoding=translator.decoding.model_dump(exclude={"validation_beam_size"}),
        checkpoints=[
            HashedFile(file=str(path), sha256=sha256)
            for path, sha256 in zip(translator.weights, weight_hashes, strict=True)
        ],
        tokenizers=[HashedFile(file=file, sha256=sha256) for file, sha256 in tokenizers.items()],
        text=TextHashes(sources=sources, references=references, hypotheses=hypotheses_hash),
        seconds=round(seconds, 2),
        device=translator.engine.device,
        dtype=translator.engine.dtype,
        hardware=describe_hardware(translator.engine.device),
        date=utc_now(),
        versions={"mtformer": __version__, "python": platform.python_version(), **packages},
    )
    write_json(folder / SCORES, sealed(card.model_dump()), indent=2)
    return card


def read_card(folder: Path) -> ScoreCard:
    """Return the score card of an evaluation; raise DataError if it is missing or damaged.

    If only its checksum is wrong, as after a single changed digit, a warning is logged.
    """
    path = folder / SCORES
    try:
        value = parse_json(read_bytes(path))
        values = {key: one for key, one in value.items() if key != "checksum"}
        card = ScoreCard.model_validate_json(json.dumps(values))
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing; `mtformer eval` writes it") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {_rewrite_hint(folder)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        if first["loc"] == ("format",):
            require_format(path, first["input"], DataError)
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
        raise DataError(f"{path}: damaged ({reason}); {_rewrite_hint(folder)}") from error
    except (ValueError, AttributeError) as error:  # not JSON, or not an object
        raise DataError(f"{path}: damaged ({' '.join(str(error).split()):.200}); {_rewrite_hint(folder)}") from error
    try:
        unsealed(value)
    except ValueError as error:
        log.warning("%s: %s, so its scores may be wrong; %s", path, error, _rewrite_hint(folder))
    return card


def read_texts(folder: Path, card: ScoreCard) -> tuple[EvalSet, list[str]]:
    """Return the test set and the hypotheses; raise DataError if a file is missing or was changed after scoring."""
    hashes = {SOURCES: card.text.sources, HYPOTHESES: card.text.hypotheses}
    hashes |= {references_name(number): sha256 for number, sha256 in enumerate(card.text.references)}
    texts = list[list[str]]()
    for name, sha256 in hashes.items():
        if not (folder / name).is_file():
            raise DataError(f"{folder / name}: missing; {_rewrite_hint(folder)}")
        data = (folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise DataError(f"{folder / name}: changed since it was scored; {_rewrite_hint(folder)}")
        texts.append(data.decode().split("\n")[:-1])
    sources, hypotheses, *references = texts
    return EvalSet(card.name, sources, references, card.tgt_lang, card.src_lang), hypotheses


def differences(a: ScoreCard, b: ScoreCard) -> list[str]:
    """Return differences in text, signatures, decoding and precision that make the scores of two cards incomparable.

    The sacreBLEU version in a signature is ignored; `notes` reports it.
    """
    found = []
    if a.num_sentences != b.num_sentences:
        found.append(f"{a.num_sentences:,} and {b.num_sentences:,} sentences")
    found += [f"different {key}" for key in ("sources", "references") if getattr(a.text, key) != getattr(b.text, key)]
    version, others = re.compile(r"\|version:[^|]*"), {score.name: score.signature for score in b.scores}
    found += [
        f"{score.label} with different signatures ({score.signature} and {others[score.name]})"
        for score in a.scores
        if score.name in others and version.sub("", score.signature) != version.sub("", others[score.name])
    ]
    found += [text for key, text in _decoding(a, b).items() if key_of(DecodingConfig, key).has_effect]
    return [*found, f"precision {a.dtype} and {b.dtype}"] if a.dtype != b.dtype else found


def notes(a: ScoreCard, b: ScoreCard) -> list[str]:
    """Return the remaining differences between two cards, which do not affect comparability."""
    sides: list[tuple[str, str | None, str | None]] = [("device", a.device, b.device)]
    sides += [(name, a.versions.get(name), b.versions.get(name)) for name in sorted({*a.versions, *b.versions})]
    found = [f"{name} {before} and {after}" for name, before, after in sides if before != after]
    return [*(text for key, text in _decoding(a, b).items() if not key_of(DecodingConfig, key).has_effect), *found]


def _decoding(a: ScoreCard, b: ScoreCard) -> dict[str, str]:
    """Return descriptions of the decoding settings that differ, by key."""
    defaults = {key: field.default for key, field in DecodingConfig.model_fields.items()}  # old cards lack newer keys
    values = {key: (a.decoding.get(key, default), b.decoding.get(key, default)) for key, default in defaults.items()}
    return {key: f"decoding.{key} {one} and {other}" for key, (one, other) in values.items() if one != other}


def describe_hardware(device: str) -> dict[str, Any]:
    """Return the CPU, the number of threads, and the GPU if the device is `cuda`."""
    information = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", information.read_text()) if information.is_file() else None
    cpu = found[1].strip() if found else platform.processor() or platform.machine()
    gpu = torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else None
    return {"cpu": cpu, "num_threads": torch.get_num_threads(), "gpu": gpu}


def _rewrite_hint(folder: Path) -> str:
    """Return the command that rewrites the card, for error messages."""
    run = folder.parent.parent
    return f"`mtformer eval{f' {run}' if folder == RunDir(run).evaluation(folder.name) else ''}` rewrites it"

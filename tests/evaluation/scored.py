"""Scored runs created without a model, and a small corpus of good and bad translations."""

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mtformer.config.schema import DecodingConfig, EvaluationConfig, TokenizerConfig
from mtformer.evaluation.card import EvalSet, ScoredTranslations, write_card
from mtformer.evaluation.scores import score
from mtformer.files import file_sha256
from mtformer.run_dir import RunDir
from mtformer.text.normalization import Normalizer

CONFIG = "data: {{src_lang: en, tgt_lang: de, train: [{{src: a.en, tgt: a.de}}]}}\n{rest}\n"
NORMALIZER = Normalizer.of_config(TokenizerConfig())
TOKENIZER = SimpleNamespace(name="tokenizer/joint.model", sha256="7" * 64, normalizer=NORMALIZER)
WORDS = [*"abcdefgh", "der", "die", "Hund", "Katze", "läuft", "schläft", "Haus", "und", "Ball", "spielt"]


def corpus(number: int = 120) -> list[str]:
    """Return references of 4 to 30 words."""
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(4, 30))) + "." for _ in range(number)]


def corrupt(lines: Sequence[str], share: float, seed: int) -> list[str]:
    """Return the lines with this share of their words replaced."""
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < share else word for word in line.split()) for line in lines]


def translator(**values: Any) -> Any:
    """Return an object with the attributes of a `Translator` that a score card needs."""
    engine = SimpleNamespace(device="cpu", dtype="fp32")
    tokenizers = SimpleNamespace(src=TOKENIZER, tgt=TOKENIZER)
    defaults = {"engine": engine, "tokenizers": tokenizers, "decoding": DecodingConfig(), "weights": []}
    attributes = {**defaults, **values}
    hashes = [file_sha256(path) for path in attributes["weights"]]
    return SimpleNamespace(**attributes, weight_hashes=hashes)


def save(
    folder: Path,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    sources: Sequence[str] | None = None,
    evaluation: EvaluationConfig = EvaluationConfig(),  # noqa: B008  # frozen
    **of_translator: Any,
) -> None:
    """Save an evaluation with its score card."""
    first, *more = references
    found = score(hypotheses, first, evaluation, more_references=more)
    streams = [list(stream) for stream in references]
    test = EvalSet(folder.name, list(sources or first), streams, "de", "en")
    result = ScoredTranslations(hypotheses, found, evaluation, seconds=1.5)
    write_card(folder, test, result, translator(**of_translator))


def make_run(path: Path, hypotheses: Sequence[str], rest: str = "", name: str = "small", **values: Any) -> Path:
    """Create a run directory with scores on the test set `name`; the references are those of `corpus`."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(CONFIG.format(rest=rest), encoding="utf-8")
    save(RunDir(path).evaluation(name), hypotheses, [corpus(len(hypotheses))], **values)
    return path

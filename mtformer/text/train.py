"""Train SentencePiece models with the settings of the `tokenizer` section."""

import io
import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from mtformer.config.schema import TokenizerConfig, is_rule_file
from mtformer.errors import DataError, log
from mtformer.files import atomic_file
from mtformer.text.normalization import RULES, rules_of, trainer_options, without_rule_path
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK

MAX_LINE_BYTES = 1 << 14
"""Maximum line length for training. Longer lines are rarely sentences, and training time grows with their square."""
NUM_THREADS = 8
"""Fixed, because the order of floating-point sums, and thus the model, depends on the number of threads."""
SLOW_FROM = 200_000
"""Number of lines above which training takes minutes: 876,000 Japanese and English lines take 9 minutes and 2.9 GB."""
QUIET = 2
"""Log level of SentencePiece without information and warnings."""


def train_tokenizer(lines: Iterable[str], config: TokenizerConfig, path: Path, tags: Sequence[str] = ()) -> None:
    """Train a model and write it to `path` atomically; the same lines, config and tags give an identical file.

    Args:
        lines: training text, of which a uniform sample of `train_sentences` lines is used.
        config: the `tokenizer` section.
        path: the `.model` file to write. A rule file of the normalization is copied next to it.
        tags: pieces that become control symbols, even if they are among `user_symbols`.

    Raise DataError if the lines have no text, `vocab_size` is too large or too small for them, or the rule file is
    invalid.
    """
    rules = rules_of(config)
    # SentencePiece can sample too, but not with a given seed.
    sentences = _sample(lines, config.train_sentences)
    num_sentences = len(sentences)
    tokenizer = f"a {config.model_type} tokenizer of {config.vocab_size} pieces"
    duration = "; this takes several minutes" if num_sentences > SLOW_FROM else ""
    log.info("training %s on %s lines%s", tokenizer, f"{num_sentences:,}", duration)

    with trainer_options(config, rules) as normalization:
        model = _train(sentences, config, tags, normalization)
    with atomic_file(path) as temporary:
        temporary.write_bytes(without_rule_path(model, config))
    if rules is not None and is_rule_file(config.normalization):
        with atomic_file(path.with_name(RULES)) as temporary:
            temporary.write_bytes(rules)


def _train(sentences: list[str], config: TokenizerConfig, tags: Sequence[str], normalization: dict[str, Any]) -> bytes:
    """Train on these lines with SentencePiece's options for normalization, and return the model."""
    user_symbols = [symbol for symbol in dict.fromkeys(config.user_symbols) if symbol not in tags]
    # SentencePiece ignores tags in the training text, but the model must be able to spell such a text.
    distinct_characters = set("".join(tags))
    characters_of_tags = "".join(sorted(distinct_characters))
    settings = config.model_dump(include={"model_type", "vocab_size", "character_coverage", "byte_fallback"})
    model = io.BytesIO()

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            **settings,
            **normalization,
            user_defined_symbols=user_symbols,
            control_symbols=list(dict.fromkeys(tags)),
            required_chars=characters_of_tags,
            input_sentence_size=0,
            max_sentence_length=MAX_LINE_BYTES,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=NUM_THREADS,
            minloglevel=QUIET,
        )
    except RuntimeError as error:
        raise DataError(_explain(str(error), config)) from error
    return model.getvalue()


def _sample(lines: Iterable[str], size: int) -> list[str]:
    """Return a deterministic uniform sample of at most `size` lines that are neither blank nor too long.

    Reservoir sampling (Vitter's algorithm R). The number of lines that are too long is logged.
    """
    generator = random.Random(0)
    num_seen = 0
    num_long = 0
    kept: list[str] = []
    for line in lines:
        if _is_too_long(line):
            num_long += 1
            continue
        if not line or line.isspace():
            continue

        num_seen += 1
        if num_seen <= size:
            kept.append(line)
            continue
        index = generator.randrange(num_seen)
        if index < size:
            kept[index] = line

    if num_long:
        log.warning("the tokenizer is not trained on %d lines of more than %d bytes", num_long, MAX_LINE_BYTES)
    return kept


def _is_too_long(line: str) -> bool:
    # A character has up to four bytes, so most lines need not be encoded.
    may_be_too_long = len(line) * 4 > MAX_LINE_BYTES
    return may_be_too_long and len(line.encode("utf-8")) > MAX_LINE_BYTES


def _explain(message: str, config: TokenizerConfig) -> str:
    """Rewrite SentencePiece's error message in terms of config keys."""
    setting = f"tokenizer.vocab_size {config.vocab_size}"
    maximum = re.search(r"set it to a value <= (\d+)", message)
    if maximum:
        problem = f"the training text gives at most {maximum[1]} pieces"
        return f"{setting}: {problem}; set tokenizer.vocab_size to that or less"

    minimum = re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message)
    if minimum:
        problem = f"special pieces and the distinct characters of the training text alone need {minimum[1]} pieces"
        remedy = "set tokenizer.vocab_size above that, or lower tokenizer.character_coverage"
        return f"{setting}: {problem}; {remedy}"

    if "sentences_.empty()" in message or "Input corpus is empty" in message:
        return "the corpus is empty: the training data has no line with text; check the files of data.train"
    return f"{setting}: SentencePiece failed: {' '.join(message.split())}"

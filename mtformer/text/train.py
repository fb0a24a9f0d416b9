"""Training of SentencePiece models by the config's `tokenizer` section."""

import io
import logging
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import sentencepiece

from mtformer.config.schema import TokenizerConfig
from mtformer.errors import DataError
from mtformer.files import atomic_file
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK

MAX_LINE_BYTES = 1 << 14
"""SentencePiece is not trained on longer lines: they are rarely sentences, and its time grows with their square."""
NUM_THREADS = 8
"""Fixed, because sums in another order could give another model on a machine with other cores."""
SLOW_FROM = 200_000
"""Lines. Those of a language without spaces take minutes: 876,000 of Japanese and English 9, and 2.9 GB of memory."""
log = logging.getLogger("mtformer")


def train_tokenizer(lines: Iterable[str], config: TokenizerConfig, path: Path) -> None:
    """Train one model and write it to `path`, whole or not at all; the same lines and config give the same bytes.

    Args:
        lines: the text, of both languages if joint; if there are more than `train_sentences`, a uniform sample is used.
        config: the `tokenizer` section.
        path: the file to write.

    Raises:
        DataError: there is no text, or `vocab_size` does not fit it.
    """
    # SentencePiece can sample too, but not from a given seed.
    sentences = _sample(_usable(lines), config.train_sentences)
    log.info(
        "training a %s tokenizer of %d pieces on %s lines%s", config.model_type, config.vocab_size,
        f"{len(sentences):,}", "; this takes minutes" if len(sentences) > SLOW_FROM else "",
    )  # fmt: skip
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=config.model_type,
            vocab_size=config.vocab_size,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback,
            normalization_rule_name=config.normalization,
            user_defined_symbols=config.user_symbols,
            input_sentence_size=0,
            max_sentence_length=MAX_LINE_BYTES,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            num_threads=NUM_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise DataError(_explain(str(error), config)) from error
    with atomic_file(path) as temporary:
        temporary.write_bytes(model.getvalue())


def _usable(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines with text that are not too long; log the number of lines that are."""
    num_long = 0
    for line in lines:
        if len(line) * 4 > MAX_LINE_BYTES and len(line.encode("utf-8")) > MAX_LINE_BYTES:
            num_long += 1
        elif line and not line.isspace():
            yield line
    if num_long:
        log.warning("the tokenizer is not trained on %d lines of more than %d bytes", num_long, MAX_LINE_BYTES)


def _sample(lines: Iterable[str], size: int) -> list[str]:
    """Return a uniform sample of at most `size` lines, the same for the same lines (reservoir sampling, Vitter's R)."""
    generator = random.Random(0)
    kept: list[str] = []
    for number, line in enumerate(lines):
        if number < size:
            kept.append(line)
        elif (place := generator.randrange(number + 1)) < size:
            kept[place] = line
    return kept


def _explain(message: str, config: TokenizerConfig) -> str:
    """Return SentencePiece's message in terms of the config."""
    setting = f"tokenizer.vocab_size {config.vocab_size}"
    if found := re.search(r"set it to a value <= (\d+)", message):
        return f"{setting}: the training text gives at most {found[1]} pieces; set tokenizer.vocab_size to that or less"
    if found := re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message):
        return (
            f"{setting}: special pieces and the different characters of the training text alone are {found[1]}; set "
            "tokenizer.vocab_size above that, or lower tokenizer.character_coverage"
        )
    if "sentences_.empty()" in message or "Input corpus is empty" in message:
        return "the corpus is empty: the training data has no line with text"
    return f"{setting}: SentencePiece refused: {' '.join(message.split())}"

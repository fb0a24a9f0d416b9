"""Recommended settings for a training corpus of a given size.

`SIZES` is the only place where they are defined; docs/tutorial.md says which of them have been measured. The number of
steps does not depend on the device: on a slow one, `training.max_minutes` shortens the training.
"""

import sys
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from mtformer.config.languages import has_many_characters, has_spaces
from mtformer.config.loading import leaves
from mtformer.config.schema import Config, TrainingConfig
from mtformer.config.yaml_text import dotted
from mtformer.data.corpus.sources import read_pairs
from mtformer.data.filters.scripts import Alphabet
from mtformer.errors import DataError

MAX_PAIRS = 1_000_000
"""Number of pairs after which a corpus is not read any further."""
READ_PAIRS = 10_000
"""Number of pairs that are read at once."""
CHARACTERS_PER_TOKEN = 4.5
"""Mean number of Latin letters in a token."""
PIECES_PER_WORD = 0.4
"""Maximum vocabulary size per distinct word: small texts with few different words have no more pieces."""
PIECES_PER_LETTER = 1.1
"""Minimum vocabulary size per special piece or distinct character."""
NUM_SPECIAL_PIECES = 4
"""Number of special pieces: pad, unk, bos and eos."""
MIN_VOCABULARY = 16
"""Minimum vocabulary size of a text with few words."""
COVERAGE = 0.9995
"""Maximum `tokenizer.character_coverage` for languages with thousands of characters; rare ones become bytes."""
MIN_STEPS = 100
"""Minimum number of training steps."""
WARMUP_SHARE = 0.03
"""Share of the training steps that are warmup steps."""
VALIDATIONS = 20
"""Number of validations."""
AVERAGED = 4
"""Number of checkpoints that are averaged at the end."""


class Size(NamedTuple):
    """Settings for corpora of up to `max_pairs` pairs."""

    max_pairs: int
    vocab_size: int
    d_model: int
    num_layers: int
    """In the encoder, and in the decoder."""
    dropout: float
    consistency: str
    step_tokens: int
    learning_rate: float
    epochs: int


SIZES = (
    Size(10_000, 2000, 128, 4, 0.3, "none", 2048, 3e-3, 150),
    Size(100_000, 8000, 128, 4, 0.25, "none", 2048, 5e-3, 50),
    Size(500_000, 8000, 256, 4, 0.2, "none", 4096, 2e-3, 30),
    Size(MAX_PAIRS, 16_000, 512, 6, 0.1, "none", 16_384, 1e-3, 15),
)
"""The last one is also for larger corpora."""


class CorpusSize(NamedTuple):
    """Size of the training corpus."""

    pairs: int
    """At most `MAX_PAIRS`."""
    characters: float
    """Mean number of characters of the longer side, in Latin letters (see `WEIGHTS`)."""
    words: int
    """Number of distinct words of both sides, without numbers; of pairs of letters in languages without spaces."""
    fewest_pieces: int
    """Number of special pieces, bytes and distinct characters, which each vocabulary has."""
    character_coverage: float
    byte_fallback: bool


class _TextOfTokenizer:
    """Distinct words and numbers of characters of the text for one tokenizer."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.character_counts = np.zeros(sys.maxunicode + 1, np.int64)
        """By code point."""

    def add(self, lines: Sequence[str], language: str) -> None:
        """Count the words and characters of these lines."""
        text = "".join(lines)
        code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        self.character_counts += np.bincount(code_points, minlength=len(self.character_counts))

        separates_words = has_spaces(language)
        for line in lines:
            words = line.split() if separates_words else _letter_pairs(line)
            self.words.update(words)

    def num_words(self) -> int:
        """Return the number of distinct words without digits."""
        count = 0
        for word in self.words:
            if not any(map(str.isdigit, word)):
                count += 1
        return count

    def num_characters(self, coverage: float) -> int:
        """Return the number of most frequent characters that make up this share of the text."""
        descending_counts = -np.sort(-self.character_counts)
        covered = np.cumsum(descending_counts)
        is_below = covered < coverage * covered[-1]
        return 1 + int(np.count_nonzero(is_below))


def _letter_pairs(line: str) -> list[str]:
    """Return each character with the next one, and the last character."""
    return [line[start : start + 2] for start in range(len(line))]


def measure(config: Config) -> CorpusSize:
    """Return the size of all training corpora, without filters; raise DataError if there are no pairs."""
    data = config.data
    tokenizer = config.tokenizer
    source_text = _TextOfTokenizer()
    target_text = source_text if tokenizer.joint else _TextOfTokenizer()

    num_pairs = 0
    num_characters = 0.0
    for source in data.sources:
        languages = data.languages(source)
        src_lang, tgt_lang = languages
        max_pairs = MAX_PAIRS - num_pairs
        pairs = islice(read_pairs(source, data), max_pairs)
        while block := list(islice(pairs, READ_PAIRS)):
            sources, targets = zip(*block, strict=True)
            num_pairs += len(block)
            num_characters += _num_characters(sources, targets, languages, data.filters.max_tokens)
            source_text.add(sources, src_lang)
            target_text.add(targets, tgt_lang)
    if not num_pairs:
        raise DataError("the training corpus is empty; add sources to data.train, or check data.filters")

    languages_of_data = chain.from_iterable(data.directions)
    max_coverage = COVERAGE if any(map(has_many_characters, languages_of_data)) else 1.0
    coverage = min(tokenizer.character_coverage, max_coverage)
    byte_fallback = tokenizer.byte_fallback or coverage < 1

    num_letters = max(source_text.num_characters(coverage), target_text.num_characters(coverage))
    num_bytes = 256 if byte_fallback else 0
    fewest_pieces = NUM_SPECIAL_PIECES + num_letters + num_bytes + len(tokenizer.user_symbols)

    pairs_per_epoch = 2 * num_pairs if data.both_directions else num_pairs
    return CorpusSize(
        pairs=min(MAX_PAIRS, pairs_per_epoch),
        characters=num_characters / num_pairs,
        words=min(source_text.num_words(), target_text.num_words()),
        fewest_pieces=fewest_pieces,
        character_coverage=coverage,
        byte_fallback=byte_fallback,
    )


def _num_characters(
    sources: Sequence[str], targets: Sequence[str], languages: tuple[str, str], max_tokens: int
) -> float:
    """Return the number of characters of the longer sides of pairs, in Latin letters.

    Args:
        sources: source lines.
        targets: target lines.
        languages: languages of the two sides.
        max_tokens: maximum length of a line; filters remove a longer one, so it counts as one of this length.
    """
    src_lang, tgt_lang = languages
    source_lengths = Alphabet(src_lang).count(sources).length
    target_lengths = Alphabet(tgt_lang).count(targets).length
    longer_sides = np.maximum(source_lengths, target_lengths)
    counted_lengths = longer_sides.clip(max=CHARACTERS_PER_TOKEN * max_tokens)
    return float(counted_lengths.sum())


def recommended_epochs(num_pairs: float) -> float:
    """Return the recommended number of epochs for a training corpus; larger corpora than `MAX_PAIRS` need fewer."""
    size = size_for(num_pairs)
    return size.epochs * min(1.0, MAX_PAIRS / num_pairs)


def size_for(num_pairs: float) -> Size:
    """Return the settings for a number of pairs."""
    return next(size for size in SIZES if min(num_pairs, MAX_PAIRS) <= size.max_pairs)


def recommend(corpus: CorpusSize) -> dict[str, dict[str, Any]]:
    """Return the recommended values by section and key."""
    size = size_for(corpus.pairs)
    return {
        "tokenizer": _tokenizer_values(corpus, size),
        "model": _model_values(size),
        "training": _training_values(corpus, size),
    }


def _tokenizer_values(corpus: CorpusSize, size: Size) -> dict[str, Any]:
    """Return the recommended values of the `tokenizer` section."""
    return {
        "vocab_size": _vocab_size(corpus, size),
        "character_coverage": corpus.character_coverage,
        "byte_fallback": corpus.byte_fallback,
    }


def _model_values(size: Size) -> dict[str, Any]:
    """Return the recommended values of the `model` section."""
    return {
        "d_model": size.d_model,
        "num_heads": max(4, size.d_model // 64),
        "num_kv_heads": None,
        "d_ff": 4 * size.d_model,
        "num_encoder_layers": size.num_layers,
        "num_decoder_layers": size.num_layers,
        "dropout": size.dropout,
        "positions": "rotary",
    }


def _vocab_size(corpus: CorpusSize, size: Size) -> int:
    most_by_words = max(MIN_VOCABULARY, PIECES_PER_WORD * corpus.words)
    fewest_by_letters = PIECES_PER_LETTER * corpus.fewest_pieces
    vocab_size = min(size.vocab_size, most_by_words)
    return int(max(vocab_size, fewest_by_letters))


def _training_values(corpus: CorpusSize, size: Size) -> dict[str, Any]:
    """Return the recommended values of the `training` section."""
    tokens_per_pair = corpus.characters / CHARACTERS_PER_TOKEN + 1  # including eos
    tokens_per_epoch = corpus.pairs * tokens_per_pair
    num_steps = size.epochs * tokens_per_epoch / size.step_tokens
    max_steps = max(MIN_STEPS, round(num_steps, -2))

    consistency: dict[str, Any] = {}
    consistency["consistency"] = size.consistency
    consistency["cutoff"] = _default("cutoff")
    if size.consistency == "none":  # these keys have no effect, and other values are refused
        consistency["consistency_weight"] = _default("consistency_weight")
        consistency["consistency_start"] = _default("consistency_start")

    return {
        "batch_tokens": "auto",
        "step_tokens": size.step_tokens,
        "accumulation_steps": 1,
        **consistency,
        "max_steps": int(max_steps),
        "optimizer": "muon",
        "sharded": False,  # Muon needs whole matrices, and these models fit on one device
        "learning_rate": size.learning_rate,
        "schedule": "warmup_stable_decay",
        "warmup_steps": int(max_steps * WARMUP_SHARE),
        "validate_every": int(max_steps / VALIDATIONS),
        "keep_last": AVERAGED,
        "average_last": AVERAGED,
    }


def _default(key: str) -> Any:
    """Return the default value of a key of `training`."""
    return TrainingConfig.model_fields[key].default


def differences(config: Config, recommended: dict[str, dict[str, Any]]) -> str:
    """Return the recommended values that differ from those of a config, as overrides; "no changes" if none does."""
    values = {dotted(path): value for path, value in leaves(config).items()}
    overrides: list[str] = []
    for section, section_values in recommended.items():
        for name, value in section_values.items():
            key = f"{section}.{name}"
            if values[key] != value:
                text = "null" if value is None else str(value)
                overrides.append(f"{key}={text}")
    return " ".join(overrides) or "no changes"

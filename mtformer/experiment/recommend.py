"""Recommended settings for a training corpus of a given size.

`SIZES` is the only place where they are defined; docs/tutorial.md says which of them have been measured. The number of
steps does not depend on the device: on a slow one, `training.max_minutes` shortens the training.
"""

import sys
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from mtformer.config.languages import MANY_CHARACTERS, WITHOUT_SPACES, base_code
from mtformer.config.loading import leaves
from mtformer.config.schema import Config
from mtformer.config.yaml_text import dotted
from mtformer.data.corpus.sources import read_pairs
from mtformer.data.filters.scripts import Alphabet
from mtformer.errors import DataError

MAX_PAIRS = 1_000_000  # number of pairs after which a corpus is not read any further
CHARACTERS_PER_TOKEN = 4.5
PIECES_PER_WORD = 0.4
"""Maximum vocabulary size per distinct word: small texts with few different words have no more pieces."""
PIECES_PER_LETTER = 1.1  # minimum vocabulary size per special piece or distinct character
COVERAGE = 0.9995
"""Maximum `tokenizer.character_coverage` for languages with thousands of characters; rare ones become bytes."""
WARMUP_SHARE, VALIDATIONS, AVERAGED = 0.03, 20, 4


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


def measure(config: Config) -> CorpusSize:
    """Return the size of all training corpora, without filters; raise DataError if there are no pairs."""
    data, tokenizer, pairs, characters = config.data, config.tokenizer, 0, 0.0
    words = [set[str]()] * 2 if tokenizer.joint else [set[str](), set[str]()]
    counts = np.zeros((2 - tokenizer.joint, sys.maxunicode + 1), np.int64)  # of each character, per tokenizer
    for source in data.sources:
        rows = islice(read_pairs(source, data), MAX_PAIRS - pairs)
        while some := list(islice(rows, 10_000)):
            pairs += len(some)
            sides = list(zip(data.languages(source), zip(*some, strict=True), strict=True))
            lengths = [Alphabet(language).count(lines).length for language, lines in sides]
            characters += float(np.maximum(*lengths).clip(max=CHARACTERS_PER_TOKEN * data.filters.max_tokens).sum())
            for side, ((language, lines), own) in enumerate(zip(sides, words, strict=True)):
                codes = np.frombuffer("".join(lines).encode("utf-32-le"), np.uint32)
                counts[side % len(counts)] += np.bincount(codes, minlength=counts.shape[1])
                if base_code(language) in WITHOUT_SPACES:
                    own.update(line[place : place + 2] for line in lines for place in range(len(line)))
                else:
                    own.update(*map(str.split, lines))
    if not pairs:
        raise DataError("the training corpus is empty")
    has_many = not MANY_CHARACTERS.isdisjoint(base_code(one) for pair in data.directions for one in pair)
    coverage = min(tokenizer.character_coverage, COVERAGE if has_many else 1.0)
    byte_fallback = tokenizer.byte_fallback or coverage < 1
    reached = np.cumsum(-np.sort(-counts), axis=1)
    num_characters = 1 + np.count_nonzero(reached < coverage * reached[:, -1:], axis=1).max()
    fewest = 4 + int(num_characters) + 256 * byte_fallback + len(tokenizer.user_symbols)
    pairs_of_both = min(MAX_PAIRS, pairs * (2 if data.both_directions else 1))
    num_words = min(sum(not any(map(str.isdigit, word)) for word in own) for own in words)
    return CorpusSize(pairs_of_both, characters / pairs, num_words, fewest, coverage, byte_fallback)


def recommend(corpus: CorpusSize) -> dict[str, dict[str, Any]]:
    """Return the recommended values by section and key."""
    size = next(size for size in SIZES if corpus.pairs <= size.max_pairs)
    tokens = corpus.pairs * (corpus.characters / CHARACTERS_PER_TOKEN + 1)
    max_steps = max(100, round(size.epochs * tokens / size.step_tokens, -2))
    vocab_size = min(size.vocab_size, max(16, PIECES_PER_WORD * corpus.words))
    return {
        "tokenizer": {
            "vocab_size": int(max(vocab_size, PIECES_PER_LETTER * corpus.fewest_pieces)),
            "character_coverage": corpus.character_coverage,
            "byte_fallback": corpus.byte_fallback,
        },
        "model": {
            "d_model": size.d_model,
            "num_heads": max(4, size.d_model // 64),
            "num_kv_heads": None,
            "d_ff": 4 * size.d_model,
            "num_encoder_layers": size.num_layers,
            "num_decoder_layers": size.num_layers,
            "dropout": size.dropout,
            "positions": "rotary",
        },
        "training": {
            "batch_tokens": "auto",
            "step_tokens": size.step_tokens,
            "accumulation_steps": 1,
            "consistency": size.consistency,
            "cutoff": 0.05,
            **({"consistency_weight": 3.0, "consistency_start": 0} if size.consistency == "none" else {}),
            "max_steps": int(max_steps),
            "optimizer": "muon",
            "sharded": False,  # Muon needs whole matrices, and these models fit on one device
            "learning_rate": size.learning_rate,
            "schedule": "warmup_stable_decay",
            "warmup_steps": int(max_steps * WARMUP_SHARE),
            "validate_every": int(max_steps / VALIDATIONS),
            "keep_last": AVERAGED,
            "average_last": AVERAGED,
        },
    }


def differences(config: Config, recommended: dict[str, dict[str, Any]]) -> str:
    """Return the recommended values that differ from those of a config, as overrides; "no changes" if none does."""
    values = {dotted(path): value for path, value in leaves(config).items()}
    flat = {f"{section}.{key}": value for section, keys in recommended.items() for key, value in keys.items()}
    changes = [f"{key}={'null' if value is None else value}" for key, value in flat.items() if values[key] != value]
    return " ".join(changes) or "no changes"

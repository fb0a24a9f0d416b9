"""Filters, tokenization and duplicate keys, shared by data preparation, `data check` and `data clean`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.data.data_report import Columns
from mtformer.data.filters.duplicates import Keys, duplicate_keys
from mtformer.data.filters.filters import KEPT, Codes, Filter
from mtformer.data.store.pairs import Column, Ints, count_id, id_column, lengths
from mtformer.text.tokenizer import UNK, Tokenizer, TokenizerPair

PAIRS_AT_ONCE = 10_240
"""Number of pairs that are parsed, filtered and tokenized together. With fewer pairs, starting SentencePiece's threads
takes too long; with more, its results exceed the CPU cache."""

TokenCounts = NDArray[np.int32]
"""Array (pairs, 4): numbers of source and target tokens (excluding eos), and of unknown source and target tokens."""


@dataclass(frozen=True)
class Pipeline:
    """Filters and tokenizers of a corpus."""

    filters: FilterConfig | None
    """None: keep all pairs (dev and test)."""
    languages: tuple[str, str]
    tokenizers: TokenizerPair | None = None
    """None: tokens are not counted, and length filters are not applied."""
    tokenizes_all: bool = False
    """Also tokenize pairs that the text filters remove."""

    def load(self) -> Filter:
        """Return the filter, which may take seconds to load; raise ConfigError like `Filter`."""
        return _filter(self.filters, self.languages)

    def run(self, texts: Columns, num_threads: int = 1) -> "Filtered":
        """Filter and tokenize pairs."""
        filter_ = self.load()
        codes = filter_.by_text(texts)
        counts = np.zeros((len(codes), 4), dtype=np.int32)
        if self.tokenizers is None:
            return Filtered(codes, counts, [])

        rows = np.arange(len(codes)) if self.tokenizes_all else np.flatnonzero(codes == KEPT)
        src_lines, tgt_lines = take(texts, rows)
        src = encode(self.tokenizers.src, src_lines, num_threads)
        tgt = encode(self.tokenizers.tgt, tgt_lines, num_threads)
        token_counts = (lengths(src), lengths(tgt), count_id(src, UNK), count_id(tgt, UNK))
        counts[rows] = np.stack(token_counts, axis=1)

        codes_by_length = filter_.by_length(counts[rows, 0], counts[rows, 1])
        codes[rows] = np.where(codes[rows] == KEPT, codes_by_length, codes[rows])
        kept = np.flatnonzero(codes[rows] == KEPT)
        if len(kept) < len(rows):
            src = src.take(kept)
            tgt = tgt.take(kept)
        return Filtered(codes, counts, [src, tgt])

    def keys(self, texts: Columns) -> Keys | None:
        """Return the duplicate keys of pairs; None if duplicates are not removed."""
        if self.filters is None or not self.filters.drop_duplicates:
            return None
        return duplicate_keys(texts, is_normalized=self.filters.normalize_duplicates)


@cache
def _filter(config: FilterConfig | None, languages: tuple[str, str]) -> Filter:
    return Filter(config, *languages)


class Filtered(NamedTuple):
    """Reasons for removal, except duplicates, and tokens of pairs."""

    codes: Codes
    counts: TokenCounts
    """Token counts; zeros for pairs that are not tokenized."""
    tokens: list[Column]
    """Source ids and target ids of the kept pairs; empty without tokenizers."""


def encode(tokenizer: Tokenizer, lines: Sequence[str], num_threads: int = 1) -> Column:
    """Return the ids of each line."""
    return id_column(tokenizer.encode(lines, num_threads), tokenizer.vocab_size)


def take(texts: Columns, rows: Ints) -> Columns:
    """Return the pairs at these rows, given in ascending order."""
    if len(rows) == len(texts[0]):
        return texts
    indices = rows.tolist()
    src, tgt = texts
    return [src[index] for index in indices], [tgt[index] for index in indices]

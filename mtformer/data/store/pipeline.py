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

        rows = np.flatnonzero(codes == KEPT)
        if self.tokenizes_all:
            rows = np.arange(len(codes))
        src_lines, tgt_lines = take(texts, rows)
        src = encode(self.tokenizers.src, src_lines, num_threads)
        tgt = encode(self.tokenizers.tgt, tgt_lines, num_threads)
        counts[rows, 0] = lengths(src)
        counts[rows, 1] = lengths(tgt)
        counts[rows, 2] = count_id(src, UNK)
        counts[rows, 3] = count_id(tgt, UNK)

        codes_by_text = codes[rows]
        codes_by_length = filter_.by_length(lengths(src), lengths(tgt))
        new_codes = np.where(codes_by_text == KEPT, codes_by_length, codes_by_text)
        codes[rows] = new_codes
        kept = np.flatnonzero(new_codes == KEPT)
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
    """Return the ids of each line, without bos or eos.

    Args:
        tokenizer: tokenizer of the side.
        lines: the lines; blank ones give empty lists.
        num_threads: number of threads of the tokenizer.
    """
    return id_column(tokenizer.encode(lines, num_threads), tokenizer.vocab_size)


def take(texts: Columns, rows: Ints) -> Columns:
    """Return the pairs at these rows, given in ascending order."""
    if len(rows) == len(texts[0]):
        return texts
    indices = rows.tolist()
    src, tgt = texts
    src_taken = [src[index] for index in indices]
    tgt_taken = [tgt[index] for index in indices]
    return src_taken, tgt_taken

"""The filter pipeline, which preparing, `data check` and `data clean` share: text, tokens, keys of duplicates."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.data.data_report import Columns
from mtformer.data.filters.duplicates import Keys, duplicate_keys
from mtformer.data.filters.filters import KEPT, Codes, Filter
from mtformer.data.store.ragged import Ints, Ragged
from mtformer.text.tokenizer import UNK, Tokenizer, TokenizerPair

PAIRS_AT_ONCE = 10_240
"""Pairs that are parsed, filtered and tokenized together. With fewer, starting the threads in each of SentencePiece's
calls takes its time; with more, what it returns no longer fits the processor's cache."""
SMALL_VOCABULARY = 1 << 16
"""Up to this vocabulary size an id takes two bytes."""

TokenCounts = NDArray[np.int32]
"""(pairs, 4): tokens of source and target, eos not counted, and unknown tokens of source and target."""


@dataclass(frozen=True)
class Pipeline:
    """The filters and tokenizers of a corpus.

    Args:
        filters: None keeps every pair (dev and test).
        languages: codes of source and target.
        tokenizers: None: tokens are not counted, and the filters of length not applied.
        tokenizes_all: also tokenize the pairs that the text filters leave out.
    """

    filters: FilterConfig | None
    languages: tuple[str, str]
    tokenizers: TokenizerPair | None = None
    tokenizes_all: bool = False

    def load(self) -> Filter:
        """Return the filter, which some configs take seconds to load; raises ConfigError as `Filter`."""
        return _filter(self.filters, self.languages)

    def run(self, texts: Columns, num_threads: int = 1) -> "Filtered":
        """Filter and tokenize some pairs."""
        filter_, num_pairs = self.load(), len(texts[0])
        codes = filter_.by_text(texts)
        counts, tokens = np.zeros((num_pairs, 4), dtype=np.int32), list[Ragged]()
        rows = np.arange(num_pairs) if self.tokenizes_all else np.flatnonzero(codes == KEPT)
        if self.tokenizers is not None:
            chosen = take(texts, rows)
            tokens = [
                _encode(tokenizer, lines, num_threads)
                for tokenizer, lines in zip((self.tokenizers.src, self.tokenizers.tgt), chosen, strict=True)
            ]
            counts[rows] = np.stack(
                [*(side.lengths_B for side in tokens), *(side.count(UNK) for side in tokens)], axis=1
            )
            by_length = filter_.by_length(counts[rows, 0], counts[rows, 1])
            codes[rows] = np.where(codes[rows] == KEPT, by_length, codes[rows])
        return Filtered(texts, codes, counts, tokens, rows)

    def keys(self, texts: Columns) -> Keys | None:
        """Return the keys by which duplicates among kept pairs are found; None if duplicates are kept."""
        if self.filters is None or not self.filters.drop_duplicates:
            return None
        return duplicate_keys(texts, is_normalized=self.filters.normalize_duplicates)


_filter = cache(lambda config, languages: Filter(config, *languages))


@dataclass(frozen=True)
class Filtered:
    """Some pairs with the reasons to leave them out, duplicates aside."""

    texts: Columns
    codes: Codes
    counts: TokenCounts
    """Zeros for pairs that are not tokenized."""
    tokens: list[Ragged]
    """Ids of the sources and of the targets at `rows`; none without tokenizers."""
    rows: Ints
    """The pairs that are tokenized."""

    def kept(self) -> tuple[Columns, list[Ragged], TokenCounts]:
        """Return text, ids and token counts of the pairs that are kept."""
        if not self.codes.any():
            return self.texts, self.tokens, self.counts
        rows = np.flatnonzero(self.codes == KEPT)
        chosen = np.flatnonzero(self.codes[self.rows] == KEPT)
        tokens = self.tokens if len(chosen) == len(self.rows) else [side.take(chosen) for side in self.tokens]
        return take(self.texts, rows), tokens, self.counts[rows]


def take(texts: Columns, rows: Ints) -> Columns:
    """Return the pairs at these rows, which ascend."""
    if len(rows) == len(texts[0]):
        return texts
    numbers = rows.tolist()
    src, tgt = texts
    return [src[number] for number in numbers], [tgt[number] for number in numbers]


def _encode(tokenizer: Tokenizer, lines: Sequence[str], num_threads: int) -> Ragged:
    dtype = np.uint16 if tokenizer.vocab_size <= SMALL_VOCABULARY else np.int32
    return Ragged.of(tokenizer.encode(lines, num_threads), dtype)

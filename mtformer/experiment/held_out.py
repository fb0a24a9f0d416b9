"""Choose the pairs of a corpus that are held out as dev and test sets, by hashes of their text.

The choice does not depend on the order of the lines, and a pair is held out with all its copies. Pairs that share no
side with another pair come first: a model that saw one translation of a sentence in training would have it easier with
another one. Pairs that the filters would remove from training are not chosen.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import DataConfig
from mtformer.data.data_report import Columns
from mtformer.data.filters.duplicates import Keys, Mask, hash_keys, normalize
from mtformer.data.filters.filters import KEPT, Codes, Filter, count_reasons
from mtformer.errors import DataError

MAX_PAIRS_OF_SET = 1000
"""Maximum number of pairs of a set."""
ONE_PAIR_IN = 20
"""A set of a small corpus has one pair in this number."""
MIN_PAIRS = 40
"""Minimum number of different pairs in a corpus from which pairs are held out."""
CANDIDATES_PER_PAIR = 4
"""Number of pairs that are examined for each pair that is held out, because the filters remove some."""
LEFT_IN_TRAINING = 0
"""Set number of a pair that is not held out; the number of the first set that is held out is 1."""
REMOVED_COPY = 255
"""Set number of a further copy of a pair that is held out."""
SECOND_SIDE = np.uint64(0x9E3779B97F4A7C15)
"""Odd factor of the hashes of one side (2^64 divided by the golden ratio), so that exchanged sides differ."""

ReadBlocks = Callable[[], Iterator[Columns]]
"""Function that reads a corpus from its start, in blocks."""
SetNumbers = NDArray[np.uint8]
"""Set number of each pair of a corpus."""


def choose_held_out(read: ReadBlocks, data: DataConfig, names: Sequence[str]) -> SetNumbers:
    """Return the set of each pair of a corpus.

    Args:
        read: the corpus, which is read twice.
        data: its languages and filters.
        names: names of the sets to hold out.

    Raise DataError if the corpus has too few different pairs, or the filters would remove most of them.
    """
    pairs, has_shared_side = _pair_keys(read)
    keys, first_rows = np.unique(pairs, return_index=True)
    if len(keys) < MIN_PAIRS:
        options = " and ".join(f"--{name}" for name in names)
        raise DataError(
            f"the corpus has {len(keys)} different pairs, and at least {MIN_PAIRS} are needed to hold out "
            f"{' and '.join(names)}; give {options}"
        )

    set_size = min(MAX_PAIRS_OF_SET, len(keys) // ONE_PAIR_IN)
    order = np.lexsort((keys, has_shared_side[first_rows]))
    candidates = order[: CANDIDATES_PER_PAIR * set_size * len(names)]
    is_kept = _kept_by_filters(read, data, first_rows[candidates])
    chosen = candidates[is_kept][: set_size * len(names)]

    numbers = np.full(len(pairs), LEFT_IN_TRAINING, dtype=np.uint8)
    numbers[np.isin(pairs, keys[chosen])] = REMOVED_COPY
    numbers[first_rows[chosen]] = 1 + np.arange(len(chosen)) // set_size
    return numbers


def _pair_keys(read: ReadBlocks) -> tuple[Keys, Mask]:
    """Return a key for each pair, and True for each pair that shares a side with a different pair.

    Pairs that differ only in case, punctuation and spaces have the same key.
    """
    src_blocks: list[Keys] = []
    tgt_blocks: list[Keys] = []
    for src, tgt in read():
        src_blocks.append(hash_keys(map(normalize, src)))
        tgt_blocks.append(hash_keys(map(normalize, tgt)))
    src_keys = np.concatenate(src_blocks)
    tgt_keys = np.concatenate(tgt_blocks)

    pairs = src_keys ^ (tgt_keys * SECOND_SIDE)
    num_copies = _counts(pairs)
    has_shared_side = (_counts(src_keys) > num_copies) | (_counts(tgt_keys) > num_copies)
    return pairs, has_shared_side


def _counts(keys: Keys) -> NDArray[np.int64]:
    """Return the number of occurrences of each key, in the order of the keys."""
    _, positions, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[positions]


def _kept_by_filters(read: ReadBlocks, data: DataConfig, rows: NDArray[np.int64]) -> Mask:
    """Return True for each of these rows that the filters keep; raise DataError if they would remove most of them."""
    filters = Filter(data.filters, data.src_lang, data.tgt_lang)
    order = np.argsort(rows)
    ascending = rows[order]
    codes: Codes = np.full(len(rows), KEPT, dtype=np.uint8)
    start = 0
    for src, tgt in read():
        end = start + len(src)
        first, last = np.searchsorted(ascending, [start, end])
        block_rows = (ascending[first:last] - start).tolist()
        codes[order[first:last]] = filters.by_text(([src[row] for row in block_rows], [tgt[row] for row in block_rows]))
        start = end

    _require_most_kept(codes, data)
    return codes == KEPT


def _require_most_kept(codes: Codes, data: DataConfig) -> None:
    num_removed = np.count_nonzero(codes != KEPT)
    if num_removed <= data.filters.max_filtered_share * len(codes):
        return
    counts = count_reasons(codes)
    reason = max(counts, key=lambda name: counts[name])
    raise DataError(
        f"the filters would remove {num_removed:,} of {len(codes):,} pairs that were examined, most of them because of "
        f"'{reason}'; check that the files belong together and are {data.src_lang} and {data.tgt_lang}, with "
        "`mtformer data check`"
    )

"""Choose the pairs of a corpus that are held out as dev and test sets, by hashes of their text.

The choice does not depend on the order of the lines, and a pair is held out with all its copies. Pairs that share no
side with another pair come first: a model that saw one translation of a sentence in training would have it easier with
another one. Pairs that the filters would remove from training are not chosen.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mtformer.config.data import DataConfig
from mtformer.data.data_report import Columns
from mtformer.data.filters.duplicates import Keys, Mask, duplicate_keys, hash_keys, normalize
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

ReadBlocks = Callable[[], Iterator[Columns]]
"""Function that reads a corpus from its start, in blocks."""


def pair_keys(texts: Columns) -> Keys:
    """Return a key for each pair; pairs that differ only in case, punctuation and spaces have the same key."""
    return duplicate_keys(texts, is_normalized=True)


def choose_held_out(read: ReadBlocks, data: DataConfig, names: Sequence[str]) -> dict[str, Keys]:
    """Return the keys of the pairs to hold out for each set, see `pair_keys`.

    Args:
        read: the corpus, which is read twice.
        data: its languages and filters.
        names: names of the sets.

    Raise DataError if the corpus has too few different pairs, or the filters would remove most of them.
    """
    order = _keys_in_order(read)
    if len(order) < MIN_PAIRS:
        raise DataError(
            f"the corpus has {len(order)} different pairs, and at least {MIN_PAIRS} are needed to hold out "
            f"{' and '.join(names)}; give them with {' and '.join(f'--{name}' for name in names)}"
        )

    set_size = min(MAX_PAIRS_OF_SET, len(order) // ONE_PAIR_IN)
    candidates = order[: CANDIDATES_PER_PAIR * set_size * len(names)]
    is_kept = _kept_by_filters(read, data, candidates)
    chosen = candidates[is_kept]
    return {name: chosen[number * set_size : (number + 1) * set_size] for number, name in enumerate(names)}


def _keys_in_order(read: ReadBlocks) -> Keys:
    """Return the different keys of pairs, in the order in which they are held out."""
    blocks = [_block_keys(texts) for texts in read()]
    pairs = np.concatenate([block.pair for block in blocks])
    sources = np.concatenate([block.src for block in blocks])
    targets = np.concatenate([block.tgt for block in blocks])

    num_copies = _counts(pairs)
    has_other_pair = (_counts(sources) > num_copies) | (_counts(targets) > num_copies)
    keys, first_rows = np.unique(pairs, return_index=True)
    order = np.lexsort((keys, has_other_pair[first_rows]))
    return keys[order]


class _BlockKeys(NamedTuple):
    """Keys of the pairs in a block, and of their sides."""

    pair: Keys
    src: Keys
    tgt: Keys


def _block_keys(texts: Columns) -> _BlockKeys:
    src, tgt = texts
    return _BlockKeys(pair_keys(texts), hash_keys(map(normalize, src)), hash_keys(map(normalize, tgt)))


def _counts(keys: Keys) -> Keys:
    """Return the number of occurrences of each key, in the order of the keys."""
    _, numbers, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[numbers].astype(np.uint64)


def _kept_by_filters(read: ReadBlocks, data: DataConfig, candidates: Keys) -> Mask:
    """Return True for each candidate that the filters keep; raise DataError if they would remove most of them."""
    filters = Filter(data.filters, data.src_lang, data.tgt_lang)
    ordered = np.sort(candidates)
    code_of_key: dict[int, int] = {}
    for src, tgt in read():
        keys = pair_keys((src, tgt))
        rows = np.flatnonzero(np.isin(keys, ordered))
        codes = filters.by_text(([src[row] for row in rows], [tgt[row] for row in rows]))
        code_of_key.update(zip(keys[rows].tolist(), codes.tolist(), strict=True))

    codes = np.array([code_of_key[key] for key in candidates.tolist()], dtype=np.uint8)
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

"""Vocabulary map of a CTranslate2 export: for each source piece, the target pieces among which the search chooses.

They are those with the highest expected number of links in the training data by IBM model 1 (Brown et al. 1993).
L links, each between a target token and a source token of its sentence; V target vocabulary.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import DataConfig, Source
from mtformer.data.corpus.sources import read_pairs, source_fingerprint
from mtformer.decoding.loading import from_data_report
from mtformer.errors import ConfigError, log
from mtformer.run_dir import CT2_VOCABULARY_MAP, RunDir
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK, TokenizerPair

NUM_COMMON, NUM_CANDIDATES = 100, 50
"""Number of most frequent target pieces, which are always candidates, and maximum number for a source piece."""
MAX_PAIRS, MAX_LINKS, BLOCK = 500_000, 2500, 20_000
"""Number of training pairs in the sample, links of a pair, and pairs at a time."""
NUM_ITERATIONS = 5
SEPARATORS = str.maketrans("", "", " \t\r\n")
Ids = tuple[list[int], list[int]]


def write_vocabulary_map(run: RunDir, data: DataConfig, tokenizers: TokenizerPair, folder: Path) -> None:
    """Write vmap.txt, and log the share of the target tokens in dev that it contains.

    Raise ConfigError if the config lists no training data, DataError if it cannot be read.
    """
    if not data.sources:
        raise ConfigError(f"{run.path}: its config lists no training data, which --vocabulary-map needs; export a run")
    for source in data.sources:
        source_fingerprint(source, data)  # refuses text of `distill` or `adapt` that has changed
    sources, targets = ([piece.translate(SEPARATORS) for piece in one.vocabulary()] for one in tokenizers)
    stride = int(from_data_report(run, "read") or 0) // MAX_PAIRS + 1
    frequency_V, candidates = _candidates(_read(data.sources, data, tokenizers, stride), len(targets))
    common = {PAD, UNK, BOS, EOS, *np.argsort(-frequency_V, kind="stable")[:NUM_COMMON].tolist()}
    ids = {piece: number for number, piece in enumerate(targets)}
    for number, piece in enumerate(sources):  # names and numbers are copied
        candidates[number].add(ids.get(piece, UNK))
    rows = {piece: candidates[number] - common for number, piece in enumerate(sources)} | {"": common}
    lines = [f"{piece}\t{' '.join(targets[one] for one in sorted(some))}\n" for piece, some in rows.items() if some]
    (folder / CT2_VOCABULARY_MAP).write_bytes("".join(lines).encode())
    dev = _read(data.dev_sources, data, tokenizers)
    if known := [token in common.union(*(candidates[one] for one in src)) for src, tgt in dev for token in tgt]:
        log.info("the vocabulary map contains %.1f percent of the target tokens in dev", 100 * np.mean(known))


def _read(sources: Iterable[Source], data: DataConfig, tokenizers: TokenizerPair, stride: int = 1) -> Iterator[Ids]:
    """Yield the ids of every `stride`-th pair that is not too long, in both directions if the model has both."""
    pairs = islice(chain.from_iterable(read_pairs(source, data) for source in sources), None, None, stride)
    while block := list(islice(pairs, BLOCK)):
        src, tgt = zip(*block, *((tgt, src) for src, tgt in block if data.both_directions), strict=True)
        encoded = zip(tokenizers.src.encode(src), tokenizers.tgt.encode(tgt), strict=True)
        yield from (ids for ids in encoded if 0 < len(ids[0]) * len(ids[1]) <= MAX_LINKS)


def _candidates(pairs: Iterator[Ids], V: int) -> tuple[NDArray[np.int64], dict[int, set[int]]]:
    """Return the frequency of each target piece, and the candidates of each source piece."""
    frequency_V, keys = np.zeros(V, np.int64), np.empty(0, np.int64)
    counts: NDArray[Any] = np.empty(0)
    while block := list(islice(pairs, BLOCK)):
        frequency_V += np.bincount(np.concatenate([tgt for _, tgt in block]), minlength=V)
        found = _expected_links(block, V)
        keys, place = np.unique(np.concatenate([keys, found[0]]), return_inverse=True)
        counts = np.bincount(place, np.concatenate([counts, found[1]]))
    order = np.lexsort((-counts, keys // V))
    src, tgt = np.divmod(keys[order], V)
    is_best = np.arange(len(src)) - np.searchsorted(src, src) < NUM_CANDIDATES
    candidates: dict[int, set[int]] = defaultdict(set)
    for one, other in zip(src[is_best].tolist(), tgt[is_best].tolist(), strict=True):
        candidates[one].add(other)
    return frequency_V, candidates


def _expected_links(pairs: Sequence[Ids], V: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return keys (source id * V + target id) and their expected number of links after EM."""
    keys_L = np.concatenate([np.add.outer(tgt, np.multiply(src, V)).ravel() for src, tgt in pairs])
    lengths = np.concatenate([np.full(len(tgt), len(src)) for src, tgt in pairs])
    token_L = np.repeat(np.arange(len(lengths)), lengths)  # target token of each link
    keys, key_L = np.unique(keys_L, return_inverse=True)
    expected: NDArray[Any] = np.ones(len(keys))
    for _ in range(NUM_ITERATIONS):
        share_L = (expected / np.bincount(keys // V, expected)[keys // V])[key_L]
        expected = np.bincount(key_L, share_L / np.bincount(token_L, share_L)[token_L])
    return keys, expected

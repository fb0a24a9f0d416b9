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
from mtformer.decoding.ctranslate2.loading import WITHOUT_SEPARATORS
from mtformer.decoding.loading import from_data_report
from mtformer.errors import ConfigError, log
from mtformer.run_dir import CT2_VOCABULARY_MAP, RunDir
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, TokenizerPair

NUM_COMMON = 100
"""Number of most frequent target pieces, which are candidates for every source piece."""
NUM_CANDIDATES = 50
"""Maximum number of other candidates for a source piece."""
MAX_PAIRS = 500_000
"""Maximum number of training pairs in the sample."""
MAX_LINKS = 2500
"""Maximum number of links of a training pair; longer pairs are left out."""
BLOCK = 20_000
"""Number of training pairs at a time."""
NUM_ITERATIONS = 5
"""Number of iterations of EM."""
Ids = tuple[list[int], list[int]]
"""Source and target ids of a training pair."""


def write_vocabulary_map(run: RunDir, data: DataConfig, tokenizers: TokenizerPair, folder: Path) -> None:
    """Write vmap.txt, and log the share of the target tokens in dev that it contains.

    Args:
        run: exported run, whose data report has the number of training pairs.
        data: its `data` section, with the training and dev data.
        tokenizers: its tokenizers.
        folder: folder of the export, which exists.

    Raise ConfigError if the config lists no training data, DataError if it cannot be read.
    """
    if not data.sources:
        raise ConfigError(f"{run.path}: its config lists no training data, which --vocabulary-map needs; export a run")
    for source in data.sources:
        source_fingerprint(source, data)  # refuses text of `distill` or `adapt` that has changed
    src_pieces = _pieces_in_map(tokenizers.src)
    tgt_pieces = _pieces_in_map(tokenizers.tgt)

    stride = int(from_data_report(run, "read") or 0) // MAX_PAIRS + 1
    training_pairs = _read(data.sources, data, tokenizers, stride)
    frequency_V, candidates = _candidates(training_pairs, len(tgt_pieces))
    most_frequent = np.argsort(-frequency_V, kind="stable")[:NUM_COMMON]
    common = {PAD, UNK, BOS, EOS, *most_frequent.tolist()}

    # Names and numbers are copied: each piece is a candidate for itself.
    tgt_ids = {piece: number for number, piece in enumerate(tgt_pieces)}
    for number, piece in enumerate(src_pieces):
        candidates[number].add(tgt_ids.get(piece, UNK))

    rows = {piece: candidates[number] - common for number, piece in enumerate(src_pieces)}
    rows[""] = common
    _write_rows(folder / CT2_VOCABULARY_MAP, rows, tgt_pieces)

    dev_pairs = _read(data.dev_sources, data, tokenizers)
    is_known = _known_tokens(dev_pairs, candidates, common)
    if is_known:
        percentage = 100 * np.mean(is_known)
        log.info("the vocabulary map contains %.1f percent of the target tokens in dev", percentage)


def _pieces_in_map(tokenizer: Tokenizer) -> list[str]:
    """Return the pieces of a tokenizer as they are written in vmap.txt."""
    return [piece.translate(WITHOUT_SEPARATORS) for piece in tokenizer.vocabulary()]


def _write_rows(path: Path, rows: dict[str, set[int]], tgt_pieces: Sequence[str]) -> None:
    """Write the candidates of each source piece on a line; the line of the empty piece is for all pieces."""
    lines = []
    for src_piece, tgt_ids in rows.items():
        if tgt_ids:
            candidates = " ".join(tgt_pieces[number] for number in sorted(tgt_ids))
            lines.append(f"{src_piece}\t{candidates}\n")
    text = "".join(lines)
    path.write_bytes(text.encode())


def _known_tokens(pairs: Iterable[Ids], candidates: dict[int, set[int]], common: set[int]) -> list[bool]:
    """Return for each target token of the pairs whether it is a candidate for the source."""
    is_known: list[bool] = []
    for src, tgt in pairs:
        candidates_of_pieces = [candidates[number] for number in src]
        allowed = common.union(*candidates_of_pieces)
        is_known += [token in allowed for token in tgt]
    return is_known


def _read(sources: Iterable[Source], data: DataConfig, tokenizers: TokenizerPair, stride: int = 1) -> Iterator[Ids]:
    """Yield the ids of every `stride`-th pair that is not too long, in both directions if the model has both."""
    all_pairs = chain.from_iterable(read_pairs(source, data) for source in sources)
    pairs = islice(all_pairs, None, None, stride)
    while block := list(islice(pairs, BLOCK)):
        if data.both_directions:
            block += [(tgt, src) for src, tgt in block]
        src_lines, tgt_lines = zip(*block, strict=True)
        src_ids = tokenizers.src.encode(src_lines)
        tgt_ids = tokenizers.tgt.encode(tgt_lines)
        for src, tgt in zip(src_ids, tgt_ids, strict=True):
            num_links = len(src) * len(tgt)
            if 0 < num_links <= MAX_LINKS:
                yield src, tgt


def _candidates(pairs: Iterator[Ids], V: int) -> tuple[NDArray[np.int64], dict[int, set[int]]]:
    """Return the frequency of each target piece (V), and the candidates of each source piece."""
    frequency_V = np.zeros(V, np.int64)
    keys = np.empty(0, np.int64)
    counts: NDArray[Any] = np.empty(0)
    while block := list(islice(pairs, BLOCK)):
        tgt_tokens = np.concatenate([tgt for _, tgt in block])
        frequency_V += np.bincount(tgt_tokens, minlength=V)

        # Add the counts of the block to those of equal keys.
        block_keys, block_counts = _expected_links(block, V)
        all_keys = np.concatenate([keys, block_keys])
        all_counts = np.concatenate([counts, block_counts])
        keys, positions = np.unique(all_keys, return_inverse=True)
        counts = np.bincount(positions, all_counts)

    # Sort by source piece, and by descending count for each; the best are at most NUM_CANDIDATES after the first.
    order = np.lexsort((-counts, keys // V))
    src, tgt = np.divmod(keys[order], V)
    position_of_first = np.searchsorted(src, src)
    rank = np.arange(len(src)) - position_of_first
    is_best = rank < NUM_CANDIDATES

    candidates: dict[int, set[int]] = defaultdict(set)
    best_src = src[is_best].tolist()
    best_tgt = tgt[is_best].tolist()
    for src_id, tgt_id in zip(best_src, best_tgt, strict=True):
        candidates[src_id].add(tgt_id)
    return frequency_V, candidates


def _expected_links(pairs: Sequence[Ids], V: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return keys (source id * V + target id) and their expected number of links after EM."""
    # Each target token has a link to each source token of its sentence.
    keys_of_pairs = []
    num_links_of_pairs = []
    for src, tgt in pairs:
        keys_of_links = np.add.outer(tgt, np.multiply(src, V))
        keys_of_pairs.append(keys_of_links.ravel())
        num_links_of_pairs.append(np.full(len(tgt), len(src)))

    keys, key_L = np.unique(np.concatenate(keys_of_pairs), return_inverse=True)  # key_L: position of its key in keys
    src_of_key = keys // V
    num_links = np.concatenate(num_links_of_pairs)  # of each target token
    token_L = np.repeat(np.arange(len(num_links)), num_links)  # number of its target token

    expected: NDArray[Any] = np.ones(len(keys))
    for _ in range(NUM_ITERATIONS):
        # M step: the probability of the target piece of each link, given its source piece.
        total_of_src = np.bincount(src_of_key, expected)
        probability_L = (expected / total_of_src[src_of_key])[key_L]
        # E step: the links of a target token share one count.
        total_of_token = np.bincount(token_L, probability_L)
        expected = np.bincount(key_L, probability_L / total_of_token[token_L])
    return keys, expected

"""The pairs of one process: its share of the pairs of a window, augmented with noise.

Noise changes the lengths of lines, so batches can only be planned after it. If each process augmented all pairs to plan
the same batches as the others, more processes would not add noise any faster. Therefore the pairs are dealt to the
processes by their stored lengths, so that all shares have almost the same lengths, and each process augments only its
share, and plans its own batches.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mtformer.cluster.workers import Workers
from mtformer.data.batching.augment import Keys, Languages, pair_keys
from mtformer.data.batching.mixture import BlockWindow, Mixture
from mtformer.data.store.pairs import Ints, Pairs, lengths
from mtformer.data.store.store import BLOCK_PAIRS

TASK_BLOCKS = 8
"""Number of blocks of pairs that are augmented at a time, about 50 ms of work; sending them to a process takes 1 ms."""

Augment = Callable[[Pairs, Keys, Languages], Pairs]
"""Function of (pairs with text, keys of the pairs, their languages) that returns augmented pairs without text."""


class Share(NamedTuple):
    """Share of a process in the pairs of a window."""

    rank: int = 0
    """Number of the process, from 0."""
    num_ranks: int = 1
    """Number of processes."""


class Task(NamedTuple):
    """Pairs of a corpus that are augmented together."""

    corpus_number: int
    """Number of the corpus in the mixture."""
    languages: Languages
    pairs: Pairs
    keys: Keys


@dataclass(frozen=True)
class AugmentTask:
    """Callable that augments the pairs of a task; worker processes receive it once."""

    augment: Augment

    def __call__(self, task: Task, num_threads: int) -> Pairs:
        """Return the augmented pairs; the number of threads is ignored."""
        return self.augment(task.pairs, task.keys, task.languages)


AugmentWorkers = Workers[Task, Pairs]


def tasks(mixture: Mixture, window: BlockWindow, share: Share) -> Iterator[Task]:
    """Yield the pairs of a window that belong to a process.

    Args:
        mixture: the corpora.
        window: blocks of these corpora.
        share: the process; the shares of all processes contain each pair once.
    """
    num_blocks = TASK_BLOCKS * share.num_ranks
    for number, blocks in enumerate(window.blocks):
        corpus = mixture.corpora[number]
        by_block = np.argsort(blocks, kind="stable")  # blocks are read in the order of the file
        for first in range(0, len(blocks), num_blocks):
            part = by_block[first : first + num_blocks]
            pairs = corpus.read(blocks[part])
            numbers = _stream_numbers(window.starts[number] + part, corpus.store.block_sizes[blocks[part]])
            keys = pair_keys(mixture.seed, corpus.name, numbers)
            rows = _own_rows(pairs, keys, share)
            if len(rows):
                yield Task(number, corpus.languages, pairs.take(rows), keys[rows])


def _stream_numbers(positions: Ints, sizes: Ints) -> Ints:
    """Return the number of each pair in the stream of its corpus, in which every block has `BLOCK_PAIRS` numbers.

    Args:
        positions: positions of blocks in the stream.
        sizes: number of pairs in each block.
    """
    first_rows = np.cumsum(sizes) - sizes
    rows_in_block = np.arange(sizes.sum()) - np.repeat(first_rows, sizes)
    return np.repeat(positions, sizes) * BLOCK_PAIRS + rows_in_block


def _own_rows(pairs: Pairs, keys: Keys, share: Share) -> Ints:
    """Return the rows of the pairs of a process, in ascending order; pairs are dealt in the order of their lengths."""
    longer = np.maximum(lengths(pairs["src"]), lengths(pairs["tgt"]))
    by_length = np.lexsort((keys, longer))  # the last key is the main one
    own = by_length[share.rank :: share.num_ranks]
    return np.sort(own)

"""Mixture of corpora: the order of their blocks, determined by (seed, epoch) and the weights.

Each corpus is an endless stream of blocks, reshuffled after each pass. An epoch takes the next section of each stream;
the weight of the corpus determines the length of the section. An epoch is divided into windows, each with the same
share of every section. A window fits in memory; its pairs are shuffled, sorted by length and cut into batches.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mtformer.data.store.pairs import Ints, Pairs, swap
from mtformer.data.store.store import Store
from mtformer.errors import DataError
from mtformer.text.tokenizer import BOS

WINDOW_PAIRS = 1 << 17
"""Approximate number of pairs that are sorted by length together; larger windows hardly reduce padding further."""


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus with its weight, direction and tags."""

    name: str
    store: Store
    weight: float = 1.0
    """Number of occurrences of each pair per epoch."""
    is_swapped: bool = False
    """Exchange sources and targets."""
    tags: tuple[int, ...] = ()
    """Ids to insert before each source."""
    start: int = BOS
    """First decoder input id of each target: bos, or a language tag."""
    languages: tuple[str, str] = ("", "")
    """Language codes of sources and targets; empty if unknown."""

    def read(self, numbers: Ints | None = None) -> Pairs:
        """Return the pairs of these blocks (default: all), sorted by block number, without tags."""
        blocks: Sequence[int] = range(self.store.num_blocks)
        if numbers is not None:
            blocks = sorted(numbers.tolist())
        pairs = self.store.read(blocks)
        return swap(pairs) if self.is_swapped else pairs

    def longest(self) -> tuple[int, int]:
        """Return the number of tokens of the longest source, including tags, and of the longest target."""
        src, tgt = self.store.longest
        if self.is_swapped:
            src, tgt = tgt, src
        return src + len(self.tags), tgt


class SamplerState(NamedTuple):
    """Position of a run in the training data."""

    epoch: int = 0
    pairs: int = 0
    """Number of pairs processed so far in this epoch."""
    taken: dict[str, int] | None = None
    """Number of blocks taken from the stream of each corpus before this epoch; None: 0 for each corpus."""


START = SamplerState()
"""State of a run that has not started."""


@dataclass(frozen=True)
class BlockWindow:
    """Blocks of a part of an epoch."""

    number: int
    """Number of the window in its epoch, starting at 0."""
    blocks: list[Ints]
    """Block numbers of each corpus, which may be empty."""
    num_pairs: int
    taken_after: dict[str, int] = field(default_factory=dict)
    """Number of blocks taken from each stream, including this window."""
    starts: list[int] = field(default_factory=list)
    """Position of the first of these blocks in the stream of each corpus."""


class Mixture:
    """Order of the training data: which blocks of which corpora are in each window of each epoch.

    Raises DataError if all corpora are empty.

    Args:
        corpora: the corpora, at least one of them not empty.
        seed: seed of the run.
        temperature: corpora with n pairs (multiplied by their weights) are sampled in proportion to n^(1/T), where T is
            the temperature; above 1, small corpora are sampled more often and large ones less often (Arivazhagan et al.
            2019, section 4.2).
        window_pairs: approximate number of pairs per window.
    """

    def __init__(
        self, corpora: Sequence[Corpus], seed: int, temperature: float = 1.0, window_pairs: int = WINDOW_PAIRS
    ) -> None:
        self.corpora = [corpus for corpus in corpora if len(corpus.store)]
        if not self.corpora:
            raise DataError("the training corpus is empty; add sources to data.train, or check data.filters")
        self.seed = seed
        self.window_pairs = window_pairs

        sizes = [len(corpus.store) * corpus.weight for corpus in self.corpora]
        self.pairs_per_epoch = sum(sizes)
        if self.pairs_per_epoch < 1:
            raise DataError("data.corpora: with these weights, an epoch has less than one pair; raise the weights")

        self.shares = [corpus.weight for corpus in self.corpora]
        """Number of times that each pair of each corpus occurs in an epoch."""
        if temperature != 1.0:
            powers = [size ** (1 / temperature) for size in sizes]
            scale = sum(sizes) / sum(powers)  # keeps the number of pairs per epoch
            for index, corpus in enumerate(self.corpora):
                num_samples = scale * powers[index]
                self.shares[index] = num_samples / len(corpus.store)

    def windows(
        self, epoch: int, taken: dict[str, int] | None, window_pairs: int | None = None
    ) -> Iterator[BlockWindow]:
        """Yield the windows of an epoch.

        Args:
            epoch: number of the epoch, from 0.
            taken: see `SamplerState`.
            window_pairs: approximate number of pairs per window; default: that of the mixture.
        """
        taken_before = Counter(taken)  # 0 for other corpora
        num_windows = max(1, round(self.pairs_per_epoch / (window_pairs or self.window_pairs)))

        names = [corpus.name for corpus in self.corpora]
        starts = [taken_before[name] for name in names]
        for number in range(num_windows):
            progress = (number + 1) / num_windows
            ends: list[int] = []
            blocks: list[Ints] = []
            num_pairs = 0
            for index, corpus in enumerate(self.corpora):
                num_taken = self._num_taken(index, epoch, progress)
                end = taken_before[corpus.name] + num_taken
                corpus_blocks = self._stream(corpus, starts[index], end)
                block_sizes = corpus.store.block_sizes[corpus_blocks]
                num_pairs += int(block_sizes.sum())
                ends.append(end)
                blocks.append(corpus_blocks)

            taken_after = dict(zip(names, ends, strict=True))
            yield BlockWindow(number, blocks, num_pairs, taken_after, starts)
            starts = ends

    def _num_taken(self, index: int, epoch: int, progress: float) -> int:
        """Return the number of blocks that an epoch has taken from a corpus at `progress`, rounded at random."""
        corpus = self.corpora[index]
        generator = _generator(self.seed, corpus.name, "offset", epoch)
        offset = generator.random()
        epoch_blocks = self.shares[index] * corpus.store.num_blocks
        num_blocks = epoch_blocks * progress
        return math.floor(num_blocks + offset)

    def _stream(self, corpus: Corpus, start: int, end: int) -> Ints:
        """Return the blocks at positions `start` to `end` of the stream of a corpus."""
        num_blocks = corpus.store.num_blocks
        first_pass = start // num_blocks
        end_pass = -(-end // num_blocks)  # rounded up
        passes = [np.empty(0, np.int64)]  # if `start` and `end` are equal
        for number in range(first_pass, end_pass):
            generator = _generator(self.seed, corpus.name, number)
            passes.append(generator.permutation(num_blocks))
        blocks = np.concatenate(passes)
        num_before = first_pass * num_blocks
        return blocks[start - num_before : end - num_before]


def _generator(*key: int | str) -> np.random.Generator:
    """Return a random number generator that depends on the key only."""
    key_bytes = repr(key).encode()
    return np.random.default_rng(list(key_bytes))

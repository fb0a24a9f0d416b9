"""The mixture of corpora: the order of their blocks, as a function of (seed, epoch) and of the weights.

Each corpus is an endless stream: all of its blocks in a random order, then all in another order, and so on. An epoch
takes a piece of each stream, whose length the weight of the corpus decides, and is cut into windows, each with the same
share of each piece. A window fits the memory: its pairs are shuffled, and sorted by length into batches.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mtformer.data.store.ragged import Ints
from mtformer.data.store.store import Pairs, Store
from mtformer.errors import DataError
from mtformer.text.tokenizer import BOS

WINDOW_PAIRS = 1 << 17
"""Approximate number of pairs that are sorted by length together; more would hardly lower the padding."""
ROUNDS = 6
"""Rounds of the Feistel network of `permuted`."""


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus and how it is used."""

    name: str
    store: Store
    weights: tuple[tuple[int, float], ...] = ((0, 1.0),)
    """(from this step on, how often an epoch holds each pair), by ascending step."""
    is_swapped: bool = False
    """Translate from its targets to its sources."""
    tags: tuple[int, ...] = ()
    """Ids before each source."""
    start: int = BOS
    """The id that a target starts with in the decoder: bos, or a language tag."""

    def weight(self, step: int) -> float:
        """Return the weight at this step."""
        return [weight for since, weight in self.weights if since <= step][-1]

    def read(self, numbers: Ints) -> Pairs:
        """Return the pairs of these blocks, by ascending number, without tags."""
        pairs = self.store.read(sorted(numbers.tolist()))
        return pairs.swapped() if self.is_swapped else pairs

    def longest(self) -> tuple[int, int]:
        """Return the tokens of the longest source, tags counted, and of the longest target."""
        src, tgt = self.store.longest[::-1] if self.is_swapped else self.store.longest
        return src + len(self.tags), tgt


class SamplerState(NamedTuple):
    """The position of a run in its data."""

    epoch: int = 0
    pairs: int = 0
    """Pairs of this epoch that are done."""
    since_step: int = 0
    """The step at which the epoch began: its weights are those of that step."""
    taken: dict[str, int] | None = None
    """Blocks of each corpus's stream before this epoch; None: none."""


START = SamplerState()


@dataclass(frozen=True)
class Window:
    """The blocks of a window by corpus; `blocks` has an entry for each corpus, possibly empty."""

    number: int
    blocks: list[Ints]
    num_pairs: int
    taken_after: dict[str, int] = field(default_factory=dict)
    """Blocks taken of each stream, this window included."""


class Mixture:
    """The order of all training data.

    Args:
        corpora: at least one that is not empty.
        seed: seed of the run.
        temperature: T; of corpora with n pairs (times their weights), shares are proportional to n^(1/T): above 1 small
            corpora come more often, large ones less often (Arivazhagan et al. 2019, section 4.2).
        window_pairs: approximate number of pairs in a window.

    Raises:
        DataError: when all corpora are empty.
    """

    def __init__(
        self, corpora: Sequence[Corpus], seed: int, temperature: float = 1.0, window_pairs: int = WINDOW_PAIRS
    ) -> None:
        self.corpora = [corpus for corpus in corpora if len(corpus.store)]
        if not self.corpora:
            raise DataError("the training corpus is empty: there is nothing to make batches of")
        self.seed, self.temperature, self.window_pairs = seed, temperature, window_pairs

    def shares(self, step: int) -> list[float]:
        """Return how often an epoch holds each pair of each corpus, with the weights of this step."""
        sizes = [len(corpus.store) * corpus.weight(step) for corpus in self.corpora]
        powers = [size ** (1 / self.temperature) if size else 0.0 for size in sizes]
        weights = [corpus.weight(step) for corpus in self.corpora]
        if self.temperature == 1.0:
            return weights
        scale = sum(sizes) / sum(powers)
        return [scale * power / len(corpus.store) for power, corpus in zip(powers, self.corpora, strict=True)]

    def pairs_per_epoch(self, step: int) -> float:
        """Return the pairs of an epoch, with the weights of this step."""
        return sum(share * len(corpus.store) for share, corpus in zip(self.shares(step), self.corpora, strict=True))

    def begin(self, state: SamplerState) -> dict[str, int]:
        """Return the blocks of each stream before the state's epoch."""
        taken = state.taken or {}
        return {corpus.name: taken.get(corpus.name, 0) for corpus in self.corpora}

    def windows(self, epoch: int, since_step: int, taken: dict[str, int]) -> Iterator[Window]:
        """Yield the windows of an epoch.

        Args:
            epoch: its number.
            since_step: see `SamplerState`.
            taken: see `begin`.
        """
        shares = self.shares(since_step)
        num_windows = max(1, round(self.pairs_per_epoch(since_step) / self.window_pairs))
        ends = [0] * len(self.corpora)
        for number in range(num_windows):
            blocks, num_pairs = [], 0
            for which, corpus in enumerate(self.corpora):
                start, ends[which] = ends[which], self._until(which, shares, epoch, (number + 1) / num_windows)
                blocks.append(self._stream(corpus, taken[corpus.name] + start, taken[corpus.name] + ends[which]))
                num_pairs += int(corpus.store.block_sizes(blocks[-1]).sum())
            after = {corpus.name: taken[corpus.name] + end for corpus, end in zip(self.corpora, ends, strict=True)}
            yield Window(number, blocks, num_pairs, after)

    def _until(self, which: int, shares: list[float], epoch: int, progress: float) -> int:
        """Return the blocks that an epoch takes of a corpus until `progress`; fractions are rounded at random."""
        corpus = self.corpora[which]
        offset = int(permuted(np.zeros(1, np.int64), 1 << 20, self.seed, corpus.name, "lot", epoch)[0]) / (1 << 20)
        return math.floor(shares[which] * corpus.store.num_blocks * progress + offset)

    def _stream(self, corpus: Corpus, start: int, end: int) -> Ints:
        """Return the blocks at these positions of a corpus's stream."""
        positions, size = np.arange(start, end), corpus.store.num_blocks
        blocks = np.empty(len(positions), dtype=np.int64)
        for number in range(start // size, -(-end // size)):
            in_pass = positions // size == number
            blocks[in_pass] = permuted(positions[in_pass] % size, size, self.seed, corpus.name, number)
        return blocks


def permuted(numbers: Ints, size: int, *key: int | str) -> Ints:
    """Return the positions of numbers in a random order that depends on the key alone, in constant memory.

    A Feistel network over the bits of a number is a bijection whatever its round function is (Luby and Rackoff 1988);
    numbers that leave the range pass through it again until they are back ("cycle walking", Black and Rogaway 2002).

    Args:
        numbers: from 0 to size - 1.
        size: size of the range, at least 1.
        key: such as seed, name and epoch.
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8 * ROUNDS).digest()
    round_keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)
    found = numbers.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        found[outside] = _feistel(found[outside], half_bits, round_keys)
        outside = outside[found[outside] >= size]
    return found.astype(np.int64)


def _feistel(numbers: np.ndarray, half_bits: int, round_keys: np.ndarray) -> np.ndarray:
    half, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = numbers >> half, numbers & mask
    for key in round_keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << half) | right


def _mix(x: np.ndarray) -> np.ndarray:
    """Apply the finalizer of SplitMix64 (Steele et al. 2014): each bit of x flips about half of the bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))

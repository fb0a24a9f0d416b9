"""Corpora in their shares: which blocks come when, as a function of (seed, epoch) and of the weights.

Each corpus is an endless stream: all of its blocks in a random order, then all in another one, and so on. An epoch
takes from each stream a piece as long as the corpus's weight says, and is cut into windows, each with the same share
of each piece. A window is what is in memory: its pairs are shuffled, and sorted by length into batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mtformer.data.order import permuted
from mtformer.data.ragged import Ints
from mtformer.data.store import Pairs, Store
from mtformer.errors import DataError
from mtformer.text.tokenizer import BOS

WINDOW_PAIRS = 1 << 17
"""About so many pairs are sorted by length together; more would hardly lower the padding."""


@dataclass(frozen=True)
class Corpus:
    """Pairs and how they are used."""

    name: str
    store: Store
    weights: tuple[tuple[int, float], ...] = ((0, 1.0),)
    """(from this step on, how often an epoch holds each pair), by ascending step."""
    is_swapped: bool = False
    """From its targets to its sources."""
    tags: tuple[int, ...] = ()
    """Ids before each source."""
    start: int = BOS
    """The id that a target starts with in the decoder: bos, or a language tag."""

    def weight(self, step: int) -> float:
        """At this step."""
        return [weight for since, weight in self.weights if since <= step][-1]

    def read(self, numbers: Ints) -> Pairs:
        """Return the pairs of these blocks, by ascending number, without tags."""
        pairs = self.store.read(sorted(numbers.tolist()))
        return pairs.swapped() if self.is_swapped else pairs

    def longest(self) -> tuple[int, int]:
        """Return the tokens of the longest source, tags counted, and of the longest target."""
        src, tgt = self.store.longest[::-1] if self.is_swapped else self.store.longest
        return src + len(self.tags), tgt


class Place(NamedTuple):
    """Where a run stands in its data."""

    epoch: int = 0
    pairs: int = 0
    """Of this epoch behind us."""
    since_step: int = 0
    """The step at which the epoch began: its weights are those of that step."""
    taken: dict[str, int] | None = None
    """Blocks of each corpus's stream before this epoch; None: as many as so many epochs take without a schedule."""


START = Place()


@dataclass(frozen=True)
class Window:
    """Which blocks of each corpus; `blocks` has an entry for each corpus, maybe empty."""

    number: int
    blocks: list[Ints]
    num_pairs: int
    taken_after: dict[str, int] = field(default_factory=dict)
    """Of each stream, with this window."""


class Mixture:
    """The order of all that is trained on.

    Args:
        corpora: at least one that is not empty.
        seed: of the run.
        temperature: T; of corpora with n pairs (times their weights), shares go with n^(1/T): above 1 small corpora
            come more often than they would, large ones less (Arivazhagan et al. 2019, section 4.2).
        window_pairs: about so many pairs to a window.

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
        """How often an epoch holds each pair of each corpus, with the weights of this step."""
        sizes = [len(corpus.store) * corpus.weight(step) for corpus in self.corpora]
        powers = [size ** (1 / self.temperature) if size else 0.0 for size in sizes]
        weights = [corpus.weight(step) for corpus in self.corpora]
        if self.temperature == 1.0:
            return weights
        scale = sum(sizes) / sum(powers)
        return [scale * power / len(corpus.store) for power, corpus in zip(powers, self.corpora, strict=True)]

    def pairs_per_epoch(self, step: int) -> float:
        """With the weights of this step."""
        return sum(share * len(corpus.store) for share, corpus in zip(self.shares(step), self.corpora, strict=True))

    def begin(self, place: Place) -> dict[str, int]:
        """Blocks of each stream before the place's epoch."""
        if place.taken is not None:
            return {corpus.name: place.taken.get(corpus.name, 0) for corpus in self.corpora}
        taken = dict.fromkeys((corpus.name for corpus in self.corpora), 0)
        for epoch in range(place.epoch):
            for number, corpus in enumerate(self.corpora):
                taken[corpus.name] += self._until(number, self.shares(0), epoch, 1.0)
        return taken

    def windows(self, epoch: int, since_step: int, taken: dict[str, int]) -> Iterator[Window]:
        """The windows of an epoch.

        Args:
            epoch: its number.
            since_step: see `Place`.
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
        """Blocks that an epoch takes of a corpus until this much of it; what is left of a block is drawn by lot."""
        corpus = self.corpora[which]
        lot = int(permuted(np.zeros(1, np.int64), 1 << 20, self.seed, corpus.name, "lot", epoch)[0]) / (1 << 20)
        return math.floor(shares[which] * corpus.store.num_blocks * progress + lot)

    def _stream(self, corpus: Corpus, start: int, end: int) -> Ints:
        """The blocks at these places of a corpus's stream."""
        places, size = np.arange(start, end), corpus.store.num_blocks
        blocks = np.empty(len(places), dtype=np.int64)
        for number in range(start // size, -(-end // size)):
            mine = places // size == number
            blocks[mine] = permuted(places[mine] % size, size, self.seed, corpus.name, number)
        return blocks

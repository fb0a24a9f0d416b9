"""What comes more than once in a corpus, or in two sets: by 8 bytes of each line, which stay in memory."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mtformer.data.check_findings import Example, Finding, Findings
from mtformer.data.check_lines import NO_HASH, Seen
from mtformer.data.duplicates import Keys
from mtformer.data.report import Pair

DUPLICATE, NEAR, MANY = "exact duplicate", "near duplicate", "several targets"
SLOT_BITS = 25
MOST_CANDIDATES = 1000
"""Texts that are kept until it is known whether they stood before."""

Mask = NDArray[np.bool_]
Texts = Callable[[int], Pair]
"""The pair with a number in the chunk."""


class Memory:
    """All hashes of a set, and a quick guess which of them stood before."""

    def __init__(self) -> None:
        self._blocks: list[Keys] = [np.zeros(0, dtype=np.uint64)]
        self._seen = np.zeros(1 << SLOT_BITS, dtype=np.bool_)

    def add(self, hashes: Keys) -> Mask:
        """Which may have stood before: all that did, and by chance a few more."""
        self._blocks.append(hashes)
        slots = hashes >> np.uint64(64 - SLOT_BITS)
        first = np.unique(slots, return_index=True)[1]
        may_repeat = np.ones(len(hashes), dtype=np.bool_)
        may_repeat[first] = self._seen[slots[first]]
        self._seen[slots] = True
        return may_repeat & (hashes != NO_HASH)

    def all(self) -> Keys:
        """In the order in which they came."""
        self._blocks = [np.concatenate(self._blocks)]
        return self._blocks[0]


@dataclass(frozen=True)
class _Candidate:
    index: int
    hash: int
    text: Pair


class Repeats:
    """Duplicates, near duplicates, and sources with several targets within one set."""

    def __init__(self) -> None:
        self.pairs, self.near, self.sources = Memory(), Memory(), Memory()
        self._kept: list[Mask] = [np.zeros(0, dtype=np.bool_)]
        self._candidates: dict[str, list[_Candidate]] = {DUPLICATE: [], NEAR: [], MANY: []}

    def add(self, seen: Seen, start: int, texts: Texts) -> None:
        """The next chunk, whose first pair has the number `start`."""
        self._kept.append(seen.is_kept)
        pair, near, src = self.pairs.add(seen.pair), self.near.add(seen.near), self.sources.add(seen.src)
        for kind, mask, hashes in (
            (DUPLICATE, pair, seen.pair),
            (NEAR, near & ~pair, seen.near),
            (MANY, src & ~pair, seen.src),
        ):
            room = MOST_CANDIDATES - len(self._candidates[kind])
            for number in np.flatnonzero(mask)[:room].tolist():
                candidate = _Candidate(start + number, int(hashes[number]), texts(number))
                self._candidates[kind].append(candidate)

    def findings(self) -> Findings:
        """Counts of pairs that repeat an earlier one, and of sources; examples by how often they come."""
        findings = Findings()
        exact, near = _Groups(self.pairs.all()), _Groups(self.near.all())
        findings.add(
            DUPLICATE, "pair", exact.num_repeats, exact.examples(self._candidates[DUPLICATE], "comes {} times")
        )
        of_near = near.examples(self._candidates[NEAR], "comes {} times, up to case, spaces and punctuation")
        findings.add(NEAR, "pair", near.num_repeats - exact.num_repeats, of_near)
        # Of each pair its first; so often a source comes here, so many targets it has.
        distinct = np.sort(exact.first)
        sources = _Groups(self.sources.all()[distinct], distinct)
        of_sources = sources.examples(self._candidates[MANY], "has {} targets")
        findings.add(MANY, "src", int((sources.counts > 1).sum()), of_sources)
        return findings

    def among_kept(self, is_normalised: bool) -> int:
        """Duplicates among the pairs that the filters leave in; with near duplicates, if asked."""
        keys = self.near if is_normalised else self.pairs
        return _Groups(keys.all()[np.concatenate(self._kept)]).num_repeats


class _Groups:
    """Equal hashes together.

    Args:
        hashes: of items, in their order.
        places: the items' numbers in the set, when they are not 0, 1, 2 ...
    """

    def __init__(self, hashes: Keys, places: NDArray[np.int64] | None = None) -> None:
        values, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        known = values != NO_HASH
        self.values, self.counts = values[known], counts[known]
        self.first = first[known] if places is None else places[first[known]]

    @property
    def num_repeats(self) -> int:
        """Items that are not the first of their group."""
        return int(self.counts.sum()) - len(self.counts)

    def examples(self, candidates: list[_Candidate], note: str) -> list[Example]:
        """One of each group that has more than one item."""
        found: dict[int, Example] = {}
        for candidate in candidates:
            place = int(np.searchsorted(self.values, np.uint64(candidate.hash)))
            if self.first[place] < candidate.index:  # else it was not there before
                count = int(self.counts[place])
                example = Example.cut(candidate.index, *candidate.text, rank=count, note=note.format(count))
                found.setdefault(candidate.hash, example)
        return list(found.values())


@dataclass
class HeldOut:
    """What must not stand in another set: dev, or a test set.

    Args:
        name: of the set.
        pairs: hashes of its pairs, in their order.
        src: of its sources.
        tgt: of its targets.
    """

    name: str
    pairs: Keys
    src: Keys
    tgt: Keys


@dataclass
class Overlap:
    """How much of one set stands in another."""

    of: str
    within: str
    size: int
    """Pairs of the first set."""
    pairs: Finding = field(default_factory=Finding)
    """Pairs of the first set that stand in the second; examples are of the second."""
    sources: Finding = field(default_factory=Finding)
    """Its pairs whose source stands there."""
    targets: Finding = field(default_factory=Finding)
    """Its pairs whose target stands there."""

    @property
    def share(self) -> float:
        """Of the first set's pairs, those that stand in the second."""
        return self.pairs.count / self.size if self.size else 0.0


class OverlapSearch:
    """Looks for a held-out set in the chunks of another set.

    Args:
        held_out: what is looked for.
        within: name of the other set.
    """

    def __init__(self, held_out: HeldOut, within: str) -> None:
        self.overlap = Overlap(held_out.name, within, len(held_out.pairs))
        self._parts = [
            (self.overlap.pairs, _Wanted(held_out.pairs)),
            (self.overlap.sources, _Wanted(held_out.src)),
            (self.overlap.targets, _Wanted(held_out.tgt)),
        ]

    def add(self, seen: Seen, start: int, texts: Texts) -> None:
        """The next chunk, whose first pair has the number `start`."""
        for (finding, wanted), hashes in zip(self._parts, (seen.pair, seen.src, seen.tgt), strict=True):
            for number, place in wanted.new_in(hashes):
                src, tgt = texts(number)
                note = f"pair {place + 1} of {self.overlap.of}"
                # A long line says more than a heading.
                finding.add(0, [Example.cut(start + number, src, tgt, rank=len(src) + len(tgt), note=note)])

    def result(self) -> Overlap:
        """When all chunks were added."""
        for finding, wanted in self._parts:
            finding.count = wanted.num_found()
        return self.overlap


class _Wanted:
    """Hashes that are looked for, and which of them were found."""

    def __init__(self, hashes: Keys) -> None:
        self._values, self._first, self._counts = np.unique(
            hashes[hashes != NO_HASH], return_index=True, return_counts=True
        )
        self._places = np.flatnonzero(hashes != NO_HASH)
        self._found = np.zeros(len(self._values), dtype=np.bool_)

    def new_in(self, hashes: Keys) -> list[tuple[int, int]]:
        """Number in the chunk, and in the held-out set, of what was not found before."""
        if not len(self._values):
            return []
        at = np.minimum(np.searchsorted(self._values, hashes), len(self._values) - 1)
        hits = np.flatnonzero((self._values[at] == hashes) & ~self._found[at])
        _, first = np.unique(at[hits], return_index=True)
        hits = np.sort(hits[first])
        self._found[at[hits]] = True
        return [(number, int(self._places[self._first[at[number]]])) for number in hits.tolist()]

    def num_found(self) -> int:
        """Items of the held-out set that were found."""
        return int(self._counts[self._found].sum())

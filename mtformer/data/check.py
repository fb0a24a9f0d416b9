"""A look at all corpora of a config before training: each is read once, by several processes, in little memory.

What adds up is counted chunk by chunk (`check_lines`); what needs a whole set is found by hashes (`check_repeats`), for
which 25 bytes of each pair stay in memory, and as many more while they are compared; `check_making` makes a report of
it.
"""

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from mtformer.config.data import DataConfig, Source
from mtformer.data.check_lines import LEFT_OUT, Looker, Seen, Task, Totals
from mtformer.data.check_reading import CHUNK_BYTES, Chunk, SourceReader, decode
from mtformer.data.check_repeats import HeldOut, Overlap, OverlapSearch, Repeats
from mtformer.data.filters import DUPLICATE, REASONS
from mtformer.data.report import Pair
from mtformer.data.sources import bytes_on_disk, require_files
from mtformer.data.workers import Workers
from mtformer.text.tokenizer import TokenizerPair

log = logging.getLogger("mtformer")

Advance = Callable[[str, int, int], object]
"""(name of the set, pairs more, bytes on disk more)"""


@dataclass
class SetCheck:
    """All that was found in one set."""

    name: str
    """train, dev, or test.NAME."""
    readers: list[SourceReader]
    """Its sources, in their order."""
    totals: Totals = field(default_factory=Totals)
    left_out: dict[str, int] | None = None
    """Of train, by reason: what the filters would leave out."""

    @property
    def languages(self) -> tuple[str, str]:
        """Of the first source."""
        return self.readers[0].languages

    def place(self, index: int, side: str) -> tuple[str, int]:
        """File and line, from 1, of a pair of the set."""
        starts = [0, *accumulate(reader.num_pairs for reader in self.readers)]
        number = min(bisect_right(starts, index), len(self.readers)) - 1
        return self.readers[number].file(side), index - starts[number] + 1


@dataclass
class CorpusCheck:
    """All that was found."""

    data: DataConfig
    has_tokenizer: bool
    sets: list[SetCheck] = field(default_factory=list)
    """train, dev, then the test sets; those there are."""
    overlaps: list[Overlap] = field(default_factory=list)


def check_corpora(
    data: DataConfig,
    tokenizers: TokenizerPair | None,
    advance: Advance = lambda name, pairs, size: None,
    chunk_bytes: int = CHUNK_BYTES,
) -> CorpusCheck:
    """Reads train, dev and test once and counts what is odd in them.

    Args:
        data: the section of a config; `num_workers` processes look at it.
        tokenizers: None leaves out all that is counted in tokens.
        advance: called when a part is done.
        chunk_bytes: how much a process gets at a time; it changes nothing in the result.

    Raises:
        DataError: when a file is missing or its packing damaged; what is wrong inside lines is counted.
    """
    require_files(source for _, sources in sets_of(data) for source in sources)
    check = CorpusCheck(data, tokenizers is not None)
    held_out: list[HeldOut] = []
    task = Task(data.filters, tokenizers)
    num_workers = data.num_workers or os.cpu_count() or 1
    with Workers[Chunk, Seen](Looker, task, num_workers) as workers:
        # Train comes last, so that what must not stand in it is known by then.
        for name, sources in reversed(sets_of(data)):
            looking = _SetLook(name, sources, data, held_out)
            for chunk, seen in workers.map(looking.chunks(chunk_bytes)):
                looking.add(chunk, seen)
                advance(name, len(chunk), looking.bytes_of.pop(chunk.start))
            check.sets.insert(0, looking.finish())
            check.overlaps[:0] = [search.result() for search in looking.searches]
            if name != "train":
                held_out.insert(0, looking.held_out())
    return check


def sets_of(data: DataConfig) -> list[tuple[str, list[Source]]]:
    """The sets that a config names: train, dev, and test.NAME."""
    sets = [("train", data.sources), ("dev", data.dev)]
    sets += [(f"test.{name}", [source]) for name, source in data.test.items()]
    return [(name, sources) for name, sources in sets if sources]


def num_bytes(data: DataConfig) -> int:
    """On disk, of all sets; 0 for sources whose size is not known."""
    return sum(bytes_on_disk(source) for _, sources in sets_of(data) for source in sources)


class _SetLook:
    """One set while it is read."""

    def __init__(self, name: str, sources: Sequence[Source], data: DataConfig, held_out: Sequence[HeldOut]) -> None:
        self.data, self.sources = data, sources
        self.result = SetCheck(name, [])
        self.repeats = Repeats()
        is_test = name.startswith("test.")
        self.searches = [OverlapSearch(one, name) for one in held_out] if not is_test else []
        self.bytes_of: dict[int, int] = {}
        self._hashes: list[Seen] = []

    def chunks(self, chunk_bytes: int) -> Iterator[Chunk]:
        start = 0
        for source in self.sources:
            reader = SourceReader(source, self.data, start, is_training=self.result.name == "train")
            self.result.readers.append(reader)
            for chunk, size in reader.chunks(chunk_bytes):
                self.bytes_of[chunk.start] = size
                yield chunk
            start += reader.num_pairs

    def add(self, chunk: Chunk, seen: Seen) -> None:
        texts = _Texts(chunk)
        self.result.totals.merge(seen.totals)
        self.repeats.add(seen, chunk.start, texts)
        for search in self.searches:
            search.add(seen, chunk.start, texts)
        if self.result.name != "train":
            self._hashes.append(seen)

    def finish(self) -> SetCheck:
        result = self.result
        result.totals.findings.merge(self.repeats.findings())
        if result.name == "train":
            result.left_out = left_out(result.totals, self.repeats, self.data)
        log.info("%s: %s pairs read", result.name, f"{result.totals.pairs:,}")
        return result

    def held_out(self) -> HeldOut:
        names = ("pair", "src", "tgt")
        empty = np.zeros(0, dtype=np.uint64)
        hashes = [np.concatenate([empty, *(getattr(seen, name) for seen in self._hashes)]) for name in names]
        return HeldOut(self.result.name, *hashes)


def left_out(totals: Totals, repeats: Repeats, data: DataConfig) -> dict[str, int]:
    """What the filters would leave out, by reason; those of length need tokens."""
    counts = {reason: totals.findings.count(LEFT_OUT + reason, "pair") for reason in REASONS}
    if data.filters.drop_duplicates:
        counts[DUPLICATE] = repeats.among_kept(data.filters.normalise_duplicates)
    return {reason: count for reason, count in counts.items() if count}


class _Texts:
    """The pairs of a chunk, decoded when one is asked for."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._pairs: list[Pair] | None = None

    def __call__(self, number: int) -> Pair:
        if self._pairs is None:
            decoded = decode(self._chunk)
            self._pairs = list(zip(decoded.src, decoded.tgt, strict=True))
        return self._pairs[number]

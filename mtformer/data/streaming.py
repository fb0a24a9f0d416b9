"""Training data that is read while it is trained on: nothing of it lies on the disk, and little in memory.

Each corpus is an endless stream of records: its sources one after the other, and again from the beginning. An epoch is
one buffer of records, of each stream as many as its weight says; they are filtered, tokenised and shuffled together.
Duplicates are found among the records of a buffer, no further. How many records of each stream were taken tells where
a run stands, and it goes on by passing over so many.
"""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from mtformer.config.data import DataConfig, Source
from mtformer.data.duplicates import hash_keys
from mtformer.data.filters import DUPLICATE, Filter, duplicate_key
from mtformer.data.mixture import START, Corpus, Place, Window
from mtformer.data.order import permuted
from mtformer.data.records import Records, Unparsed
from mtformer.data.report import DataReport, Sides
from mtformer.data.sources import describe, languages, open_records, stream_fingerprint
from mtformer.data.store import Pairs
from mtformer.data.tokenising import count_tokens, tokenise
from mtformer.errors import DataError
from mtformer.text.tokenizer import TokenizerPair

RECORDS_AT_ONCE = 1 << 14
"""Read as text, filtered and tokenised together."""
NOWHERE = -1
log = logging.getLogger("mtformer")


class Stream:
    """The records of a corpus, numbered from 0 and going on without end; what `Store` is to a corpus that is prepared.

    Args:
        name: of the corpus, for the log.
        sources: of the same two languages.
        data: languages, filters and threads.
        tokenizers: whose ids are given.
        keep_text: give the lines themselves too.

    Raises:
        DataError: when a file is missing.
    """

    def __init__(
        self, name: str, sources: Sequence[Source], data: DataConfig, tokenizers: TokenizerPair, *, keep_text: bool
    ) -> None:
        self.name, self.sources, self.data, self.tokenizers, self.keep_text = name, sources, data, tokenizers, keep_text
        self.where = ", ".join(map(describe, sources))
        settings = {
            "sources": [stream_fingerprint(source, data) for source in sources],
            "filters": data.filters.model_dump(exclude={"max_filtered_share"}),
        }
        self.fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
        self.longest = (data.filters.max_tokens, data.filters.max_tokens)
        """Tokens of the longest source and target that there may be."""
        self.report = DataReport()
        """Of all that this object has read."""
        self._filter = Filter(data.filters, *languages(sources[0], data))
        self._sources = self._pass(0)
        self._records: Records | None = None
        """Of the source that is read now."""
        self._place = 0
        """Number of the next record."""
        self._size: int | None = None
        """Records from one beginning to the next; known when the end was seen."""
        self._passed = 0
        """Those of the pass that ended last."""
        self._told = 0
        """Records read when the log was told last; it is told again when they are twice as many."""
        self._last: tuple[int, int, Pairs] | None = None
        self._lock = threading.Lock()

    def read(self, numbers: Sequence[int]) -> Pairs:
        """What is kept of the records with these numbers, which follow each other; one at least.

        They are kept until others are read, and not read twice when they are asked for again.

        Raises:
            DataError: as `open_records` and its records; when there are no records; when more than
                filters.max_filtered_share of the first ones is left out.
        """
        start, end = numbers[0], numbers[-1] + 1
        with self._lock:
            if self._last is None or self._last[:2] != (start, end):
                self._last = None
                pairs = self._read(start, end)
                if start == 0:
                    self.report.check(self.data.filters, f"{self.where}, in the first records")
                    self._told = self.report.read
                elif self.report.read >= 2 * self._told:
                    self._tell("goes on")
                self._last = (start, end, pairs)
            return self._last[2]

    def _read(self, start: int, end: int) -> Pairs:
        if start != self._place:
            self._begin(start % self._size if self._size else start)
        place, self._place = start, NOWHERE  # where it stays when reading fails
        keys: set[int] = set()
        parts = []
        while place < end:
            some = self._take(min(RECORDS_AT_ONCE, end - place))
            if some is not None:
                parts.append(self._keep(some.parse(), keys))
                place += some.size
            else:
                self._begin_anew(place)
                keys.clear()
        self._place = end
        return Pairs.joined(parts)

    def _take(self, count: int) -> Unparsed | None:
        """The next records, at most so many; None at the end of a pass."""
        while True:
            if self._records is not None and (some := self._records.take(count)).size:
                return some
            self._records = next(self._sources, None)
            if self._records is None:
                return None

    def _keep(self, texts: Sides, keys: set[int]) -> Pairs:
        """Those that the filters leave and that have none of these keys; theirs are added."""
        filters, num_threads = self.data.filters, self.data.num_workers or os.cpu_count() or 1
        kept, lines, report = tokenise(
            texts, self._filter, self.tokenizers, keep_text=self.keep_text, num_threads=num_threads
        )
        if filters.drop_duplicates:
            is_new = []
            for key in hash_keys(duplicate_key(pair, filters) for pair in zip(*lines, strict=True)).tolist():
                is_new.append(key not in keys)
                keys.add(key)
            report.leave_out(DUPLICATE, is_new.count(False))
            kept = kept.take(np.flatnonzero(is_new))
        self.report += count_tokens(report, kept)
        return kept

    def _begin(self, start: int) -> None:
        """Goes to this record of a pass."""
        self._sources, self._records = self._pass(start), None

    def _pass(self, start: int) -> Iterator[Records]:
        """The records once, from this one on, of one source after the other."""
        num_before = 0
        for source in self.sources:
            with open_records(source, self.data, max(0, start - num_before), is_streamed=True) as records:
                yield records
                num_before += records.number
        self._passed = num_before

    def _begin_anew(self, place: int) -> None:
        """Goes to the record behind the end, which was just seen."""
        if not self._passed:
            raise DataError(f"{self.where}: the corpus is empty: not one line was read")
        if self._size is None:
            self._tell(f"has {self._passed:,} records, and begins anew")
        self._size = self._passed
        self._begin(place % self._size)

    def _tell(self, what: str) -> None:
        report = self.report
        self._told = report.read
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in report.left_out.items())
        log.info(
            "%s: %s; read so far %s, kept %s, left out: %s",
            self.name, what, f"{report.read:,}", f"{report.kept:,}", reasons or "none",
        )  # fmt: skip


class StreamMixture:
    """The order of all that is trained on, as `mixture.Mixture` tells it; `Place.taken` and windows count records.

    The first buffer is read at once, so that what is wrong with the data is told before anything is trained.

    Args:
        corpora: at least one.
        seed: of the run.
        buffer_pairs: records of an epoch, which are shuffled together.

    Raises:
        DataError: as `Stream.read`.
    """

    def __init__(self, corpora: Sequence[Corpus[Stream]], seed: int, buffer_pairs: int) -> None:
        self.corpora, self.seed, self.buffer_pairs = list(corpora), seed, buffer_pairs
        first = next(self.windows(0, 0, self.begin(START)))
        for corpus, records in zip(self.corpora, first.blocks, strict=True):
            if len(records):
                corpus.read(records)

    def shares(self, step: int) -> list[float]:
        """The part of each corpus in a buffer, with the weights of this step."""
        weights = [corpus.weight(step) for corpus in self.corpora]
        return [weight / sum(weights) for weight in weights]

    def pairs_per_epoch(self, step: int) -> float:
        """About so many pairs of a buffer are kept, with the weights of this step."""
        kept = [1 - corpus.store.report.left_out_share for corpus in self.corpora]
        return self.buffer_pairs * sum(share * one for share, one in zip(self.shares(step), kept, strict=True))

    def begin(self, place: Place) -> dict[str, int]:
        """Records of each stream before the place's epoch."""
        return {corpus.name: (place.taken or {}).get(corpus.name, 0) for corpus in self.corpora}

    def windows(self, epoch: int, since_step: int, taken: dict[str, int]) -> Iterator[Window]:
        """The one window of an epoch.

        Args:
            epoch: its number.
            since_step: see `Place`.
            taken: see `begin`.
        """
        until = np.cumsum(self.shares(since_step))
        # Where the parts of a buffer are no whole numbers, the lot says who gets the record; in the mean all is even.
        lot = int(permuted(np.zeros(1, np.int64), 1 << 20, self.seed, "lot", epoch)[0]) / (1 << 20)
        counts = np.diff(np.floor(self.buffer_pairs * until / until[-1] + lot).astype(np.int64), prepend=0).tolist()
        after = {corpus.name: taken[corpus.name] + n for corpus, n in zip(self.corpora, counts, strict=True)}
        records = [np.arange(taken[name], end) for name, end in after.items()]
        yield Window(0, records, self.buffer_pairs, after)

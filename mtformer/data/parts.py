"""One part of a corpus while its store is made: filtered, tokenised, written, and what is known of it then.

Beside the file of the store there stands what is needed on the way: what was counted, as JSON, and a key of each pair
by which duplicates are found.
"""

import gc
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from mtformer.config.data import FilterConfig
from mtformer.data.duplicates import Keys, hash_keys
from mtformer.data.filters import Filter, duplicate_key
from mtformer.data.ragged import Ragged
from mtformer.data.records import Unparsed
from mtformer.data.report import DataReport
from mtformer.data.store import Pairs, from_arrow, write_part
from mtformer.data.tokenising import count_tokens, tokenise
from mtformer.files import atomic_file, write_text
from mtformer.text.tokenizer import TokenizerPair


@dataclass(frozen=True)
class Work:
    """What is done with each part."""

    tokenizers: TokenizerPair
    filters: FilterConfig | None
    languages: tuple[str, str]
    keep_text: bool

    def filter(self) -> Filter:
        """Made once in each process: some take seconds."""
        return _filter(self.filters, self.languages)


_filter = cache(lambda config, languages: Filter(config, *languages))


@dataclass(frozen=True)
class RawPart:
    """Neighbouring records of a corpus, which make one file of its store."""

    number: int
    records: list[Unparsed]
    end: int
    """Records up to its last one."""
    share: float
    """Of the corpus that they are, about; 0 where that is not known."""


@dataclass(frozen=True)
class Made:
    """What is known of a part that is done; its JSON is written last."""

    pairs: int
    longest: tuple[int, int]
    report: DataReport
    is_final: bool = False
    """Duplicates are out of it."""

    @classmethod
    def of(cls, pairs: Pairs, report: DataReport) -> "Made":
        """Counts the tokens."""
        longest = (int(pairs.src.lengths_B.max(initial=0)), int(pairs.tgt.lengths_B.max(initial=0)))
        return cls(len(pairs), longest, count_tokens(report, pairs))

    @classmethod
    def read(cls, path: Path) -> "Made":
        """What `write` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            values["pairs"], tuple(values["longest"]), DataReport.from_dict(values["report"]), values["is_final"]
        )

    def write(self, path: Path) -> None:
        """As JSON."""
        write_text(path, json.dumps({**asdict(self), "report": self.report.to_dict()}))


class Paths:
    """The files of a part while a corpus is made."""

    def __init__(self, folder: Path, number: int) -> None:
        name = f"part-{number:05d}"
        self.arrow, self.made, self.keys = (folder / f"{name}{suffix}" for suffix in (".arrow", ".json", ".keys.npy"))


def make_part(work: Work, folder: Path, part: RawPart, num_threads: int) -> None:
    """Filters and tokenises some pairs and writes them, with a key of each by which duplicates are found."""
    was_on = gc.isenabled()
    gc.disable()  # a million small lists, none of them in a circle: to look for one costs a tenth of the time
    try:
        _make_part(work, Paths(folder, part.number), part.records, num_threads)
    finally:
        if was_on:
            gc.enable()


def _make_part(work: Work, paths: Paths, records: Sequence[Unparsed], num_threads: int) -> None:
    all_pairs, all_keys, report = list[Pairs](), list[Keys](), DataReport()
    filters = work.filters if work.filters is not None and work.filters.drop_duplicates else None
    for unparsed in records:
        pairs, kept, found = tokenise(
            unparsed.parse(), work.filter(), work.tokenizers, keep_text=work.keep_text, num_threads=num_threads
        )
        all_pairs.append(pairs)
        report += found
        if filters is not None:
            all_keys.append(hash_keys(duplicate_key(pair, filters) for pair in zip(*kept, strict=True)))
    if filters is not None:
        with atomic_file(paths.keys) as file, open(file, "wb") as opened:
            np.save(opened, np.concatenate(all_keys))
    pairs = Pairs.joined(all_pairs)
    write_arrow(paths, pairs)
    Made.of(pairs, report).write(paths.made)


def write_arrow(paths: Paths, pairs: Pairs) -> None:
    """Writes the part's file; none of no pair."""
    if len(pairs):
        with atomic_file(paths.arrow) as file:
            write_part(file, pairs)
    else:
        paths.arrow.unlink(missing_ok=True)


def read_arrow(paths: Paths) -> Pairs:
    """What `write_arrow` wrote."""
    if not paths.arrow.is_file():
        return Pairs(Ragged.of([]), Ragged.of([]))
    with pa.OSFile(str(paths.arrow)) as file:
        reader = pa.ipc.open_file(file)
        return Pairs.joined(from_arrow(reader.get_batch(number)) for number in range(reader.num_record_batches))

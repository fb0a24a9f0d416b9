"""Corpora are tokenised once: part after part, in parallel, going on where it was interrupted.

The fingerprint of a corpus is a hash of the content of its files (not of their names or times: a copied corpus is
found, a changed one is not), the tokenizers, the filters, and the version of the format. While it is made it stands
in `FINGERPRINT.building`, where each finished part stays whatever happens (until nobody went on with it for a week),
and a lock keeps others from making it too. A file that changes after its hash is computed and before it is read to the
end is an error, and no part is kept that may differ from what was hashed.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from mtformer import files
from mtformer.config.data import DataConfig, Source
from mtformer.data.duplicates import repeated
from mtformer.data.filters import DUPLICATE, REASONS
from mtformer.data.parts import Made, Paths, RawPart, Work, make_part, read_arrow, write_arrow
from mtformer.data.records import Unparsed
from mtformer.data.report import DataReport
from mtformer.data.sources import (
    bytes_on_disk,
    changed,
    describe,
    file_states,
    files_of,
    languages,
    open_records,
    require_unchanged,
    source_fingerprint,
)
from mtformer.data.store import BLOCK_PAIRS, STORE, Contents, Part, Store
from mtformer.data.workers import WorkerEndedError, Workers
from mtformer.errors import DataError, told_writing
from mtformer.files import sync, write_text
from mtformer.text.tokenizer import TokenizerPair

FORMAT_VERSION = 2
PART_PAIRS = 200 * BLOCK_PAIRS
LOG_PAIRS = 20 * PART_PAIRS
PAIRS_AT_ONCE = 40 * BLOCK_PAIRS
"""Parsed and tokenised together. With fewer, the start of threads in each of SentencePiece's calls takes its time; with
more, what it returns no longer fits the processor's cache."""
PARTS_ALONE = 4
"""So many parts are made before processes are started, which takes seconds."""
BUILDING = ".building"
STALE_SECONDS = 7 * 24 * 3600
IS_KEPT = "what is done is kept"
log = logging.getLogger("mtformer")
Advance = Callable[[int, float], object]
"""Is told how many pairs are done, and about which share of the corpus that is; 0 where it is not known."""


def log_progress(num_pairs: int, share: float) -> None:
    """A line for every million pairs."""
    if num_pairs % LOG_PAIRS == 0:
        known = f", {share:.0%} of the corpus" if share else ""
        log.info("%s pairs tokenised%s", f"{num_pairs:,}", known)


def prepare(
    sources: Sequence[Source],
    data: DataConfig,
    tokenizers: TokenizerPair,
    *,
    is_training: bool,
    keep_text: bool = True,
    advance: Advance = log_progress,
) -> Store:
    """Reads, filters and tokenises a corpus, or finds it in the cache.

    Args:
        sources: of the same two languages, read one after the other.
        data: languages, filters, cache and workers.
        tokenizers: whose ids are stored.
        is_training: leave out what data.filters says; dev and test keep everything.
        keep_text: also store the lines themselves.
        advance: called from time to time while the corpus is tokenised.

    Raises:
        DataError: when a source is missing, damaged or empty, changes while it is read, more than
            filters.max_filtered_share is left out, or the cache cannot be written.
    """
    filters = data.filters if is_training else None
    work = Work(tokenizers, filters, languages(sources[0], data), keep_text)
    work.filter()  # what it needs and is not there is told before anything is done
    states = file_states(sources)
    prints = [source_fingerprint(source, data) for source in sources]
    settings = {
        "version": [FORMAT_VERSION, PART_PAIRS],
        "sources": prints,
        "tokenizers": [tokenizers.src.sha256, tokenizers.tgt.sha256],
        "filters": filters.model_dump(exclude={"max_filtered_share"}) if filters is not None else None,
        "languages": work.languages,
        "keep_text": keep_text,
    }
    fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]
    folder = cache_folder(data) / fingerprint
    where = ", ".join(describe(source) for source in sources)
    if not folder.is_dir():
        what = f"{folder.parent}: the tokenised corpus"
        with told_writing(what, f"name another folder by data.cache_dir; {IS_KEPT}"), _alone(folder, where):
            if not folder.is_dir():  # else another process has made it meanwhile
                _clear_stale(folder.parent)
                num_workers = data.num_workers or os.cpu_count() or 1
                try:
                    _make(folder, where, _parts(sources, data, states, prints), work, num_workers, advance)
                except DataError:
                    require_unchanged(sources, states)  # a change explains any other error in the file
                    raise
    else:
        log.info("%s: tokenised before, found in %s", where, folder)
    store = Store(folder)
    if filters is not None:
        store.report.check(filters, where)
    return store


def cache_folder(data: DataConfig) -> Path:
    """Return the folder of prepared corpora."""
    return files.cache_folder(data.cache_dir)


@contextmanager
def _alone(folder: Path, where: str) -> Iterator[None]:
    """While another process makes the same corpus this one waits. The system frees the lock of one that is killed."""
    lock = _lock(folder)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        log.info("%s: another process is tokenising it; waiting for that", where)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _lock(folder: Path) -> FileLock:
    path = folder.parent / ".locks" / folder.name
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)


def _clear_stale(cache: Path) -> None:
    """Deletes what interrupted preparations have left and nobody went on with for a week."""
    for building in cache.glob(f"*{BUILDING}"):
        with suppress(FileNotFoundError, Timeout):  # another process has deleted it, or this or another one makes it
            if time.time() - building.stat().st_mtime > STALE_SECONDS:
                with _lock(building.with_suffix("")).acquire(timeout=0):
                    shutil.rmtree(building, ignore_errors=True)
                    log.info("%s: deleted; its preparation was interrupted more than a week ago", building)


# ---- parts ----------------------------------------------------------------------------------------------------------


def _make(folder: Path, where: str, parts: Iterator[RawPart], work: Work, num_workers: int, advance: Advance) -> None:
    building = folder.with_name(f"{folder.name}{BUILDING}")
    if (building / STORE).is_file():  # it was interrupted just before its end
        _clear(building, folder)
        return
    goes_on = building.is_dir()
    building.mkdir(parents=True, exist_ok=True)
    log.info("%s: tokenising into %s%s", where, folder, ", going on where it was interrupted" if goes_on else "")
    try:
        num_parts = _make_parts(building, parts, work, num_workers, advance)
        if not num_parts:
            raise DataError(f"{where}: the corpus is empty: not one line was read")
    except WorkerEndedError as error:
        raise DataError(f"{error}; {IS_KEPT}") from error
    except DataError:
        shutil.rmtree(building, ignore_errors=True)  # the corpus is not as it should be: mended it is another one
        raise
    if work.filters is not None and work.filters.drop_duplicates:
        _leave_out_duplicates(building, num_parts)
    _finish(building, num_parts, work.keep_text)
    _clear(building, folder)


def _make_parts(building: Path, parts: Iterator[RawPart], work: Work, num_workers: int, advance: Advance) -> int:
    """Makes those that are not there yet, and returns how many there are."""
    num_parts = 0

    def missing() -> Iterator[RawPart]:
        nonlocal num_parts
        for part in parts:
            num_parts += 1
            if not Paths(building, part.number).made.is_file():
                yield part

    todo = missing()
    for part in islice(todo, PARTS_ALONE if num_workers > 1 else None):
        make_part(work, building, part, num_workers)
        advance(part.end, part.share)
    with Workers[RawPart, None](_PartMaker, (work, building), num_workers) as workers:
        for part, _ in workers.map(todo):
            advance(part.end, part.share)
    return num_parts


def _parts(
    sources: Sequence[Source], data: DataConfig, states: dict[str, tuple[int, int, int]], prints: Sequence[str]
) -> Iterator[RawPart]:
    """Yield all records, one source after the other.

    Args:
        sources: what to read.
        data: the languages, whose codes are the default fields.
        states: what `file_states` returned before the fingerprints were computed.
        prints: the fingerprint of each source.

    Raises:
        DataError: before the first part that may differ from what was fingerprinted.
    """
    part, end = list[Unparsed](), 0
    before, num_bytes = 0, sum(map(bytes_on_disk, sources))
    for source, fingerprint in zip(sources, prints, strict=True):
        with open_records(source, data) as records:
            # `datasets` has now downloaded Arrow files that do not change, or resolved the commit to read.
            if not files_of(source) and source_fingerprint(source, data) != fingerprint:
                raise DataError(changed(describe(source)))
            while (some := records.take(min(PAIRS_AT_ONCE, PART_PAIRS - end % PART_PAIRS))).size:
                part.append(some)
                end += some.size
                if end % PART_PAIRS == 0:
                    require_unchanged(sources, states)
                    yield RawPart(end // PART_PAIRS - 1, part, end, (before + records.position) / max(1, num_bytes))
                    part = []
        before += bytes_on_disk(source)
    require_unchanged(sources, states)
    if part:
        yield RawPart(end // PART_PAIRS, part, end, 1.0)


class _PartMaker:
    """What each process does."""

    def __init__(self, settings: tuple[Work, Path]) -> None:
        self.work, self.building = settings

    def __call__(self, part: RawPart) -> None:
        make_part(self.work, self.building, part, num_threads=1)


def _leave_out_duplicates(building: Path, num_parts: int) -> None:
    all_paths = [Paths(building, number) for number in range(num_parts)]
    num_keys = sum(Made.read(paths.made).pairs for paths in all_paths)
    for paths, is_repeated in zip(
        all_paths, repeated((np.load(paths.keys) for paths in all_paths), num_keys), strict=True
    ):
        made, chosen = Made.read(paths.made), np.flatnonzero(~is_repeated)
        if made.is_final or len(chosen) == len(is_repeated):
            continue
        pairs = read_arrow(paths)
        if len(pairs) == len(is_repeated):  # else it was interrupted between writing this and writing that it is final
            pairs = pairs.take(chosen)
            write_arrow(paths, pairs)
        made.report.leave_out(DUPLICATE, len(is_repeated) - len(chosen))
        replace(Made.of(pairs, made.report), is_final=True).write(paths.made)


def _finish(building: Path, num_parts: int, keep_text: bool) -> None:
    """Writes store.json, with which a store is whole."""
    parts, longest, report = [], (0, 0), DataReport()
    all_paths = [Paths(building, number) for number in range(num_parts)]
    for paths in all_paths:
        made = Made.read(paths.made)
        report += made.report
        longest = (max(longest[0], made.longest[0]), max(longest[1], made.longest[1]))
        if made.pairs:
            parts.append(Part(paths.arrow.name, made.pairs, paths.arrow.stat().st_size))
    report.left_out = {reason: report.left_out[reason] for reason in REASONS if reason in report.left_out}
    write_text(building / STORE, Contents(parts, longest, keep_text, report).to_json())


def _clear(building: Path, folder: Path) -> None:
    """Takes away what was only needed on the way, and gives the folder its name."""
    for path in building.iterdir():
        if path.name != STORE and path.suffix != ".arrow":
            path.unlink()
    sync(building)
    os.rename(building, folder)
    sync(folder.parent)

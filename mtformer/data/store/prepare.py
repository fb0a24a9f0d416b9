"""Prepare corpora: filter and tokenize them once, shard by shard, in several processes.

The fingerprint of a corpus is a hash of the contents of its files, the tokenizers, the filters, and the format version.
It does not depend on file names or times. An interrupted preparation resumes: finished shards are kept in the folder
`FINGERPRINT.building` for a week. A lock prevents other processes from preparing the same corpus at the same time. If a
file changes after its hash is computed, that is an error, and no shard that may differ from the hash is kept.
"""

import gc
import hashlib
import io
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from filelock import Timeout

from mtformer.cluster.workers import WorkerEndedError, Workers
from mtformer.config.data import DataConfig, FilterConfig, HubDataset, Source
from mtformer.config.section import key_of
from mtformer.data.corpus import sources as corpus
from mtformer.data.corpus.readers import RawRecords
from mtformer.data.data_report import DataReport
from mtformer.data.filters.duplicates import Mask, repeated
from mtformer.data.filters.filters import KEPT, Reason, count_reasons, in_order
from mtformer.data.store.cache import BUILDING, STORE, delete_unused, make_lock
from mtformer.data.store.pairs import Pairs, join, make_pairs
from mtformer.data.store.pipeline import PAIRS_AT_ONCE, Pipeline, take
from mtformer.data.store.store import BLOCK_PAIRS, DUPLICATES, Shard, Store, write_shard
from mtformer.errors import DataError, explain_write_errors, log
from mtformer.files import (
    FORMAT,
    FileState,
    atomic_file,
    cache_folder,
    file_hashes,
    file_sha256,
    json_sha256,
    read_bytes,
    read_json,
    sealed,
    sync,
    unsealed,
    write_json,
    write_text,
)
from mtformer.text.tokenizer import TokenizerPair

PREPARATION = 10
"""Part of the fingerprint; increased when a code change alters prepared corpora."""

SHARD_PAIRS = 200 * BLOCK_PAIRS
"""Number of pairs of the sources in a shard; those that the filters remove are not stored."""

LOG_PAIRS = 20 * SHARD_PAIRS
"""Number of pairs between lines in the log."""

STALE_SECONDS = 7 * 24 * 3600
"""Age at which an interrupted preparation is deleted."""

ROW = np.dtype([("key", np.uint64), ("counts", np.int32, (4,))])
"""Duplicate key and token counts of a row of a shard."""

Advance = Callable[[int, float], object]
"""Called with the number of processed pairs, and their approximate share of the corpus (0: unknown)."""


def log_progress(num_pairs: int, share: float) -> None:
    """Log a line per million pairs."""
    if num_pairs % LOG_PAIRS == 0:
        progress = f", {share:.0%} of the corpus" if share else ""
        log.info("%s pairs tokenized%s", f"{num_pairs:,}", progress)


def prepare(
    sources: Sequence[Source],
    data: DataConfig,
    tokenizers: TokenizerPair,
    *,
    is_training: bool,
    keep_text: bool = True,
    advance: Advance = log_progress,
) -> Store:
    """Read, filter and tokenize a corpus, or return it from the cache.

    Args:
        sources: sources in the same languages, read in this order.
        data: the `data` section, for languages, filters, cache and workers.
        tokenizers: the tokenizers.
        is_training: apply data.filters; False for dev and test.
        keep_text: also store the text, which augmentation needs.
        advance: function that is called regularly during tokenization.

    Raises DataError if a source is missing, damaged or empty, or changes while it is read, the filters remove more than
    filters.max_filtered_share, or the cache cannot be written.
    """
    filters = data.filters if is_training else None
    pipeline = Pipeline(filters, data.languages(sources[0]), tokenizers)
    pipeline.load()  # report a missing package early
    contents = _Contents.of(sources, data)
    fingerprint = _fingerprint(contents.fingerprints, pipeline, tokenizers, keep_text)
    folder = cache_folder(data.cache_dir) / fingerprint

    where = ", ".join(corpus.describe(source) for source in sources)
    if folder.is_dir():
        log.info("%s: already tokenized, found in %s", where, folder)
    else:
        remedy = "set another folder with data.cache_dir; finished shards are kept"
        cache = folder.parent
        with explain_write_errors(f"{cache}: the tokenized corpus", remedy), _locked(folder, where):
            if not folder.is_dir():  # otherwise, another process has created it in the meantime
                _clear_stale(cache)
                unfinished = cache / f"{folder.name}{BUILDING}"
                job = _Job(pipeline, unfinished, keep_text)
                _make(folder, where, contents, job, advance)

    store = Store(folder)
    if filters is not None:
        store.report.check(filters, where)
    return store


@dataclass(frozen=True)
class _Contents:
    """Contents of the sources of a corpus, which must not change while they are read."""

    sources: Sequence[Source]
    data: DataConfig
    states: dict[str, FileState]
    """States of the files before the fingerprints were computed."""
    fingerprints: list[str]
    """Fingerprint of each source."""

    @classmethod
    def of(cls, sources: Sequence[Source], data: DataConfig) -> "_Contents":
        """Return the current contents; raise DataError if a source is missing or cannot be read."""
        states = corpus.file_states(sources)
        fingerprints = [corpus.source_fingerprint(source, data) for source in sources]
        return cls(sources, data, states, fingerprints)

    def require_unchanged(self) -> None:
        """Raise DataError if a file has changed."""
        corpus.require_unchanged(self.sources, self.states)


def _fingerprint(sources: Sequence[str], pipeline: Pipeline, tokenizers: TokenizerPair, keep_text: bool) -> str:
    """Return the name of a corpus in the cache; `sources` are the fingerprints of the sources."""
    tokenizer_hashes = [tokenizer.model_sha256 for tokenizer in tokenizers]
    filters = None if pipeline.filters is None else _active_filters(pipeline.filters)
    settings = {
        "version": [PREPARATION, SHARD_PAIRS],
        "sources": sources,
        "tokenizers": tokenizer_hashes,
        "filters": filters,
        "languages": pipeline.languages,
        "keep_text": keep_text,
    }
    return json_sha256(settings)[:32]


def _active_filters(filters: FilterConfig) -> dict[str, Any]:
    """Return the filters that affect the prepared corpus, without those that are off."""
    active: dict[str, Any] = {}
    for name, value in filters:
        key = key_of(FilterConfig, name)
        if key.in_fingerprint and value != key.off:
            active[name] = value
    return active


def _locked(folder: Path, where: str) -> AbstractContextManager[object]:
    """Wait while another process prepares the same corpus. The system releases the lock of a killed process."""
    lock = make_lock(folder)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        log.info("%s: another process is tokenizing this corpus; waiting for that process", where)
        return lock.acquire()


def _clear_stale(cache: Path) -> None:
    """Delete interrupted preparations that have not been resumed for a week."""
    for building in cache.glob(f"*{BUILDING}"):
        with suppress(FileNotFoundError):  # deleted by another process
            age = time.time() - building.stat().st_mtime
            if age > STALE_SECONDS and delete_unused(building):
                log.info("%s: deleted; its preparation was interrupted more than a week ago", building)


# ---- shards ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _RawShard:
    """Consecutive records of a corpus, which are stored in one file."""

    number: int
    records: list[RawRecords]
    end: int
    """Number of records up to the end of this shard."""
    share: float
    """Approximate share of the corpus up to the end of this shard; 0 if unknown."""


@dataclass(frozen=True)
class _Job:
    """Preparation of a corpus, which can be sent to worker processes."""

    pipeline: Pipeline
    folder: Path
    keep_text: bool

    def path(self, number: int, suffix: str) -> Path:
        """Return a file of a shard: .arrow (ids, text), .npy (a `ROW` per pair) or .json (see `_write_record`)."""
        return self.folder / f"shard-{number:05d}{suffix}"

    def _write_record(self, number: int, report: DataReport) -> None:
        """Write the report on a shard, with the SHA-256 of its files, which are complete."""
        files = [self.path(number, ".npy"), self.path(number, ".arrow")]
        hashes = file_hashes(self.folder, files)
        record = {"report": report.to_dict(), "sha256": hashes}
        text = json.dumps(sealed(record))
        write_text(self.path(number, ".json"), text)

    def read_report(self, number: int) -> DataReport:
        """Return the report on a finished shard; raise DataError if it is damaged."""
        try:
            return DataReport.from_dict(self._read_record(number)["report"])
        except (TypeError, AttributeError) as error:
            raise _damaged(self.path(number, ".json")) from error

    def read_rows(self, number: int) -> np.ndarray:
        """Return the `ROW` of each pair of a finished shard; raise DataError if the file is damaged."""
        path = self.path(number, ".npy")
        try:
            data = read_bytes(path)
        except OSError as error:
            raise _damaged(path) from error
        hashes = self._read_record(number)["sha256"]
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != hashes.get(path.name):
            raise _damaged(path)
        return np.asarray(np.load(io.BytesIO(data)))

    def _read_record(self, number: int) -> dict[str, Any]:
        path = self.path(number, ".json")
        try:
            record = unsealed(read_json(path))
        except (OSError, ValueError) as error:
            raise _damaged(path) from error
        is_of_version_0_3 = record.keys() != {"report", "sha256"}
        if is_of_version_0_3 or not isinstance(record["sha256"], dict):
            raise _damaged(path)
        return record

    def is_finished(self, number: int) -> bool:
        """Return True if all files of a shard are complete; log a warning if one is damaged."""
        if not self.path(number, ".json").is_file():
            return False
        try:
            hashes = self._read_record(number)["sha256"]
            for name, sha256 in hashes.items():
                path = self.folder / name
                if not path.is_file() or file_sha256(path) != sha256:
                    raise _damaged(path)
        except DataError as error:
            log.warning("%s; its pairs are tokenized again", str(error).partition(";")[0])
            return False
        return True

    def make_shard(self, shard: _RawShard, num_threads: int) -> None:
        """Filter, tokenize and write the records of a shard."""
        if not self.folder.is_dir():  # on another machine
            cache = self.folder.parent
            raise DataError(
                f"{cache}: not the folder of the main process, which is on another machine; set data.cache_dir to a "
                "folder that all machines share"
            )
        gc.disable()  # searching a million small lists for cycles would take a tenth of the time
        try:
            report = DataReport()
            parts: list[Pairs] = []
            rows_of_parts: list[np.ndarray] = []
            for records in shard.records:
                part, rows_of_part = self._filter(records, report, num_threads)
                parts.append(part)
                rows_of_parts.append(rows_of_part)
            pairs = join(parts)
            rows = np.concatenate(rows_of_parts)

            with atomic_file(self.path(shard.number, ".npy")) as file, open(file, "wb") as opened:
                np.save(opened, rows)
            if len(pairs):
                with atomic_file(self.path(shard.number, ".arrow")) as file:
                    write_shard(file, pairs)
            self._write_record(shard.number, report)
        finally:
            gc.enable()

    def _filter(self, records: RawRecords, report: DataReport, num_threads: int) -> tuple[Pairs, np.ndarray]:
        """Return the kept pairs with a `ROW` each, and add counts to the report."""
        tokenizers = self.pipeline.tokenizers
        assert tokenizers is not None
        texts = records.texts()
        src_lines, tgt_lines = texts
        report.read += records.size
        report.count_unusual(src_lines, tgt_lines)
        report.count_normalized("src", src_lines, tokenizers.src.normalizer)
        report.count_normalized("tgt", tgt_lines, tokenizers.tgt.normalizer)

        filtered = self.pipeline.run(texts, num_threads)
        report.leave_out(count_reasons(filtered.codes))
        kept = np.flatnonzero(filtered.codes == KEPT)
        texts = take(texts, kept)
        counts = filtered.counts[kept]
        if self.pipeline.filters is None:
            src_lengths, tgt_lengths, _, _ = counts.T
            report.blank["src"] += int((src_lengths == 0).sum())
            report.blank["tgt"] += int((tgt_lengths == 0).sum())

        rows = np.zeros(len(counts), dtype=ROW)
        rows["counts"] = counts
        keys = self.pipeline.keys(texts)
        if keys is not None:
            rows["key"] = keys
        columns = list(filtered.tokens)
        if self.keep_text:
            src_lines, tgt_lines = texts
            columns += [pa.array(src_lines, pa.string()), pa.array(tgt_lines, pa.string())]
        return make_pairs(*columns), rows


def _damaged(path: Path) -> DataError:
    return DataError(f"{path}: damaged or changed; run the command again, which makes the file again")


# ---- the whole corpus -----------------------------------------------------------------------------------------------


def _make(folder: Path, where: str, contents: _Contents, job: _Job, advance: Advance) -> None:
    """Make the folder of a corpus, or complete it after an interruption."""
    if not (job.folder / STORE).is_file():  # otherwise, it was interrupted just before the end
        resumes = ", resuming an interrupted preparation" if job.folder.is_dir() else ""
        job.folder.mkdir(parents=True, exist_ok=True)
        log.info("%s: tokenizing into %s%s", where, folder, resumes)
        try:
            num_shards = _make_shards(where, contents, job, advance)
            _finish(job, num_shards)
        except DataError:
            contents.require_unchanged()  # a change may be the cause of this error
            raise

    for path in job.folder.iterdir():
        is_kept = path.name in (STORE, DUPLICATES) or path.suffix == ".arrow"
        if not is_kept:
            path.unlink()
    sync(job.folder)
    os.rename(job.folder, folder)
    sync(folder.parent)


def _make_shards(where: str, contents: _Contents, job: _Job, advance: Advance) -> int:
    """Make the missing shards, and return the number of all shards."""
    missing_shards = _MissingShards(job, _raw_shards(contents))
    try:
        with Workers(job.make_shard, contents.data.num_workers) as workers:
            for shard, _ in workers.map(missing_shards):
                advance(shard.end, shard.share)
    except WorkerEndedError as error:
        raise DataError(f"{error}; finished shards are kept") from error
    except DataError as error:
        if not isinstance(error.__cause__, OSError):  # a network may work again, and the shards are kept
            shutil.rmtree(job.folder, ignore_errors=True)  # a corrected corpus has a different fingerprint
        raise
    return missing_shards.num_shards


class _MissingShards:
    """Iterable of the shards that are not finished, which reads all shards and counts them."""

    def __init__(self, job: _Job, shards: Iterator[_RawShard]) -> None:
        self._job = job
        self._shards = shards
        self.num_shards = 0
        """Number of shards read so far, including finished ones."""

    def __iter__(self) -> Iterator[_RawShard]:
        for shard in self._shards:
            self.num_shards += 1
            if not self._job.is_finished(shard.number):
                yield shard


def _raw_shards(contents: _Contents) -> Iterator[_RawShard]:
    """Yield all records, divided into shards, source by source.

    Raises DataError if a source changes, before the first shard that may differ from the fingerprinted contents.
    """
    data = contents.data
    records: list[RawRecords] = []
    end = 0
    num_bytes = sum(map(corpus.bytes_on_disk, contents.sources))
    num_bytes_before = 0
    for source, fingerprint in zip(contents.sources, contents.fingerprints, strict=True):
        with corpus.open_reader(source, data) as reader:
            # `datasets` has now resolved the commit, or downloaded Arrow files, which do not change.
            corpus.require_same_version(source, data, fingerprint)
            end_before = end
            while True:
                missing = SHARD_PAIRS - end % SHARD_PAIRS
                next_records = reader.take(min(PAIRS_AT_ONCE, missing))
                if not next_records.size:
                    break
                records.append(next_records)
                end += next_records.size
                if end % SHARD_PAIRS == 0:
                    contents.require_unchanged()
                    share = (num_bytes_before + reader.position) / max(1, num_bytes)
                    yield _RawShard(end // SHARD_PAIRS - 1, records, end, share)
                    records = []
        if end == end_before:
            corpus.refuse_empty(source)
        if isinstance(source, HubDataset) and source.stream:
            corpus.require_same_version(source, data, fingerprint)
        num_bytes_before += corpus.bytes_on_disk(source)

    contents.require_unchanged()
    if records:
        yield _RawShard(end // SHARD_PAIRS, records, end, 1.0)


def _finish(job: _Job, num_shards: int) -> None:
    """Write the row numbers of duplicates and, last, store.json, which completes the store."""
    shards: list[Shard] = []
    report = DataReport()
    longest = np.zeros(2, dtype=np.int64)
    first_row = 0
    crc32 = 0
    with atomic_file(job.folder / DUPLICATES) as file, open(file, "wb") as opened:
        for number, is_duplicate in enumerate(_duplicates(job, num_shards)):
            rows = job.read_rows(number)
            counts = rows["counts"][~is_duplicate]
            duplicates = np.flatnonzero(is_duplicate)

            report += job.read_report(number)
            report.leave_out({Reason.DUPLICATE.value: len(duplicates)})
            report.count_kept(counts)
            longest_of_shard = counts[:, :2].max(axis=0, initial=0)
            longest = np.maximum(longest, longest_of_shard)

            row_numbers = (first_row + duplicates).astype("<i8").tobytes()
            opened.write(row_numbers)
            crc32 = zlib.crc32(row_numbers, crc32)
            first_row += len(rows)
            if len(rows):
                path = job.path(number, ".arrow")
                shard = Shard(path.name, rows=len(rows), pairs=len(counts), bytes=path.stat().st_size)
                shards.append(shard)

    if first_row == report.kept:
        (job.folder / DUPLICATES).unlink()
    report.left_out = in_order(report.left_out)
    values = {
        "format": FORMAT,
        "shards": [vars(shard) for shard in shards],
        "longest": longest.tolist(),
        "report": report.to_dict(),
        "duplicates_crc32": crc32,
    }
    write_json(job.folder / STORE, sealed(values), indent=1)


def _duplicates(job: _Job, num_shards: int) -> Iterator[Mask]:
    """Yield a mask of the duplicate rows of each shard."""
    numbers = range(num_shards)
    sizes = [len(job.read_rows(number)) for number in numbers]
    filters = job.pipeline.filters
    if filters is None or not filters.drop_duplicates:
        return (np.zeros(size, np.bool_) for size in sizes)
    keys = (job.read_rows(number)["key"] for number in numbers)
    return repeated(keys, sum(sizes), job.folder)

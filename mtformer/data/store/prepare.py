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

PREPARATION = 9  # part of the fingerprint; increased when a code change alters prepared corpora
SHARD_PAIRS = 200 * BLOCK_PAIRS
SIDES = ("src", "tgt")
LOG_PAIRS = 20 * SHARD_PAIRS
STALE_SECONDS = 7 * 24 * 3600
ROW = np.dtype([("key", np.uint64), ("counts", np.int32, (4,))])  # duplicate key and token counts of a row of a shard
Advance = Callable[[int, float], object]
"""Called with the number of processed pairs, and their approximate share of the corpus (0: unknown)."""


def log_progress(num_pairs: int, share: float) -> None:
    """Log a line per million pairs."""
    if num_pairs % LOG_PAIRS == 0:
        known = f", {share:.0%} of the corpus" if share else ""
        log.info("%s pairs tokenized%s", f"{num_pairs:,}", known)


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

    The sources must be in the same languages. The filters apply only if `is_training`. `keep_text` also stores the
    text, which augmentation needs. `advance` is called regularly during tokenization.

    Raises DataError if a source is missing, damaged or empty, or changes while it is read, the filters remove more than
    filters.max_filtered_share, or the cache cannot be written.
    """
    filters = data.filters if is_training else None
    pipeline = Pipeline(filters, data.languages(sources[0]), tokenizers)
    pipeline.load()  # report a missing package early
    states = corpus.file_states(sources)
    fingerprints = [corpus.source_fingerprint(source, data) for source in sources]
    folder = cache_folder(data.cache_dir) / _fingerprint(fingerprints, pipeline, tokenizers, keep_text)
    where = ", ".join(corpus.describe(source) for source in sources)
    if folder.is_dir():
        log.info("%s: already tokenized, found in %s", where, folder)
    else:
        what = f"{folder.parent}: the tokenized corpus"
        with (
            explain_write_errors(what, "set another folder with data.cache_dir; finished shards are kept"),
            _locked(folder, where),
        ):
            if not folder.is_dir():  # otherwise, another process has created it in the meantime
                _clear_stale(folder.parent)
                job = _Job(pipeline, folder.with_name(f"{folder.name}{BUILDING}"), keep_text)
                shards = _raw_shards(sources, data, states, fingerprints)
                try:
                    _make(folder, where, shards, job, data.num_workers, advance)
                except DataError:
                    corpus.require_unchanged(sources, states)  # a change may be the cause of this error
                    raise
    store = Store(folder)
    if filters is not None:
        store.report.check(filters, where)
    return store


def _fingerprint(sources: Sequence[str], pipeline: Pipeline, tokenizers: TokenizerPair, keep_text: bool) -> str:
    """Return the name of a corpus in the cache; disabled filters do not affect it."""
    keys = {name: key_of(FilterConfig, name) for name in FilterConfig.model_fields}
    filters = pipeline.filters and {
        name: value for name, value in pipeline.filters if keys[name].in_fingerprint and value != keys[name].off
    }
    settings = {
        "version": [PREPARATION, SHARD_PAIRS],
        "sources": sources,
        "tokenizers": [tokenizer.model_sha256 for tokenizer in tokenizers],
        "filters": filters,
        "languages": pipeline.languages,
        "keep_text": keep_text,
    }
    return json_sha256(settings)[:32]


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
            if time.time() - building.stat().st_mtime > STALE_SECONDS and delete_unused(building):
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
        files = (self.path(number, suffix) for suffix in (".npy", ".arrow"))
        values = {"report": report.to_dict(), "sha256": file_hashes(self.folder, files)}
        write_text(self.path(number, ".json"), json.dumps(sealed(values)))

    def read_report(self, number: int) -> DataReport:
        """Return the report on a finished shard; raise DataError if it is damaged."""
        return DataReport.from_dict(self._read_record(number)["report"])

    def read_rows(self, number: int) -> np.ndarray:
        """Return the `ROW` of each pair of a finished shard; raise DataError if the file is damaged."""
        path = self.path(number, ".npy")
        try:
            data = read_bytes(path)
        except OSError as error:
            raise _damaged(path) from error
        if hashlib.sha256(data).hexdigest() != self._read_record(number)["sha256"].get(path.name):
            raise _damaged(path)
        return np.asarray(np.load(io.BytesIO(data)))

    def _read_record(self, number: int) -> dict[str, Any]:
        path = self.path(number, ".json")
        try:
            record = unsealed(read_json(path))
        except (OSError, ValueError) as error:
            raise _damaged(path) from error
        if record.keys() != {"report", "sha256"}:  # of version 0.3
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
            raise DataError(f"{self.folder.parent}: not that of the main process; set data.cache_dir to a shared one")
        gc.disable()  # searching a million small lists for cycles would take a tenth of the time
        try:
            report = DataReport()
            parts = [self._filter(records, report, num_threads) for records in shard.records]
            pairs = join(part for part, _ in parts)
            with atomic_file(self.path(shard.number, ".npy")) as file, open(file, "wb") as opened:
                np.save(opened, np.concatenate([rows for _, rows in parts]))
            if len(pairs):
                with atomic_file(self.path(shard.number, ".arrow")) as file:
                    write_shard(file, pairs)
            self._write_record(shard.number, report)
        finally:
            gc.enable()

    def _filter(self, records: RawRecords, report: DataReport, num_threads: int) -> tuple[Pairs, np.ndarray]:
        """Return the kept pairs with a `ROW` each, and add counts to the report."""
        texts = records.texts()
        report.read += records.size
        report.count_unusual(*texts)
        filtered = self.pipeline.run(texts, num_threads)
        report.leave_out(count_reasons(filtered.codes))
        for side, lines, tokenizer in zip(SIDES, texts, self.pipeline.tokenizers or (), strict=True):
            report.count_normalized(side, lines, tokenizer.normalizer)
        kept = np.flatnonzero(filtered.codes == KEPT)
        texts, counts = take(texts, kept), filtered.counts[kept]
        if self.pipeline.filters is None:
            for column, side in enumerate(SIDES):
                report.blank[side] += int((counts[:, column] == 0).sum())
        rows = np.empty(len(counts), dtype=ROW)
        keys = self.pipeline.keys(texts)
        rows["key"], rows["counts"] = keys if keys is not None else 0, counts
        columns = [pa.array(lines, pa.string()) for lines in texts] if self.keep_text else []
        return make_pairs(*filtered.tokens, *columns), rows


def _damaged(path: Path) -> DataError:
    return DataError(f"{path}: damaged or changed; run the command again, which makes the file again")


def _make(
    folder: Path, where: str, shards: Iterator[_RawShard], job: _Job, num_workers: int | None, advance: Advance
) -> None:
    if not (job.folder / STORE).is_file():  # otherwise, it was interrupted just before the end
        resumes = job.folder.is_dir()
        job.folder.mkdir(parents=True, exist_ok=True)
        log.info("%s: tokenizing into %s%s", where, folder, ", resuming an interrupted preparation" if resumes else "")
        num_shards = 0

        def missing_shards() -> Iterator[_RawShard]:
            nonlocal num_shards
            for shard in shards:
                num_shards += 1
                if not job.is_finished(shard.number):
                    yield shard

        try:
            with Workers(job.make_shard, num_workers) as workers:
                for shard, _ in workers.map(missing_shards()):
                    advance(shard.end, shard.share)
            if not num_shards:
                raise DataError(f"{where}: the corpus is empty: no lines were read")
        except WorkerEndedError as error:
            raise DataError(f"{error}; finished shards are kept") from error
        except DataError as error:
            if not isinstance(error.__cause__, OSError):  # a network may work again, and the shards are kept
                shutil.rmtree(job.folder, ignore_errors=True)  # a corrected corpus has a different fingerprint
            raise
        _finish(job, num_shards)
    for path in job.folder.iterdir():
        if path.name not in (STORE, DUPLICATES) and path.suffix != ".arrow":
            path.unlink()
    sync(job.folder)
    os.rename(job.folder, folder)
    sync(folder.parent)


def _raw_shards(
    sources: Sequence[Source], data: DataConfig, states: dict[str, tuple[int, int, int]], fingerprints: Sequence[str]
) -> Iterator[_RawShard]:
    """Yield all records, divided into shards, source by source; `states` were read before the fingerprints.

    Raises DataError if a source changes, before the first shard that may differ from the fingerprinted contents.
    """
    records, end = list[RawRecords](), 0
    before, num_bytes = 0, sum(map(corpus.bytes_on_disk, sources))
    for source, fingerprint in zip(sources, fingerprints, strict=True):
        with corpus.open_reader(source, data) as reader:
            # `datasets` has now resolved the commit, or downloaded Arrow files, which do not change.
            corpus.require_same_version(source, data, fingerprint)
            while (some := reader.take(min(PAIRS_AT_ONCE, SHARD_PAIRS - end % SHARD_PAIRS))).size:
                records.append(some)
                end += some.size
                if end % SHARD_PAIRS == 0:
                    corpus.require_unchanged(sources, states)
                    share = (before + reader.position) / max(1, num_bytes)
                    yield _RawShard(end // SHARD_PAIRS - 1, records, end, share)
                    records = []
        if isinstance(source, HubDataset) and source.stream:
            corpus.require_same_version(source, data, fingerprint)
        before += corpus.bytes_on_disk(source)
    corpus.require_unchanged(sources, states)
    if records:
        yield _RawShard(end // SHARD_PAIRS, records, end, 1.0)


def _finish(job: _Job, num_shards: int) -> None:
    """Write the row numbers of duplicates and, last, store.json, which completes the store."""
    shards, report, longest = list[Shard](), DataReport(), np.zeros(2, dtype=np.int64)
    first_row = crc32 = 0
    with atomic_file(job.folder / DUPLICATES) as file, open(file, "wb") as opened:
        for number, is_duplicate in enumerate(_duplicates(job, num_shards)):
            rows = job.read_rows(number)
            duplicates = np.flatnonzero(is_duplicate)
            report += job.read_report(number)
            report.leave_out({Reason.DUPLICATE.value: len(duplicates)})
            counts = rows["counts"][~is_duplicate]
            report.count_kept(counts)
            longest = np.maximum(longest, counts[:, :2].max(axis=0, initial=0))
            opened.write(numbers := (first_row + duplicates).astype("<i8").tobytes())
            crc32 = zlib.crc32(numbers, crc32)
            first_row += len(rows)
            if len(rows):
                path = job.path(number, ".arrow")
                shards.append(Shard(path.name, len(rows), len(counts), path.stat().st_size))
    if first_row == report.kept:
        (job.folder / DUPLICATES).unlink()
    report.left_out = in_order(report.left_out)
    values = {"shards": [vars(shard) for shard in shards], "longest": longest.tolist(), "report": report.to_dict()}
    values |= {"duplicates_crc32": crc32}
    write_json(job.folder / STORE, sealed({"format": FORMAT, **values}), indent=1)


def _duplicates(job: _Job, num_shards: int) -> Iterator[Mask]:
    """Yield a mask of the duplicate rows of each shard."""
    sizes = [len(job.read_rows(number)) for number in range(num_shards)]
    if job.pipeline.filters is None or not job.pipeline.filters.drop_duplicates:
        return (np.zeros(size, np.bool_) for size in sizes)
    return repeated((job.read_rows(number)["key"] for number in range(num_shards)), sum(sizes), job.folder)

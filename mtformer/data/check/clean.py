"""Clean a corpus: separate pairs that the filters and translation models accept from pairs that they reject.

OUT/kept.SRC_LANG, OUT/kept.TGT_LANG   the accepted pairs, in order
OUT/removed.tsv                        reason, number of the pair (from 1), source, target
OUT/scores.tsv                         the combined score of each accepted pair, and the score of each model
OUT/report.json                        counts
"""

import io
import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from mtformer.data.corpus.readers import Faults, RawRecords, create_bytes
from mtformer.data.data_report import Columns, DataReport
from mtformer.data.filters.duplicates import Keys, SeenKeys
from mtformer.data.filters.filters import DUPLICATE, INVALID, KEPT, LOW_SCORE, REASONS, code, count_reasons, in_order
from mtformer.data.store.pipeline import Pipeline, TokenCounts, take
from mtformer.data.workers import Workers
from mtformer.errors import DataError, explain_write_errors
from mtformer.files import atomic_folder

log = logging.getLogger("mtformer")

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Scoring:
    """Function that scores pairs, and limits on the scores."""

    score: Callable[[Columns], Rows]
    """Function that returns an array (pairs, columns): the combined score, then the score of each model; nan for pairs
    that a model cannot score."""
    keep_share: float | None = None
    """Share of the scored pairs to keep, best first."""
    min_score: float | None = None


class _Chunk(NamedTuple):
    """Consecutive pairs with the codes of their reasons for removal."""

    texts: Columns
    codes: NDArray[np.uint8]
    counts: TokenCounts
    scores: Rows
    """(pairs, columns); nan for pairs that are not scored."""


def clean(
    corpus: Iterable[RawRecords],
    pipeline: Pipeline,
    folder: Path,
    *,
    scoring: Scoring | None = None,
    is_compressed: bool = False,
    num_workers: int | None = 1,
    progress: Callable[[int], object] = lambda count: None,
) -> DataReport:
    """Read a corpus once and write the output folder atomically. This needs 8 bytes of memory per pair, 16 if scored.

    `scoring` scores the pairs that pass the filters. If `is_compressed`, all files except report.json are written as
    `.gz`. `progress` is called with the number of pairs processed since the last call.

    Raises DataError if the folder exists or cannot be written, or the corpus is empty.
    """
    if folder.exists():
        raise DataError(f"{folder}: already exists; choose another folder, or delete it")
    report = DataReport()
    with explain_write_errors(f"{folder}:", "choose another folder"), atomic_folder(folder) as temporary:
        with (
            _open_files(temporary, pipeline.languages, scoring is not None, is_compressed) as write,
            Workers(partial(_filter, pipeline), num_workers) as workers,
        ):
            chunks = _filtered(workers.map(corpus), report, progress)
            if scoring is not None:
                chunks = _scored(chunks, scoring)
            if scoring is not None and scoring.keep_share is not None:
                chunks = _best(chunks, scoring.keep_share, temporary)
            for chunk in chunks:
                write(chunk, report.read + 1)
                report.read += len(chunk.codes)
                report.leave_out(count_reasons(chunk.codes))
                report.count_kept(chunk.counts[chunk.codes == KEPT])
        if not report.read:
            raise DataError("the corpus is empty: no lines were read")
        report.left_out = in_order(report.left_out)
        counts = json.dumps(report.to_dict(), indent=2, ensure_ascii=False)
        (temporary / "report.json").write_text(counts + "\n", encoding="utf-8")
    return report


def dual_scores(forward: NDArray[np.float64], backward: NDArray[np.float64]) -> Rows:
    """Return scores between 0 and 1, which are high if two models, one per direction, rate a pair highly and agree.

    exp(-(|H_f - H_b| + (H_f + H_b) / 2)), where H is minus the log-probability per token (Junczys-Dowmunt 2018,
    "Dual Conditional Cross-Entropy Filtering of Noisy Parallel Corpora", equations 1 and 2). The arguments are
    log-probabilities per token in nats.
    """
    return np.exp(-(np.abs(forward - backward) - (forward + backward) / 2))


_FilterResult = tuple[_Chunk, Keys | None, DataReport]
"""A chunk without scores, the duplicate keys of the kept pairs, and a report on unusual characters."""


def _filter(pipeline: Pipeline, records: RawRecords, num_threads: int) -> _FilterResult:
    report, faults = DataReport(), Faults()
    texts = records.parse(faults)
    report.count_unusual(*texts)
    filtered = pipeline.run(texts, num_threads)
    filtered.codes[list(faults.errors)] = code(INVALID)
    kept = take(texts, np.flatnonzero(filtered.codes == KEPT))
    chunk = _Chunk(texts, filtered.codes, filtered.counts, np.empty((records.size, 0)))
    return chunk, pipeline.keys(kept), report


def _filtered(
    results: Iterable[tuple[RawRecords, _FilterResult]], report: DataReport, progress: Callable[[int], object]
) -> Iterator[_Chunk]:
    """Yield the filtered chunks in order, with duplicates marked."""
    seen = SeenKeys()
    for records, (chunk, keys, unusual) in results:
        report.unusual = (report + unusual).unusual
        if keys is not None:
            chunk.codes[np.flatnonzero(chunk.codes == KEPT)[seen.add(keys)]] = code(DUPLICATE)
        yield chunk
        progress(records.size)


def _scored(chunks: Iterable[_Chunk], scoring: Scoring) -> Iterator[_Chunk]:
    """Add scores to kept pairs; if a limit is set, remove pairs below `min_score` or without a score."""
    num_unscored, has_limit = 0, scoring.keep_share is not None or scoring.min_score is not None
    limit = scoring.min_score if scoring.min_score is not None else -np.inf
    for chunk in chunks:
        kept = np.flatnonzero(chunk.codes == KEPT)
        if len(kept):
            found = scoring.score(take(chunk.texts, kept))
            scores = np.full((len(chunk.codes), found.shape[1]), np.nan)
            scores[kept] = found
            num_unscored += int(np.isnan(found[:, 0]).sum())
            if has_limit:
                chunk.codes[kept[~(found[:, 0] >= limit)]] = code(LOW_SCORE)
            chunk = chunk._replace(scores=scores)
        yield chunk
    if num_unscored:
        done = "removed" if has_limit else "nan in scores.tsv"
        log.warning("%s pairs have more tokens than a model supports: %s", f"{num_unscored:,}", done)


def _best(chunks: Iterable[_Chunk], share: float, folder: Path) -> Iterator[_Chunk]:
    """Keep only the best `share` of the scored pairs; chunks are buffered in a file."""
    parts: list[Rows] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder) as file:
        for chunk in chunks:
            file.write(json.dumps(chunk, default=np.ndarray.tolist) + "\n")
            parts.append(chunk.scores[chunk.codes == KEPT, :1].ravel())
        scores = np.concatenate(parts) if parts else np.zeros(0)
        is_worse = np.ones(len(scores), dtype=np.bool_)
        is_worse[np.argsort(-scores, kind="stable")[: round(share * len(scores))]] = False
        file.seek(0)
        for line, part in zip(file, parts, strict=True):
            texts, codes, *arrays = json.loads(line)
            chunk = _Chunk(texts, np.array(codes, np.uint8), *map(np.array, arrays))
            chunk.codes[np.flatnonzero(chunk.codes == KEPT)[is_worse[: len(part)]]] = code(LOW_SCORE)
            is_worse = is_worse[len(part) :]
            yield chunk


@contextmanager
def _open_files(
    folder: Path, languages: tuple[str, str], has_scores: bool, is_compressed: bool
) -> Iterator[Callable[[_Chunk, int], None]]:
    """Create the files and yield a function that writes a chunk, given the number of its first pair."""
    with ExitStack() as stack:

        def create(name: str) -> TextIO:
            raw = stack.enter_context(create_bytes(folder / (f"{name}.gz" if is_compressed else name)))
            return stack.enter_context(io.TextIOWrapper(raw, encoding="utf-8", newline="\n"))

        ends = languages if languages[0] != languages[1] else ("src", "tgt")
        kept_files = [create(f"kept.{end}") for end in ends]
        removed, scores = create("removed.tsv"), create("scores.tsv") if has_scores else None

        def write(chunk: _Chunk, first: int) -> None:
            is_kept = chunk.codes == KEPT
            for lines, file in zip(chunk.texts, kept_files, strict=True):
                # A line break inside a line (possible in JSON) would split it into two lines.
                file.writelines(line.replace("\n", " ") + "\n" for line in compress(lines, is_kept.tolist()))
            for row in np.flatnonzero(~is_kept).tolist():
                pair = [lines[row].replace("\n", " ").replace("\t", " ") for lines in chunk.texts]
                removed.write("\t".join([REASONS[chunk.codes[row] - 1], str(first + row), *pair]) + "\n")
            if scores is not None and chunk.scores.shape[1]:
                rows = chunk.scores[is_kept].tolist()
                scores.writelines("\t".join(f"{value:.6f}" for value in row) + "\n" for row in rows)

        yield write

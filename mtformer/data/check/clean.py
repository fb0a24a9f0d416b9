"""Cleaning: a corpus without the pairs that the filters, or a translation model, reject, and what was removed.

OUT/kept.SRC_LANG, OUT/kept.TGT_LANG   the pairs that are kept, in their order
OUT/removed.tsv                        reason, number of the pair from 1, source, target
OUT/scores.tsv                         the score of each kept pair, and the score of each model
OUT/report.json                        counts
"""

import io
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from mtformer.data.corpus.compressed import create_bytes
from mtformer.data.filters.duplicates import Keys, SeenKeys
from mtformer.data.filters.filters import DUPLICATE, KEPT, REASONS, Codes, code
from mtformer.data.report import Columns, DataReport
from mtformer.data.store.pipeline import Pipeline, TokenCounts, take
from mtformer.data.workers import Workers
from mtformer.errors import DataError, told_writing
from mtformer.files import atomic_folder

CHUNKS_ALONE = 4
"""Chunks that are judged before processes are started, which takes seconds."""
LOW_SCORE = "low score"
STAYS = ""
"""The reason of a pair that is kept."""
log = logging.getLogger("mtformer")

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Scoring:
    """A model that scores pairs, and the limits for its scores.

    Args:
        score: pairs -> (pairs, columns), the score first, then that of each model; nan if a model cannot score it.
        keep_share: keep only this share of the scored pairs, the best.
        min_score: keep only pairs of at least this score.
    """

    score: Callable[[Columns], Rows]
    keep_share: float | None = None
    min_score: float | None = None

    @property
    def chooses(self) -> bool:
        """True if pairs are left out by their score."""
        return self.keep_share is not None or self.min_score is not None


class _Judged(NamedTuple):
    """The result of the filters for a chunk, duplicates aside."""

    codes: Codes
    counts: TokenCounts
    keys: Keys | None
    """Keys of the kept pairs, by which duplicates are found, if they are left out."""
    unusual: DataReport
    """Counts of unusual characters only."""


class _Chunk(NamedTuple):
    """Consecutive pairs, each with its reason for removal."""

    texts: Columns
    reasons: list[str]
    counts: list[list[int]]
    """Token counts of each pair."""
    scores: list[list[float]]
    """Scores of each pair; empty if there is no model, or the pair is left out."""

    def is_kept(self) -> list[bool]:
        """Return True for each pair that is kept."""
        return [reason == STAYS for reason in self.reasons]


def clean(
    texts: Iterable[Columns],
    pipeline: Pipeline,
    folder: Path,
    *,
    scoring: Scoring | None = None,
    is_compressed: bool = False,
    num_workers: int = 1,
    progress: Callable[[int], object] = lambda count: None,
) -> DataReport:
    """Read a corpus once and write the folder, whole or not at all. Memory holds 8 bytes a pair, and 8 more to score.

    Args:
        texts: the corpus, some pairs at a time.
        pipeline: the filters.
        folder: the new folder.
        scoring: scores the pairs that pass the filters.
        is_compressed: write texts as `.gz`.
        num_workers: processes for the filters, if there is enough to do for them.
        progress: called with the number of pairs done since its last call.

    Raises:
        DataError: the folder exists already or cannot be written, or the corpus is empty.
    """
    if folder.exists():
        raise DataError(f"{folder}: exists already; name another folder, or delete it")
    report = DataReport()
    with told_writing(f"{folder}:", "name another folder"), atomic_folder(folder) as temporary:
        with (
            _Files(temporary, pipeline.languages, scoring is not None, is_compressed) as files,
            Workers[Columns, _Judged](_Judge, pipeline, num_workers) as workers,
        ):
            chunks = _without_duplicates(_judge(texts, pipeline, workers), report, progress)
            if scoring is not None:
                chunks = _scored(chunks, scoring)
            if scoring is not None and scoring.keep_share is not None:
                chunks = _best(chunks, scoring.keep_share, temporary)
            for chunk in chunks:
                files.write(chunk, report.read + 1)
                _count(chunk, report)
        if not report.read:
            raise DataError("the corpus is empty: not one line was read")
        order = (*REASONS, LOW_SCORE)
        report.left_out = {reason: report.left_out[reason] for reason in order if reason in report.left_out}
        (temporary / "report.json").write_text(report.to_json(), encoding="utf-8")
    return report


def dual_scores(forward: NDArray[np.float64], backward: NDArray[np.float64]) -> Rows:
    """Return how well two models, one for each direction, rate pairs and agree on them: between 0 and 1.

    exp(-(|H_f - H_b| + (H_f + H_b) / 2)), where H is minus the log-probability per token (Junczys-Dowmunt 2018,
    "Dual Conditional Cross-Entropy Filtering of Noisy Parallel Corpora", equations 1 and 2).

    Args:
        forward, backward: log-probabilities per token, in nats.
    """
    score: Rows = np.exp(-(np.abs(forward - backward) - (forward + backward) / 2))
    return score


# ---- filters --------------------------------------------------------------------------------------------------------


class _Judge:
    """The function of each process."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __call__(self, texts: Columns, num_threads: int = 1) -> _Judged:
        unusual = DataReport()
        unusual.count_unusual(*texts)
        filtered = self.pipeline.run(texts, num_threads)
        kept = take(texts, np.flatnonzero(filtered.codes == KEPT))
        return _Judged(filtered.codes, filtered.counts, self.pipeline.keys(kept), unusual)


def _judge(
    texts: Iterable[Columns], pipeline: Pipeline, workers: Workers[Columns, _Judged]
) -> Iterator[tuple[Columns, _Judged]]:
    """Yield the chunks in their order; the first ones are judged in this process."""
    judge, chunks = _Judge(pipeline), iter(texts)
    for chunk in islice(chunks, CHUNKS_ALONE):
        yield chunk, judge(chunk, num_threads=os.cpu_count() or 1)
    yield from workers.map(chunks)


def _without_duplicates(
    judged: Iterable[tuple[Columns, _Judged]], report: DataReport, progress: Callable[[int], object]
) -> Iterator[_Chunk]:
    """Yield the chunks with the reasons of all pairs, repeated ones included."""
    seen = SeenKeys()
    for texts, (codes, counts, keys, unusual) in judged:
        report.unusual = (report + unusual).unusual
        if keys is not None:
            kept = np.flatnonzero(codes == KEPT)
            codes[kept[seen.add(keys)]] = code(DUPLICATE)
        reasons = [REASONS[number - 1] if number != KEPT else STAYS for number in codes.tolist()]
        yield _Chunk(texts, reasons, counts.tolist(), [])
        progress(len(codes))


# ---- scoring --------------------------------------------------------------------------------------------------------


def _scored(chunks: Iterable[_Chunk], scoring: Scoring) -> Iterator[_Chunk]:
    """Add the scores of the kept pairs; if a limit is set, those below `min_score`, or without score, are left out."""
    num_silent = 0
    limit = scoring.min_score if scoring.min_score is not None else -np.inf
    for chunk in chunks:
        kept = np.flatnonzero(chunk.is_kept())
        rows = scoring.score(take(chunk.texts, kept)).tolist() if len(kept) else []
        scores: list[list[float]] = [[] for _ in chunk.reasons]
        reasons = list(chunk.reasons)
        for index, row in zip(kept.tolist(), rows, strict=True):
            scores[index] = row
            num_silent += row[0] != row[0]
            if scoring.chooses and not row[0] >= limit:
                reasons[index] = LOW_SCORE
        yield chunk._replace(reasons=reasons, scores=scores)
    if num_silent:
        done = "left out" if scoring.chooses else "nan in scores.tsv"
        log.warning("%s pairs have more tokens than a model has positions for: %s", f"{num_silent:,}", done)


def _best(chunks: Iterable[_Chunk], share: float, folder: Path) -> Iterator[_Chunk]:
    """Keep only the best pairs, a share of those with a score. The chunks are buffered in a file."""
    parts: list[Rows] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder) as file:
        for chunk in chunks:
            file.write(json.dumps(chunk) + "\n")
            parts.append(np.array([row[0] for row in compress(chunk.scores, chunk.is_kept())]))
        scores = np.concatenate(parts) if parts else np.zeros(0)
        is_best = np.zeros(len(scores), dtype=np.bool_)
        is_best[np.argsort(-scores, kind="stable")[: round(share * len(scores))]] = True
        rest = iter(is_best.tolist())
        file.seek(0)
        for line in file:
            chunk = _Chunk(*json.loads(line))
            reasons = [LOW_SCORE if reason == STAYS and not next(rest) else reason for reason in chunk.reasons]
            yield chunk._replace(reasons=reasons)


# ---- writing --------------------------------------------------------------------------------------------------------


def _count(chunk: _Chunk, report: DataReport) -> None:
    report.read += len(chunk.reasons)
    for reason in set(chunk.reasons) - {STAYS}:
        report.leave_out(reason, chunk.reasons.count(reason))
    report.kept += chunk.reasons.count(STAYS)
    for row in compress(chunk.counts, chunk.is_kept()):
        for side, name in enumerate(("src", "tgt")):
            report.tokens[name] += row[side]
            report.unknown[name] += row[2 + side]


class _Files:
    """The files that are written while a corpus is cleaned."""

    def __init__(self, folder: Path, languages: tuple[str, str], has_scores: bool, is_compressed: bool) -> None:
        with ExitStack() as stack:
            ends = languages if languages[0] != languages[1] else ("src", "tgt")
            self._kept = [stack.enter_context(_open(folder / f"kept.{end}", is_compressed)) for end in ends]
            self._removed = stack.enter_context(_open(folder / "removed.tsv", is_compressed))
            self._scores = stack.enter_context(_open(folder / "scores.tsv", is_compressed)) if has_scores else None
            self._stack = stack.pop_all()

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, chunk: _Chunk, number: int) -> None:
        """Write pairs, the first of which has this number."""
        is_kept = chunk.is_kept()
        for lines, file in zip(chunk.texts, self._kept, strict=True):
            # A line break inside a line (JSON can have one) would make two lines of it.
            file.writelines(line.replace("\n", " ") + "\n" for line in compress(lines, is_kept))
        for place, (src, tgt, reason) in enumerate(zip(*chunk.texts, chunk.reasons, strict=True), start=number):
            if reason != STAYS:
                src, tgt = (line.replace("\n", " ").replace("\t", " ") for line in (src, tgt))
                self._removed.write(f"{reason}\t{place}\t{src}\t{tgt}\n")
        if self._scores is not None:
            rows = compress(chunk.scores, is_kept)
            self._scores.writelines("\t".join(f"{value:.6f}" for value in row) + "\n" for row in rows)


@contextmanager
def _open(path: Path, is_compressed: bool) -> Iterator[TextIO]:
    """Open a text file whose lines end at \\n, plain or as .gz."""
    name = f"{path}.gz" if is_compressed else path
    with create_bytes(name) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as file:
        yield file

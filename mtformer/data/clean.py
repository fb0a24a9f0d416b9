"""A corpus without the pairs that the filters, or a translation model, find wanting: written beside what was removed.

OUT/kept.SRC_LANG, OUT/kept.TGT_LANG   the pairs that stay, in their order
OUT/removed.tsv                        reason, number of the pair from 1, source, target
OUT/scores.tsv                         of each kept pair the score, and what each model gave it
OUT/report.json                        how many of each
"""

import io
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.data.compressed import create_bytes
from mtformer.data.duplicates import Keys, SeenKeys, hash_keys
from mtformer.data.filters import DUPLICATE, KEPT, REASONS, Codes, Filter, code, duplicate_key
from mtformer.data.report import DataReport, Pair, sides
from mtformer.data.workers import Workers
from mtformer.errors import DataError, told_writing
from mtformer.files import atomic_folder
from mtformer.text.tokenizer import UNK, TokenizerPair

PAIRS_AT_ONCE = 4096
CHUNKS_ALONE = 8
LOW_SCORE = "low score"
STAYS = ""
"""The reason of a pair that is kept."""
log = logging.getLogger("mtformer")

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Scoring:
    """How a model judges pairs, and which it leaves out.

    Args:
        score: pairs -> (pairs, columns), the score first, then what each model gave; nan where a model cannot say.
        keep_share: keep only this share of the scored pairs, the best.
        min_score: keep only pairs of at least this score.
    """

    score: Callable[[Sequence[Pair]], Rows]
    keep_share: float | None = None
    min_score: float | None = None

    @property
    def chooses(self) -> bool:
        """Does it leave anything out?"""
        return self.keep_share is not None or self.min_score is not None


class _Chunk(NamedTuple):
    """Some pairs, one after the other, each with its reason to go."""

    pairs: list[Pair]
    reasons: list[str]
    tokens: list[list[int]]
    """Of each pair the source's and the target's tokens, and how many of them are unknown; none without tokenizers."""
    scores: list[list[float]]
    """Of each pair; none where nothing scores, or the pair is left out."""


def clean(
    pairs: Iterator[Pair],
    languages: tuple[str, str],
    filters: FilterConfig,
    folder: Path,
    *,
    tokenizers: TokenizerPair | None = None,
    scoring: Scoring | None = None,
    packed: bool = False,
    num_workers: int = 1,
    progress: Callable[[int], object] | None = None,
) -> DataReport:
    """Reads pairs once and writes the folder, whole or not at all. Memory holds 8 bytes a pair, and 8 more to score.

    Args:
        pairs: the corpus.
        languages: codes of source and target.
        filters: what goes; limits in tokens count only with tokenizers.
        folder: new.
        tokenizers: to count tokens.
        scoring: what judges the pairs that pass the filters.
        packed: whether texts are written as `.gz`.
        num_workers: processes that judge, once there is enough to do for them.
        progress: called with the number of pairs that were done since its last call.

    Raises:
        DataError: when the folder is there already or cannot be written, or there is not one pair.
    """
    if folder.exists():
        raise DataError(f"{folder}: exists already; name another folder, or delete it")
    report, work = DataReport(), _Work(filters, languages, tokenizers)
    with told_writing(f"{folder}:", "name another folder"), atomic_folder(folder) as temporary:
        with (
            _Files(temporary, languages, scoring is not None, packed) as files,
            Workers[list[Pair], _Judged](_Judge, work, num_workers) as workers,
        ):
            chunks = _without_duplicates(
                _judge(pairs, work, workers), filters, report, progress or (lambda count: None)
            )
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
    """How well two models, each in its direction, think of pairs and agree on them: between 0 and 1.

    exp(-(|H_f - H_b| + (H_f + H_b) / 2)), where H is minus the log-probability per token (Junczys-Dowmunt 2018,
    "Dual Conditional Cross-Entropy Filtering of Noisy Parallel Corpora", equations 1 and 2).

    Args:
        forward, backward: log-probabilities per token, in nats.
    """
    score: Rows = np.exp(-(np.abs(forward - backward) - (forward + backward) / 2))
    return score


# ---- judging --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Work:
    """What to judge with."""

    filters: FilterConfig
    languages: tuple[str, str]
    tokenizers: TokenizerPair | None
    num_threads: int = 1
    """Of a tokenizer."""


class _Judged(NamedTuple):
    """What some pairs, looked at by themselves, are found to be."""

    codes: Codes
    tokens: list[list[int]]
    """See `_Chunk`."""
    keys: Keys
    """Of the pairs that are left, by which duplicates are found."""
    unusual: DataReport
    """Characters to look out for; nothing else is counted."""


class _Judge:
    """The filters, in the order of preparing: text, then tokens."""

    def __init__(self, work: _Work) -> None:
        self.work, self.filter = work, Filter(work.filters, *work.languages)

    def __call__(self, pairs: list[Pair]) -> _Judged:
        unusual, config = DataReport(), self.work.filters
        unusual.count_unusual(*sides(pairs))
        codes, tokens = self.filter.by_text(pairs), list[list[int]]()
        if self.work.tokenizers is not None:
            tokens = self._by_length(pairs, codes, self.work.tokenizers)
        left = np.flatnonzero(codes == KEPT).tolist() if config.drop_duplicates else []
        return _Judged(codes, tokens, hash_keys(duplicate_key(pairs[index], config) for index in left), unusual)

    def _by_length(self, pairs: Sequence[Pair], codes: Codes, tokenizers: TokenizerPair) -> list[list[int]]:
        """Marks in `codes` what its tokens tell of the pairs that are left; returns what `_Chunk.tokens` holds."""
        left = np.flatnonzero(codes == KEPT)
        tokens = np.zeros((len(pairs), 4), dtype=np.int32)
        for side, tokenizer in enumerate((tokenizers.src, tokenizers.tgt)):
            ids = tokenizer.encode([pairs[index][side] for index in left.tolist()], self.work.num_threads)
            tokens[left, side] = [len(line) for line in ids]
            tokens[left, 2 + side] = [line.count(UNK) for line in ids]
        codes[left] = self.filter.by_length(tokens[left, 0], tokens[left, 1])
        rows: list[list[int]] = tokens.tolist()
        return rows


def _judge(
    pairs: Iterator[Pair], work: _Work, workers: Workers[list[Pair], _Judged]
) -> Iterator[tuple[list[Pair], _Judged]]:
    """Chunks in their order; the first ones are judged here, for processes take seconds to start."""
    judge = _Judge(replace(work, num_threads=os.cpu_count() or 1))
    chunks = iter(lambda: list(islice(pairs, PAIRS_AT_ONCE)), [])
    for chunk in islice(chunks, CHUNKS_ALONE):
        yield chunk, judge(chunk)
    yield from workers.map(chunks)


def _without_duplicates(
    judged: Iterable[tuple[list[Pair], _Judged]],
    config: FilterConfig,
    report: DataReport,
    progress: Callable[[int], object],
) -> Iterator[_Chunk]:
    """The reasons of all pairs; of those that are left, one that has stood before goes."""
    seen = SeenKeys()
    for pairs, (codes, tokens, keys, unusual) in judged:
        report.unusual = (report + unusual).unusual
        if config.drop_duplicates:
            left = np.flatnonzero(codes == KEPT)
            codes[left[seen.add(keys)]] = code(DUPLICATE)
        reasons = [REASONS[number - 1] if number != KEPT else STAYS for number in codes.tolist()]
        yield _Chunk(pairs, reasons, tokens, [])
        progress(len(pairs))


# ---- scoring --------------------------------------------------------------------------------------------------------


def _scored(chunks: Iterable[_Chunk], scoring: Scoring) -> Iterator[_Chunk]:
    """With the scores of the pairs that are left; those below `min_score`, or with none, go when any may go."""
    num_silent = 0
    for chunk in chunks:
        left = [index for index, reason in enumerate(chunk.reasons) if reason == STAYS]
        rows = scoring.score([chunk.pairs[index] for index in left]).tolist() if left else []
        scores: list[list[float]] = [[] for _ in chunk.pairs]
        reasons = list(chunk.reasons)
        for index, row in zip(left, rows, strict=True):
            scores[index] = row
            num_silent += row[0] != row[0]
            limit = scoring.min_score if scoring.min_score is not None else -np.inf
            if scoring.chooses and not row[0] >= limit:
                reasons[index] = LOW_SCORE
        yield chunk._replace(reasons=reasons, scores=scores)
    if num_silent:
        done = "left out" if scoring.chooses else "nan in scores.tsv"
        log.warning("%s pairs have more tokens than a model has positions for: %s", f"{num_silent:,}", done)


def _best(chunks: Iterable[_Chunk], share: float, folder: Path) -> Iterator[_Chunk]:
    """The same chunks, where only the best pairs are left: a share of those with a score. They wait in a file."""
    parts: list[Rows] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder) as file:
        for chunk in chunks:
            file.write(json.dumps(chunk) + "\n")
            left = [row[0] for row, reason in zip(chunk.scores, chunk.reasons, strict=True) if reason == STAYS]
            parts.append(np.array(left))
        scores = np.concatenate(parts) if parts else np.zeros(0)
        stays = np.zeros(len(scores), dtype=np.bool_)
        stays[np.argsort(-scores, kind="stable")[: round(share * len(scores))]] = True
        rest = iter(stays.tolist())
        file.seek(0)
        for line in file:
            chunk = _Chunk(*json.loads(line))
            reasons = [LOW_SCORE if reason == STAYS and not next(rest) else reason for reason in chunk.reasons]
            yield chunk._replace(reasons=reasons)


# ---- writing --------------------------------------------------------------------------------------------------------


def _count(chunk: _Chunk, report: DataReport) -> None:
    report.read += len(chunk.pairs)
    for reason in set(chunk.reasons) - {STAYS}:
        report.leave_out(reason, chunk.reasons.count(reason))
    report.kept += chunk.reasons.count(STAYS)
    for row, reason in zip(chunk.tokens, chunk.reasons, strict=False):
        if reason == STAYS:
            for side, name in enumerate(("src", "tgt")):
                report.tokens[name] += row[side]
                report.unknown[name] += row[2 + side]


class _Files:
    """What is written while a corpus is cleaned."""

    def __init__(self, folder: Path, languages: tuple[str, str], has_scores: bool, packed: bool) -> None:
        with ExitStack() as stack:
            ends = languages if languages[0] != languages[1] else ("src", "tgt")
            self._kept = [stack.enter_context(_open(folder / f"kept.{end}", packed)) for end in ends]
            self._removed = stack.enter_context(_open(folder / "removed.tsv", packed))
            self._scores = stack.enter_context(_open(folder / "scores.tsv", packed)) if has_scores else None
            self._stack = stack.pop_all()

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, chunk: _Chunk, number: int) -> None:
        """Some pairs, the first of which has this number."""
        stays = [reason == STAYS for reason in chunk.reasons]
        for side, file in enumerate(self._kept):
            # A line break inside a line (JSON can have one) would make two of one.
            file.writelines(
                pair[side].replace("\n", " ") + "\n" for pair, s in zip(chunk.pairs, stays, strict=True) if s
            )
        for place, (pair, reason) in enumerate(zip(chunk.pairs, chunk.reasons, strict=True), start=number):
            if reason != STAYS:
                src, tgt = (line.replace("\n", " ").replace("\t", " ") for line in pair)
                self._removed.write(f"{reason}\t{place}\t{src}\t{tgt}\n")
        if self._scores is not None:
            rows = (row for row, s in zip(chunk.scores, stays, strict=True) if s)
            self._scores.writelines("\t".join(f"{value:.6f}" for value in row) + "\n" for row in rows)


@contextmanager
def _open(path: Path, packed: bool) -> Iterator[TextIO]:
    """Open a text file whose lines end at \\n, plain or as .gz."""
    name = f"{path}.gz" if packed else path
    with create_bytes(name) as raw, io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as file:
        yield file

"""Comparison of systems on a test set: scores, significance tests, scores by sentence length, differing sentences."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtformer.config.loading import config_diff
from mtformer.evaluation import significance
from mtformer.evaluation.scores import METRICS
from mtformer.evaluation.significance import Counts, Estimate, MeanOfLines, Measure, PairedTests, estimate
from mtformer.evaluation.systems import ExternalScores, Material, System, distinguishes
from mtformer.text.words import lacks_spaces

LENGTHS = (10, 20, 30, 40, 50, 60)
"""Source lengths at which a new bucket begins."""


@dataclass(frozen=True)
class RunScore:
    """Corpus score of one run."""

    run: str
    seed: int | None
    score: float


@dataclass(frozen=True)
class SystemScore:
    """Scores of a system for one metric; the last two values compare it to the baseline and are None for that."""

    system: str
    runs: list[RunScore]
    mean: float
    deviation: float | None
    """Sample standard deviation over runs; None for a single run."""
    estimate: Estimate | None
    """Score of all runs together, with a confidence interval over sentences; None without scores of the sentences."""
    difference: float | None = None
    tests: PairedTests | None = None
    """Significance tests with the same number of runs of both systems (the first ones)."""


@dataclass(frozen=True)
class MetricTable:
    """Scores of all systems for one metric."""

    name: str
    label: str
    signature: str
    tests: str
    """Settings of the significance tests."""
    systems: list[SystemScore]


@dataclass(frozen=True)
class Bucket:
    """Sentences whose sources have `low` to `high` words (or characters); `high` is None for the last bucket."""

    low: int
    high: int | None
    num_sentences: int
    scores: dict[str, list[float]]
    """For each metric, one score per system: the mean over its runs."""


@dataclass(frozen=True)
class SentenceRow:
    """One sentence as translated by the first run of each system; `line` is counted from 1."""

    line: int
    source: str | None
    references: list[str]
    hypotheses: list[str]
    chrf: list[float]


@dataclass(frozen=True)
class Comparison:
    """Comparison on one test set."""

    name: str
    num_sentences: int
    metrics: list[MetricTable]
    unit: str
    """Unit of source lengths: words or characters."""
    buckets: list[Bucket]
    """Scores by source length; empty without sources."""
    sentences: list[SentenceRow]
    notes: list[str]
    ignored: list[str]


def compare(
    systems: Sequence[System], material: Material, num_sentences: int = 5, progress: Callable[[], object] = lambda: None
) -> Comparison:
    """Compare systems on a test set; the first system is the baseline.

    Args:
        systems: the systems, whose outputs `material` has.
        material: the test set and the outputs.
        num_sentences: number of sentences with the largest differences in the result.
        progress: called after each metric of a system.

    Raises:
        ConfigError: if the BLEU tokenizer is not available, or sacreBLEU's seed is invalid.
    """
    outputs: dict[Path, list[str]] = {}
    for system in systems:
        for run in system.runs:
            outputs[run.path] = material.outputs[run.path]
    measures = [Measure(metric, material.evaluation, outputs, material.references) for metric in METRICS]
    for scores in material.external:
        if scores.of_lines is not None:
            measures.append(MeanOfLines(scores.name, scores.signature, scores.of_lines))
    totals = [_table_of_totals(systems, scores) for scores in material.external if scores.of_lines is None]
    chrf = measures[METRICS.index("chrf")]

    unit = "words"
    buckets: list[Bucket] = []
    if material.sources is not None:
        unit, lengths = _source_lengths(material.sources)
        buckets = _by_length(systems, lengths, measures)

    return Comparison(
        name=material.name,
        num_sentences=len(material.references[0]),
        metrics=[*(_table(systems, measure, progress) for measure in measures), *totals],
        unit=unit,
        buckets=buckets,
        sentences=_most_different(systems, material, chrf, num_sentences),
        notes=material.notes,
        ignored=material.ignored,
    )


def config_differences(systems: Sequence[System]) -> dict[str, list[Any]]:
    """Return the config keys that differ between systems, with each system's value; seeds are excluded."""
    configs = [system.runs[0].config for system in systems]
    baseline = configs[0]
    values_of: dict[str, list[Any]] = {}
    for position, config in enumerate(configs):
        if baseline is None or config is None:
            return {}
        for key, baseline_value, value in config_diff(baseline, config):
            if distinguishes(key):
                # A system that is not mentioned for a key has the value of the baseline.
                values = values_of.setdefault(key, [baseline_value] * len(systems))
                values[position] = value
    return values_of


def _table(systems: Sequence[System], measure: Measure, progress: Callable[[], object]) -> MetricTable:
    """Return the scores of the systems, and their differences from the first one, the baseline."""
    baseline_NC = _pooled(systems[0], measure)
    rows: list[SystemScore] = []
    for system in systems:
        row = _score(system, measure)
        if rows:
            baseline_row = rows[0]
            tests = significance.paired_tests(measure, baseline_NC, _pooled(system, measure))
            row = replace(row, difference=row.mean - baseline_row.mean, tests=tests)
        rows.append(row)
        progress()
    test_settings = significance.describe_tests()
    return MetricTable(measure.name, measure.label, measure.signature, test_settings, rows)


def _table_of_totals(systems: Sequence[System], external: ExternalScores) -> MetricTable:
    """Return the scores of the systems by a metric without scores of the sentences, and so without tests."""
    rows: list[SystemScore] = []
    for system in systems:
        scores = [external.scores[run.path] for run in system.runs]
        row = _system_score(system, scores, None)
        if rows:
            row = replace(row, difference=row.mean - rows[0].mean)
        rows.append(row)
    return MetricTable(external.name, external.name, external.signature, "", rows)


def _score(system: System, measure: Measure) -> SystemScore:
    """Return the scores of a system, without a comparison to the baseline."""
    scores = [measure.score(measure.counts[run.path]) for run in system.runs]
    return _system_score(system, scores, estimate(measure, _pooled(system, measure)))


def _system_score(system: System, scores: Sequence[float], pooled: Estimate | None) -> SystemScore:
    """Return the scores of the runs of a system, their mean and deviation."""
    return SystemScore(
        system=system.name,
        runs=[RunScore(run.name, run.seed, score) for run, score in zip(system.runs, scores, strict=True)],
        mean=statistics.fmean(scores),
        deviation=statistics.stdev(scores) if len(scores) > 1 else None,
        estimate=pooled,
    )


def _pooled(system: System, measure: Measure) -> Counts:
    """Return the mean counts (N, C) of each sentence over runs; the tests resample sentences."""
    counts_of_runs = [measure.counts[run.path] for run in system.runs]
    return np.mean(counts_of_runs, axis=0)


def _source_lengths(sources: Sequence[str]) -> tuple[str, NDArray[np.int64]]:
    """Return the unit of length, words or characters, and the length of each source in this unit."""
    if lacks_spaces(sources):
        return "characters", np.array([len(line) for line in sources])
    return "words", np.array([len(line.split()) for line in sources])


def _by_length(systems: Sequence[System], lengths: NDArray[np.int64], measures: Sequence[Measure]) -> list[Bucket]:
    """Return the scores of the systems in each bucket of source lengths that has sentences."""
    starts = (0, *LENGTHS)
    ends = (*LENGTHS, None)
    buckets = []
    for low, end in zip(starts, ends, strict=True):
        is_chosen = lengths >= low
        if end is not None:
            is_chosen &= lengths < end
        if not is_chosen.any():
            continue
        scores = {}
        for measure in measures:
            scores[measure.name] = [_mean_score(system, measure, is_chosen) for system in systems]
        high = None if end is None else end - 1
        num_sentences = int(is_chosen.sum())
        buckets.append(Bucket(low, high, num_sentences, scores))
    return buckets


def _mean_score(system: System, measure: Measure, is_chosen: NDArray[np.bool_]) -> float:
    """Return the mean score of the runs of a system on some of the sentences."""
    counts_of_runs = [measure.counts[run.path][is_chosen] for run in system.runs]
    return statistics.fmean(map(measure.score, counts_of_runs))


def _sentence_scores(measure: Measure, path: Path) -> list[float]:
    counts_NC = measure.counts[path]
    return [measure.score_of(counts_C) for counts_C in counts_NC]


def _most_different(systems: Sequence[System], material: Material, measure: Measure, number: int) -> list[SentenceRow]:
    """Return the sentences for which chrF2++ (`measure`) differs most between systems, largest differences first."""
    if number == 0 or len(systems) < 2:
        return []
    paths = [system.runs[0].path for system in systems]
    chrf = np.array([_sentence_scores(measure, path) for path in paths])  # (systems, sentences)
    spread = chrf.max(0) - chrf.min(0)
    largest_first = np.argsort(-spread, kind="stable")

    rows = []
    for line in largest_first[:number].tolist():
        if spread[line] == 0:
            break
        source = material.sources[line] if material.sources is not None else None
        row = SentenceRow(
            line=line + 1,
            source=source,
            references=[references[line] for references in material.references],
            hypotheses=[material.outputs[path][line] for path in paths],
            chrf=chrf[:, line].tolist(),
        )
        rows.append(row)
    return rows

"""Comparison of systems on a test set: scores, significance tests, scores by sentence length, differing sentences."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mtformer.config.loading import config_diff
from mtformer.evaluation import significance
from mtformer.evaluation.scores import METRICS, MetricName
from mtformer.evaluation.significance import Counts, Estimate, Measure, PairedTests, estimate
from mtformer.evaluation.systems import Material, System, distinguishes

LENGTHS = (10, 20, 30, 40, 50, 60)  # source lengths at which a new bucket begins
LONG_WORDS = 20
"""Mean number of characters per word above which a language is assumed not to separate words with spaces."""


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
    estimate: Estimate
    """Score of all runs together, with a confidence interval over sentences."""
    difference: float | None = None
    tests: PairedTests | None = None
    """Significance tests with the same number of runs of both systems (the first ones)."""


@dataclass(frozen=True)
class MetricTable:
    """Scores of all systems for one metric."""

    name: MetricName
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
    scores: dict[MetricName, list[float]]
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
    """Comparison on one test set; `unit` is the unit of source lengths, and `buckets` is empty without sources."""

    name: str
    num_sentences: int
    metrics: list[MetricTable]
    unit: str
    buckets: list[Bucket]
    sentences: list[SentenceRow]
    notes: list[str]
    ignored: list[str]


def compare(
    systems: Sequence[System], material: Material, num_sentences: int = 5, progress: Callable[[], object] = lambda: None
) -> Comparison:
    """Compare systems on a test set; the first system is the baseline.

    The result includes the `num_sentences` sentences with the largest differences. `progress` is called after each
    metric of a system. Raise ConfigError if the BLEU tokenizer is not available, or sacreBLEU's seed is invalid.
    """
    outputs = {run.path: material.outputs[run.path] for system in systems for run in system.runs}
    name, references = material.name, material.references
    measures = [Measure(metric, material.evaluation, outputs, references) for metric in METRICS]
    unit, buckets = _by_length(systems, material.sources, measures) if material.sources is not None else ("words", [])
    tables = [_table(systems, measure, progress) for measure in measures]
    rows = _most_different(systems, material, measures[METRICS.index("chrf")], num_sentences)
    return Comparison(name, len(references[0]), tables, unit, buckets, rows, material.notes, material.ignored)


def config_differences(systems: Sequence[System]) -> dict[str, list[Any]]:
    """Return the config keys that differ between systems, with each system's value; seeds are excluded."""
    configs = [system.runs[0].config for system in systems]
    keys: dict[str, list[Any]] = {}
    for position, config in enumerate(configs):
        if configs[0] is None or config is None:
            return {}
        for key, before, after in config_diff(configs[0], config):
            if distinguishes(key):
                keys.setdefault(key, [before] * len(systems))[position] = after
    return keys


def _table(systems: Sequence[System], measure: Measure, progress: Callable[[], object]) -> MetricTable:
    """Return the scores of the systems, and their differences from the first one, the baseline."""
    rows: list[SystemScore] = []
    for system in systems:
        runs = [RunScore(run.name, run.seed, measure.score(measure.counts[run.path])) for run in system.runs]
        scores = [run.score for run in runs]
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        whole = estimate(measure, _pooled(system, measure))
        row = SystemScore(system.name, runs, statistics.fmean(scores), deviation, whole)
        if rows:
            tests = significance.paired_tests(measure, _pooled(systems[0], measure), _pooled(system, measure))
            row = replace(row, difference=row.mean - rows[0].mean, tests=tests)
        rows.append(row)
        progress()
    return MetricTable(measure.name, measure.label, measure.signature, significance.describe_tests(), rows)


def _pooled(system: System, measure: Measure) -> Counts:
    """Return the mean counts of each sentence over runs; the tests resample sentences."""
    return np.mean([measure.counts[run.path] for run in system.runs], axis=0)


def _by_length(
    systems: Sequence[System], sources: Sequence[str], measures: Sequence[Measure]
) -> tuple[str, list[Bucket]]:
    num_words, num_characters = sum(len(line.split()) for line in sources), sum(map(len, sources))
    in_words = num_characters <= LONG_WORDS * num_words
    lengths = np.array([len(line.split()) if in_words else len(line) for line in sources])
    buckets = []
    for low, end in zip((0, *LENGTHS), (*LENGTHS, None), strict=True):
        chosen = (lengths >= low) & (lengths < (end or lengths.max() + 1))
        if not chosen.any():
            continue
        scores = {
            measure.name: [
                statistics.fmean(measure.score(measure.counts[run.path][chosen]) for run in system.runs)
                for system in systems
            ]
            for measure in measures
        }
        buckets.append(Bucket(low, end - 1 if end else None, int(chosen.sum()), scores))
    return "words" if in_words else "characters", buckets


def _most_different(systems: Sequence[System], material: Material, measure: Measure, number: int) -> list[SentenceRow]:
    """Return the sentences for which chrF2++ (`measure`) differs most between systems, largest differences first."""
    if number == 0 or len(systems) < 2:
        return []
    paths = [system.runs[0].path for system in systems]
    chrf = np.array([[measure.score_of(counts_C) for counts_C in measure.counts[path]] for path in paths])
    spread = chrf.max(0) - chrf.min(0)
    order = [int(line) for line in np.argsort(-spread, kind="stable")[:number] if spread[line] > 0]
    rows = []
    for line in order:
        source = material.sources[line] if material.sources is not None else None
        references = [stream[line] for stream in material.references]
        hypotheses = [material.outputs[path][line] for path in paths]
        rows.append(SentenceRow(line + 1, source, references, hypotheses, chrf[:, line].tolist()))
    return rows

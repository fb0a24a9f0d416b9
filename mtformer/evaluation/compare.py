"""Comparison of systems on one test set: scores, tests of significance, quality by length, sentences that differ."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mtformer.config.loading import config_diff
from mtformer.evaluation.scores import METRICS, ScoreName
from mtformer.evaluation.significance import (
    Counts,
    Estimate,
    Measure,
    PairedTests,
    describe_tests,
    estimate,
    mean_measure,
    paired_tests,
    sacrebleu_measure,
    welch_interval,
)
from mtformer.evaluation.systems import Material, System, distinguishes

if TYPE_CHECKING:
    from mtformer.evaluation.comet import Comet

LENGTHS = (10, 20, 30, 40, 50, 60)
"""Source lengths where one bucket ends and the next begins."""
LONG_WORDS = 20
"""Mean number of characters of a word above which a language does not put spaces between its words."""


@dataclass(frozen=True)
class RunScore:
    """A corpus score of one run."""

    run: str
    seed: int | None
    score: float


@dataclass(frozen=True)
class SystemScore:
    """A system under one metric, beside the baseline.

    Args:
        system: its name.
        runs: each run by itself.
        mean: of the runs' scores.
        deviation: their sample standard deviation; None for a single run.
        estimate: of all runs together, with the interval that other sentences would give.
        difference: of the means, to the baseline; for the baseline itself this and the following are None.
        tests: against the baseline, over the first runs of both, the same number of each.
        seeds_interval: 95 % interval of the difference that other seeds would give; None unless both have several.
    """

    system: str
    runs: list[RunScore]
    mean: float
    deviation: float | None
    estimate: Estimate
    difference: float | None = None
    tests: PairedTests | None = None
    seeds_interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class MetricTable:
    """All systems under one metric."""

    name: ScoreName
    label: str
    signature: str
    tests: str
    """Settings of the tests."""
    systems: list[SystemScore]


@dataclass(frozen=True)
class Bucket:
    """Sentences whose sources have `low` to `high` words (or characters); `high` None: or more."""

    low: int
    high: int | None
    num_sentences: int
    scores: dict[ScoreName, list[float]]
    """By metric, one for each system: the mean over its runs."""


@dataclass(frozen=True)
class SentenceRow:
    """One sentence in the translations of each system's first run; `line` is counted from 1."""

    line: int
    source: str | None
    references: list[str]
    hypotheses: list[str]
    chrf: list[float]


@dataclass(frozen=True)
class Comparison:
    """The comparison on one test set; `unit` belongs to the source lengths, and without sources `buckets` is empty."""

    name: str
    num_sentences: int
    metrics: list[MetricTable]
    unit: str
    buckets: list[Bucket]
    sentences: list[SentenceRow]
    notes: list[str]
    ignored: list[str]


def num_units(systems: Sequence[System], comet: bool) -> int:
    """Return the number of calls of `progress` by `compare` for one test set."""
    return len(systems) * (len(METRICS) + comet)


def compare(
    systems: Sequence[System],
    material: Material,
    num_sentences: int = 5,
    comet: "Comet | None" = None,
    progress: Callable[[], object] = lambda: None,
) -> Comparison:
    """Compare systems on a test set; the first is the baseline.

    Args:
        systems: all have translations in `material`.
        material: these, with sources and references.
        num_sentences: number of the sentences that differ most.
        comet: a model that scores too; `material` must have sources then.
        progress: called after each system under each metric.

    Raises:
        ConfigError: if the BLEU tokenizer cannot run here, or sacreBLEU's seed is invalid.
    """
    outputs = {run.path: material.outputs[run.path] for system in systems for run in system.runs}
    measures = [sacrebleu_measure(name, material.evaluation, outputs, material.references) for name in METRICS]
    chrf = measures[METRICS.index("chrf")]
    if comet is not None and material.sources is not None:
        texts = material.sources, material.references[0]
        scores = {path: comet.sentence_scores(texts[0], lines, texts[1]) for path, lines in outputs.items()}
        measures.append(mean_measure(comet.signature, scores))
    unit, buckets = _by_length(systems, material.sources, measures) if material.sources is not None else ("words", [])
    return Comparison(
        material.name,
        len(material.references[0]),
        [_table(systems, measure, progress) for measure in measures],
        unit,
        buckets,
        _most_different(systems, material, chrf, num_sentences),
        material.notes,
        material.ignored,
    )


def config_differences(systems: Sequence[System]) -> list[tuple[str, list[Any]]]:
    """Return the keys in which the systems' configs differ, except seeds and the like, with the systems' values."""
    configs = [system.runs[0].config for system in systems]
    keys: dict[str, list[Any]] = {}
    for position, config in enumerate(configs):
        if configs[0] is None or config is None:
            return []
        for key, before, after in config_diff(configs[0], config):
            if distinguishes(key):
                keys.setdefault(key, [before] * len(systems))[position] = after
    return list(keys.items())


def _table(systems: Sequence[System], measure: Measure, progress: Callable[[], object]) -> MetricTable:
    rows: list[SystemScore] = []
    for system in systems:
        rows.append(_score(system, measure, rows[0] if rows else None, systems[0]))
        progress()
    return MetricTable(measure.name, measure.label, measure.signature, describe_tests(), rows)


def _score(system: System, measure: Measure, base_row: SystemScore | None, base: System) -> SystemScore:
    """Return a system's scores, and their differences to those of the baseline if it is another system."""
    runs = [RunScore(run.name, run.seed, measure.score(measure.counts[run.path])) for run in system.runs]
    scores = [run.score for run in runs]
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    row = SystemScore(
        system.name, runs, statistics.fmean(scores), deviation, estimate(measure, _pooled(system, measure))
    )
    if base_row is None:
        return row
    num_pairs = min(len(base.runs), len(runs))
    tests = paired_tests(measure, _pooled(base, measure, num_pairs), _pooled(system, measure, num_pairs))
    interval = welch_interval([run.score for run in base_row.runs], scores) if num_pairs > 1 else None
    return replace(row, difference=row.mean - base_row.mean, tests=tests, seeds_interval=interval)


def _pooled(system: System, measure: Measure, num_runs: int | None = None) -> Counts:
    """Return the sum of the counts of all runs for each sentence, the unit that the tests draw and swap."""
    return np.sum([measure.counts[run.path] for run in system.runs[:num_runs]], axis=0)


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
    """Return the sentences whose chrF2++, the measure, has the widest range; of equal ones the earlier."""
    if number == 0 or len(systems) < 2:
        return []
    paths = [system.runs[0].path for system in systems]
    chrf = np.array([[measure.score_of(counts_C) for counts_C in measure.counts[path]] for path in paths])
    spread = chrf.max(0) - chrf.min(0)
    order = [int(line) for line in np.argsort(-spread, kind="stable")[:number] if spread[line] > 0]
    return [
        SentenceRow(
            line + 1,
            material.sources[line] if material.sources is not None else None,
            [stream[line] for stream in material.references],
            [material.outputs[path][line] for path in paths],
            chrf[:, line].tolist(),
        )
        for line in order
    ]

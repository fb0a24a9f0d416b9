"""Significance of the difference between two systems: sacreBLEU's paired tests, and intervals over seeds.

A test set is a sample of sentences, and a seed is a sample of trainings; each has its own test.

Paired bootstrap resampling (Koehn 2004) and paired approximate randomization (Riezler and Maxwell 2005), as implemented
by sacreBLEU (Post 2018), test whether the same trained models would differ on other sentences. As in Clark et al. 2011
all seeds of a system take part, but the sentence remains the unit of resampling, because the translations of one
sentence under several seeds are not independent samples. Welch's interval (Welch 1947) of the difference between the
means over seeds tests whether other seeds would differ on the same sentences; with two or three seeds it is wide.

N sentences, C statistics that a metric counts per sentence: n-grams for BLEU and chrF, edits for TER.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from mtformer.config.schema import EvaluationConfig
from mtformer.errors import ConfigError
from mtformer.evaluation.scores import MetricName, ScoreName, make_metric

if TYPE_CHECKING:  # sacreBLEU takes a second to import.
    from sacrebleu.metrics.base import Metric, Signature
    from sacrebleu.significance import Result

Counts = NDArray[np.float64]
NUM_RESAMPLES, NUM_TRIALS = 1000, 10_000
"""Samples of the bootstrap and trials of the randomization: sacreBLEU's defaults."""
SEED = "SACREBLEU_SEED"


@dataclass(frozen=True)
class Measure:
    """A metric that scores any subset of sentences from their precomputed counts."""

    name: ScoreName
    label: str
    signature: str
    score_of: Callable[[Any], float]
    """(counts summed over sentences) -> score."""
    counts: dict[Path, Counts]
    """By the path of the hypotheses."""

    def score(self, counts_NC: Counts) -> float:
        """Return the corpus score."""
        return self.score_of(counts_NC.sum(0))


@dataclass(frozen=True)
class Estimate:
    """A corpus score, its mean over bootstrap samples, and their 95 % interval."""

    score: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedTests:
    """Probabilities that chance alone makes a difference at least this large (two-sided).

    The bootstrap's is computed as in Moses' script, whose values are below one half even for equal systems.
    """

    p_bootstrap: float
    p_randomisation: float


def sacrebleu_measure(
    name: MetricName,
    config: EvaluationConfig,
    outputs: Mapping[Path, Sequence[str]],
    references: Sequence[Sequence[str]],
) -> Measure:
    """Return one of sacreBLEU's metrics; raise ConfigError if the BLEU tokenizer cannot run here.

    Args:
        name: name of the metric.
        config: the `evaluation` section.
        outputs: hypotheses by path.
        references: a list of lines for each reference.
    """
    metric = make_metric(name, config)
    streams = [list(stream) for stream in references]
    counts = {
        path: np.array(metric._extract_corpus_statistics(list(lines), streams), dtype=float)
        for path, lines in outputs.items()
    }
    label = metric._compute_score_from_stats(next(iter(counts.values())).sum(0)).name
    signature = metric.get_signature().format()
    return Measure(name, label, signature, lambda sums: metric._compute_score_from_stats(sums).score, counts)


def mean_measure(signature: str, outputs: Mapping[Path, Sequence[float]]) -> Measure:
    """Return COMET, whose corpus score is the mean of the sentences' scores; `outputs` has these by path."""
    counts = {path: np.array([(score, 1.0) for score in scores]) for path, scores in outputs.items()}
    return Measure("comet", "COMET", signature, lambda sums: float(sums[0] / sums[1]), counts)


def estimate(measure: Measure, counts_NC: Counts) -> Estimate:
    """Return the score of a system with its confidence interval; for several runs pass the sum of their counts."""
    (found,) = _test(measure, [counts_NC], "bs", NUM_RESAMPLES)
    mean, half = float(found.mean or 0.0), float(found.ci or 0.0)
    return Estimate(float(found.score), mean, mean - half, mean + half)


def paired_tests(measure: Measure, baseline_NC: Counts, system_NC: Counts) -> PairedTests:
    """Return both tests of one system against another, which are symmetric.

    sacreBLEU counts the trials whose difference is larger than the observed one. Two of the 2^n ways to swap n
    different sentences give exactly the observed difference, which matters for small n: they are added here. Systems
    of equal score get p = 1, where sacreBLEU returns the smallest possible p for identical systems.
    """
    if measure.score(baseline_NC) == measure.score(system_NC):
        return PairedTests(1.0, 1.0)
    num_different = int((baseline_NC != system_NC).any(1).sum())
    _, resampled = _test(measure, [baseline_NC, system_NC], "bs", NUM_RESAMPLES)
    _, swapped = _test(measure, [baseline_NC, system_NC], "ar", NUM_TRIALS)
    p_bootstrap, p_randomisation = (float(cast(float, found.p_value)) for found in (resampled, swapped))
    return PairedTests(p_bootstrap, min(1.0, p_randomisation + 2.0 ** (1 - num_different)))


def describe_tests() -> str:
    """Return the settings of the tests in the form of sacreBLEU's signatures."""
    return f"bs:{NUM_RESAMPLES}|ar:{NUM_TRIALS}|seed:{_checked_seed()}"


def welch_interval(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the confidence interval of mean(b) - mean(a), of at least two numbers each (Welch 1947)."""
    variances = [float(np.var(values, ddof=1)) / len(values) for values in (a, b)]
    difference, total = float(np.mean(b) - np.mean(a)), sum(variances)
    if total == 0:
        return difference, difference
    parts = zip(variances, (len(a), len(b)), strict=True)
    # Satterthwaite's degrees of freedom.
    freedom = total**2 / sum(variance**2 / (number - 1) for variance, number in parts)
    half = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(total)
    return difference - half, difference + half


def t_quantile(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t for a probability above 0.5.

    With t = sqrt(freedom) tan(angle) the density becomes cos(angle)^(freedom - 1), which is integrated numerically and
    its integral inverted by halving.
    """
    nodes, weights = np.polynomial.legendre.leggauss(64)
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        points = (nodes + 1) * angle / 2
        area = constant * angle / 2 * float(weights @ np.cos(points) ** (freedom - 1))
        low, high = (angle, high) if 0.5 + area < probability else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


class _Counted:
    """A metric for sacreBLEU's tests: its hypotheses are rows of precomputed counts."""

    def __init__(self, measure: Measure) -> None:
        self.measure = measure

    def _extract_corpus_statistics(self, hypotheses: Counts, references: object) -> Counts:
        return hypotheses

    def _aggregate_and_compute(self, stats: Counts) -> Any:
        return self._compute_score_from_stats(np.sum(stats, axis=0))

    def _compute_score_from_stats(self, stats: Any) -> Any:
        from sacrebleu.metrics.base import Score

        return Score(self.measure.label, self.measure.score_of(stats))

    def get_signature(self) -> "Signature":
        from sacrebleu.metrics.base import Signature

        return Signature({"num_refs": 1})  # the tests write their own settings into it


def _test(measure: Measure, systems: Sequence[Counts], kind: str, number: int) -> list["Result"]:
    from sacrebleu.significance import PairedTest

    _checked_seed()
    metric = cast("Metric", _Counted(measure))  # it has the methods that the tests call
    named = [(str(position), cast("Sequence[str]", counts)) for position, counts in enumerate(systems)]
    _, found = PairedTest(named, {measure.name: metric}, None, test_type=kind, n_samples=number)()
    return cast("list[Result]", found[measure.label])


def _checked_seed() -> str:
    """Return sacreBLEU's seed after a check, because its tests treat 0 as none and crash on other words."""
    seed = os.environ.get(SEED, "12345")
    if seed.lower() != "none" and not (seed.isdecimal() and int(seed) > 0):
        raise ConfigError(f"{SEED} is '{seed}'; give a number from 1, or none for a different result each time")
    return seed.lower()

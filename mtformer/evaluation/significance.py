"""Significance of the difference between two systems: paired tests and confidence intervals as in sacreBLEU.

Paired bootstrap resampling (Koehn 2004) and paired approximate randomization (Riezler and Maxwell 2005) test whether
the same trained models would differ on other sentences. For single runs, the results equal those of sacreBLEU (Post
2018). As in Clark et al. 2011, all seeds of a system are used, but the unit of resampling is the sentence, because
translations of the same sentence with several seeds are not independent samples.

N sentences, C statistics that a metric collects per sentence: n-grams for BLEU and chrF, edits for TER.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtformer.config.schema import EvaluationConfig
from mtformer.errors import ConfigError
from mtformer.evaluation.scores import MetricName, make_metric

Counts = NDArray[np.float64]
"""Statistics of each sentence (N, C)."""
NUM_RESAMPLES = 1000
"""Number of bootstrap samples, sacreBLEU's default."""
NUM_TRIALS = 10_000
"""Number of trials of the randomization test, sacreBLEU's default."""
EQUAL = 1 - 1e-9
"""Differences count as equal from this share of the other one; they differ by rounding."""
NUM_PARTS = 50
"""Number of parts into which the trials are divided, so that the counts of one part fit in memory."""
SEED = "SACREBLEU_SEED"
"""Environment variable with the seed of both tests, which sacreBLEU reads as well."""


class Measure:
    """A sacreBLEU metric that scores any subset of sentences from `counts`, which are keyed by the path of the output.

    Raise ConfigError if the BLEU tokenizer is not available.
    """

    def __init__(
        self, name: MetricName, config: EvaluationConfig, outputs: Mapping[Path, list[str]], references: list[list[str]]
    ) -> None:
        self.name: str = name
        self._metric = make_metric(name, config, references[0])
        self.counts: dict[Path, Counts] = {}
        """Counts (N, C) of each output."""
        for path, lines in outputs.items():
            statistics = self._metric._extract_corpus_statistics(lines, references)
            self.counts[path] = np.array(statistics, dtype=float)

        # sacreBLEU names a metric, including its settings, only in a result, whatever the counts.
        any_counts_NC = next(iter(self.counts.values()))
        result = self._metric._compute_score_from_stats(any_counts_NC.sum(0))
        self.label = result.name
        self.signature = self._metric.get_signature().format()

    def score(self, counts_NC: Counts) -> float:
        """Return the corpus score."""
        return self.score_of(counts_NC.sum(0))

    def score_of(self, counts_C: Any) -> float:
        """Return the score for counts that are summed over sentences."""
        return self._metric._compute_score_from_stats(counts_C).score


class MeanOfLines(Measure):
    """A metric whose score is the mean of the scores of the lines, which another program computed."""

    def __init__(self, name: str, signature: str, outputs: Mapping[Path, list[float]]) -> None:
        self.name = name
        self.label = name
        self.signature = signature
        self.counts = {}
        for path, scores in outputs.items():
            # The sum of the scores, and their number.
            self.counts[path] = np.stack([np.array(scores), np.ones(len(scores))], axis=1)

    def score_of(self, counts_C: Any) -> float:
        """Return the mean for scores and numbers that are summed over sentences."""
        return float(counts_C[0] / counts_C[1])


@dataclass(frozen=True)
class Estimate:
    """A corpus score, with its mean and 95 % confidence interval over bootstrap samples."""

    score: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedTests:
    """Two-sided p-values: probabilities of a difference at least this large if the systems are equal.

    The bootstrap value is computed as in the Moses script, whose values are below one half even for equal systems.
    """

    p_bootstrap: float
    p_randomization: float


def estimate(measure: Measure, counts_NC: Counts) -> Estimate:
    """Return the score of a system with its confidence interval; for several runs, pass the mean of their counts."""
    from sacrebleu.significance import estimate_ci

    score = float(measure.score(counts_NC))
    [resampled_scores] = _bootstrap(measure, counts_NC)
    mean, half_width = map(float, estimate_ci(resampled_scores))
    return Estimate(score, mean, low=mean - half_width, high=mean + half_width)


def paired_tests(measure: Measure, baseline_NC: Counts, system_NC: Counts) -> PairedTests:
    """Return the results of both tests of a system against a baseline; the order of the two systems does not matter.

    Randomization also counts trials whose difference equals the observed one, which are many for TER and small sets;
    sacreBLEU counts only larger ones. Systems with equal scores get p = 1.

    Args:
        measure: metric that is tested.
        baseline_NC: statistics of the baseline; for several runs, the mean of their statistics.
        system_NC: statistics of the system on the same sentences, as above.
    """
    observed = abs(measure.score(baseline_NC) - measure.score(system_NC))
    if observed == 0:
        return PairedTests(1.0, 1.0)

    system_scores, baseline_scores = _bootstrap(measure, system_NC, baseline_NC)
    resampled = np.abs(system_scores - baseline_scores)
    p_bootstrap = _p_value(resampled - resampled.mean(), observed)

    # In each trial, two systems are made: one has the swapped sentences of the baseline, the other one the rest.
    num_sentences = len(system_NC)
    is_swapped = _generator().integers(2, size=(NUM_TRIALS, num_sentences), dtype=bool)
    swapped_scores = _mixed_scores(measure, baseline_NC, system_NC, is_swapped)
    kept_scores = _mixed_scores(measure, baseline_NC, system_NC, ~is_swapped)
    differences = np.abs(swapped_scores - kept_scores)
    p_randomization = _p_value(differences, EQUAL * observed)
    return PairedTests(p_bootstrap, p_randomization)


def _mixed_scores(
    measure: Measure, baseline_NC: Counts, system_NC: Counts, is_baseline: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the score of each trial (row of `is_baseline`), whose sentences are from the baseline or the system."""
    scores: list[float] = []
    for part in np.array_split(is_baseline, NUM_PARTS):
        sums = part @ baseline_NC + ~part @ system_NC
        scores += [measure.score_of(sums_C) for sums_C in sums]
    return np.array(scores)


def _bootstrap(measure: Measure, *systems: Counts) -> list[NDArray[np.float64]]:
    """Return the scores of bootstrap samples for each system; the samples of all systems have the same sentences."""
    N = len(systems[0])
    samples = _generator().choice(N, size=(NUM_RESAMPLES, N))
    scores = []
    for counts_NC in systems:
        rounded_NC = counts_NC.astype(np.float32)  # as sacreBLEU does
        scores_of_samples = [measure.score(rounded_NC[sample_N]) for sample_N in samples]
        scores.append(np.array(scores_of_samples))
    return scores


def _p_value(differences: NDArray[np.float64], observed: float) -> float:
    """Return the share of trials with a larger difference, counting the observed one as a trial."""
    num_larger = int((differences > observed).sum())
    return (1 + num_larger) / (1 + len(differences))


def describe_tests() -> str:
    """Return the settings of the tests in the format of sacreBLEU signatures."""
    return f"bs:{NUM_RESAMPLES}|ar:{NUM_TRIALS}|seed:{_checked_seed()}"


def _generator() -> np.random.Generator:
    """Return a new generator for a test; both tests have the same seed, as in sacreBLEU."""
    seed = _checked_seed()
    return np.random.default_rng(None if seed == "none" else int(seed))


def _checked_seed() -> str:
    """Return sacreBLEU's seed; raise ConfigError if it is 0 (sacreBLEU ignores it) or invalid (sacreBLEU crashes)."""
    seed = os.environ.get(SEED, "12345")
    is_random = seed.lower() == "none"
    is_positive = seed.isdecimal() and int(seed) > 0
    if not is_random and not is_positive:
        raise ConfigError(f"{SEED} is '{seed}'; set it to a positive number, or to none for a random seed")
    return seed.lower()

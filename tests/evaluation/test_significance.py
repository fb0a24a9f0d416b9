"""Tests of significance testing: results equal sacreBLEU's, and known values where they exist."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest
from scored import corpus, corrupt

from mtformer.config.schema import EvaluationConfig
from mtformer.errors import ConfigError
from mtformer.evaluation.scores import MetricName, score
from mtformer.evaluation.significance import (
    Counts,
    Measure,
    PairedTests,
    describe_tests,
    estimate,
    paired_tests,
)

REFERENCES = corpus(80)
GOOD, SIMILAR, BAD = corrupt(REFERENCES, 0.2, 1), corrupt(REFERENCES, 0.22, 2), corrupt(REFERENCES, 0.5, 3)
METRICS: list[tuple[MetricName, Any]] = [("bleu", BLEU()), ("chrf", CHRF(word_order=2)), ("ter", TER())]


def measured(name: MetricName, *systems: list[str]) -> tuple[Measure, list[Counts]]:
    outputs = {Path(str(number)): lines for number, lines in enumerate(systems)}
    measure = Measure(name, EvaluationConfig(), outputs, [REFERENCES])
    return measure, list(measure.counts.values())


def result(name: MetricName, *systems: list[str]) -> PairedTests:
    measure, counts = measured(name, *systems)
    return paired_tests(measure, *counts)


@pytest.mark.parametrize(("name", "metric"), METRICS)
def test_results_equal_sacrebleu(name: MetricName, metric: Any) -> None:
    measure, counts = measured(name, GOOD, SIMILAR)
    found = paired_tests(measure, *counts)
    systems = [("a", GOOD), ("b", SIMILAR)]
    for kind, p in (("bs", found.p_bootstrap), ("ar", found.p_randomization)):
        _, expected = PairedTest(systems, {name: metric}, [REFERENCES], test_type=kind)()
        baseline, other = expected[measure.label]
        if kind == "ar" and name == "ter":  # many trials have the same difference, which sacreBLEU does not count
            assert 0 < p - other.p_value < 0.03
        else:
            assert p == pytest.approx(other.p_value, abs=1e-12)
        if kind == "bs":
            for one, each in zip((baseline, other), counts, strict=True):
                ours = estimate(measure, each)
                assert (ours.score, ours.mean) == (one.score, pytest.approx(one.mean, rel=1e-6))
                assert ((ours.low + ours.high) / 2, (ours.high - ours.low) / 2) == pytest.approx((one.mean, one.ci))


@pytest.mark.parametrize("config", [EvaluationConfig(), EvaluationConfig(bleu_tokenizer="char", lowercase=True)])
def test_scores_and_signatures_equal_those_of_score(config: EvaluationConfig) -> None:
    hypotheses, references = SIMILAR[:30], [REFERENCES[:30], GOOD[:30]]
    scores = score(hypotheses, references[0], config, more_references=references[1:])
    for (name, _), expected in zip(METRICS, scores, strict=True):
        measure = Measure(name, config, {Path("a"): hypotheses}, references)
        assert measure.score(measure.counts[Path("a")]) == pytest.approx(expected.value, abs=1e-9)
        assert (measure.label, measure.signature) == (expected.label, expected.signature)


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_a_much_better_system_is_significantly_different_in_either_order(name: MetricName) -> None:
    found = result(name, GOOD, BAD)
    assert found.p_bootstrap < 0.002
    assert found.p_randomization < 0.001
    assert result(name, BAD, GOOD) == found


def test_a_random_seed_draws_the_same_samples_for_both_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    worse = [f"{line[:-2]}x." if number % 3 == 0 else line for number, line in enumerate(GOOD)]
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    assert result("ter", GOOD, worse).p_bootstrap < 0.01


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
@pytest.mark.parametrize(("num_better", "num_worse", "exact"), [(8, 2, 0.1094), (9, 3, 0.1460), (15, 5, 0.0414)])
def test_trials_with_an_equal_difference_count(name: MetricName, num_better: int, num_worse: int, exact: float) -> None:
    """The exact p-values of a sign test: each sentence differs by the same word."""
    references = ["one two three four five six"] * (num_better + num_worse)
    outputs = {Path(str(which)): list(references) for which in range(2)}
    for number in range(len(references)):
        outputs[Path(str(int(number < num_worse)))][number] = "one two three four five x"
    measure = Measure(name, EvaluationConfig(), outputs, [references])
    assert paired_tests(measure, *measure.counts.values()).p_randomization == pytest.approx(exact, abs=0.01)


def test_equal_or_nearly_equal_systems_are_not_significantly_different() -> None:
    assert result("bleu", GOOD, list(GOOD)) == PairedTests(1.0, 1.0)
    # Both are entirely wrong, so BLEU is 0 for any mixture.
    assert result("bleu", ["x"] * 80, ["y z"] * 80) == PairedTests(1.0, 1.0)
    # Only one sentence differs, and swapping it gives the same absolute difference, so p is 1.
    one = [BAD[0], *GOOD[1:]]
    assert one != GOOD
    assert result("bleu", GOOD, one).p_randomization == 1.0
    # Three sentences, all worse: 2 of the 8 ways to swap them give a difference this large.
    three = [*BAD[:3], *GOOD[3:]]
    assert result("bleu", GOOD, three).p_randomization == pytest.approx(0.25, abs=0.02)


def test_identical_seeds_do_not_increase_significance() -> None:
    measure, (a, b) = measured("bleu", GOOD, SIMILAR)

    def times(counts: Counts, number: int) -> Counts:
        return np.sum([counts] * number, axis=0)

    assert measure.score(times(a, 3)) == pytest.approx(measure.score(a))
    once, thrice = paired_tests(measure, a, b), paired_tests(measure, times(a, 3), times(b, 3))
    assert thrice.p_randomization == pytest.approx(once.p_randomization, abs=0.02)
    assert thrice.p_bootstrap == pytest.approx(once.p_bootstrap, abs=0.02)
    assert estimate(measure, times(a, 3)).low == pytest.approx(estimate(measure, a).low, abs=0.1)


def test_the_seed_comes_from_sacrebleus_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    before = result("bleu", GOOD, SIMILAR)
    assert result("bleu", GOOD, SIMILAR) == before
    assert describe_tests() == "bs:1000|ar:10000|seed:12345"
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    assert result("bleu", GOOD, SIMILAR) != before
    assert describe_tests() == "bs:1000|ar:10000|seed:7"
    for wrong in ("x", "0", "-3", ""):
        monkeypatch.setenv("SACREBLEU_SEED", wrong)
        with pytest.raises(ConfigError, match=f"SACREBLEU_SEED is '{wrong}'; set it to a positive number, or to none"):
            result("bleu", GOOD, SIMILAR)

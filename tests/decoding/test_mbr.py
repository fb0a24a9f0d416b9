"""Minimum Bayes risk against the plain computation."""

import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from toy import random_lines

from mtformer.decoding.mbr import expected_utilities


def plain(texts: list[str], metric: str) -> np.ndarray:
    """The matrix of all scores, and the mean of each row."""
    scorer = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    return np.array([[scorer.sentence_score(one, [other]).score for other in texts] for one in texts]).mean(axis=1)


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_utilities_are_sacrebleus(metric: str) -> None:
    rng = random.Random(3)
    for seed in range(5):
        lines = [*random_lines(8, seed), "", "x", "ab", "das ist  ein\tTest, é 東京 .", "ein hund " * 20]
        texts = [rng.choice(lines) for _ in range(15)]
        assert len(set(texts)) < len(texts), "some should come more than once"
        found = expected_utilities(texts, metric)  # type: ignore[arg-type]  # a parameter is a str to mypy
        assert found == pytest.approx(plain(texts, metric).tolist(), abs=1e-9)


def test_what_many_agree_on_wins() -> None:
    texts = ["eine katze schläft", "der hund läuft im park", "der hund rennt im park", "der hund läuft im park"]
    for metric in ("chrf", "bleu"):
        utilities = expected_utilities(texts, metric)  # type: ignore[arg-type]  # as above
        assert utilities[1] == utilities[3] == max(utilities)
        assert utilities[0] == min(utilities)


def test_of_one_sample() -> None:
    assert expected_utilities(["der hund läuft im park"], "chrf") == pytest.approx([100.0])
    assert expected_utilities([], "chrf") == []

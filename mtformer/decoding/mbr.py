"""Minimum Bayes risk: of many samples the one that the others agree with most (Eikema and Aziz 2020).

D distinct texts, G distinct n-grams.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

CHRF_ORDER = 6
CHRF_BETA = 2


def expected_utilities(texts: Sequence[str], metric: Literal["chrf", "bleu"]) -> list[float]:
    """The mean score of each text as a hypothesis, with each of the samples as its reference; equal texts count often.

    Args:
        texts: samples of one sentence, detokenised.
        metric: sacreBLEU's sentence-level chrF2, or BLEU.
    """
    if not texts:
        return []
    counts = Counter(texts)
    scores_DD = _chrf(list(counts)) if metric == "chrf" else _bleu(list(counts))
    means_D = scores_DD @ np.array(list(counts.values())) / len(texts)
    means = dict(zip(counts, means_D.tolist(), strict=True))
    return [means[text] for text in texts]


def _bleu(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Of each text (row) with each as its reference (column)."""
    from sacrebleu.metrics.bleu import BLEU

    scorer = BLEU(effective_order=True)
    return np.array([[scorer.sentence_score(one, [other]).score for other in texts] for one in texts])


def _chrf(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """As `_bleu`. The numbers are sacreBLEU's (a test compares), which itself takes longer than drawing the samples.

    Precision and recall are the means over the orders that both texts have n-grams of.
    """
    precision_DD, recall_DD, orders_DD = np.zeros((3, len(texts), len(texts)))
    for n in range(1, CHRF_ORDER + 1):
        counts_DG = _ngram_counts(texts, n)
        total_D = counts_DG.sum(axis=1)
        has_both_DD = np.outer(total_D > 0, total_D > 0)
        at_least_one_D = np.maximum(total_D, 1.0)
        matches_DD = _matches(counts_DG)
        precision_DD += matches_DD / at_least_one_D[:, None]
        recall_DD += matches_DD / at_least_one_D
        orders_DD += has_both_DD
    # The factor that makes means of the sums is the same above and below the line, but for one of the two sums above.
    above_DD = (1 + CHRF_BETA**2) * precision_DD * recall_DD / np.maximum(orders_DD, 1.0)
    below_DD = CHRF_BETA**2 * precision_DD + recall_DD
    return 100.0 * np.divide(above_DD, below_DD, out=np.zeros_like(above_DD), where=below_DD > 0)


def _ngram_counts(texts: Sequence[str], n: int) -> npt.NDArray[np.float64]:
    """(D, G): how often each sequence of n characters stands in each text, spaces left out."""
    numbers: dict[str, int] = {}
    found = []
    for text in texts:
        letters = "".join(text.split())
        found.append([numbers.setdefault(letters[i : i + n], len(numbers)) for i in range(len(letters) - n + 1)])
    return np.array([np.bincount(row, minlength=len(numbers)) for row in found], dtype=np.float64)


def _matches(counts_DG: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """(D, D): the sum over n-grams of the smaller of both counts, as products of "at least k times"."""
    matches_DD = np.zeros((len(counts_DG), len(counts_DG)))
    for k in range(1, int(counts_DG.max(initial=0)) + 1):
        has_DG = (counts_DG[:, (counts_DG >= k).any(axis=0)] >= k).astype(np.float64)
        matches_DD += has_DG @ has_DG.T
    return matches_DD

"""Minimum Bayes risk: of many samples the one that the others agree with most (Eikema and Aziz 2020)."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal


def expected_utilities(texts: Sequence[str], metric: Literal["chrf", "bleu"]) -> list[float]:
    """The mean score of each text as a hypothesis, with each of the samples as its reference; equal texts count often.

    Args:
        texts: samples of one sentence, detokenised.
        metric: sacreBLEU's sentence-level chrF2, or BLEU.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scorer = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    counts = Counter(texts)
    means = {
        text: sum(scorer.sentence_score(text, [other]).score * count for other, count in counts.items()) / len(texts)
        for text in counts
    }
    return [means[text] for text in texts]

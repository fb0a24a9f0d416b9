"""Measure how well the confidence of translations is calibrated on a test set, and what it adds to log-probabilities.

    python scripts/bench/confidence.py RUN test.en test.de

Prints the expected calibration error (10 bins of equal width; Guo et al. 2017), and the area under the ROC curve for
finding the quarter of the translations with the lowest chrF2++, for the confidence and for the mean log-probability of
a token, with a 95 % interval of the difference (paired bootstrap).
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from mtformer.data.corpus.readers import read_lines
from mtformer.decoding.translator import Translator
from mtformer.evaluation.scores import sentence_chrf

SAMPLES = 1_000


def calibration_error(confidences: Sequence[float], is_good: Sequence[bool]) -> float:
    """Return the mean gap between confidence and share of good translations, weighted by the size of each bin."""
    gaps = [0.0] * 10
    for confidence, good in zip(confidences, is_good, strict=True):
        gaps[min(9, int(10 * confidence))] += confidence - good
    return sum(map(abs, gaps)) / len(confidences)


def area(scores: Sequence[float], is_bad: Sequence[bool]) -> float:
    """Return the probability that a bad translation has a lower score than another one; ties count half."""
    ranks: dict[float, list[bool]] = {}
    for score, bad in zip(scores, is_bad, strict=True):
        ranks.setdefault(score, []).append(bad)
    num_bad, above = sum(is_bad), len(is_bad) - sum(is_bad)
    total = 0.0
    for _, some in sorted(ranks.items()):
        others = len(some) - sum(some)
        total += sum(some) * (above - others / 2)
        above -= others
    return total / (num_bad * (len(is_bad) - num_bad))


def main() -> None:
    run, src, ref = sys.argv[1:]
    translator = Translator.load(run)
    if translator.calibration is None:
        sys.exit(f"{run}: has no fitted confidence; run `mtformer eval {run} --calibrate`")
    sources, references = read_lines(Path(src)), read_lines(Path(ref))
    found = translator.translate(sources, token_scores=True)
    chrf = sentence_chrf([one.text for one in found], references)
    confidences = [one.confidence or 0.0 for one in found]
    log_probs = [one.log_probability / max(1, one.length) for one in found]
    is_good = [score >= translator.calibration.good_chrf for score in chrf]
    worst = sorted(chrf)[len(chrf) // 4]
    is_bad = [score <= worst for score in chrf]
    print(f"{len(chrf)} lines, {100 * sum(is_good) / len(is_good):.1f} % good")
    print(f"expected calibration error {calibration_error(confidences, is_good):.4f}")
    both = area(confidences, is_bad), area(log_probs, is_bad)
    chance, gains = random.Random(1), []
    for _ in range(SAMPLES):
        rows = chance.choices(range(len(chrf)), k=len(chrf))
        bad = [is_bad[row] for row in rows]
        gains.append(area([confidences[row] for row in rows], bad) - area([log_probs[row] for row in rows], bad))
    gains.sort()
    print(f"worst quarter: area {both[0]:.4f} with the confidence, {both[1]:.4f} with the mean log-probability")
    low, high = gains[round(0.025 * SAMPLES)], gains[round(0.975 * SAMPLES) - 1]
    print(f"difference {both[0] - both[1]:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}")


if __name__ == "__main__":
    main()

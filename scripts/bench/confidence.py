"""Measure how well the confidence of translations is calibrated, and what it adds to log-probabilities.

    python scripts/bench/confidence.py RUN dev.en dev.de test.en test.de

The confidence is fitted to the translations of the dev set and measured on the test set, and then on random halves of
both sets together, fitted to the other half. Prints the expected calibration error (10 bins of equal width; Guo et al.
2017), and the area under the ROC curve for finding the quarter of the translations with the lowest chrF2++, for the
confidence and for the mean log-probability of a token, with a 95 % interval of the difference on the test set (paired
bootstrap).
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from mtformer.data.corpus.readers import read_lines
from mtformer.decoding.lines.confidence import GOOD_CHRF, fit
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.evaluation.scores import sentence_chrf

SAMPLES = 1_000
HALVES = 20

Row = tuple[str, Translation, float]
"""Source, translation, and its chrF2++."""
Judged = tuple[float, float, bool, bool]
"""Confidence and mean log-probability of a translation, and whether it is good, and in the worst quarter."""


def calibration_error(rows: Sequence[Judged]) -> float:
    """Return the mean gap between confidence and share of good translations, weighted by the size of each bin."""
    gaps = [0.0] * 10
    for confidence, _, is_good, _ in rows:
        gaps[min(9, int(10 * confidence))] += confidence - is_good
    return sum(map(abs, gaps)) / len(rows)


def areas(rows: Sequence[Judged]) -> tuple[float, float]:
    """Return the areas for the confidence and for the mean log-probability."""
    is_bad = [one[3] for one in rows]
    return area([one[0] for one in rows], is_bad), area([one[1] for one in rows], is_bad)


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


def translated(translator: Translator, src: str, ref: str) -> list[Row]:
    """Translate and score the lines of a file that are not blank."""
    pairs = zip(read_lines(Path(src)), read_lines(Path(ref)), strict=True)
    sources, references = zip(*(pair for pair in pairs if pair[0].strip()), strict=True)
    found = translator.translate(sources, token_scores=True)
    return list(zip(sources, found, sentence_chrf([one.text for one in found], references), strict=True))


def judged(fitted: Sequence[Row], measured: Sequence[Row]) -> list[Judged]:
    """Fit the confidence to some translations and rate others."""
    calibration = fit(*zip(*fitted, strict=True))
    worst = sorted(chrf for _, _, chrf in measured)[len(measured) // 4]
    return [
        (
            calibration.rate(source, one).confidence or 0.0,
            one.log_probability / max(1, len(one.pieces)),
            chrf >= GOOD_CHRF,
            chrf <= worst,
        )
        for source, one, chrf in measured
    ]


def main() -> None:
    run, *files = sys.argv[1:]
    translator = Translator.load(run)
    dev, test = translated(translator, *files[:2]), translated(translator, *files[2:])
    rows = judged(dev, test)
    print(f"{len(dev)} dev lines, {sum(chrf >= GOOD_CHRF for _, _, chrf in dev) / len(dev):.1%} good")
    print(f"{len(test)} test lines, {fmean(one[2] for one in rows):.1%} good")
    print(f"expected calibration error {calibration_error(rows):.4f}")
    own, theirs = areas(rows)
    print(f"worst quarter: area {own:.4f} with the confidence, {theirs:.4f} with the mean log-probability")
    chance, gains = random.Random(1), []
    for _ in range(SAMPLES):
        a, b = areas(chance.choices(rows, k=len(rows)))
        gains.append(a - b)
    gains.sort()
    low, high = gains[round(0.025 * SAMPLES)], gains[round(0.975 * SAMPLES) - 1]
    print(f"difference {own - theirs:+.4f}, 95 % interval {low:+.4f} to {high:+.4f}")
    both, errors, differences = [*dev, *test], [], []
    for _ in range(HALVES):
        chance.shuffle(both)
        rows = judged(both[: len(both) // 2], both[len(both) // 2 :])
        own, theirs = areas(rows)
        errors.append(calibration_error(rows))
        differences.append(own - theirs)
    print(f"random halves: calibration error {fmean(errors):.4f}, difference of the areas {fmean(differences):+.4f}")


if __name__ == "__main__":
    main()

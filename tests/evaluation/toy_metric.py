"""A toy metric that starts as a program: the share of the words of the reference (or source) that a line has.

toy_metric.py FORM HYPOTHESES REFERENCES

FORM: `mean` (one number), `lines` (one per line), `comet` (like comet-score), `length` (number of characters per line).
"""

import sys
from pathlib import Path


def main() -> None:
    form, hypotheses, references = sys.argv[1], *(Path(name).read_text("utf-8").splitlines() for name in sys.argv[2:])
    scores = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        words = set(reference)
        share = len(words & set(hypothesis)) / max(len(words), 1)
        scores.append(float(len(hypothesis)) if form == "length" else share)
    mean = sum(scores) / len(scores)
    if form == "mean":
        print(f"score: {mean}")
    elif form == "comet":
        for number, score in enumerate(scores):
            print(f"{sys.argv[2]}\tSegment {number}\tscore: {score:.4f}")
        print(f"{sys.argv[2]}\tscore: {mean:.4f}")
    else:
        print(*scores, sep="\n")


if __name__ == "__main__":
    main()

"""The probability that a translation is good, from features of its search, fitted on dev data.

N translations, F features.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import BaseModel, ValidationError

from mtformer.decoding.translation import LOW_CONFIDENCE, Translation
from mtformer.errors import CheckpointError, DataError
from mtformer.files import read_bytes

GOOD_CHRF = 50.0
"""A translation is good if its sentence chrF2++ is at least this."""
MIN_PAIRS = 500
LOW = 0.2
"""Confidence below which a translation has the flag `low confidence`."""
RIDGE = 1.0
NUM_TOKEN_FEATURES = 2


class Logistic(BaseModel, frozen=True, extra="forbid", strict=True):
    """Logistic regression on standardized features."""

    means: list[float]
    scales: list[float]
    weights: list[float]
    bias: float

    def probability(self, features: Sequence[float]) -> float:
        """Return the probability of a good translation."""
        rows = zip(features, self.means, self.scales, self.weights, strict=True)
        logit = self.bias + sum(weight * (value - mean) / scale for value, mean, scale, weight in rows)
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, logit))))


class Calibration(BaseModel, frozen=True, extra="forbid", strict=True):
    """Fitted confidence of a model; two regressions, because some searches return no scores of single tokens."""

    good_chrf: float
    num_pairs: int
    with_tokens: Logistic
    without_tokens: Logistic

    def rate(self, source: str, one: Translation) -> Translation:
        """Return a translation with its confidence, and with a flag if it is low; a blank line has confidence 1."""
        found = features(source, one)
        if not source.strip():
            confidence = 1.0
        elif one.token_log_probabilities:
            confidence = self.with_tokens.probability(found)
        else:
            confidence = self.without_tokens.probability(found[NUM_TOKEN_FEATURES:])
        flags = (*one.flags, *[LOW_CONFIDENCE] * (confidence < LOW))
        return replace(one, confidence=round(confidence, 4), flags=flags)


def features(source: str, one: Translation) -> list[float]:
    """Return the features of a translation; the first two need scores of single tokens.

    They are the least log-probability of a token, the share of tokens with probability below 0.5, the mean
    log-probability of a token, the logarithms of the length and of the ratio of the lengths, the absolute value of the
    latter, and the number of flags.
    """
    tokens = one.token_log_probabilities or [0.0]
    ratio = math.log((len(one.text) + 1) / (len(source) + 1))
    return [
        max(-20.0, min(tokens)),
        sum(value < math.log(0.5) for value in tokens) / len(tokens),
        max(-20.0, one.log_probability / max(1, one.length)),
        math.log(1 + one.length),
        ratio,
        abs(ratio),
        sum(flag != LOW_CONFIDENCE for flag in one.flags),
    ]


def fit(sources: Sequence[str], translations: Sequence[Translation], chrf: Sequence[float]) -> Calibration:
    """Fit the confidence to translations with their sentence chrF2++.

    Raises:
        DataError: if there are fewer than 500 translations, or all of them are good, or none is.
    """
    if len(sources) < MIN_PAIRS:
        raise DataError(f"confidence needs at least {MIN_PAIRS} dev pairs, not {len(sources)}")
    is_good = torch.tensor([score >= GOOD_CHRF for score in chrf], dtype=torch.float64)
    if is_good.mean() in (0, 1):
        raise DataError(
            f"all translations have a chrF2++ {'above' if is_good[0] else 'below'} {GOOD_CHRF:g}; it needs both kinds"
        )
    rows = zip(sources, translations, strict=True)
    features_NF = torch.tensor([features(source, one) for source, one in rows], dtype=torch.float64)
    both = _fit(features_NF, is_good), _fit(features_NF[:, NUM_TOKEN_FEATURES:], is_good)
    return Calibration(good_chrf=GOOD_CHRF, num_pairs=len(sources), with_tokens=both[0], without_tokens=both[1])


def _fit(features_NF: torch.Tensor, is_good_N: torch.Tensor) -> Logistic:
    """Return the regression with the highest likelihood, with a small penalty on the squared weights."""
    means, scales = features_NF.mean(dim=0), features_NF.std(dim=0).clamp(min=1e-6)
    x_NF = (features_NF - means) / scales
    weights = torch.zeros(x_NF.size(1) + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits_N = x_NF @ weights[:-1] + weights[-1]
        total = torch.nn.functional.binary_cross_entropy_with_logits(logits_N, is_good_N, reduction="sum")
        total = total + RIDGE / 2 * weights[:-1].square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    *found, bias = weights.tolist()
    return Logistic(means=means.tolist(), scales=scales.tolist(), weights=found, bias=bias)


def load_calibration(path: Path) -> Calibration | None:
    """Return the calibration, or None if the model has none; raise CheckpointError if the file is damaged."""
    try:
        return Calibration.model_validate_json(read_bytes(path))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CheckpointError(f"{path}: damaged; run `mtformer eval RUN --calibrate` to write it again") from error

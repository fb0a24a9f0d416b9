"""The probability that a translation is good, from features of its search, fitted on dev data.

N translations, F features.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import pstdev
from typing import Annotated

import torch
from pydantic import BaseModel, Field, field_validator

from mtformer.decoding.lines.translation import Flag, Translation
from mtformer.enums import StrEnum
from mtformer.errors import CheckpointError, DataError, log
from mtformer.files import read_json, sealed, unsealed, write_json
from mtformer.text.words import is_blank

GOOD_CHRF = 50.0
"""Minimum sentence chrF2++ of a good translation."""
MIN_PAIRS = 500
"""Minimum number of dev pairs with a translation."""
LOW_CONFIDENCE = 0.2
"""Confidence below which a translation has a flag."""
RIDGE = 1.0
"""Factor of the penalty on the squared weights."""
LOGITS_PER_FLAG = -2.0
"""Weight of a flag that is expected before fitting, because a dev set may have hardly any flags."""
MAX_LOGIT = 30.0
"""Maximum absolute value of the logit of a confidence, so that the exponential stays in range."""
MAX_DEVIATION = 20.0
"""Maximum of the feature `deviation`; a single token may have an arbitrarily low log-probability."""
MIN_SCALE = 1e-6
"""Minimum standard deviation of a feature, for features that are constant on the dev set."""
MAX_NUMBER = 1e9
"""Maximum absolute value of a number in confidence.json, so that no sum of products overflows."""
REMEDY = "write it again with `mtformer eval RUN --calibrate`"


class Feature(StrEnum):
    """Feature of a translation; see `features`."""

    PROBABILITY = "probability"
    LENGTH_RATIO = "length_ratio"
    LENGTH_DIFFERENCE = "length_difference"
    FLAGS = "flags"
    DEVIATION = "deviation"
    AGREEMENT = "agreement"


OPTIONAL_FEATURES = frozenset((Feature.DEVIATION, Feature.AGREEMENT))
"""Features that some searches do not provide."""
WITHOUT_FEATURES: tuple[frozenset[Feature], ...] = (
    frozenset(),
    frozenset((Feature.AGREEMENT,)),
    frozenset((Feature.DEVIATION,)),
    OPTIONAL_FEATURES,
)
"""Combinations of features that a search does not provide; there is a regression for each."""
Number = Annotated[float, Field(ge=-MAX_NUMBER, le=MAX_NUMBER)]
Scale = Annotated[float, Field(ge=MIN_SCALE, le=MAX_NUMBER)]
FeatureName = Annotated[Feature, Field(strict=False)]


class Logistic(BaseModel, frozen=True, extra="forbid", strict=True):
    """Logistic regression on standardized features."""

    bias: Number
    terms: Annotated[dict[FeatureName, tuple[Number, Scale, Number]], Field(min_length=1)]
    """Mean, standard deviation and weight of each feature."""

    def probability(self, features: Mapping[Feature, float]) -> float:
        """Return the probability of a good translation; features without a term are ignored."""
        weighted_sum = 0.0
        for name, (mean, scale, weight) in self.terms.items():
            difference = features[name] - mean
            weighted_sum += weight * difference / scale
        logit = self.bias + weighted_sum
        logit = max(-MAX_LOGIT, min(MAX_LOGIT, logit))
        return 1 / (1 + math.exp(-logit))


class Calibration(BaseModel, frozen=True, extra="forbid", strict=True):
    """Fitted confidence of a model; several regressions, because some searches do not provide all features."""

    good_chrf: Number
    num_pairs: int
    regressions: Annotated[list[Logistic], Field(min_length=1)]
    """The regression with the most features is first; the last one has those that every search provides."""

    @field_validator("regressions")
    @classmethod
    def _check_last(cls, regressions: list[Logistic]) -> list[Logistic]:
        """Raise ValueError if the last regression needs features that some searches do not provide."""
        if not OPTIONAL_FEATURES.isdisjoint(regressions[-1].terms):
            raise ValueError("the last regression has features that some searches do not provide")
        return regressions

    def rate(self, source: str, translation: Translation) -> Translation:
        """Return a translation with its confidence, and with a flag if it is low; a blank line has confidence 1."""
        if is_blank(source):
            return replace(translation, confidence=1.0)

        values = features(source, translation)
        confidence = self._fitting(values).probability(values)
        flags = translation.flags
        if confidence < LOW_CONFIDENCE:
            flags = (*flags, Flag.LOW_CONFIDENCE)
        return replace(translation, confidence=round(confidence, 4), flags=flags)

    def _fitting(self, values: Mapping[Feature, float]) -> Logistic:
        """Return the first regression whose features the search has provided."""
        for regression in self.regressions:
            if regression.terms.keys() <= values.keys():
                return regression
        raise AssertionError("the last regression has only features that every search provides")


def features(source: str, translation: Translation) -> dict[Feature, float]:
    """Return those features of a translation that its search provides.

    - `probability`: geometric mean of the token probabilities.
    - `length_ratio`: logarithm of the ratio of the lengths in characters.
    - `length_difference`: its absolute value.
    - `flags`: number of flags.
    - `deviation`: standard deviation of the log-probabilities of single tokens, if the search returns them.
    - `agreement`: `Translation.agreement`, if there are several beams.
    """
    num_pieces = max(1, len(translation.pieces))
    mean_log_prob = min(0.0, translation.log_probability / num_pieces)
    tgt_length = len(translation.text) + 1  # never 0
    src_length = len(source) + 1
    length_ratio = math.log(tgt_length / src_length)
    num_flags = sum(flag != Flag.LOW_CONFIDENCE for flag in translation.flags)
    values = {
        Feature.PROBABILITY: math.exp(mean_log_prob),
        Feature.LENGTH_RATIO: length_ratio,
        Feature.LENGTH_DIFFERENCE: abs(length_ratio),
        Feature.FLAGS: float(num_flags),
    }

    if translation.token_log_probabilities:
        deviation = pstdev(translation.token_log_probabilities)
        values[Feature.DEVIATION] = min(MAX_DEVIATION, deviation)
    if translation.agreement is not None:
        values[Feature.AGREEMENT] = translation.agreement
    return values


def fit(sources: Sequence[str], translations: Sequence[Translation], chrf: Sequence[float]) -> Calibration:
    """Fit the confidence to translations of dev data.

    Args:
        sources: source lines; blank lines are left out.
        translations: their translations.
        chrf: sentence chrF2++ of each translation.

    Raise DataError if there are fewer than 500 translations, or all of them are good, or none is.
    """
    rows = []
    scores = []
    for source, translation, score in zip(sources, translations, chrf, strict=True):
        if translation.pieces:
            rows.append(features(source, translation))
            scores.append(score)
    if len(rows) < MIN_PAIRS:
        raise DataError(f"confidence needs at least {MIN_PAIRS} dev pairs, not {len(rows)}; add dev data")

    is_good_N = torch.tensor([score >= GOOD_CHRF for score in scores], dtype=torch.float64)
    if is_good_N.mean() in (0, 1):
        side = "above" if is_good_N[0] else "below"
        problem = f"all translations have a chrF2++ {side} {GOOD_CHRF:g}"
        raise DataError(f"{problem}; confidence needs dev pairs with good and bad translations; use another dev set")

    # Features that all translations have. If some are missing, several combinations are the same.
    common_names = set(rows[0]).intersection(*rows)
    names_in_order = [name for name in rows[0] if name in common_names]
    regressions: list[Logistic] = []
    for left_out in WITHOUT_FEATURES:
        names = [name for name in names_in_order if name not in left_out]
        fitted_names = [list(regression.terms) for regression in regressions]
        if names not in fitted_names:
            regression = _fit(rows, names, is_good_N)
            regressions.append(regression)
    return Calibration(good_chrf=GOOD_CHRF, num_pairs=len(rows), regressions=regressions)


def _fit(rows: Sequence[Mapping[Feature, float]], names: Sequence[Feature], is_good_N: torch.Tensor) -> Logistic:
    """Return the regression with the highest likelihood, with a small penalty on the squared weights.

    The weight of flags is in logits per flag, is penalized for its distance from the expected one, and is not positive.
    """
    features_NF = torch.tensor([_values(row, names) for row in rows], dtype=torch.float64)
    is_flags_F = torch.tensor([name == Feature.FLAGS for name in names])
    means_F = features_NF.mean(dim=0)
    deviations_F = features_NF.std(dim=0)
    scales_F = deviations_F.clamp(min=MIN_SCALE).where(~is_flags_F, 1.0)
    x_NF = (features_NF - means_F) / scales_F

    expected_weights_F = LOGITS_PER_FLAG * is_flags_F
    parameters = torch.zeros(x_NF.size(1) + 1, dtype=torch.float64, requires_grad=True)  # the weights and the bias
    optimizer = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        weights_F = parameters[:-1]
        logits_N = x_NF @ weights_F + parameters[-1]
        cross_entropy = torch.nn.functional.binary_cross_entropy_with_logits(logits_N, is_good_N, reduction="sum")
        distances_F = weights_F - expected_weights_F
        penalty = RIDGE / 2 * distances_F.square().sum()
        total = cross_entropy + penalty
        total.backward()
        return total

    optimizer.step(loss)
    weights_F = parameters[:-1]
    weights_F = weights_F.where(~is_flags_F, weights_F.clamp(max=0))
    terms = zip(means_F.tolist(), scales_F.tolist(), weights_F.tolist(), strict=True)
    terms_by_name = dict(zip(names, terms, strict=True))
    bias = parameters[-1].item()
    return Logistic(bias=bias, terms=terms_by_name)


def _values(row: Mapping[Feature, float], names: Sequence[Feature]) -> list[float]:
    return [row[name] for name in names]


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write confidence.json, with a checksum: a single changed digit could make all translations look bad."""
    write_json(path, sealed(calibration.model_dump()), indent=2)


def read_calibration(path: Path) -> Calibration:
    """Return the calibration in a file; raise CheckpointError if it is damaged, FileNotFoundError if it is missing.

    A file that version 0.3 wrote has no checksum, and is accepted as it is.
    """
    try:
        values = unsealed(read_json(path))
        return Calibration.model_validate_json(json.dumps(values))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # a ValidationError is a ValueError
        raise CheckpointError(f"{path}: damaged, or of another version; {REMEDY}") from error


def require_calibration(path: Path) -> None:
    """Raise CheckpointError if a calibration is damaged; log a warning if it has no checksum. It may be missing."""
    try:
        read_calibration(path)
    except FileNotFoundError:
        return
    if "checksum" not in read_json(path):
        log.warning("%s: has no checksum, because version 0.3 wrote it, so it is not verified; %s", path, REMEDY)


def load_calibration(path: Path) -> Calibration | None:
    """Return the calibration, or None if the model has none, or, with a warning, if the file cannot be used."""
    try:
        return read_calibration(path)
    except FileNotFoundError:
        pass  # the model has none
    except CheckpointError:
        problem = "damaged, or of another version, so translations have no confidence"
        log.warning("%s: %s; delete it, or %s", path, problem, REMEDY)
    return None

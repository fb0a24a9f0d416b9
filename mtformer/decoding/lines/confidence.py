"""The probability that a translation is good, from features of its search, fitted on dev data.

N translations, F features.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import pstdev

import torch
from pydantic import BaseModel

from mtformer.decoding.lines.translation import LOW_CONFIDENCE, Translation
from mtformer.errors import CheckpointError, DataError, log
from mtformer.files import read_json, sealed, unsealed, write_json
from mtformer.text.words import is_blank

GOOD_CHRF = 50.0  # a translation is good if its sentence chrF2++ is at least this
MIN_PAIRS = 500
LOW = 0.2  # confidence below which a translation has the flag `low confidence`
RIDGE = 1.0
REMEDY = "write it again with `mtformer eval RUN --calibrate`"
LOGITS_PER_FLAG = -2.0  # expected before fitting, because a dev set may have hardly any flags


class Logistic(BaseModel, frozen=True, extra="forbid", strict=True):
    """Logistic regression on standardized features."""

    bias: float
    terms: dict[str, tuple[float, float, float]]
    """Mean, standard deviation and weight of each feature."""

    def probability(self, features: Mapping[str, float]) -> float:
        """Return the probability of a good translation; features without a term are ignored."""
        terms = (weight * (features[name] - mean) / scale for name, (mean, scale, weight) in self.terms.items())
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, self.bias + sum(terms)))))


class Calibration(BaseModel, frozen=True, extra="forbid", strict=True):
    """Fitted confidence of a model; several regressions, because some searches do not provide all features."""

    good_chrf: float
    num_pairs: int
    regressions: list[Logistic]
    """The regression with the most features is first; the last one has those that every search provides."""

    def rate(self, source: str, one: Translation) -> Translation:
        """Return a translation with its confidence, and with a flag if it is low; a blank line has confidence 1."""
        found = features(source, one)
        fitting = next(each for each in self.regressions if each.terms.keys() <= found.keys())
        confidence = 1.0 if is_blank(source) else fitting.probability(found)
        flags = (*one.flags, *[LOW_CONFIDENCE] * (confidence < LOW))
        return replace(one, confidence=round(confidence, 4), flags=flags)


def features(source: str, one: Translation) -> dict[str, float]:
    """Return those features of a translation that its search provides.

    They are the geometric mean of the token probabilities, the logarithm of the ratio of the lengths in characters, its
    absolute value, and the number of flags; with scores of single tokens, the standard deviation of their
    log-probabilities; with several beams, `Translation.agreement`.
    """
    ratio = math.log((len(one.text) + 1) / (len(source) + 1))
    mean = math.exp(min(0.0, one.log_probability / max(1, len(one.pieces))))
    num_flags = sum(flag != LOW_CONFIDENCE for flag in one.flags)
    found = {"probability": mean, "length_ratio": ratio, "length_difference": abs(ratio), "flags": float(num_flags)}
    if one.token_log_probabilities:
        found["deviation"] = min(20.0, pstdev(one.token_log_probabilities))
    if one.agreement is not None:
        found["agreement"] = one.agreement
    return found


def fit(sources: Sequence[str], translations: Sequence[Translation], chrf: Sequence[float]) -> Calibration:
    """Fit the confidence to translations with their sentence chrF2++; blank lines are left out.

    Raise DataError if there are fewer than 500 translations, or all of them are good, or none is.
    """
    rows = [row for row in zip(sources, translations, chrf, strict=True) if row[1].pieces]
    if len(rows) < MIN_PAIRS:
        raise DataError(f"confidence needs at least {MIN_PAIRS} dev pairs, not {len(rows)}")
    is_good = torch.tensor([score >= GOOD_CHRF for _, _, score in rows], dtype=torch.float64)
    if is_good.mean() in (0, 1):
        side = "above" if is_good[0] else "below"
        raise DataError(f"all translations have a chrF2++ {side} {GOOD_CHRF:g}; it needs both kinds")
    found = [features(source, one) for source, one, _ in rows]
    common = [name for name in found[0] if all(name in each for each in found)]
    regressions: list[Logistic] = []
    for missing in ((), ("agreement",), ("deviation",), ("agreement", "deviation")):
        names = [name for name in common if name not in missing]
        if all(names != list(one.terms) for one in regressions):
            regressions.append(_fit([{name: each[name] for name in names} for each in found], is_good))
    return Calibration(good_chrf=GOOD_CHRF, num_pairs=len(rows), regressions=regressions)


def _fit(rows: Sequence[Mapping[str, float]], is_good_N: torch.Tensor) -> Logistic:
    """Return the regression with the highest likelihood, with a small penalty on the squared weights.

    The weight of flags is in logits per flag, is penalized for its distance from the expected one, and is not positive.
    """
    features_NF = torch.tensor([list(row.values()) for row in rows], dtype=torch.float64)
    is_flags_F = torch.tensor([name == "flags" for name in rows[0]])
    means, scales = features_NF.mean(dim=0), features_NF.std(dim=0).clamp(min=1e-6).where(~is_flags_F, 1.0)
    x_NF = (features_NF - means) / scales
    weights = torch.zeros(x_NF.size(1) + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits_N = x_NF @ weights[:-1] + weights[-1]
        total = torch.nn.functional.binary_cross_entropy_with_logits(logits_N, is_good_N, reduction="sum")
        total = total + RIDGE / 2 * (weights[:-1] - LOGITS_PER_FLAG * is_flags_F).square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    found = weights[:-1].where(~is_flags_F, weights[:-1].clamp(max=0))
    terms = zip(means.tolist(), scales.tolist(), found.tolist(), strict=True)
    return Logistic(bias=weights[-1].item(), terms=dict(zip(rows[0], terms, strict=True)))


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write confidence.json, with a checksum: a single changed digit could make all translations look bad."""
    write_json(path, sealed(calibration.model_dump()), indent=2)


def read_calibration(path: Path) -> Calibration:
    """Return the calibration in a file; raise CheckpointError if it is damaged, FileNotFoundError if it is missing.

    A file that version 0.3 wrote has no checksum, and is accepted as it is.
    """
    try:
        return Calibration.model_validate_json(json.dumps(unsealed(read_json(path))))
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
        what = "damaged, or of another version, so translations have no confidence"
        log.warning("%s: %s; delete it, or %s", path, what, REMEDY)
    return None

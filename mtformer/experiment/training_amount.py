"""How much the systems of a comparison were trained, because different amounts of training explain differences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from typing import TYPE_CHECKING

from mtformer.experiment.runs import RunContents

if TYPE_CHECKING:  # it imports torch
    from mtformer.evaluation.systems import System

NOTABLE = 0.05
"""Relative difference above which an amount of training is named as a possible cause of different scores."""
CAUSE = "the difference may come from that"
"""Comment on systems that were trained for different numbers of steps or tokens."""


@dataclass(frozen=True)
class TrainingAmount:
    """Amount of training of a system, the mean over its runs; None: unknown."""

    steps: float | None
    tokens: float | None
    """Source and target tokens seen in training, without padding."""
    minutes: float | None
    """Training time without validation."""


FORMATS: dict[str, Callable[[float], str]] = {
    "steps": "{:,.0f}".format,
    "tokens": "{:,.0f}".format,
    "minutes": "{:,.1f}".format,
}
"""Formats of the fields of `TrainingAmount`, with the unit as their name."""


def training_amount(system: "System") -> TrainingAmount:
    """Return the mean amount of training of the runs of a system."""
    runs = [RunContents(run.path) for run in system.runs]
    seconds = _mean([run.training_seconds for run in runs])
    return TrainingAmount(
        steps=_mean([run.step for run in runs]),
        tokens=_mean([run.training_tokens for run in runs]),
        minutes=None if seconds is None else seconds / 60,
    )


def relative_difference(baseline: float | None, value: float | None) -> float | None:
    """Return the difference as a share of the baseline; None if one of them is unknown."""
    if baseline is None or value is None:
        return None
    return value / baseline - 1


def describe_unequal_training(names: Sequence[str], amounts: Sequence[TrainingAmount]) -> list[str]:
    """Return a sentence for each system whose amount of training differs notably from that of the first one.

    Args:
        names: names of the systems; the first one is the baseline.
        amounts: their amounts of training.
    """
    baseline = amounts[0]
    sentences = []
    for name, amount in zip(names[1:], amounts[1:], strict=True):
        unequal = _unequal_fields(baseline, amount)
        if not unequal:
            continue
        comment = CAUSE
        if list(unequal) == ["minutes"]:
            comment = "after equal minutes, the difference may be another"
        sentences.append(f"{names[0]} and {name} trained for {', '.join(unequal.values())}: {comment}")
    return sentences


def _unequal_fields(baseline: TrainingAmount, amount: TrainingAmount) -> dict[str, str]:
    """Return a text such as `1,537 and 1,302 steps` for each field with a notable difference."""
    texts = {}
    for field in fields(TrainingAmount):
        old = getattr(baseline, field.name)
        new = getattr(amount, field.name)
        difference = relative_difference(old, new)
        if difference is not None and abs(difference) > NOTABLE:
            format_amount = FORMATS[field.name]
            texts[field.name] = f"{format_amount(old)} and {format_amount(new)} {field.name}"
    return texts


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean of values that are all known, which means above 0."""
    return fmean(values) if values and all(values) else None

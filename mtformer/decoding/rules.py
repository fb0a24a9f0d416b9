"""Rules that search applies to the log-probabilities of each step: length limits, n-grams, repetition.

A rule is a function of the tokens so far, so reordered beams and finished sentences do not concern it.
`mtformer.decoding.constraints` has the rules about given words.

B sentences, U units (sentences, or groups of their beams), R beams of a unit, V vocabulary, t tokens so far.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search import Correction
from mtformer.text.tokenizer import BOS, EOS, PAD


@dataclass
class Step:
    """One step of a search.

    Attributes:
        log_prob_URV: rules change it in place: -inf for tokens that are not allowed.
        raw_URV: the model's own log-probabilities; without rules it may be the same tensor.
        history_URt: the tokens so far.
        sentence_U: index of each unit's sentence in the original batch.
        correct: see `top_candidates`; only without rules, which it would undo.
    """

    log_prob_URV: Tensor
    raw_URV: Tensor
    history_URt: Tensor
    sentence_U: Tensor
    correct: Correction | None = None


Rule = Callable[[Step], None]
Watch = Callable[[Step], object]
"""Called with each step of a search; it must not change the step."""


class LengthBounds:
    """Minimum and maximum length of each translation, and the rule that enforces them.

    Lengths are in tokens without eos; the ratios are relative to the source without eos. At least max(min_length,
    floor(min_length_ratio x source)), at most ceil(max_length_ratio x source) + 10, and at most `max_length`; but the
    maximum is never below `reserved`, nor above `capacity`.

    The rule excludes pad and bos, eos below the minimum length, and all other tokens at the maximum.

    Args:
        settings: the `decoding` section.
        src_lengths_B: source lengths, eos counted.
        reserved: length of the constraints of each sentence.
        capacity: the limit of the model.
    """

    def __init__(self, settings: DecodingConfig, src_lengths_B: Tensor, reserved: Sequence[int], capacity: int) -> None:
        src_B = (src_lengths_B - 1).double()
        max_B = (src_B * settings.max_length_ratio).ceil().long() + 10
        if settings.max_length is not None:
            max_B = max_B.clamp(max=settings.max_length)
        self.max_B = torch.maximum(max_B, torch.tensor(reserved, device=max_B.device)).clamp(max=capacity)
        min_B = (src_B * settings.min_length_ratio).floor().long().clamp(min=settings.min_length)
        self.min_B = torch.minimum(min_B, self.max_B)
        # Python numbers, so that no step synchronizes with the device.
        self.longest_min, self.shortest_max = int(self.min_B.max()), int(self.max_B.min())
        self.max_steps = int(self.max_B.max()) + 1
        """Maximum length of the batch, with eos."""

    def __call__(self, step: Step) -> None:
        position, log_prob_URV = step.history_URt.size(2), step.log_prob_URV
        log_prob_URV[..., PAD] = -math.inf
        log_prob_URV[..., BOS] = -math.inf
        eos_UR = log_prob_URV[..., EOS]
        if position < self.longest_min:
            eos_UR.masked_fill_((position < self.min_B[step.sentence_U]).unsqueeze(1), -math.inf)
        if position >= self.shortest_max:
            eos_UR = step.raw_URV[..., EOS].clone()
            ends_U = position >= self.max_B[step.sentence_U]
            log_prob_URV.masked_fill_(ends_U.view(-1, 1, 1), -math.inf)
            log_prob_URV[..., EOS] = torch.where(ends_U.unsqueeze(1), eos_UR, log_prob_URV[..., EOS])


def apply(rules: Sequence[Rule], bounds: LengthBounds, step: Step) -> Step:
    """Return the step after all rules, the bounds last. A row without an allowed token ends with eos."""
    if rules:
        step = Step(step.raw_URV.clone(), step.raw_URV, step.history_URt, step.sentence_U)
        for rule in rules:
            rule(step)
    bounds(step)
    if rules:
        is_stuck_UR = step.log_prob_URV.amax(dim=2) == -math.inf
        eos_UR = step.log_prob_URV[..., EOS]
        eos_UR.copy_(torch.where(is_stuck_UR, step.raw_URV[..., EOS], eos_UR))
    return step


class NoRepeatedNgrams:
    """Exclude tokens that would repeat an n-gram of the translation (Paulus et al. 2018, section 2.5)."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, step: Step) -> None:
        before = self.n - 1
        if step.history_URt.size(2) < self.n:
            return
        last_URn = step.history_URt[..., step.history_URt.size(2) - before :]
        follows_URt = step.history_URt[..., before:]
        is_same_URt = torch.ones_like(follows_URt, dtype=torch.bool)
        for i in range(before):
            is_same_URt &= step.history_URt[..., i : i + follows_URt.size(2)] == last_URn[..., i : i + 1]
        # The other positions write to pad, which is excluded anyway.
        step.log_prob_URV.scatter_(2, follows_URt.masked_fill(~is_same_URt, PAD), -math.inf)


class RepetitionPenalty:
    """Multiply the log-probabilities of earlier tokens by theta >= 1 (Keskar et al. 2019, section 4.1)."""

    def __init__(self, theta: float) -> None:
        self.theta = theta

    def __call__(self, step: Step) -> None:
        seen_URt = step.log_prob_URV.gather(2, step.history_URt)
        step.log_prob_URV.scatter_(2, step.history_URt, seen_URt * self.theta)

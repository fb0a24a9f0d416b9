"""Rules applied to the log-probabilities of each search step: lengths, repetition and prefixes.

A rule depends only on the tokens so far, so it needs no update when beams are reordered or finished sentences removed.
For required phrases see `mtformer.decoding.search.constraints`.

B sentences, U of them not finished, R beams each, V vocabulary, t tokens so far, N = U x R rows, X selected tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search.candidates import Correction
from mtformer.decoding.search.inference import InferenceModel, mean_log_probs
from mtformer.model.cache import DecoderCache
from mtformer.text.tokenizer import BOS, EOS, PAD


@dataclass
class Step:
    """One step of a search."""

    log_prob_URV: Tensor
    """Log-probabilities, which the rules modify in place; -inf excludes a token."""
    raw_URV: Tensor
    """Unmodified log-probabilities of the model, over the whole vocabulary; without rules the same tensor."""
    history_URt: Tensor
    """Tokens so far."""
    sentence_U: Tensor
    """Index of each sentence in the original batch."""
    correct: Correction | None = None
    """See `top_candidates`; None if there are rules, whose changes it would overwrite."""


Rule = Callable[[Step], None]


class LengthBounds:
    """Minimum and maximum length of each translation, and the rule that enforces them.

    Lengths are in tokens without eos, except `src_lengths_B`. The minimum is max(min_length, floor(min_length_ratio x
    source length)). The maximum is ceil(max_length_ratio x source length) + 10, limited to `max_length`; it is never
    below `reserved`, the number of tokens that the constraints of a sentence need, or above the model's `capacity`.

    The rule excludes pad and bos, the ids in `excluded`, eos below the minimum length, and all tokens except eos at the
    maximum.
    """

    def __init__(
        self,
        settings: DecodingConfig,
        src_lengths_B: Tensor,
        reserved: Sequence[int],
        capacity: int,
        excluded: Sequence[int] = (),
    ) -> None:
        src_B = (src_lengths_B - 1).double()
        max_B = (src_B * settings.max_length_ratio).ceil().clamp(max=capacity).long() + 10
        if settings.max_length is not None:
            max_B = max_B.clamp(max=settings.max_length)
        self.max_B = torch.maximum(max_B, torch.tensor(reserved, device=max_B.device)).clamp(max=capacity)
        min_B = (src_B * settings.min_length_ratio).floor().clamp(settings.min_length, capacity).long()
        self.min_B = torch.minimum(min_B, self.max_B)
        # Python numbers, so that search steps do not synchronize with the device.
        self.longest_min, self.shortest_max = int(self.min_B.max()), int(self.max_B.min())
        self.max_steps = int(self.max_B.max()) + 1
        """Maximum length in the batch, including eos."""
        # None without excluded tokens, because a copy to the device takes time.
        self.excluded_X = torch.tensor(excluded, device=max_B.device) if excluded else None

    def __call__(self, step: Step) -> None:
        """Exclude tokens that violate the bounds."""
        position, log_prob_URV = step.history_URt.size(2), step.log_prob_URV
        log_prob_URV[..., PAD].fill_(-math.inf)
        log_prob_URV[..., BOS].fill_(-math.inf)
        if self.excluded_X is not None:
            log_prob_URV.index_fill_(2, self.excluded_X, -math.inf)
        eos_UR = log_prob_URV[..., EOS]
        if position < self.longest_min:
            eos_UR.masked_fill_((position < self.min_B[step.sentence_U]).unsqueeze(1), -math.inf)
        if position >= self.shortest_max:
            eos_UR = step.raw_URV[..., EOS].clone()
            ends_U = position >= self.max_B[step.sentence_U]
            log_prob_URV.masked_fill_(ends_U.view(-1, 1, 1), -math.inf)
            log_prob_URV[..., EOS] = torch.where(ends_U.unsqueeze(1), eos_UR, log_prob_URV[..., EOS])


def next_step(
    models: Sequence[InferenceModel],
    token_UR: Tensor,
    caches: Sequence[DecoderCache],
    history_URt: Tensor,
    sentence_U: Tensor,
    rules: Sequence[Rule],
    bounds: LengthBounds,
) -> Step:
    """Run the models for one step, apply the rules, then the bounds. A row without any allowed token ends with eos."""
    found = [model.step(token_UR.flatten(), cache) for model, cache in zip(models, caches, strict=True)]
    logits_NV, correct = found[0] if len(found) == 1 else (mean_log_probs([logits for logits, _ in found]), None)
    raw_URV = torch.log_softmax(logits_NV, dim=-1, dtype=torch.float32).view(*token_UR.shape, -1)
    log_prob_URV, correct = (raw_URV.clone(), None) if rules else (raw_URV, correct)
    step = Step(log_prob_URV, raw_URV, history_URt, sentence_U, correct)
    for rule in rules:
        rule(step)
    bounds(step)
    if rules:
        is_stuck_UR = step.log_prob_URV.amax(dim=2) == -math.inf
        eos_UR = step.log_prob_URV[..., EOS]
        eos_UR.copy_(torch.where(is_stuck_UR, step.raw_URV[..., EOS], eos_UR))
    return step


def exclude_repeated_ngrams(n: int, step: Step) -> None:
    """Exclude each token that completes an n-gram already in the history (Paulus et al. 2018, section 2.5)."""
    before = n - 1
    if step.history_URt.size(2) < n:
        return
    last_URn = step.history_URt[..., step.history_URt.size(2) - before :]
    follows_URt = step.history_URt[..., before:]
    is_same_URt = torch.ones_like(follows_URt, dtype=torch.bool)
    for i in range(before):
        is_same_URt &= step.history_URt[..., i : i + follows_URt.size(2)] == last_URn[..., i : i + 1]
    # Other positions write to pad, which is excluded anyway.
    step.log_prob_URV.scatter_(2, follows_URt.masked_fill(~is_same_URt, PAD), -math.inf)


def penalize_repetition(theta: float, step: Step) -> None:
    """Multiply the log-probabilities of earlier tokens by theta >= 1 (Keskar et al. 2019, section 4.1)."""
    seen_URt = step.log_prob_URV.gather(2, step.history_URt)
    step.log_prob_URV.scatter_(2, step.history_URt, seen_URt * theta)


def force_prefixes(prefix_BT: Tensor, step: Step) -> None:
    """Exclude all tokens except the next prefix token of each sentence (-1: none); this overrides earlier rules."""
    position = step.history_URt.size(2)
    if position >= prefix_BT.size(1):
        return
    token_U = prefix_BT[step.sentence_U, position]
    index_UR1 = token_U.clamp(min=0).view(-1, 1, 1).expand(-1, step.log_prob_URV.size(1), 1)
    is_forced_U11 = (token_U >= 0).view(-1, 1, 1)
    forced_UR1 = step.raw_URV.gather(2, index_UR1)
    free_UR1 = step.log_prob_URV.gather(2, index_UR1)
    step.log_prob_URV.masked_fill_(is_forced_U11, -math.inf)
    step.log_prob_URV.scatter_(2, index_UR1, torch.where(is_forced_U11, forced_UR1, free_UR1))

"""Rules applied to the log-probabilities of each search step: lengths, repetition and prefixes.

A rule depends only on the tokens so far, so it needs no update when beams are reordered or finished sentences removed.
For required phrases see `mtformer.decoding.search.constraints`.

B sentences, U of them not finished, R beams each, V vocabulary, T prefix length, t tokens so far, X excluded tokens.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search.candidates import Step
from mtformer.text.tokenizer import BOS, EOS, PAD

Rule = Callable[[Step], None]
"""Function that modifies the log-probabilities of a step in place."""
EXTRA_TOKENS = 10
"""Number of tokens by which a translation may exceed max_length_ratio x source length."""


class LengthBounds:
    """Minimum and maximum length of each translation, and the rule that enforces them.

    Lengths are in tokens without eos. The minimum is max(min_length, floor(min_length_ratio x source length)). The
    maximum is ceil(max_length_ratio x source length) + `EXTRA_TOKENS`, limited to `max_length`.

    The rule excludes pad and bos, the ids in `excluded`, eos below the minimum length, and all tokens except eos at the
    maximum.

    Args:
        settings: lengths and ratios.
        src_lengths_B: source lengths, including eos.
        reserved: number of tokens that the constraints of each sentence need; its maximum is not below that.
        capacity: maximum length that the model supports, which no bound exceeds.
        excluded: ids that no translation contains.
    """

    def __init__(
        self,
        settings: DecodingConfig,
        src_lengths_B: Tensor,
        reserved: Sequence[int],
        capacity: int,
        excluded: Sequence[int] = (),
    ) -> None:
        src_tokens_B = (src_lengths_B - 1).double()

        # Limited to the capacity before the conversion, because a large ratio would overflow.
        longest_B = (src_tokens_B * settings.max_length_ratio).ceil().clamp(max=capacity)
        max_B = longest_B.long() + EXTRA_TOKENS
        if settings.max_length is not None:
            max_B = max_B.clamp(max=settings.max_length)
        reserved_B = torch.tensor(reserved, device=max_B.device)
        self.max_B = torch.maximum(max_B, reserved_B).clamp(max=capacity)

        shortest_B = (src_tokens_B * settings.min_length_ratio).floor()
        min_B = shortest_B.clamp(settings.min_length, capacity).long()
        self.min_B = torch.minimum(min_B, self.max_B)

        # Python numbers, so that search steps do not synchronize with the device.
        self.longest_min = int(self.min_B.max())
        self.shortest_max = int(self.max_B.min())
        self.max_steps = int(self.max_B.max()) + 1
        """Maximum length in the batch, including eos."""

        # None without excluded tokens, because a copy to the device takes time.
        self.excluded_X = torch.tensor(excluded, device=max_B.device) if excluded else None

    def __call__(self, step: Step) -> None:
        """Exclude tokens that violate the bounds."""
        position = step.history_URt.size(2)
        log_prob_URV = step.log_prob_URV
        log_prob_URV[..., PAD].fill_(-math.inf)
        log_prob_URV[..., BOS].fill_(-math.inf)
        if self.excluded_X is not None:
            log_prob_URV.index_fill_(2, self.excluded_X, -math.inf)

        if position < self.longest_min:
            is_too_short_U = position < self.min_B[step.sentence_U]
            log_prob_URV[..., EOS].masked_fill_(is_too_short_U.unsqueeze(1), -math.inf)

        if position >= self.shortest_max:
            ending_UR = step.raw_URV[..., EOS].clone()
            must_end_U = position >= self.max_B[step.sentence_U]
            log_prob_URV.masked_fill_(must_end_U.view(-1, 1, 1), -math.inf)
            log_prob_URV[..., EOS] = torch.where(must_end_U.unsqueeze(1), ending_UR, log_prob_URV[..., EOS])


def exclude_repeated_ngrams(n: int, step: Step) -> None:
    """Exclude each token that completes an n-gram already in the history (Paulus et al. 2018, section 2.5)."""
    num_context = n - 1
    num_tokens = step.history_URt.size(2)
    if num_tokens < n:
        return

    # A token that follows an earlier occurrence of the last n - 1 tokens would complete a repeated n-gram.
    last_URn = step.history_URt[..., num_tokens - num_context :]
    next_URt = step.history_URt[..., num_context:]
    is_same_URt = torch.ones_like(next_URt, dtype=torch.bool)
    for i in range(num_context):
        is_same_URt &= step.history_URt[..., i : i + next_URt.size(2)] == last_URn[..., i : i + 1]

    # Other positions write to pad, which is excluded anyway.
    excluded_URt = next_URt.masked_fill(~is_same_URt, PAD)
    step.log_prob_URV.scatter_(2, excluded_URt, -math.inf)


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
    is_forced_U11 = (token_U >= 0).view(-1, 1, 1)
    R = step.log_prob_URV.size(1)
    index_UR1 = token_U.clamp(min=0).view(-1, 1, 1).expand(-1, R, 1)

    # Sentences without a prefix token keep the value of token 0.
    forced_UR1 = step.raw_URV.gather(2, index_UR1)
    unforced_UR1 = step.log_prob_URV.gather(2, index_UR1)
    value_UR1 = torch.where(is_forced_U11, forced_UR1, unforced_UR1)
    step.log_prob_URV.masked_fill_(is_forced_U11, -math.inf)
    step.log_prob_URV.scatter_(2, index_UR1, value_UR1)

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
        relative_max_B = (src_tokens_B * settings.max_length_ratio).ceil()
        max_B = relative_max_B.clamp(max=capacity).long() + EXTRA_TOKENS
        if settings.max_length is not None:
            max_B = max_B.clamp(max=settings.max_length)
        reserved_B = torch.tensor(reserved, device=max_B.device)
        max_B = torch.maximum(max_B, reserved_B)
        self.max_B = max_B.clamp(max=capacity)

        relative_min_B = (src_tokens_B * settings.min_length_ratio).floor()
        min_B = relative_min_B.clamp(settings.min_length, capacity).long()
        self.min_B = torch.minimum(min_B, self.max_B)

        # Python numbers, so that search steps do not synchronize with the device.
        self.largest_min = int(self.min_B.max())
        self.smallest_max = int(self.max_B.min())
        largest_max = int(self.max_B.max())
        self.max_steps = largest_max + 1
        """Maximum length in the batch, including eos."""

        self.excluded_X: Tensor | None = None
        if excluded:  # a copy to the device takes time
            self.excluded_X = torch.tensor(excluded, device=max_B.device)

    def __call__(self, step: Step) -> None:
        """Exclude tokens that violate the bounds."""
        log_prob_URV = step.log_prob_URV
        for token in (PAD, BOS):
            log_prob_URV[..., token].fill_(-math.inf)
        if self.excluded_X is not None:
            log_prob_URV.index_fill_(2, self.excluded_X, -math.inf)

        if step.position < self.largest_min:
            self._exclude_early_eos(step)
        if step.position >= self.smallest_max:
            self._exclude_all_but_eos(step)

    def _exclude_early_eos(self, step: Step) -> None:
        """Exclude eos in sentences below their minimum length."""
        min_U = self.min_B[step.sentence_U]
        is_too_short_U = step.position < min_U
        is_too_short_U1 = is_too_short_U.unsqueeze(1)
        eos_UR = step.log_prob_URV[..., EOS]
        eos_UR.masked_fill_(is_too_short_U1, -math.inf)

    def _exclude_all_but_eos(self, step: Step) -> None:
        """Exclude all tokens except eos in sentences that have reached their maximum length."""
        max_U = self.max_B[step.sentence_U]
        must_end_U = step.position >= max_U
        must_end_U1 = must_end_U.unsqueeze(1)
        must_end_U11 = must_end_U.view(-1, 1, 1)

        log_prob_URV = step.log_prob_URV
        raw_eos_UR = step.raw_URV[..., EOS].clone()  # before it is excluded: it may be the same tensor
        log_prob_URV.masked_fill_(must_end_U11, -math.inf)
        eos_UR = log_prob_URV[..., EOS]
        new_eos_UR = torch.where(must_end_U1, raw_eos_UR, eos_UR)
        eos_UR.copy_(new_eos_UR)


def exclude_repeated_ngrams(n: int, step: Step) -> None:
    """Exclude each token that completes an n-gram already in the history (Paulus et al. 2018, section 2.5)."""
    if step.position < n:
        return

    # The context is the last n - 1 tokens. A token that followed an earlier occurrence of it would repeat an n-gram.
    history_URt = step.history_URt
    num_context = n - 1
    context_URn = history_URt[..., step.position - num_context :]
    following_URt = history_URt[..., num_context:]

    # Compare the n - 1 tokens before each of `following_URt` with the context, one position of the context at a time.
    num_ngrams = following_URt.size(2)
    is_repeated_URt = torch.ones_like(following_URt, dtype=torch.bool)
    for i in range(num_context):
        earlier_URt = history_URt[..., i : i + num_ngrams]
        context_UR1 = context_URn[..., i : i + 1]
        is_repeated_URt &= earlier_URt == context_UR1

    # Other positions write to pad, which is excluded anyway.
    excluded_URt = following_URt.masked_fill(~is_repeated_URt, PAD)
    step.log_prob_URV.scatter_(2, excluded_URt, -math.inf)


def penalize_repetition(theta: float, step: Step) -> None:
    """Multiply the log-probabilities of earlier tokens by theta >= 1 (Keskar et al. 2019, section 4.1)."""
    history_URt = step.history_URt
    log_prob_URV = step.log_prob_URV
    earlier_URt = log_prob_URV.gather(2, history_URt)
    penalized_URt = earlier_URt * theta
    log_prob_URV.scatter_(2, history_URt, penalized_URt)


def force_prefixes(prefix_BT: Tensor, step: Step) -> None:
    """Exclude all tokens except the next prefix token of each sentence (-1: none); this overrides earlier rules."""
    if step.position >= prefix_BT.size(1):
        return

    log_prob_URV = step.log_prob_URV
    R = log_prob_URV.size(1)
    token_U = prefix_BT[step.sentence_U, step.position]
    token_U11 = token_U.view(-1, 1, 1)
    is_forced_U11 = token_U11 >= 0

    # Sentences without a prefix token keep the value of token 0.
    index_UR1 = token_U11.clamp(min=0).expand(-1, R, 1)
    forced_UR1 = step.raw_URV.gather(2, index_UR1)
    unforced_UR1 = log_prob_URV.gather(2, index_UR1)
    value_UR1 = torch.where(is_forced_U11, forced_UR1, unforced_UR1)
    log_prob_URV.masked_fill_(is_forced_U11, -math.inf)
    log_prob_URV.scatter_(2, index_UR1, value_UR1)

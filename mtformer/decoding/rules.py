"""What may come next, beside what the model says: rules that search applies at each step before it chooses.

A rule is a function of the tokens so far, so beams may change places and sentences may leave without telling it.

U units (sentences, or groups of their beams), R beams of a unit, V vocabulary, t tokens so far.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mtformer.decoding.topk import Exact
from mtformer.text.tokenizer import BOS, EOS, PAD


@dataclass
class Step:
    """One step of a search.

    `log_prob_URV` is what rules change in place: -inf for what must not come. `own_URV` is what the model said; without
    rules it may be the same tensor. `sentence_U` are the numbers of the units' sentences in the batch as it came.
    `exact`: see `top_candidates`; not with rules, which would be undone by it.
    """

    log_prob_URV: Tensor
    own_URV: Tensor
    history_URt: Tensor
    sentence_U: Tensor
    exact: Exact | None = None


Rule = Callable[[Step], None]
Watch = Callable[[Step], object]
"""What gets to see each step of a search, and changes nothing."""


def apply(rules: Sequence[Rule], bounds: "LengthBounds", step: Step) -> Step:
    """The step after all rules; the bounds come last. A row that has nowhere to go ends."""
    if rules:
        step = Step(step.own_URV.clone(), step.own_URV, step.history_URt, step.sentence_U)
        for rule in rules:
            rule(step)
    bounds(step)
    if rules:
        stuck_UR = step.log_prob_URV.amax(dim=2) == -math.inf
        eos_UR = step.log_prob_URV[..., EOS]
        eos_UR.copy_(torch.where(stuck_UR, step.own_URV[..., EOS], eos_UR))
    return step


class LengthBounds:
    """Never pad or bos; no eos before the shortest length, and nothing else at the longest.

    Args:
        min_B, max_B: tokens, eos not counted. Python's numbers of them save asking the device at each step.
    """

    def __init__(self, min_B: Tensor, max_B: Tensor) -> None:
        self.min_B, self.max_B = min_B, max_B
        self.longest_min, self.shortest_max, self.longest_max = int(min_B.max()), int(max_B.min()), int(max_B.max())

    def __call__(self, step: Step) -> None:
        position, log_prob_URV = step.history_URt.size(2), step.log_prob_URV
        log_prob_URV[..., PAD] = -math.inf
        log_prob_URV[..., BOS] = -math.inf
        eos_UR = log_prob_URV[..., EOS]
        if position < self.longest_min:
            eos_UR.masked_fill_((position < self.min_B[step.sentence_U]).unsqueeze(1), -math.inf)
        if position >= self.shortest_max:
            eos_UR = step.own_URV[..., EOS].clone()
            ends_U = position >= self.max_B[step.sentence_U]
            log_prob_URV.masked_fill_(ends_U.view(-1, 1, 1), -math.inf)
            log_prob_URV[..., EOS] = torch.where(ends_U.unsqueeze(1), eos_UR, log_prob_URV[..., EOS])


class NoRepeatedNgrams:
    """No n tokens come twice in a row of a translation (Paulus et al. 2018, section 2.5)."""

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
        # What did not follow the same tokens writes to pad, which must not come anyhow.
        step.log_prob_URV.scatter_(2, follows_URt.masked_fill(~is_same_URt, PAD), -math.inf)


class RepetitionPenalty:
    """Log-probabilities of what was there already are multiplied by theta >= 1 (Keskar et al. 2019, section 4.1)."""

    def __init__(self, theta: float) -> None:
        self.theta = theta

    def __call__(self, step: Step) -> None:
        seen_URt = step.log_prob_URV.gather(2, step.history_URt)
        step.log_prob_URV.scatter_(2, step.history_URt, seen_URt * self.theta)


class Prefixes:
    """Each translation begins with the tokens it was given, which rules before this one do not keep out.

    Args:
        prefixes: one list of ids a sentence, which may be empty.
        device: where search runs.
    """

    def __init__(self, prefixes: Sequence[Sequence[int]], device: torch.device) -> None:
        longest = max(map(len, prefixes))
        rows = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes]
        self.prefix_BT = torch.tensor(rows, dtype=torch.long, device=device)

    def __call__(self, step: Step) -> None:
        position = step.history_URt.size(2)
        if position >= self.prefix_BT.size(1):
            return
        token_U = self.prefix_BT[step.sentence_U, position]
        index_UR1 = token_U.clamp(min=0).view(-1, 1, 1).expand(-1, step.log_prob_URV.size(1), 1)
        is_forced_U11 = (token_U >= 0).view(-1, 1, 1)
        forced_UR1 = step.own_URV.gather(2, index_UR1)
        free_UR1 = step.log_prob_URV.gather(2, index_UR1)
        step.log_prob_URV.masked_fill_(is_forced_U11, -math.inf)
        step.log_prob_URV.scatter_(2, index_UR1, torch.where(is_forced_U11, forced_UR1, free_UR1))


class ForbiddenPhrases:
    """No translation holds any of the phrases, however it is cut into pieces.

    Args:
        next_SV: of `mtformer.decoding.phrases.over_vocabulary`: state of the automaton after each piece, -1 where a
            phrase would be complete.
    """

    def __init__(self, next_SV: Tensor) -> None:
        self.next_SV = next_SV

    def __call__(self, step: Step) -> None:
        state_UR = step.history_URt.new_zeros(step.history_URt.shape[:2])
        for position in range(step.history_URt.size(2)):
            state_UR = self.next_SV[state_UR, step.history_URt[..., position]].clamp(min=0).long()
        step.log_prob_URV.masked_fill_(self.next_SV[state_UR] < 0, -math.inf)

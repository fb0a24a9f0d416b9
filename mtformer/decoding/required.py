"""Phrases that a translation must hold: beams kept by how much of them is met (Post and Vilar 2018).

U units, R beams of a unit, V vocabulary, K candidates, t tokens so far.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mtformer.decoding.beam import Candidates, likeliest
from mtformer.decoding.rules import Step
from mtformer.text.tokenizer import EOS

Phrase = tuple[int, ...]


class Progress(NamedTuple):
    """How far a hypothesis is: tokens of its phrases that stand in it, and the tokens that would take it further."""

    num_met: int
    next_tokens: frozenset[int]


def progress(tokens: Sequence[int], phrases: Sequence[Phrase]) -> Progress:
    """Whole phrases count wherever they stand; of those begun at the very end the longest beginning counts."""
    num_met, longest_begun, next_tokens = 0, 0, set()
    for phrase in phrases:
        if any(tuple(tokens[i : i + len(phrase)]) == phrase for i in range(len(tokens) - len(phrase) + 1)):
            num_met += len(phrase)
            continue
        longest = min(len(phrase) - 1, len(tokens))
        begun = max(k for k in range(longest + 1) if tuple(tokens[len(tokens) - k :]) == phrase[:k])
        longest_begun = max(longest_begun, begun)
        next_tokens.add(phrase[begun])
    return Progress(num_met + longest_begun, frozenset(next_tokens))


class RequiredPhrases:
    """A rule (no eos before all is met) and a chooser (candidates by tokens met) in one.

    The beam is shared among banks, one for each number of tokens met, so that hypotheses that have met little, and
    hence score better, do not push out those that have met more. At the upper limit of the length a hypothesis ends
    all the same: whether a translation holds its phrases is to be seen from its text.

    Args:
        phrases: of each sentence of the batch, in token ids; may be none.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]]) -> None:
        self.phrases = [list(dict.fromkeys(of_one)) for of_one in phrases]

    def rule(self, step: Step) -> None:
        """Bans eos where a phrase is missing."""
        histories = step.history_URt.tolist()
        for unit, sentence in enumerate(step.sentence_U.tolist()):
            for beam, tokens in enumerate(histories[unit]):
                if progress(tokens, self.phrases[sentence]).next_tokens:
                    step.log_prob_URV[unit, beam, EOS] = -math.inf

    def choose(self, step: Step, score_UR: Tensor, K: int) -> Candidates:
        """Of the likeliest continuations, and those that take a beam further, the best of each bank."""
        plain = likeliest(step, score_UR, K)
        rows = zip(step.sentence_U.tolist(), step.history_URt.tolist(), strict=True)
        lists = [part.tolist() for part in plain]
        for unit, (sentence, histories) in enumerate(rows):
            if not self.phrases[sentence]:
                continue
            likely = list(zip(*(part[unit] for part in lists), strict=True))
            further = _further(histories, self.phrases[sentence], step.log_prob_URV[unit], score_UR[unit])
            chosen = _share(likely + further, histories, self.phrases[sentence], len(histories))[:K]
            chosen += [(-math.inf, 0, EOS)] * (K - len(chosen))
            for part, values in zip(lists, zip(*chosen, strict=True), strict=True):
                part[unit] = list(values)
        device = score_UR.device
        return Candidates(
            torch.tensor(lists[0], dtype=score_UR.dtype, device=device),
            torch.tensor(lists[1], device=device),
            torch.tensor(lists[2], device=device),
        )


Candidate = tuple[float, int, int]
"""Score, beam, token."""


def _further(
    histories: list[list[int]], phrases: list[Phrase], log_prob_RV: Tensor, score_R: Tensor
) -> list[Candidate]:
    """What takes each beam further towards its phrases, or ends it when all are met."""
    found = []
    for beam, tokens in enumerate(histories):
        wanted = sorted(progress(tokens, phrases).next_tokens) or [EOS]
        scores = (log_prob_RV[beam, wanted] + score_R[beam]).tolist()
        found += [(score, beam, token) for score, token in zip(scores, wanted, strict=True)]
    return found


def _share(candidates: list[Candidate], histories: list[list[int]], phrases: list[Phrase], R: int) -> list[Candidate]:
    """R candidates taken fairly from the banks, the best first, and then the others, the best first."""
    ranked = sorted({one for one in candidates if one[0] != -math.inf}, key=lambda one: -one[0])
    num_banks = sum(map(len, phrases)) + 1
    banks: list[list[Candidate]] = [[] for _ in range(num_banks)]
    for one in ranked:
        banks[progress([*histories[one[1]], one[2]], phrases).num_met].append(one)
    share, taken = R // num_banks, []
    for bank in reversed(banks):
        taken += bank[:share]
        del bank[:share]
    for bank in reversed(banks):  # what is left over goes to those that have met the most
        room = R - len(taken)
        taken += bank[:room]
        del bank[:room]
    rest = sorted((one for bank in banks for one in bank), key=lambda one: -one[0])
    return sorted(taken, key=lambda one: -one[0]) + rest

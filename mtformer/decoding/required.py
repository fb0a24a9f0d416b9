"""Phrases that a translation must hold: beams kept by how much of them is met (Post and Vilar 2018).

U units, R beams of a unit, V vocabulary, K candidates, t tokens so far.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mtformer.decoding.beam import Candidates, likeliest
from mtformer.decoding.rules import Step
from mtformer.text.tokenizer import EOS, PAD

Phrase = tuple[int, ...]


class Continuation(NamedTuple):
    """One token more for one beam of a unit."""

    score: float
    beam: int
    token: int
    num_met: int
    """Tokens of phrases that then stand in the hypothesis, see `num_met`."""


class RequiredPhrases:
    """Chooses candidates by tokens met, and no eos before all is met; made anew for each search.

    Half of the beam is shared among banks, one for each number of tokens met, so that hypotheses that have met little,
    and hence score better, do not push out those that have met more. A hypothesis that the limit of its length closes
    before all is met counts only where there is no other: whether it holds its phrases is to be seen from its text.

    Args:
        phrases: of each sentence of the batch, in token ids; may be none.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]]) -> None:
        self.phrases = [list(dict.fromkeys(of_one)) for of_one in phrases]
        self.found: set[int] = set()
        """Sentences of which a hypothesis with all its phrases has ended."""

    def choose(self, step: Step, score_UR: Tensor, K: int) -> Candidates:
        """The likeliest continuations; for sentences with phrases the banks have a say."""
        lists = [part.tolist() for part in likeliest(step, score_UR, K)]
        for unit, sentence in enumerate(step.sentence_U.tolist()):
            if self.phrases[sentence]:
                chosen = self._choose(step, score_UR, unit, sentence)[:K]
                # What is short is filled with dead beams; as in plain search no more than R candidates are eos.
                filled = [one[:3] for one in chosen] + [(-math.inf, 0, PAD)] * (K - len(chosen))
                for part, values in zip(lists, zip(*filled, strict=True), strict=True):
                    part[unit] = list(values)
        score_UK = torch.tensor(lists[0], dtype=score_UR.dtype, device=score_UR.device)
        return Candidates(score_UK, *(torch.tensor(part, device=score_UR.device) for part in lists[1:]))

    def _choose(self, step: Step, score_UR: Tensor, unit: int, sentence: int) -> list[Continuation]:
        """For one unit: its R, best first, and then the others, best first."""
        phrases, R = self.phrases[sentence], score_UR.size(1)
        histories = step.history_URt[unit].tolist()
        continuations = _continuations(histories, phrases, step.log_prob_URV[unit], score_UR[unit])
        num_tokens = sum(map(len, phrases))
        proper = [one for one in continuations if one.token != EOS or one.num_met == num_tokens]
        if proper or sentence in self.found:
            continuations = proper
        chosen = _share(continuations, R)
        if any(one.token == EOS and one.num_met == num_tokens for one in chosen[:R]):
            self.found.add(sentence)
        return chosen


def missing(tokens: Sequence[int], phrases: Sequence[Phrase]) -> list[Phrase]:
    """The phrases that the tokens do not hold."""
    return [phrase for phrase in phrases if not _is_in(phrase, tokens)]


def num_met(tokens: Sequence[int], open_phrases: Sequence[Phrase]) -> int:
    """Tokens, of phrases that were missing before the last token, that are met with it.

    A phrase counts when it is whole; of those begun at the end the one of which most is there.
    """
    begun = [(phrase, _begun(tokens, phrase)) for phrase in open_phrases]
    whole = sum(count for phrase, count in begun if count == len(phrase))
    return whole + max((count for phrase, count in begun if count < len(phrase)), default=0)


def _is_in(phrase: Phrase, tokens: Sequence[int]) -> bool:
    return any(tuple(tokens[i : i + len(phrase)]) == phrase for i in range(len(tokens) - len(phrase) + 1))


def _begun(tokens: Sequence[int], phrase: Phrase) -> int:
    """How many tokens of the phrase stand at the end: the most that do."""
    longest = min(len(phrase), len(tokens))
    return next(k for k in range(longest, -1, -1) if tuple(tokens[len(tokens) - k :]) == phrase[:k])


def _continuations(
    histories: list[list[int]], phrases: list[Phrase], log_prob_RV: Tensor, score_R: Tensor
) -> list[Continuation]:
    """For each living beam its likeliest continuations, and those that take it further towards its phrases.

    The likeliest of each beam and not of all: else those that met the most, and paid for it, have none but the worst.
    """
    R, V = log_prob_RV.shape
    likely = log_prob_RV.topk(min(R + 1, V), dim=1).indices.tolist()  # R without eos
    scores, num_all = score_R.tolist(), sum(map(len, phrases))
    found = []
    for beam, tokens in enumerate(histories):
        if scores[beam] == -math.inf:
            continue
        still_open = missing(tokens, phrases)
        before = num_all - sum(map(len, still_open))
        wanted = sorted({*likely[beam], *(phrase[_begun(tokens, phrase)] for phrase in still_open)})
        sums = (log_prob_RV[beam, wanted] + score_R[beam]).tolist()
        for token, total in zip(wanted, sums, strict=True):
            if total != -math.inf:
                found.append(Continuation(total, beam, token, before + num_met([*tokens, token], still_open)))
    return found


def _share(continuations: list[Continuation], R: int) -> list[Continuation]:
    """Half of the R places go to the best of all, the others to the banks in turn; then come the others.

    In turn: the best of each bank, those that met the most first, then the second of each ... So one always gets
    further, and beams that wait for where a phrase fits stay too. Both parts are sorted by score.
    """
    ranked = sorted(continuations, key=lambda one: -one.score)
    sizes: Counter[int] = Counter()
    turns = []
    for place, one in enumerate(ranked[R // 2 :], start=R // 2):
        turns.append((sizes[one.num_met], -one.num_met, place))
        sizes[one.num_met] += 1
    taken = {*range(R // 2), *(place for _, _, place in sorted(turns)[: R - R // 2])}
    return [ranked[i] for i in sorted(range(len(ranked)), key=lambda i: (i not in taken, i))]

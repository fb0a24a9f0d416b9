"""Lexically constrained decoding: required phrases.

U sentences that are not finished, R beams per sentence, V vocabulary, K candidates.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from mtformer.decoding.search.beam import best_candidates
from mtformer.decoding.search.candidates import Candidates
from mtformer.decoding.search.rules import Step
from mtformer.decoding.search.segments import Phrase
from mtformer.text.tokenizer import EOS, PAD


class Continuation(NamedTuple):
    """One beam of a unit, extended by one token."""

    score: float
    beam: int
    token: int
    num_met: int
    """Number of phrase tokens in the extended hypothesis (see `num_met`)."""


class RequiredPhrases:
    """Allocation of beams by the number of met constraints (Post and Vilar 2018); use one instance per search.

    Half of the beam is divided among banks, one per number of met tokens, so that hypotheses with few required
    tokens, which score better, do not displace the others. Eos is allowed only after all phrases. A hypothesis that
    reaches the maximum length without all phrases is used only if the sentence has no other; the caller checks whether
    the text contains the phrases. A sentence may have no phrases.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]]) -> None:
        self.phrases = [list(dict.fromkeys(of_one)) for of_one in phrases]
        self.found: set[int] = set()
        """Indices of sentences with a finished hypothesis that contains all phrases."""

    def choose(self, step: Step, score_UR: Tensor, K: int) -> Candidates:
        """Return the best candidates; for sentences with required phrases, they are selected from the banks."""
        found, R = best_candidates(step, score_UR, K), score_UR.size(1)
        for unit, sentence in enumerate(step.sentence_U.tolist()):
            phrases = self.phrases[sentence]
            if not phrases:
                continue
            histories, num_tokens = step.history_URt[unit].tolist(), sum(map(len, phrases))
            continuations = _continuations(histories, phrases, step.log_prob_URV[unit], score_UR[unit])
            allowed = [one for one in continuations if one.token != EOS or one.num_met == num_tokens]
            if allowed or sentence in self.found:
                continuations = allowed
            chosen = _allocate(continuations, R)[:K]  # the R chosen ones, then the others
            if any(one.token == EOS and one.num_met == num_tokens for one in chosen[:R]):
                self.found.add(sentence)
            # Pad with dead beams. As in standard search, at most R candidates are eos.
            filled = [one[:3] for one in chosen] + [(-math.inf, 0, PAD)] * (K - len(chosen))
            for part_UK, values in zip(found, zip(*filled, strict=True), strict=True):
                part_UK[unit] = part_UK.new_tensor(values)
        return found


def missing(tokens: Sequence[int], phrases: Sequence[Phrase]) -> list[Phrase]:
    """Return the phrases that the tokens do not contain."""

    def contains(phrase: Phrase) -> bool:
        return any(tuple(tokens[i : i + len(phrase)]) == phrase for i in range(len(tokens) - len(phrase) + 1))

    return [phrase for phrase in phrases if not contains(phrase)]


def num_met(tokens: Sequence[int], open_phrases: Sequence[Phrase]) -> int:
    """Return how many tokens of `open_phrases` are met; these phrases were incomplete before the last token.

    The count includes the tokens of all complete phrases and of the longest partial match of another one at the end.
    """
    begun = [(phrase, _num_begun(tokens, phrase)) for phrase in open_phrases]
    complete = sum(count for phrase, count in begun if count == len(phrase))
    return complete + max((count for phrase, count in begun if count < len(phrase)), default=0)


def _num_begun(tokens: Sequence[int], phrase: Phrase) -> int:
    """Return the length of the longest prefix of the phrase that is a suffix of the tokens."""
    longest = min(len(phrase), len(tokens))
    return next(k for k in range(longest, -1, -1) if tuple(tokens[len(tokens) - k :]) == phrase[:k])


def _continuations(
    histories: list[list[int]], phrases: list[Phrase], log_prob_RV: Tensor, score_R: Tensor
) -> list[Continuation]:
    """Return the best continuations of each live beam, and those that add the next token of a phrase.

    The best tokens are selected per beam: a global selection would prune beams that have met phrases and score lower.
    """
    R, V = log_prob_RV.shape
    best = log_prob_RV.topk(min(R + 1, V), dim=1).indices.tolist()  # R tokens besides eos
    scores, num_all = score_R.tolist(), sum(map(len, phrases))
    found = []
    for beam, tokens in enumerate(histories):
        if scores[beam] == -math.inf:
            continue
        open_phrases = missing(tokens, phrases)
        before = num_all - sum(map(len, open_phrases))
        tokens_to_try = sorted({*best[beam], *(phrase[_num_begun(tokens, phrase)] for phrase in open_phrases)})
        sums = (log_prob_RV[beam, tokens_to_try] + score_R[beam]).tolist()
        for token, total in zip(tokens_to_try, sums, strict=True):
            if total != -math.inf:
                found.append(Continuation(total, beam, token, before + num_met([*tokens, token], open_phrases)))
    return found


def _allocate(continuations: list[Continuation], R: int) -> list[Continuation]:
    """Return the R selected continuations sorted by score, followed by the others sorted by score.

    Half of the R are the highest-scoring ones. The others are taken from the banks in turn: the best of each bank, from
    most to fewest met tokens, then the second best of each, and so on. This keeps beams that make progress or wait.
    """
    ranked = sorted(continuations, key=lambda one: -one.score)
    sizes: Counter[int] = Counter()
    turns = []
    for place, one in enumerate(ranked[R // 2 :], start=R // 2):
        turns.append((sizes[one.num_met], -one.num_met, place))
        sizes[one.num_met] += 1
    taken = {*range(R // 2), *(place for _, _, place in sorted(turns)[: R - R // 2])}
    return [ranked[i] for i in sorted(range(len(ranked)), key=lambda i: (i not in taken, i))]

"""Lexically constrained decoding: required phrases.

U sentences that are not finished, R beams per sentence, t tokens so far, V vocabulary, K candidates, X tokens
of a beam.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from mtformer.decoding.search.candidates import Candidates, Step, best_candidates
from mtformer.decoding.search.segments import Phrase
from mtformer.text.tokenizer import EOS, PAD


class Continuation(NamedTuple):
    """One beam of a sentence, extended by one token."""

    score: float
    beam: int
    token: int
    num_met: int
    """Number of phrase tokens in the extended hypothesis (see `num_met`)."""

    def is_allowed(self, num_tokens: int) -> bool:
        """Return False for an eos that follows fewer than all `num_tokens` tokens of the phrases."""
        return self.token != EOS or self.num_met == num_tokens


DEAD = Continuation(-math.inf, 0, PAD, 0)
"""Continuation that fills a place for which there is no other."""


class RequiredPhrases:
    """Allocation of beams by the number of met constraints (Post and Vilar 2018); use one instance per search.

    Half of the beam is divided among banks, one per number of met tokens, so that hypotheses with few required
    tokens, which score better, do not displace the others. Eos is allowed only after all phrases. A hypothesis that
    reaches the maximum length without all phrases is used only if the sentence has no other; the caller checks whether
    the text contains the phrases. A sentence may have no phrases.
    """

    def __init__(self, phrases: Sequence[Sequence[Phrase]]) -> None:
        self.phrases = [list(dict.fromkeys(of_sentence)) for of_sentence in phrases]
        """Distinct phrases of each sentence."""
        self.completed: set[int] = set()
        """Indices of sentences with a finished hypothesis that contains all phrases."""

    def choose(self, step: Step, score_UR: Tensor, K: int) -> Candidates:
        """Return the best candidates; for sentences with required phrases, they are selected from the banks.

        For arguments see `best_candidates`.
        """
        candidates = best_candidates(step, score_UR, K)
        for row, sentence in enumerate(step.sentence_U.tolist()):
            if not self.phrases[sentence]:
                continue

            histories = step.history_URt[row].tolist()
            log_prob_RV = step.log_prob_URV[row]
            chosen = self._choose_for_sentence(sentence, histories, log_prob_RV, score_UR[row])
            num_missing = K - len(chosen)  # may be negative
            filling = [DEAD] * num_missing
            _write(candidates, row, chosen[:K] + filling)
        return candidates

    def _choose_for_sentence(
        self, sentence: int, histories: list[list[int]], log_prob_RV: Tensor, score_R: Tensor
    ) -> list[Continuation]:
        """Return the R chosen continuations of a sentence, followed by the others, of which at most R are eos."""
        R = len(histories)
        phrases = self.phrases[sentence]
        num_tokens = sum(map(len, phrases))
        continuations = _continuations(histories, phrases, log_prob_RV, score_R)

        # Without any other continuation, eos is allowed before all phrases are met.
        allowed = [continuation for continuation in continuations if continuation.is_allowed(num_tokens)]
        if allowed or sentence in self.completed:
            continuations = allowed

        chosen = _allocate(continuations, R)
        for continuation in chosen[:R]:
            if continuation.token == EOS and continuation.num_met == num_tokens:
                self.completed.add(sentence)
        return chosen


def _write(candidates: Candidates, row: int, continuations: Sequence[Continuation]) -> None:
    """Replace the K candidates of a sentence."""
    scores = [continuation.score for continuation in continuations]
    beams = [continuation.beam for continuation in continuations]
    tokens = [continuation.token for continuation in continuations]
    for part_BK, values in zip(candidates, (scores, beams, tokens), strict=True):
        part_BK[row] = part_BK.new_tensor(values)


def missing(tokens: Sequence[int], phrases: Sequence[Phrase]) -> list[Phrase]:
    """Return the phrases that the tokens do not contain."""
    return [phrase for phrase in phrases if not _contains(tokens, phrase)]


def _contains(tokens: Sequence[int], phrase: Phrase) -> bool:
    length = len(phrase)
    starts = range(len(tokens) - length + 1)
    return any(tuple(tokens[start : start + length]) == phrase for start in starts)


def num_met(tokens: Sequence[int], open_phrases: Sequence[Phrase]) -> int:
    """Return how many tokens of `open_phrases` are met; these phrases were incomplete before the last token.

    The count includes the tokens of all complete phrases and of the longest partial match of another one at the end.
    """
    num_complete = 0
    longest_partial = 0
    for phrase in open_phrases:
        count = _num_begun(tokens, phrase)
        if count == len(phrase):
            num_complete += count
        else:
            longest_partial = max(longest_partial, count)
    return num_complete + longest_partial


def _num_begun(tokens: Sequence[int], phrase: Phrase) -> int:
    """Return the length of the longest prefix of the phrase that is a suffix of the tokens."""
    longest = min(len(phrase), len(tokens))
    for length in range(longest, 0, -1):
        suffix = tuple(tokens[-length:])
        if suffix == phrase[:length]:
            return length
    return 0


def _continuations(
    histories: list[list[int]], phrases: list[Phrase], log_prob_RV: Tensor, score_R: Tensor
) -> list[Continuation]:
    """Return the best continuations of each live beam, and those that add the next token of a phrase.

    The best tokens are selected per beam: a global selection would prune beams that have met phrases and score lower.
    """
    R, V = log_prob_RV.shape
    num_best = min(R + 1, V)  # R tokens besides eos
    best = log_prob_RV.topk(num_best, dim=1)
    best_tokens = best.indices.tolist()
    scores = score_R.tolist()
    num_tokens = sum(map(len, phrases))

    continuations = []
    for beam, history in enumerate(histories):
        if scores[beam] == -math.inf:
            continue

        # The best tokens, and the next token of each phrase that the history does not contain.
        open_phrases = missing(history, phrases)
        next_of_phrases = {phrase[_num_begun(history, phrase)] for phrase in open_phrases}
        tokens = sorted(next_of_phrases.union(best_tokens[beam]))
        new_score_X = log_prob_RV[beam, tokens] + score_R[beam]

        num_open = sum(map(len, open_phrases))
        num_complete = num_tokens - num_open
        for token, new_score in zip(tokens, new_score_X.tolist(), strict=True):
            if new_score == -math.inf:
                continue
            num_new = num_met([*history, token], open_phrases)
            continuation = Continuation(new_score, beam, token, num_complete + num_new)
            continuations.append(continuation)
    return continuations


def _allocate(continuations: list[Continuation], R: int) -> list[Continuation]:
    """Return the R selected continuations sorted by score, followed by the others sorted by score.

    Half of the R are the highest-scoring ones. The others are taken from the banks in turn: the best of each bank, from
    most to fewest met tokens, then the second best of each, and so on. This keeps beams that make progress, and beams
    that wait for the right position for a phrase.
    """
    ranked = sorted(continuations, key=lambda continuation: -continuation.score)
    num_best = R // 2
    selected = set(range(num_best))

    # Each turn is (number of better ones in the bank, minus the number of the bank, rank), and the lowest come first.
    turns = []
    num_offered: Counter[int] = Counter()
    for rank in range(num_best, len(ranked)):
        bank = ranked[rank].num_met
        turns.append((num_offered[bank], -bank, rank))
        num_offered[bank] += 1
    turns.sort()
    for _, _, rank in turns[: R - num_best]:
        selected.add(rank)

    chosen = []
    unchosen = []
    for rank, continuation in enumerate(ranked):
        if rank in selected:
            chosen.append(continuation)
        else:
            unchosen.append(continuation)
    return chosen + unchosen

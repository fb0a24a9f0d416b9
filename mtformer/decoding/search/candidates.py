"""Candidates: the continuations from which a search step chooses.

B sentences, U of them not finished, R beams each, V vocabulary, I = R x V indices beam * V + token, t tokens so far,
K candidates, X selected candidates or columns, C columns of a chunk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64
"""Number of vocabulary columns per chunk; `top_candidates` computes the maximum of each chunk first."""

Correction = Callable[[Tensor, Tensor], Tensor]
"""Function (beam_BX, token_BX) -> values (B, X) to add to the rounded log-probabilities of these tokens."""


@dataclass
class Step:
    """One step of a search, before the choice of candidates."""

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

    @property
    def position(self) -> int:
        """Number of tokens so far."""
        return self.history_URt.size(2)


class Candidates(NamedTuple):
    """Possible continuations of each sentence, best first."""

    score_BK: Tensor
    """Sum of the log-probabilities as modified by the rules."""
    beam_BK: Tensor
    token_BK: Tensor

    def first(self, num_candidates: int) -> "Candidates":
        """Return the first candidates of each sentence."""
        parts = [part_BK[:, :num_candidates] for part_BK in self]
        return Candidates(*parts)

    def gather(self, place_BX: Tensor) -> "Candidates":
        """Return the candidates with these places, in this order."""
        parts = [part_BK.gather(1, place_BX) for part_BK in self]
        return Candidates(*parts)


def best_candidates(step: Step, score_UR: Tensor, K: int) -> Candidates:
    """Return the continuations with the highest scores, best first.

    Args:
        step: the step, with the log-probabilities of the next tokens.
        score_UR: scores of the beams so far.
        K: number of candidates per sentence.
    """
    return top_candidates(step.log_prob_URV, score_UR, K, step.correct)


def top_candidates(log_prob_BRV: Tensor, score_BR: Tensor, K: int, correct: Correction | None = None) -> Candidates:
    """Return the K pairs of beam and token with the highest score_BR + log_prob_BRV, best first.

    The result is exact. Selecting among all R x V sums is slow on a CPU, but the K best are in the K chunks of columns
    with the highest maxima. The maxima take one vectorized pass, and only these columns are ranked.

    Args:
        log_prob_BRV: log-probabilities of the next token of each beam.
        score_BR: scores of the beams so far.
        K: number of candidates per sentence.
        correct: correction of rounded log-probabilities, which is applied to twice as many candidates, also in
            `log_prob_BRV`. Rounding to bf16 makes different values equal: without the correction, one translation in 15
            changes.
    """
    if correct is not None:
        return _corrected_candidates(log_prob_BRV, score_BR, K, correct)

    B, R, V = log_prob_BRV.shape
    num_chunks = R * (V // CHUNK)
    if num_chunks <= 2 * K:  # K chunks are at least half of all
        total_BRV = log_prob_BRV + score_BR.unsqueeze(2)
        score_BK, index_BK = total_BRV.flatten(1).topk(K)
    else:
        index_BX = _indices_of_best_chunks(log_prob_BRV, score_BR, K)
        log_prob_BI = log_prob_BRV.reshape(B, R * V)
        log_prob_BX = log_prob_BI.gather(1, index_BX)
        score_BX = score_BR.gather(1, index_BX // V)
        total_BX = log_prob_BX + score_BX
        score_BK, place_BK = total_BX.topk(K)
        index_BK = index_BX.gather(1, place_BK)

    beam_BK = index_BK // V
    token_BK = index_BK % V
    return Candidates(score_BK, beam_BK, token_BK)


def _corrected_candidates(log_prob_BRV: Tensor, score_BR: Tensor, K: int, correct: Correction) -> Candidates:
    """Return the best K of 2K candidates whose rounded log-probabilities are corrected, also in `log_prob_BRV`."""
    V = log_prob_BRV.size(2)
    num_corrected = max(4, 2 * K)
    _, beam_BX, token_BX = top_candidates(log_prob_BRV, score_BR, num_corrected)
    index_BX = torch.add(token_BX, beam_BX, alpha=V)
    log_prob_BI = log_prob_BRV.view(len(index_BX), -1)
    rounded_BX = log_prob_BI.gather(1, index_BX)
    log_prob_BX = rounded_BX + correct(beam_BX, token_BX)

    # These candidates hold most of the probability mass, so the correction changes the normalization too.
    added_BX = log_prob_BX.exp() - rounded_BX.exp()
    added_BR = torch.zeros_like(score_BR)
    added_BR.scatter_add_(1, beam_BX, added_BX)
    log_norm_BR = added_BR.log1p()
    log_prob_BX -= log_norm_BR.gather(1, beam_BX)
    log_prob_BI.scatter_(1, index_BX, log_prob_BX)

    score_BX = score_BR.gather(1, beam_BX)
    total_BX = score_BX + log_prob_BX
    score_BK, place_BK = total_BX.topk(K)
    beam_BK = beam_BX.gather(1, place_BK)
    token_BK = token_BX.gather(1, place_BK)
    return Candidates(score_BK, beam_BK, token_BK)


def _indices_of_best_chunks(log_prob_BRV: Tensor, score_BR: Tensor, K: int) -> Tensor:
    """Return the indices beam * V + token of the K best chunks and of the columns after the last chunk."""
    B, R, V = log_prob_BRV.shape
    device = log_prob_BRV.device
    num_chunks = V // CHUNK
    end = num_chunks * CHUNK

    # The K chunks of all beams with the highest maxima; chunk c of beam r has the number r * num_chunks + c.
    chunks_BRXC = log_prob_BRV[..., :end].unflatten(2, (num_chunks, CHUNK))
    max_BRX = chunks_BRXC.amax(dim=3)
    total_BRX = max_BRX + score_BR.unsqueeze(2)
    best = total_BRX.flatten(1).topk(K, sorted=False)
    chunk_BK = best.indices

    # Before a chunk are the columns of all earlier chunks, and those after the last chunk of each earlier beam.
    num_rest = V - end
    beam_BK = chunk_BK // num_chunks
    first_BK = torch.add(chunk_BK * CHUNK, beam_BK, alpha=num_rest)
    column_C = torch.arange(CHUNK, device=device)
    index_BKC = first_BK.unsqueeze(2) + column_C
    index_BX = index_BKC.flatten(1)
    if num_rest == 0:
        return index_BX

    beam_R1 = torch.arange(R, device=device).unsqueeze(1)
    column_X = torch.arange(end, V, device=device)
    rest_RX = beam_R1 * V + column_X
    rest_BX = rest_RX.flatten().expand(B, -1)
    return torch.cat([index_BX, rest_BX], dim=1)

"""Shared parts of beam search, greedy search and sampling: candidate selection and hypotheses.

B sentences, R beams each, N rows, T target length, V vocabulary, K candidates, X selected candidates or columns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mtformer.text.tokenizer import PAD

CHUNK = 64  # number of vocabulary columns per chunk; `top_candidates` computes the maximum of each chunk first

Correction = Callable[[Tensor, Tensor], Tensor]
"""Function (beam_BX, token_BX) -> values (B, X) to add to the rounded log-probabilities of these tokens."""


class Candidates(NamedTuple):
    """Possible continuations of each sentence, best first."""

    score_BK: Tensor
    """Sum of the log-probabilities as modified by the rules."""
    beam_BK: Tensor
    token_BK: Tensor


@dataclass(frozen=True)
class Hypothesis:
    """A translation as token ids, without bos and eos.

    `token_log_probabilities` are the model's values for each token and eos, before any rules; `log_probability` is
    their sum. `at_limit` is True if it has the maximum length. `score` is log_probability / length^alpha, where the
    length includes eos, as in CTranslate2 (Wu et al. 2016, equation 14, without its constant 5).
    """

    tokens: list[int]
    score: float
    log_probability: float
    token_log_probabilities: list[float]
    at_limit: bool = False
    agreement: float | None = None
    """See `Translation.agreement`."""


def to_hypothesis(tokens: list[int], log_probs: list[float], alpha: float) -> Hypothesis:
    """Return the hypothesis with these log-probabilities, which include that of eos; `alpha`: length penalty."""
    log_probability, length = sum(log_probs), len(log_probs)
    score = log_probability / length**alpha if length else math.nan  # length 0: NaN scores, so no eos was found
    return Hypothesis(tokens, score, log_probability, log_probs)


def to_hypotheses(tokens_NT: Tensor, log_prob_NT: Tensor, alpha: float) -> list[Hypothesis]:
    """Return the hypothesis of each row of tokens, which end with eos and are padded on the right."""
    lengths = (tokens_NT != PAD).sum(dim=1).tolist()
    rows = zip(tokens_NT.tolist(), log_prob_NT.tolist(), lengths, strict=True)
    return [to_hypothesis(tokens[: n - 1], log_probs[:n], alpha) for tokens, log_probs, n in rows]


def sentences_to_keep(done_BX: Tensor, position: int) -> Tensor | None:
    """Return the indices of sentences with an unfinished part if removing the others saves time, else None.

    Removing sentences copies the cache. Reading the flags synchronizes with a GPU, so on a GPU
    sentences are removed only at every fourth step.
    """
    if done_BX.device.type != "cpu" and position % 4 != 3:
        return None
    keep_M = (~done_BX.all(dim=1)).nonzero().squeeze(1)
    num_done = done_BX.size(0) - keep_M.size(0)
    return keep_M if num_done * 8 >= done_BX.size(0) else None


def top_candidates(log_prob_BRV: Tensor, score_BR: Tensor, K: int, correct: Correction | None = None) -> Candidates:
    """Return the K pairs of beam and token with the highest score_BR + log_prob_BRV, best first.

    The result is exact. Selecting among all R x V sums is slow on a CPU, but the K best are in the K chunks of columns
    with the highest maxima. The maxima take one vectorized pass, and only these columns are ranked.

    `correct` corrects rounded log-probabilities, in place; it is applied to twice as many candidates. Rounding to bf16
    makes different values equal: without the correction, one translation in 15 changes.
    """
    if correct is not None:
        _, beam_BX, token_BX = top_candidates(log_prob_BRV, score_BR, max(4, 2 * K))
        index_BX = torch.add(token_BX, beam_BX, alpha=log_prob_BRV.size(2))
        rounded_BX = log_prob_BRV.flatten(1).gather(1, index_BX)
        log_prob_BX = rounded_BX + correct(beam_BX, token_BX)
        # These candidates hold most of the probability mass, so the correction changes the normalization too.
        more_BR = torch.zeros_like(score_BR).scatter_add_(1, beam_BX, log_prob_BX.exp() - rounded_BX.exp())
        log_prob_BX -= more_BR.log1p().gather(1, beam_BX)
        log_prob_BRV.view(len(index_BX), -1).scatter_(1, index_BX, log_prob_BX)
        score_BK, place_BK = (score_BR.gather(1, beam_BX) + log_prob_BX).topk(K)
        return Candidates(score_BK, beam_BX.gather(1, place_BK), token_BX.gather(1, place_BK))
    B, R, V = log_prob_BRV.shape
    num_chunks = V // CHUNK
    if R * num_chunks <= 2 * K:
        score_BK, index_BK = (log_prob_BRV + score_BR.unsqueeze(2)).flatten(1).topk(K)
    else:
        index_BX = _indices_of_best_chunks(log_prob_BRV, score_BR, K, num_chunks)
        candidate_BX = log_prob_BRV.reshape(B, R * V).gather(1, index_BX) + score_BR.gather(1, index_BX // V)
        score_BK, place_BK = candidate_BX.topk(K)
        index_BK = index_BX.gather(1, place_BK)
    return Candidates(score_BK, index_BK // V, index_BK % V)


def _indices_of_best_chunks(log_prob_BRV: Tensor, score_BR: Tensor, K: int, num_chunks: int) -> Tensor:
    """Return the indices beam * V + token of the K best chunks and of the columns after the last chunk."""
    B, R, V = log_prob_BRV.shape
    device = log_prob_BRV.device
    end = num_chunks * CHUNK
    best_BRX = log_prob_BRV[..., :end].unflatten(2, (num_chunks, CHUNK)).amax(dim=3)
    chunk_BK = (best_BRX + score_BR.unsqueeze(2)).flatten(1).topk(K, sorted=False).indices
    first_BK = torch.add(chunk_BK * CHUNK, chunk_BK // num_chunks, alpha=V - end)
    index_BX = (first_BK.unsqueeze(2) + torch.arange(CHUNK, device=device)).flatten(1)
    if end == V:
        return index_BX
    rest_RX = torch.arange(R, device=device).unsqueeze(1) * V + torch.arange(end, V, device=device)
    return torch.cat([index_BX, rest_RX.flatten().expand(B, -1)], dim=1)

"""The best continuations of a batch of beams.

B sentences, R beams a sentence, V vocabulary, K candidates asked for, C columns of a chunk.
"""

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK = 64


Exact = Callable[[Tensor, Tensor], Tensor]
"""(beam_BX, token_BX) -> what to add to their log-probabilities (B, X), which are rounded."""


def top_candidates(
    log_prob_BRV: Tensor, score_BR: Tensor, K: int, exact: Exact | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The K pairs of beam and token with the highest score_BR + log_prob_BRV, best first, without approximation.

    Selecting over all R x V sums is slow on a CPU. The K best stand in the K chunks of columns whose maxima are the
    highest, a maximum is one vectorised pass, and only those chunks are sorted.

    Args:
        exact: when given, twice as many are looked at, put right by it (in log_prob_BRV, too), and the best of them
            taken. Rounding to bf16 makes ties of what differs: without this one line in 15 comes out another.

    Returns:
        score_BK, beam_BK and token_BK.
    """
    if exact is not None:
        _, beam_BX, token_BX = top_candidates(log_prob_BRV, score_BR, max(4, 2 * K))
        index_BX = beam_BX * log_prob_BRV.size(2) + token_BX
        rounded_BX = log_prob_BRV.flatten(1).gather(1, index_BX)
        log_prob_BX = rounded_BX + exact(beam_BX, token_BX)
        # They hold most of the probability, so the sum over the vocabulary changes with them.
        more_BR = torch.zeros_like(score_BR).scatter_add_(1, beam_BX, log_prob_BX.exp() - rounded_BX.exp())
        log_prob_BX -= more_BR.log1p().gather(1, beam_BX)
        log_prob_BRV.view(len(index_BX), -1).scatter_(1, index_BX, log_prob_BX)
        score_BK, place_BK = (score_BR.gather(1, beam_BX) + log_prob_BX).topk(K)
        return score_BK, beam_BX.gather(1, place_BK), token_BX.gather(1, place_BK)
    B, R, V = log_prob_BRV.shape
    flat_BX = log_prob_BRV.reshape(B, R * V)
    num_chunks = V // CHUNK
    if R * num_chunks <= 2 * K:
        score_BK, index_BK = (log_prob_BRV + score_BR.unsqueeze(2)).flatten(1).topk(K)
        return score_BK, index_BK // V, index_BK % V
    index_BX = _promising(log_prob_BRV, score_BR, K, num_chunks)
    candidate_BX = flat_BX.gather(1, index_BX) + score_BR.gather(1, index_BX // V)
    score_BK, place_BK = candidate_BX.topk(K)
    index_BK = index_BX.gather(1, place_BK)
    return score_BK, index_BK // V, index_BK % V


def _promising(log_prob_BRV: Tensor, score_BR: Tensor, K: int, num_chunks: int) -> Tensor:
    """Indices beam x V + token that must hold the K best: the K best chunks, and the columns that fill no chunk."""
    B, R, V = log_prob_BRV.shape
    device = log_prob_BRV.device
    whole = num_chunks * CHUNK
    best_BRX = log_prob_BRV[..., :whole].unflatten(2, (num_chunks, CHUNK)).amax(dim=3)
    chunk_BK = (best_BRX + score_BR.unsqueeze(2)).flatten(1).topk(K, sorted=False).indices
    first_BK = chunk_BK // num_chunks * V + chunk_BK % num_chunks * CHUNK
    index_BX = (first_BK.unsqueeze(2) + torch.arange(CHUNK, device=device)).flatten(1)
    if whole == V:
        return index_BX
    rest_RX = torch.arange(R, device=device).unsqueeze(1) * V + torch.arange(whole, V, device=device)
    return torch.cat([index_BX, rest_RX.flatten().expand(B, -1)], dim=1)

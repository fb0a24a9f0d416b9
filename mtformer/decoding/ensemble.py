"""Several models as one: the mean of their probabilities.

B sentences, S source length, N rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Generic

import torch
from torch import Tensor

from mtformer.decoding.protocol import CacheT, Decodable


class EnsembleCache(Generic[CacheT]):
    """One cache per member."""

    def __init__(self, caches: list[CacheT]) -> None:
        self.caches = caches

    def reorder(self, rows_N: Tensor) -> None:
        """Let row i continue the history of row rows_N[i], in each member."""
        for cache in self.caches:
            cache.reorder(rows_N)

    def keep(self, sentences_B: Tensor) -> None:
        """Keep only these sentences in the batch, in each member."""
        for cache in self.caches:
            cache.keep(sentences_B)


class Ensemble(Generic[CacheT]):
    """Models with one vocabulary; p(token) is the mean over the members. Any sizes may go together."""

    def __init__(self, models: Sequence[Decodable[CacheT]]) -> None:
        self.models = models

    def start(self, src_BS: Tensor, src_lengths_B: Tensor, num_beams: int, max_length: int) -> EnsembleCache[CacheT]:
        """Return an empty cache of each member."""
        return EnsembleCache([model.start(src_BS, src_lengths_B, num_beams, max_length) for model in self.models])

    def step(self, token_N: Tensor, cache: EnsembleCache[CacheT]) -> tuple[Tensor, None]:
        """Return the log-probabilities (N, V) of the token after token_N, in float32."""
        logits = [model.step(token_N, one)[0] for model, one in zip(self.models, cache.caches, strict=True)]
        return mean_log_probs(logits), None


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """log of the mean of the members' probabilities, (..., V) in float32; of one member its log-probabilities."""
    log_probs = torch.stack([torch.log_softmax(one, dim=-1, dtype=torch.float32) for one in logits])
    return log_probs.logsumexp(dim=0) - math.log(len(logits))

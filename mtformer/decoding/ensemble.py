"""Several models as one: the mean of their probabilities.

B sentences, S source length, N rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Generic

import torch
from torch import Tensor

from mtformer.decoding.protocol import CacheT, Decodable, ExactLogits, MemoryT


class EnsembleCache(Generic[CacheT]):
    """One cache a member."""

    exact_logits: ExactLogits | None = None

    def __init__(self, caches: list[CacheT]) -> None:
        self.caches = caches

    def reorder(self, rows_N: Tensor) -> None:
        """Row i goes on from the history of rows_N[i], in each member."""
        for cache in self.caches:
            cache.reorder(rows_N)

    def keep(self, sentences_B: Tensor) -> None:
        """Only these sentences stay in the batch, in each member."""
        for cache in self.caches:
            cache.keep(sentences_B)


class Ensemble(Generic[MemoryT, CacheT]):
    """Models with one vocabulary; p(token) is the mean over the members. Any sizes may go together."""

    def __init__(self, models: Sequence[Decodable[MemoryT, CacheT]]) -> None:
        self.models = models

    def encode(self, src_BS: Tensor, src_lengths_B: Tensor) -> list[MemoryT]:
        """What each member makes of the source."""
        return [model.encode(src_BS, src_lengths_B) for model in self.models]

    def start(self, memory: list[MemoryT], num_beams: int, max_length: int) -> EnsembleCache[CacheT]:
        """An empty cache of each member."""
        pairs = zip(self.models, memory, strict=True)
        return EnsembleCache([model.start(one, num_beams, max_length) for model, one in pairs])

    def step(self, token_N: Tensor, cache: EnsembleCache[CacheT]) -> Tensor:
        """Log-probabilities (N, V) of the token after token_N, in float32."""
        logits = [model.step(token_N, one) for model, one in zip(self.models, cache.caches, strict=True)]
        return mean_log_probs(logits)


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """log of the mean of the members' probabilities, (..., V) in float32; of one member its log-probabilities."""
    log_probs = torch.stack([torch.log_softmax(one, dim=-1, dtype=torch.float32) for one in logits])
    return log_probs.logsumexp(dim=0) - math.log(len(logits))

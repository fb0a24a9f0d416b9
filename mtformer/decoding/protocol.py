"""What search asks of a model, and what it gives back.

B sentences, S source length, N rows (B x beams of a sentence, row b*R + r), V vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor


class Cache(Protocol):
    """State of a model between two steps."""

    def reorder(self, rows_N: Tensor, /) -> None:
        """Let row i continue the history of row rows_N[i], which belongs to the same sentence."""

    def keep(self, sentences_B: Tensor, /) -> None:
        """Keep only these sentences in the batch, in this order, each with all its rows."""


ExactLogits = Callable[[Tensor, Tensor], Tensor]
"""(rows (...,), tokens (...,)) -> logits (...,) in float32."""
CacheT = TypeVar("CacheT", bound=Cache)


class Decodable(Protocol[CacheT]):
    """A model, or several that act as one."""

    def start(self, src_BS: Tensor, src_lengths_B: Tensor, num_beams: int, max_length: int, /) -> CacheT:
        """Encode source ids (eos at the end, padded on the right; lengths count eos) and return an empty cache.

        It has room for `max_length` steps of B x num_beams rows.
        """

    def step(self, token_N: Tensor, cache: CacheT, /) -> tuple[Tensor, ExactLogits | None]:
        """Return the logits (N, V) of the token after token_N, and a way to exact ones if these are rounded."""


@dataclass(frozen=True)
class Hypothesis:
    """One translation in token ids, without bos and eos.

    `token_log_probabilities` are the model's own, one a token and one for eos, whatever rules steered the search;
    `log_probability` is their sum. `at_limit`: it is as long as it may be. `score` is
    log_probability / length^alpha, where the length counts eos: the normalisation of CTranslate2 (Wu et al. 2016,
    equation 14, without its constant 5).
    """

    tokens: list[int]
    score: float
    log_probability: float
    token_log_probabilities: list[float]
    at_limit: bool = False


def to_hypotheses(tokens_NT: Tensor, log_prob_NT: Tensor, length_N: Tensor, alpha: float) -> list[Hypothesis]:
    """Rows as hypotheses. Lengths count eos; what lies beyond them is ignored.

    Args:
        tokens_NT: int64, eos last.
        log_prob_NT: float, one a token.
        length_N: int64.
        alpha: the length penalty.
    """
    found = []
    for tokens, log_probs, length in zip(tokens_NT.tolist(), log_prob_NT.tolist(), length_N.tolist(), strict=True):
        log_probability = sum(log_probs[:length])
        score = log_probability / length**alpha if length else math.nan  # 0: eos was not found among NaN
        found.append(Hypothesis(tokens[: length - 1], score, log_probability, log_probs[:length]))
    return found

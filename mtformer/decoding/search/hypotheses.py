"""Hypotheses: the result of a search.

N hypotheses, T target length.
"""

import math
from dataclasses import dataclass

from torch import Tensor

from mtformer.text.tokenizer import PAD


@dataclass(frozen=True)
class Hypothesis:
    """A translation as token ids, without bos and eos."""

    tokens: list[int]
    score: float
    """log_probability / length^length_penalty, where the length includes eos, as in CTranslate2 (Wu et al. 2016,
    equation 14, without its constant 5)."""
    log_probability: float
    """Log-probability of all tokens and eos."""
    token_log_probabilities: list[float]
    """The model's values for each token and eos, before any rules; empty if the backend returns only their sum."""
    at_limit: bool = False
    """True if it has the maximum length."""
    agreement: float | None = None
    """See `Translation.agreement`."""


def to_hypothesis(tokens: list[int], log_probs: list[float], length_penalty: float) -> Hypothesis:
    """Return the hypothesis with these tokens.

    Args:
        tokens: ids, without eos.
        log_probs: log-probability of each token and of eos.
        length_penalty: exponent of the length in the score, see `Hypothesis.score`.
    """
    log_probability = sum(log_probs)
    length = len(log_probs)
    # A search whose scores are NaN finds no eos, so its hypotheses have length 0.
    score = log_probability / length**length_penalty if length > 0 else math.nan
    return Hypothesis(tokens, score, log_probability, token_log_probabilities=log_probs)


def to_hypotheses(tokens_NT: Tensor, log_prob_NT: Tensor, length_penalty: float) -> list[Hypothesis]:
    """Return the hypothesis of each row.

    Args:
        tokens_NT: ids, which end with eos and are padded on the right.
        log_prob_NT: log-probability of each token and of eos.
        length_penalty: see `to_hypothesis`.
    """
    is_token_NT = tokens_NT != PAD
    length_N = is_token_NT.sum(dim=1)
    rows = zip(tokens_NT.tolist(), log_prob_NT.tolist(), length_N.tolist(), strict=True)
    hypotheses = []
    for tokens, log_probs, length in rows:
        tokens_without_eos = tokens[: length - 1]
        hypothesis = to_hypothesis(tokens_without_eos, log_probs[:length], length_penalty)
        hypotheses.append(hypothesis)
    return hypotheses

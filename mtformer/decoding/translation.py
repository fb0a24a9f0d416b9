"""What a translator gives back for a line.

S source pieces, T target pieces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from mtformer.decoding.alignment import align
from mtformer.decoding.long_lines import join_lines


@dataclass(frozen=True)
class Attention:
    """Where each target piece looks in the source: weights (T, S), the mean over heads; eos is left out of both."""

    src_pieces: list[str]
    tgt_pieces: list[str]
    weights: list[list[float]]

    @cached_property
    def alignment(self) -> list[tuple[int, int]]:
        """(source word, target word), counted from 0, words as whitespace separates them; one pair a target word."""
        return align(torch.tensor(self.weights), self.src_pieces, self.tgt_pieces) if self.weights else []


@dataclass(frozen=True)
class Translation:
    """A translation of one line.

    Args:
        text: one line, without its end.
        score: log-probability / length^alpha, plus the coverage penalty when there is one; 0 for a blank line.
        tokens: ids without eos.
        log_probability: of the tokens and eos, in nats.
        token_log_probabilities: one a token, eos last; of a line that was split, with one eos a part.
        flags: why to doubt it: see `mtformer.decoding.flags`, and phrases that were asked for and are missing.
        attention: when asked for.
        alternatives: with `n_best`, the others, best first.
    """

    text: str
    score: float
    tokens: list[int]
    log_probability: float = 0.0
    token_log_probabilities: list[float] = field(default_factory=list)
    flags: tuple[str, ...] = ()
    attention: Attention | None = None
    alternatives: tuple["Translation", ...] = ()

    @property
    def length(self) -> int:
        """Tokens, eos not counted."""
        return len(self.tokens)


@dataclass(frozen=True)
class Scored:
    """A given translation: its pieces, `</s>` last, and the log-probability of each, in nats."""

    pieces: list[str]
    token_log_probabilities: list[float]

    @property
    def log_probability(self) -> float:
        """Of the whole."""
        return sum(self.token_log_probabilities)


def join(parts: Sequence[Translation], alpha: float) -> Translation:
    """The translations of a line's parts as one; its score is that of the summed log-probability.

    Args:
        parts: in order.
        alpha: the length penalty.
    """
    if len(parts) == 1:
        return parts[0]
    log_probs = [one for part in parts for one in part.token_log_probabilities]
    log_probability = sum(part.log_probability for part in parts)
    return Translation(
        text=join_lines(part.text for part in parts),
        score=log_probability / max(1, len(log_probs)) ** alpha,
        tokens=[token for part in parts for token in part.tokens],
        log_probability=log_probability,
        token_log_probabilities=log_probs,
        flags=tuple(dict.fromkeys(flag for part in parts for flag in part.flags)),
        attention=_join_attention([part.attention for part in parts if part.attention is not None]),
    )


def _join_attention(parts: Sequence[Attention]) -> Attention | None:
    """One matrix with the parts' matrices along its diagonal."""
    if not parts:
        return None
    src_pieces = [piece for part in parts for piece in part.src_pieces]
    weights, before = [], 0
    for part in parts:
        after = len(src_pieces) - before - len(part.src_pieces)
        weights += [[0.0] * before + row + [0.0] * after for row in part.weights]
        before += len(part.src_pieces)
    return Attention(src_pieces, [piece for part in parts for piece in part.tgt_pieces], weights)

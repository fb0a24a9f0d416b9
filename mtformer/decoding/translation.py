"""What a translator gives back for a line.

S source pieces, T target pieces.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from mtformer.decoding.alignment import align, word_numbers
from mtformer.decoding.long_lines import join_lines, needs_space
from mtformer.text.tokenizer import SPACE


@dataclass(frozen=True)
class Attention:
    """Where each target piece looks in the source; eos is left out of both.

    Args:
        src_pieces, tgt_pieces: the text, as pieces.
        weights: a row for each target piece, the mean over heads. Most often it is as long as `src_pieces`; of a line
            that was split it holds the pieces of one part.
        src_starts: the source piece that each row begins at: 0 but for lines that were split.
    """

    src_pieces: list[str]
    tgt_pieces: list[str]
    weights: list[list[float]]
    src_starts: list[int]

    @cached_property
    def alignment(self) -> list[tuple[int, int]]:
        """(source word, target word), counted from 0, words as whitespace separates them; one pair a target word."""
        src_words, tgt_words = word_numbers(self.src_pieces), word_numbers(self.tgt_pieces)
        pairs, first = [], 0
        for start, rows in itertools.groupby(range(len(self.weights)), key=lambda row: self.src_starts[row]):
            weights_TS = torch.tensor([self.weights[row] for row in rows])
            after, end = first + weights_TS.size(0), start + weights_TS.size(1)
            some = align(weights_TS, self.src_pieces[start:end], self.tgt_pieces[first:after])
            pairs += [(src_words[start] + src, tgt_words[first] + tgt) for src, tgt in some]
            first = after
        return pairs


@dataclass(frozen=True)
class Translation:
    """A translation of one line.

    Args:
        text: one line, without its end.
        score: log-probability / length^alpha, plus the coverage penalty when there is one; 0 for a blank line.
        tokens: ids without eos.
        log_probability: of the tokens and eos, in nats.
        token_log_probabilities: one a token, eos last; of a line that was split, with one eos a part.
        pieces: what each of these tokens wrote, eos as `</s>`.
        flags: why to doubt it: see `mtformer.decoding.flags`, and phrases that were asked for and are missing.
        attention: when asked for.
        alternatives: with `n_best`, the others, best first.
    """

    text: str
    score: float
    tokens: list[int]
    log_probability: float = 0.0
    token_log_probabilities: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
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
    penalties = sum(part.score - _normalised(part, alpha) for part in parts)
    whole = Translation(
        text=join_lines(part.text for part in parts),
        score=0.0,
        tokens=[token for part in parts for token in part.tokens],
        log_probability=log_probability,
        token_log_probabilities=log_probs,
        pieces=[piece for part in parts for piece in part.pieces],
        flags=tuple(dict.fromkeys(flag for part in parts for flag in part.flags)),
        attention=_join_attention(parts),
    )
    return replace(whole, score=_normalised(whole, alpha) + penalties)


def _normalised(one: Translation, alpha: float) -> float:
    score: float = one.log_probability / max(1, len(one.token_log_probabilities)) ** alpha
    return score


def _join_attention(parts: Sequence[Translation]) -> Attention | None:
    """The rows of all parts, each with its place; pieces put together are still the text."""
    whole, text = Attention([], [], [], []), ""
    for part in parts:
        if part.attention is None:
            return None
        whole.src_starts.extend(len(whole.src_pieces) + start for start in part.attention.src_starts)
        whole.src_pieces.extend(part.attention.src_pieces)
        pieces, here = list(part.attention.tgt_pieces), part.text.strip()
        if text and here:
            pieces[0] = (SPACE if needs_space(text, here) else "") + pieces[0].removeprefix(SPACE)
        whole.tgt_pieces.extend(pieces)
        whole.weights.extend(part.attention.weights)
        text = here or text
    return whole

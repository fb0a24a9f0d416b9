"""Translations, the results of a `Translator`, and how those of a line's segments are joined.

S source pieces, T target pieces.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from mtformer.decoding.alignment import align, word_numbers
from mtformer.decoding.quality import FORBIDDEN, MISSING
from mtformer.decoding.sentences import join_lines, needs_space
from mtformer.text.pieces import SPACE


@dataclass(frozen=True)
class Attention:
    """Attention from target pieces to source pieces, both without eos.

    Args:
        src_pieces, tgt_pieces: the text, as pieces.
        weights: a row for each target piece, the mean over heads. It is as long as `src_pieces`, or as the pieces of
            one segment if the line was split.
        src_starts: the source piece at which each row begins: 0 but for lines that were split.
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
        score: log-probability / length^alpha, plus the coverage penalty if there is one; 0 for a blank line.
        tokens: ids without eos.
        log_probability: of the tokens and eos, in nats.
        token_log_probabilities: one a token, eos last; of a line that was split, with one eos a segment. Empty if an
            engine gives them on request only and nobody asked.
        pieces: the text of each of these tokens, eos as `</s>`.
        flags: reasons for doubt: see `mtformer.decoding.quality`, and required phrases that are missing.
        attention: if asked for.
        alternatives: with `n_best`, the others, the best first.
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
        """Number of tokens, eos not counted."""
        return len(self.tokens)


@dataclass(frozen=True)
class Scored:
    """The score of a given translation: its pieces, `</s>` last, and the log-probability of each, in nats."""

    pieces: list[str]
    token_log_probabilities: list[float]

    @property
    def log_probability(self) -> float:
        """The sum."""
        return sum(self.token_log_probabilities)


def join_n_best(segments: Sequence[Sequence[Translation]], alpha: float) -> Translation:
    """Return the n best of a line's segments as those of the line: the best of each, the second best of each ...

    A blank line has no segments; `alpha` is the length penalty.
    """
    if not segments:
        return Translation("", 0.0, [])
    first, *others = [join(of_rank, alpha) for of_rank in zip(*segments, strict=False)]
    return replace(first, alternatives=tuple(others)) if others else first


def join(segments: Sequence[Translation], alpha: float) -> Translation:
    """Return the translations of a line's segments as one; its score is that of the summed log-probability."""
    if len(segments) == 1:
        return segments[0]
    num_tokens = [len(one.tokens) + 1 for one in segments]
    log_probability = sum(one.log_probability for one in segments)
    penalties = sum(one.score - one.log_probability / n**alpha for one, n in zip(segments, num_tokens, strict=True))
    return Translation(
        text=join_lines(one.text for one in segments),
        score=log_probability / sum(num_tokens) ** alpha + penalties,
        tokens=[token for one in segments for token in one.tokens],
        log_probability=log_probability,
        token_log_probabilities=[value for one in segments for value in one.token_log_probabilities],
        pieces=[piece for one in segments for piece in one.pieces],
        flags=tuple(dict.fromkeys(flag for one in segments for flag in one.flags)),
        attention=_join_attention(segments),
    )


def flag_phrases(
    translation: Translation, prefix: str, required: Sequence[str], forbidden: Sequence[str]
) -> Translation:
    """Return the translation with a flag for each required phrase that it lacks and each forbidden one that it has."""
    text = translation.text
    wrong = [] if text.startswith(prefix) else [f"{MISSING}: {prefix}"]
    wrong += [f"{MISSING}: {phrase}" for phrase in required if phrase not in text]
    wrong += [f"{FORBIDDEN}: {phrase}" for phrase in forbidden if phrase in text]
    others = tuple(flag_phrases(other, prefix, required, forbidden) for other in translation.alternatives)
    return replace(translation, flags=(*translation.flags, *wrong), alternatives=others)


def _join_attention(segments: Sequence[Translation]) -> Attention | None:
    """Return the rows of all segments with the source piece that each begins at; the joined pieces are the text."""
    whole, text = Attention([], [], [], []), ""
    for one in segments:
        if one.attention is None:
            return None
        whole.src_starts.extend(len(whole.src_pieces) + start for start in one.attention.src_starts)
        whole.src_pieces.extend(one.attention.src_pieces)
        pieces, here = list(one.attention.tgt_pieces), one.text.strip()
        if text and here:
            pieces[0] = (SPACE if needs_space(text, here) else "") + pieces[0].removeprefix(SPACE)
        whole.tgt_pieces.extend(pieces)
        whole.weights.extend(one.attention.weights)
        text = here or text
    return whole

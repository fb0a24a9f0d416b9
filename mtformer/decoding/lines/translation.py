"""Translations returned by `Translator`: word alignments, and joining the segments of a line.

S source pieces (without eos), T target pieces, W source words, X target words. Words are separated by whitespace.
"""

import itertools
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from unicodedata import normalize

import torch
from torch import Tensor

from mtformer.decoding.lines.sentences import join_lines, needs_space
from mtformer.text.tokenizer import BYTE_PIECE, SPACE
from mtformer.text.words import whole_words

REPETITION, LENGTH_LIMIT, COPY, LOW_CONFIDENCE = "repetition", "length limit", "copy of the source", "low confidence"
FEWER_SENTENCES, NUMBERS, LOST_ADDRESS = "fewer sentences", "other numbers", "lost URL or e-mail address"
"""Values of `Translation.flags`."""
REPAIRED, LOST = "repaired tags", frozenset((NUMBERS, LOST_ADDRESS))
MISSING = "missing"  # prefix of flags that name a phrase, as in `missing: phrase`
MEANINGS = {
    MISSING: "lack{} a required phrase",
    REPETITION: "contain{} a repetition",
    LENGTH_LIMIT: "end{} at the maximum length",
    FEWER_SENTENCES: "contain{} fewer sentences than the source",
    NUMBERS: "contain{} other numbers than the source",
    LOST_ADDRESS: "lack{} a URL or e-mail address from the source",
    COPY: "repeat{} the source",
    LOW_CONFIDENCE: "show{} low confidence",
    REPAIRED: "contain{} tags that were unclosed or wrongly nested, and were repaired",
}
"""Description of each flag; `{}` becomes `s` if one translation has it, else an empty string."""


@dataclass(frozen=True)
class Attention:
    """Attention from target pieces to source pieces, without eos."""

    src_pieces: list[str]
    tgt_pieces: list[str]
    weights: list[list[float]]
    """One row per target piece, averaged over heads; a column per source piece, or per piece of one segment."""
    src_starts: list[int]
    """Index of the source piece in the first column of each row; nonzero only if the line was split."""

    @cached_property
    def alignment(self) -> list[tuple[int, int]]:
        """Pairs (source word, target word), one per target word, as indices from 0."""
        return [(src, tgt) for src, tgt, _ in self.links]

    @cached_property
    def links(self) -> list[tuple[int, int, float]]:
        """The pairs of `alignment`, each with the share of the target word's attention on the source word."""
        src_words, tgt_words = word_numbers(self.src_pieces), word_numbers(self.tgt_pieces)
        found, first = [], 0
        for start, rows in itertools.groupby(range(len(self.weights)), key=lambda row: self.src_starts[row]):
            weights_TS = torch.tensor([self.weights[row] for row in rows])
            after, end = first + weights_TS.size(0), start + weights_TS.size(1)
            some = _links(weights_TS, self.src_pieces[start:end], self.tgt_pieces[first:after])
            found += [(src_words[start] + src, tgt_words[first] + tgt, weight) for src, tgt, weight in some]
            first = after
        return found


@dataclass(frozen=True)
class Translation:
    """A translation of one line."""

    text: str
    """Translation without line breaks."""
    score: float
    """log_probability / length^alpha; 0 for a blank line."""
    tokens: list[int]
    """Token ids without eos."""
    log_probability: float = 0.0
    """Sum of the log-probabilities of the tokens and eos, in nats."""
    token_log_probabilities: list[float] = field(default_factory=list)
    """One for each of `pieces`; empty if the backend computes them only with `token_scores`."""
    pieces: list[str] = field(default_factory=list)
    """Text of each token, and `</s>` for eos; a split line has one eos per segment."""
    flags: tuple[str, ...] = ()
    """Warnings; each is a constant of this module, or names a missing phrase."""
    attention: Attention | None = None
    """Attention weights, computed only on request."""
    alternatives: tuple["Translation", ...] = ()
    """Other translations if `n_best` is above 1, best first."""
    confidence: float | None = None
    """Probability that the translation is good; None if the model has no calibration."""
    agreement: float | None = None
    """Mean similarity to the other beams, from 0 to 1, for the confidence; None if it was not computed."""


@dataclass(frozen=True)
class Scored:
    """Score of a given translation: its pieces, ending with `</s>`, and the log-probability of each in nats."""

    pieces: list[str]
    token_log_probabilities: list[float]

    @property
    def log_probability(self) -> float:
        """Sum of the log-probabilities of the tokens and eos, in nats."""
        return sum(self.token_log_probabilities)


def join_n_best(segments: Sequence[Sequence[Translation]], alpha: float) -> list[Translation]:
    """Join the n-best translations of a line's segments by rank: the best ones, the second best ones, and so on.

    A blank line has no segments. `alpha` is the exponent of the length penalty.
    """
    return [join(of_rank, alpha) for of_rank in zip(*segments, strict=False)] or [Translation("", 0.0, [])]


def join(segments: Sequence[Translation], alpha: float) -> Translation:
    """Join the translations of a line's segments; the score is computed from the total log-probability."""
    if len(segments) == 1:
        return segments[0]
    num_tokens = sum(len(one.tokens) + 1 for one in segments)
    log_probability = sum(one.log_probability for one in segments)
    agreements = [one.agreement for one in segments if one.agreement is not None]
    return Translation(
        text=join_lines(one.text for one in segments),
        score=log_probability / num_tokens**alpha,
        tokens=[token for one in segments for token in one.tokens],
        log_probability=log_probability,
        token_log_probabilities=[value for one in segments for value in one.token_log_probabilities],
        pieces=[piece for one in segments for piece in one.pieces],
        flags=tuple(dict.fromkeys(flag for one in segments for flag in one.flags)),
        attention=_join_attention(segments),
        confidence=min((one.confidence for one in segments if one.confidence is not None), default=None),
        agreement=fmean(agreements) if agreements else None,
    )


def flag_phrases(translation: Translation, prefix: str, required: Sequence[str]) -> Translation:
    """Return the translation with a flag for each missing required phrase."""
    wrong = [] if translation.text.startswith(prefix) else [f"{MISSING}: {prefix}"]
    missing = [phrase for phrase in required if not has_phrase(translation.text, phrase)]
    wrong += [f"{MISSING}: {phrase}" for phrase in missing]
    return replace(translation, flags=(*translation.flags, *wrong))


def has_phrase(text: str, phrase: str) -> bool:
    """Return True if a text contains a phrase as whole words; accents may be composed or decomposed."""
    pattern = whole_words(normalize("NFC", phrase))
    return pattern.search(normalize("NFC", text)) is not None


def in_case(one: Translation, change: Callable[[str], str]) -> Translation:
    """Return the translation after `change`, see `case_of`; `tokens` and `pieces` stay those of the search."""
    attention = one.attention
    if attention is not None:
        old = attention.tgt_pieces
        new = change("\0".join(old).replace(SPACE, " ")).replace(" ", SPACE).split("\0")
        pieces = [piece if BYTE_PIECE.fullmatch(piece) else cased for piece, cased in zip(old, new, strict=True)]
        attention = replace(attention, tgt_pieces=pieces)
    return replace(one, text=change(one.text), attention=attention)


def _join_attention(segments: Sequence[Translation]) -> Attention | None:
    """Join the attention of all segments; the joined target pieces form the joined text."""
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


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """Return the index of the word in which each piece begins; a lone space belongs to the next word."""
    ends = [word.end() for word in re.finditer(f"[^{SPACE}]+", "".join(pieces))]
    starts = itertools.accumulate(map(len, pieces), initial=0)
    # The first word that ends after the first character of the piece; no word begins after a final space.
    numbers = [bisect_left(ends, start + (piece != "")) for start, piece in zip(starts, pieces, strict=False)]
    return [min(number, max(0, len(ends) - 1)) for number in numbers]


def _links(attention_TS: Tensor, src_pieces: Sequence[str], tgt_pieces: Sequence[str]) -> list[tuple[int, int, float]]:
    """Return (source word, target word, share) for each target word and the source word that it attends to most.

    The share is the mean over the pieces of the target word. Rows and columns beyond the pieces (eos) are ignored.
    """
    if not all("".join(pieces).strip(SPACE) for pieces in (src_pieces, tgt_pieces)):
        return []
    tgt_words = word_numbers(tgt_pieces)
    weights_TW = _over_words(attention_TS[: len(tgt_pieces)], word_numbers(src_pieces))
    weights_XW = _over_words(weights_TW.T, tgt_words).T
    best_X = weights_XW.argmax(dim=1).tolist()
    lengths = Counter(tgt_words)
    return [(src := best_X[tgt], tgt, weights_XW[tgt, src].item() / length) for tgt, length in lengths.items()]


def _over_words(weights_TS: Tensor, words: Sequence[int]) -> Tensor:
    """Return the weights (T, W), summed over the columns that belong to each word."""
    sums_TW = weights_TS.new_zeros(len(weights_TS), words[-1] + 1)
    return sums_TW.index_add_(1, weights_TS.new_tensor(words).long(), weights_TS[:, : len(words)])

"""Translations returned by `Translator`: word alignments, and joining the segments of a line.

S source pieces (without eos), T target pieces, W source words, X target words. Words are separated by whitespace.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain, groupby
from statistics import fmean
from typing import TYPE_CHECKING, TypeVar
from unicodedata import normalize

from mtformer.decoding.lines.sentences import join_lines, needs_space
from mtformer.enums import StrEnum
from mtformer.text.case import Change
from mtformer.text.tokenizer import BYTE_PIECE, SPACE
from mtformer.text.words import whole_words

if TYPE_CHECKING:  # importing PyTorch takes a second, and processes without a model do not need it
    from torch import Tensor

Value = TypeVar("Value")


class Flag(StrEnum):
    """Warning about a translation, a value of `Translation.flags`."""

    MISSING = "missing"
    """Beginning of flags that name a required phrase, as in `missing: phrase`."""
    REPETITION = "repetition"
    LENGTH_LIMIT = "length limit"
    FEWER_SENTENCES = "fewer sentences"
    NUMBERS = "other numbers"
    LOST_ADDRESS = "lost URL or e-mail address"
    COPY = "copy of the source"
    LOW_CONFIDENCE = "low confidence"
    REPAIRED = "repaired tags"
    LOST_TAG = "lost tag"


LOST = frozenset((Flag.NUMBERS, Flag.LOST_ADDRESS))
"""Flags of translations that lost something; see `decoding.keep`."""

MEANINGS = {
    Flag.MISSING: "lack{} a required phrase",
    Flag.REPETITION: "contain{} a repetition",
    Flag.LENGTH_LIMIT: "end{} at the maximum length",
    Flag.FEWER_SENTENCES: "contain{} fewer sentences than the source",
    Flag.NUMBERS: "contain{} other numbers than the source",
    Flag.LOST_ADDRESS: "lack{} a URL or e-mail address from the source",
    Flag.COPY: "repeat{} the source",
    Flag.LOW_CONFIDENCE: "show{} low confidence",
    Flag.REPAIRED: "contain{} tags that were unclosed or wrongly nested, and were repaired",
    Flag.LOST_TAG: "lack{} the words of a tag, which is empty or around other words",
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
        import torch

        src_words = word_numbers(self.src_pieces)
        tgt_words = word_numbers(self.tgt_pieces)
        links = []

        # The rows of one segment have the same start, because its target pieces have the same source pieces.
        tgt_start = 0
        all_rows = range(len(self.weights))
        for src_start, rows in groupby(all_rows, key=self.src_starts.__getitem__):
            weights_TS = torch.tensor([self.weights[row] for row in rows])
            num_tgt_pieces, num_src_pieces = weights_TS.shape
            src_pieces = self.src_pieces[src_start : src_start + num_src_pieces]
            tgt_pieces = self.tgt_pieces[tgt_start : tgt_start + num_tgt_pieces]
            for src, tgt, share in _links(weights_TS, src_pieces, tgt_pieces):
                src_word = src_words[src_start] + src
                tgt_word = tgt_words[tgt_start] + tgt
                links.append((src_word, tgt_word, share))
            tgt_start += num_tgt_pieces
        return links


@dataclass(frozen=True)
class Translation:
    """A translation of one line."""

    text: str
    """Translation without line breaks."""
    score: float
    """log_probability / length^length_penalty; 0 for a blank line."""
    tokens: list[int]
    """Token ids without eos."""
    log_probability: float = 0.0
    """Sum of the log-probabilities of the tokens and eos, in nats."""
    token_log_probabilities: list[float] = field(default_factory=list)
    """One for each of `pieces`; empty if the backend computes them only with `token_scores`."""
    pieces: list[str] = field(default_factory=list)
    """Text of each token, and `</s>` for eos; a split line has one eos per segment."""
    flags: tuple[str, ...] = ()
    """Warnings; each is a `Flag`, or names a missing phrase after `Flag.MISSING`."""
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


def join_n_best(segments: Sequence[Sequence[Translation]], length_penalty: float) -> list[Translation]:
    """Join the n-best translations of a line's segments by rank: the best ones, the second best ones, and so on.

    Args:
        segments: translations of each segment, best first; a blank line has no segments.
        length_penalty: exponent of the length in the score.
    """
    by_rank = zip(*segments, strict=False)
    joined = [join(translations, length_penalty) for translations in by_rank]
    return joined or [Translation("", 0.0, [])]


def join(translations: Sequence[Translation], length_penalty: float) -> Translation:
    """Join the translations of a line's segments; the score is computed from the total log-probability."""
    if len(translations) == 1:
        return translations[0]

    texts = [translation.text for translation in translations]
    tokens = _concatenated([translation.tokens for translation in translations])
    pieces = _concatenated([translation.pieces for translation in translations])
    token_log_probs = _concatenated([translation.token_log_probabilities for translation in translations])
    flags = _concatenated([translation.flags for translation in translations])
    confidences = _known([translation.confidence for translation in translations])
    agreements = _known([translation.agreement for translation in translations])

    log_probability = sum(translation.log_probability for translation in translations)
    length = len(tokens) + len(translations)  # with the eos of each segment
    return Translation(
        text=join_lines(texts),
        score=log_probability / length**length_penalty,
        tokens=tokens,
        log_probability=log_probability,
        token_log_probabilities=token_log_probs,
        pieces=pieces,
        flags=tuple(dict.fromkeys(flags)),
        attention=_join_attention(translations),
        confidence=min(confidences, default=None),
        agreement=fmean(agreements) if agreements else None,
    )


def _concatenated(values: Sequence[Sequence[Value]]) -> list[Value]:
    return list(chain.from_iterable(values))


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def flag_phrases(translation: Translation, prefix: str, required: Sequence[str]) -> Translation:
    """Return the translation with a flag for each required phrase, or required beginning, that it lacks.

    Args:
        translation: translation of a line.
        prefix: required beginning; empty if there is none.
        required: required phrases.
    """
    missing = [phrase for phrase in required if not has_phrase(translation.text, phrase)]
    if not translation.text.startswith(prefix):
        missing.insert(0, prefix)
    flags = [f"{Flag.MISSING}: {phrase}" for phrase in missing]
    return replace(translation, flags=(*translation.flags, *flags))


def has_phrase(text: str, phrase: str) -> bool:
    """Return True if a text contains a phrase as whole words; accents may be composed or decomposed."""
    pattern = whole_words(normalize("NFC", phrase))
    return pattern.search(normalize("NFC", text)) is not None


def in_case(translation: Translation, change: Change, language: str = "") -> Translation:
    """Return the translation in another case; `tokens` and `pieces` stay those of the search.

    Args:
        translation: translation of a line.
        change: function of the case, see `case_of`.
        language: code of the target language, which may be unknown (empty).
    """
    attention = translation.attention
    if attention is not None:
        tgt_pieces = _pieces_in_case(attention.tgt_pieces, change, language)
        attention = replace(attention, tgt_pieces=tgt_pieces)
    return replace(translation, text=change(translation.text, language), attention=attention)


def _pieces_in_case(pieces: Sequence[str], change: Change, language: str) -> list[str]:
    """Return the pieces after a change of their whole text; pieces for single bytes stay the same."""
    text = "".join(pieces).replace(SPACE, " ")
    changed_text = change(text, language).replace(" ", SPACE)
    if len(changed_text) == len(text):
        ends = list(accumulate(map(len, pieces)))
        changed_pieces = [changed_text[end - len(piece) : end] for piece, end in zip(pieces, ends, strict=True)]
    else:
        # The text has no NUL, so this is where the pieces end, in words whose letters become more or fewer.
        text = "\0".join(pieces).replace(SPACE, " ")
        changed_pieces = change(text, language).replace(" ", SPACE).split("\0")

    result = []
    for piece, changed in zip(pieces, changed_pieces, strict=True):
        result.append(piece if BYTE_PIECE.fullmatch(piece) else changed)
    return result


def _join_attention(translations: Sequence[Translation]) -> Attention | None:
    """Join the attention of all segments; the joined target pieces form the joined text."""
    joined = Attention([], [], [], [])
    text_before = ""
    for translation in translations:
        attention = translation.attention
        if attention is None:
            return None

        tgt_pieces = list(attention.tgt_pieces)
        text = translation.text.strip()
        if text_before and text:
            space = SPACE if needs_space(text_before, text) else ""
            tgt_pieces[0] = space + tgt_pieces[0].removeprefix(SPACE)
        text_before = text or text_before

        num_src_pieces = len(joined.src_pieces)
        joined.src_starts.extend(num_src_pieces + start for start in attention.src_starts)
        joined.src_pieces.extend(attention.src_pieces)
        joined.tgt_pieces.extend(tgt_pieces)
        joined.weights.extend(attention.weights)
    return joined


def word_numbers(pieces: Sequence[str]) -> list[int]:
    """Return the index of the word in which each piece begins; a lone space belongs to the next word."""
    text = "".join(pieces)
    words = re.finditer(f"[^{SPACE}]+", text)
    word_ends = [word.end() for word in words]
    last_word = max(0, len(word_ends) - 1)

    numbers = []
    piece_start = 0
    for piece in pieces:
        # The first word that ends after the first character of the piece; no word begins after a final space.
        after_first_character = piece_start + len(piece[:1])
        number = bisect_left(word_ends, after_first_character)
        numbers.append(min(number, last_word))
        piece_start += len(piece)
    return numbers


def _links(
    attention_TS: "Tensor", src_pieces: Sequence[str], tgt_pieces: Sequence[str]
) -> list[tuple[int, int, float]]:
    """Return (source word, target word, share) for each target word and the source word that it attends to most.

    The share is the mean over the pieces of the target word. Rows and columns beyond the pieces (eos) are ignored.
    """
    if not _has_words(src_pieces) or not _has_words(tgt_pieces):
        return []

    src_words = word_numbers(src_pieces)
    tgt_words = word_numbers(tgt_pieces)
    without_eos_TS = attention_TS[: len(tgt_pieces)]
    weights_TW = _over_words(without_eos_TS, src_words)
    weights_XW = _over_words(weights_TW.T, tgt_words).T
    best_X = weights_XW.argmax(dim=1).tolist()

    links = []
    for tgt, num_pieces in Counter(tgt_words).items():
        src = best_X[tgt]
        share = weights_XW[tgt, src].item() / num_pieces
        links.append((src, tgt, share))
    return links


def _has_words(pieces: Sequence[str]) -> bool:
    return "".join(pieces).strip(SPACE) != ""


def _over_words(weights_TS: "Tensor", words: Sequence[int]) -> "Tensor":
    """Return the weights (T, W), summed over the columns that belong to each word."""
    num_words = words[-1] + 1
    sums_TW = weights_TS.new_zeros(len(weights_TS), num_words)
    word_of_column_S = weights_TS.new_tensor(words).long()
    without_eos_TS = weights_TS[:, : len(words)]
    return sums_TW.index_add_(1, word_of_column_S, without_eos_TS)

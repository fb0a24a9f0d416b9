"""Conversion of hypotheses to translations: selection of the n best, text, flags and attention.

S source length, T target length.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import eq
from statistics import fmean

from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.data.filters.numbers import numbers_differ
from mtformer.decoding.lines import translation as flag
from mtformer.decoding.lines.inputs import one_line
from mtformer.decoding.lines.sentences import UNSPACED, split_sentences
from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.decoding.search.engine import Engine, NBests
from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.segments import Segment
from mtformer.text.tokenizer import SPACE, UNK, TokenizerPair

END = "</s>"
UNKNOWN = f"{SPACE}⁇{SPACE}"  # piece whose decoded text is that of an unknown token
URL = re.compile(r"(?:https?://|www\.)[!-~]+", re.ASCII)
EMAIL = re.compile(r"[\w.%+-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII)
ADDRESS = re.compile(f"{URL.pattern}|{EMAIL.pattern}", re.ASCII)
THAI = re.compile("[\u0e00-\u0e7f]")  # letters of a script in which the end of a sentence is not marked
LOOP = re.compile(r"(\w)\1{7}")  # a repeated letter or digit, as in 3000000000000
MAX_LOOP_LENGTH = 8  # length in tokens of the longest sequence whose repetition is detected


@dataclass(frozen=True)
class Postprocessor:
    """Conversion of hypotheses to translations.

    With `token_scores`, it computes `Translation.token_log_probabilities` if the search has not done so, and with
    `agreement`, `Translation.agreement` of the best translation. For `in_digits` see `numbers_differ`.
    """

    engine: Engine
    tokenizers: TokenizerPair
    decoding: DecodingConfig
    attention: bool
    token_scores: bool
    agreement: bool
    in_digits: bool

    def __call__(self, segments: Sequence[Segment], found: NBests) -> list[list[Translation]]:
        """Return the n best translations of each segment; with `decoding.keep`, the faithful ones first."""
        if self.decoding.mbr_samples:
            found = [self._rank_by_utility(samples) for samples in found]
        elif self.agreement and self.decoding.beam_size > 1 and not self.decoding.sampling:
            found = [[self._compared(beams), *beams[1:]] for beams in found]
        if not self.decoding.keep:
            found = [n_best[: self.decoding.n_best] for n_best in found]
        pairs = [(segment, one) for segment, n_best in zip(segments, found, strict=True) for one in n_best]
        sources, targets = [segment.source for segment, _ in pairs], [one.tokens for _, one in pairs]
        if self.token_scores and not all(one.token_log_probabilities for _, one in pairs):
            scores = iter(self.engine.score(sources, targets))
            pairs = [(segment, replace(one, token_log_probabilities=next(scores))) for segment, one in pairs]
        weights = self.engine.attention(sources, targets) if self.attention and pairs else [None] * len(pairs)
        texts = self.tokenizers.tgt.decode(targets)
        each = zip(pairs, weights, texts, strict=True)
        translations = iter([self._translation(*pair, weights_TS, text) for pair, weights_TS, text in each])
        chosen = [[next(translations) for _ in n_best] for n_best in found]
        if self.decoding.keep:
            chosen = [sorted(n_best, key=lambda one: not flag.LOST.isdisjoint(one.flags)) for n_best in chosen]
        return [n_best[: self.decoding.n_best] for n_best in chosen]

    def _rank_by_utility(self, samples: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Return the distinct samples with the highest expected utilities."""
        texts = self.tokenizers.tgt.decode([one.tokens for one in samples])
        utilities = expected_utilities(texts)
        first = dict(zip(reversed(texts), reversed(samples), strict=True))
        return [first[text] for text in sorted(utilities, key=lambda text: -utilities[text])]

    def _compared(self, beams: Sequence[Hypothesis]) -> Hypothesis:
        """Return the best hypothesis with its agreement."""
        texts = self.tokenizers.tgt.decode([one.tokens for one in beams[: self.decoding.beam_size]])
        return replace(beams[0], agreement=agreement(texts))

    def _translation(self, segment: Segment, one: Hypothesis, weights_TS: Tensor | None, text: str) -> Translation:
        pieces = self.tokenizers.tgt.id_pieces(one.tokens)
        if UNK in one.tokens:
            pieces[: len(segment.prefix_pieces)] = segment.prefix_pieces
            text = self.tokenizers.tgt.decode_pieces(pieces)
            [unknown] = self.tokenizers.tgt.id_pieces([UNK])
            pieces = [UNKNOWN if piece == unknown else piece for piece in pieces]
        attention = None
        if weights_TS is not None:
            src_pieces = self.tokenizers.src.pieces(segment.text)
            if segment.continues_word:
                src_pieces[0] = src_pieces[0].removeprefix(SPACE)
            attention = Attention(src_pieces, pieces, weights_TS.tolist(), [0] * len(pieces))
        src_tokens, decoding = segment.source[:-1], self.decoding
        min_length = max(decoding.min_length, int(decoding.min_length_ratio * len(src_tokens)))
        of_text = text_flags(segment.text, text, self.in_digits)
        return Translation(
            text=one_line(text).strip(" "),
            score=one.score,
            tokens=one.tokens,
            log_probability=one.log_probability,
            token_log_probabilities=one.token_log_probabilities,
            pieces=[*pieces, END],
            flags=tuple(dict.fromkeys((*search_flags(src_tokens, one, min_length), *of_text))),
            attention=attention,
            agreement=one.agreement,
        )


def search_flags(src_tokens: Sequence[int], one: Hypothesis, min_length: int) -> Iterator[str]:
    """Yield the flags that depend on the tokens of a hypothesis; source ids and minimum length do not include eos."""
    if is_padded(one.tokens, min_length) or (is_looping(one.tokens) and not is_looping(src_tokens)):
        yield flag.REPETITION
    if one.at_limit:
        yield flag.LENGTH_LIMIT


def text_flags(source: str, text: str, in_digits: bool) -> Iterator[str]:
    """Yield the flags that depend on text: a copied source, or missing sentences, numbers or addresses."""
    num_sentences = 1 if THAI.search(text) else len(split_sentences(source))
    if LOOP.search(text) and not LOOP.search(source):
        yield flag.REPETITION
    if not text or (num_sentences > 1 and len(split_sentences(text)) < num_sentences):
        yield flag.FEWER_SENTENCES
    has_lost_address = not all(_has_address(text, found) for found in addresses(source))
    source, text = (unicodedata.normalize("NFKC", one) for one in (source, text))
    has_other_numbers = numbers_differ(source, text, in_digits=in_digits, is_strict=True)
    source, text = source.casefold(), text.casefold()
    is_short = len(text.split()) <= 2 and len(UNSPACED.findall(text)) <= 8 and (text.isascii() or len(text) < 40)
    if text.split() == source.split() and not is_short:  # names and URLs are often the same
        yield flag.COPY
    if has_other_numbers:
        yield flag.NUMBERS
    if has_lost_address:
        yield flag.LOST_ADDRESS


def _has_address(text: str, address: str) -> bool:
    """Return True if a text has the whole address; case matters only in the path of a URL."""
    host = re.split("(?<![:/])/", address, maxsplit=1)[0]
    whole = f"(?i:{re.escape(host)}){re.escape(address[len(host) :])}"
    return re.search(rf"(?<![\w@.-]){whole}(?![\w@/-]|\.\w)", text, re.ASCII) is not None


def addresses(line: str, kind: re.Pattern[str] = ADDRESS) -> list[str]:
    """Return the URLs and e-mail addresses in a line, or one kind of them, without punctuation after them."""
    return [found.rstrip(".,;:!?)]}>\"'") for found in kind.findall(line)]


def is_looping(tokens: Sequence[int]) -> bool:
    """Return True if a sequence of up to 8 tokens occurs at least four times in a row, spanning at least 8 tokens."""
    if len(tokens) - len(set(tokens)) < 6:  # too few repeated tokens for any loop
        return False
    for period in range(1, MAX_LOOP_LENGTH + 1):
        least = max(3 * period, 8 - period)
        is_same = list(map(eq, tokens[period:], tokens))
        if sum(is_same) >= least and any(same and len(list(run)) >= least for same, run in groupby(is_same)):
            return True
    return False


def is_padded(tokens: Sequence[int], min_length: int) -> bool:
    """Return True if the tokens end with a repetition, without which they would be fewer than `min_length`."""
    periods = range(max(1, len(tokens) - min_length + 1), len(tokens) // 2 + 1)
    return any(tokens[-period:] == tokens[-2 * period : -period] for period in periods)


def agreement(texts: Sequence[str]) -> float:
    """Return the mean F1 score of the distinct character 4-grams of the first text and each other; 1 without others."""
    # For the confidence, this is as useful as chrF, and faster.
    joined = [one.replace(" ", "") for one in texts]
    own, *others = ({text[i : i + 4] for i in range(max(1, len(text) - 3))} for text in joined)
    return fmean([2 * len(own & other) / (len(own) + len(other)) for other in others] or [1.0])


def expected_utilities(texts: Sequence[str]) -> dict[str, float]:
    """Return the mean sentence chrF2 of each text with all samples as references, for minimum Bayes risk decoding.

    See Eikema and Aziz 2020. Duplicate samples count as often as they occur.
    """
    from sacrebleu.metrics.chrf import CHRF

    scorer, counts = CHRF(), Counter(texts)
    return {
        text: sum(scorer.sentence_score(text, [other]).score * count for other, count in counts.items()) / len(texts)
        for text in counts
    }

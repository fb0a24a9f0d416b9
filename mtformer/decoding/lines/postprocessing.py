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

import regex
from torch import Tensor

from mtformer.config.schema import DecodingConfig
from mtformer.data.filters.numbers import NumberRules, numbers_differ
from mtformer.decoding.lines.inputs import one_line
from mtformer.decoding.lines.sentences import split_sentences
from mtformer.decoding.lines.translation import LOST, Attention, Flag, Translation
from mtformer.decoding.search.engine import Engine, NBests
from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.segments import Segment
from mtformer.text.characters import IS_IDEOGRAPH, IS_UNMARKED, IS_UNSPACED_LETTER
from mtformer.text.tokenizer import SPACE, UNK, TokenizerPair

END = "</s>"
"""Piece of eos."""
UNKNOWN = f"{SPACE}⁇{SPACE}"
"""Piece whose decoded text is that of an unknown token."""
URL = re.compile(r"(?:https?://|www\.)[!-~]+", re.ASCII)
EMAIL = re.compile(r"[\w.%+-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII)
ADDRESS = re.compile(f"{URL.pattern}|{EMAIL.pattern}", re.ASCII)
AFTER_ADDRESS = ".,;:!?)]}>\"'"
"""Punctuation that is no part of an address if it ends with it."""
LOOP = regex.compile(r"([\p{L}\p{N}_]\p{M}*+)\1{7}")
"""A repeated letter with its marks, or digit, as in 3000000000000."""
MAX_LOOP_LENGTH = 8
"""Length in tokens of the longest sequence whose repetition is detected."""
MIN_REPEATED = 6
"""Number of tokens that occur before in the shortest loop, in which a sequence of two tokens occurs four times."""
MAX_NAME_WORDS = 2
"""Maximum number of words of a text that may be equal to its source, because names often are."""
MAX_NAME_IDEOGRAPHS = 8
"""The same for characters of Chinese, Japanese and Yi."""
MAX_NAME_LETTERS = 16
"""The same for letters of other scripts without spaces, such as Thai and Tibetan."""
MAX_NAME_LENGTH = 40
"""The same for characters of other scripts; URLs, which are in ASCII, may be longer."""


@dataclass(frozen=True)
class Extras:
    """Values of translations that are computed only on request."""

    attention: bool
    token_scores: bool
    """`Translation.token_log_probabilities`, if the search has not computed them."""
    agreement: bool
    """`Translation.agreement` of the best translation."""


@dataclass(frozen=True)
class Postprocessor:
    """Conversion of hypotheses to translations."""

    engine: Engine
    tokenizers: TokenizerPair
    decoding: DecodingConfig
    extras: Extras
    number_rules: NumberRules
    """How the source and target languages write numbers."""

    def __call__(self, segments: Sequence[Segment], n_bests: NBests) -> list[list[Translation]]:
        """Return the n best translations of each segment; with `decoding.keep`, the faithful ones first."""
        candidates = [self._candidates(hypotheses) for hypotheses in n_bests]
        pairs = []
        for segment, hypotheses in zip(segments, candidates, strict=True):
            pairs += [(segment, hypothesis) for hypothesis in hypotheses]
        translations = self._translations(pairs)

        n_best_translations = []
        start = 0
        for hypotheses in candidates:
            end = start + len(hypotheses)
            n_best = self._chosen(translations[start:end])
            n_best_translations.append(n_best)
            start = end
        return n_best_translations

    def _candidates(self, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Return the hypotheses of a segment among which `_chosen` chooses, best first."""
        decoding = self.decoding
        has_beams = decoding.beam_size > 1 and not decoding.sampling
        candidates = list(hypotheses)
        if decoding.mbr_samples:
            candidates = self._rank_by_utility(hypotheses)
        elif self.extras.agreement and has_beams:
            candidates[0] = self._with_agreement(hypotheses)
        if decoding.keep:
            return candidates
        return candidates[: decoding.n_best]

    def _rank_by_utility(self, samples: Sequence[Hypothesis]) -> list[Hypothesis]:
        """Return the distinct samples with the highest expected utilities."""
        texts = self.tokenizers.tgt.decode([sample.tokens for sample in samples])
        utilities = expected_utilities(texts)
        # Of samples with the same text, the first is used.
        sample_of = dict(zip(reversed(texts), reversed(samples), strict=True))
        ranked_texts = sorted(utilities, key=lambda text: -utilities[text])
        return [sample_of[text] for text in ranked_texts]

    def _with_agreement(self, beams: Sequence[Hypothesis]) -> Hypothesis:
        """Return the best hypothesis with its agreement."""
        compared = beams[: self.decoding.beam_size]
        texts = self.tokenizers.tgt.decode([hypothesis.tokens for hypothesis in compared])
        return replace(beams[0], agreement=agreement(texts))

    def _chosen(self, translations: Sequence[Translation]) -> list[Translation]:
        """Return the n best of a segment's candidates."""
        if self.decoding.keep:
            translations = sorted(translations, key=lambda translation: not LOST.isdisjoint(translation.flags))
        return list(translations[: self.decoding.n_best])

    def _translations(self, pairs: Sequence[tuple[Segment, Hypothesis]]) -> list[Translation]:
        """Return the translation of each segment by its hypothesis."""
        segments = [segment for segment, _ in pairs]
        hypotheses = [hypothesis for _, hypothesis in pairs]
        sources = [segment.source for segment in segments]
        targets = [hypothesis.tokens for hypothesis in hypotheses]

        have_scores = all(hypothesis.token_log_probabilities for hypothesis in hypotheses)
        if self.extras.token_scores and not have_scores:
            scores = self.engine.score(sources, targets)
            scored = zip(hypotheses, scores, strict=True)
            hypotheses = [replace(hypothesis, token_log_probabilities=log_probs) for hypothesis, log_probs in scored]
        weights: Sequence[Tensor | None] = [None] * len(pairs)
        if self.extras.attention and pairs:
            weights = self.engine.attention(sources, targets)

        texts = self.tokenizers.tgt.decode(targets)
        translations = []
        for segment, hypothesis, weights_TS, text in zip(segments, hypotheses, weights, texts, strict=True):
            translation = self._translation(segment, hypothesis, weights_TS, text)
            translations.append(translation)
        return translations

    def _translation(
        self, segment: Segment, hypothesis: Hypothesis, weights_TS: Tensor | None, text: str
    ) -> Translation:
        """Return the translation of a segment; `text` is the decoded text of the hypothesis."""
        tokenizer = self.tokenizers.tgt
        pieces = tokenizer.id_pieces(hypothesis.tokens)
        if UNK in hypothesis.tokens:
            # The prefix is written as given, even if the vocabulary lacks some of its characters.
            num_prefix_pieces = len(segment.prefix_pieces)
            pieces[:num_prefix_pieces] = segment.prefix_pieces
            text = tokenizer.decode_pieces(pieces)
            [unknown] = tokenizer.id_pieces([UNK])
            pieces = [UNKNOWN if piece == unknown else piece for piece in pieces]

        attention = None
        if weights_TS is not None:
            attention = self._attention(segment, pieces, weights_TS)
        return Translation(
            text=one_line(text).strip(" "),
            score=hypothesis.score,
            tokens=hypothesis.tokens,
            log_probability=hypothesis.log_probability,
            token_log_probabilities=hypothesis.token_log_probabilities,
            pieces=[*pieces, END],
            flags=self._flags(segment, hypothesis, text),
            attention=attention,
            agreement=hypothesis.agreement,
        )

    def _attention(self, segment: Segment, tgt_pieces: list[str], weights_TS: Tensor) -> Attention:
        src_pieces = self.tokenizers.src.pieces(segment.text)
        if segment.continues_word:
            src_pieces[0] = src_pieces[0].removeprefix(SPACE)
        src_starts = [0] * len(tgt_pieces)
        return Attention(src_pieces, tgt_pieces, weights_TS.tolist(), src_starts)

    def _flags(self, segment: Segment, hypothesis: Hypothesis, text: str) -> tuple[str, ...]:
        src_tokens = segment.source[:-1]
        relative_min_length = int(self.decoding.min_length_ratio * len(src_tokens))
        min_length = max(self.decoding.min_length, relative_min_length)
        flags_of_tokens = search_flags(src_tokens, hypothesis, min_length)
        flags_of_text = text_flags(segment.text, text, self.number_rules)
        distinct_flags = dict.fromkeys((*flags_of_tokens, *flags_of_text))
        return tuple(distinct_flags)


def search_flags(src_tokens: Sequence[int], hypothesis: Hypothesis, min_length: int) -> Iterator[Flag]:
    """Yield the flags that depend on the tokens of a hypothesis.

    Args:
        src_tokens: source ids, without eos.
        hypothesis: translation of the source.
        min_length: minimum number of tokens of a translation, excluding eos.
    """
    tokens = hypothesis.tokens
    has_new_loop = is_looping(tokens) and not is_looping(src_tokens)
    if has_new_loop or is_padded(tokens, min_length):
        yield Flag.REPETITION
    if hypothesis.at_limit:
        yield Flag.LENGTH_LIMIT


def text_flags(source: str, text: str, number_rules: NumberRules) -> Iterator[Flag]:
    """Yield the flags that depend on text: a copied source, or missing sentences, numbers or addresses.

    Args:
        source: source text.
        text: its translation.
        number_rules: how their languages write numbers.
    """
    if LOOP.search(text) and not LOOP.search(source):
        yield Flag.REPETITION
    if not text or _has_fewer_sentences(source, text):
        yield Flag.FEWER_SENTENCES

    normalized_source = unicodedata.normalize("NFKC", source)
    normalized_text = unicodedata.normalize("NFKC", text)
    if _is_copy(normalized_source.casefold(), normalized_text.casefold()):
        yield Flag.COPY
    if numbers_differ(source, text, number_rules, is_strict=True):
        yield Flag.NUMBERS
    if not all(_has_address(text, address) for address in addresses(source)):
        yield Flag.LOST_ADDRESS


def _has_fewer_sentences(source: str, text: str) -> bool:
    if _is_mostly_unmarked(text):
        return False
    num_sentences = len(split_sentences(source))
    return num_sentences > 1 and len(split_sentences(text)) < num_sentences


def _is_mostly_unmarked(text: str) -> bool:
    """Return True if most letters are of scripts such as Thai, in which the end of a sentence is not marked."""
    num_unmarked = len(IS_UNMARKED.findall(text))
    return num_unmarked > 0 and 2 * num_unmarked > sum(map(str.isalpha, text))


def _is_copy(source: str, text: str) -> bool:
    """Return True if a text has the words of its source, and is neither a name nor a URL."""
    words = text.split()
    if words != source.split():
        return False
    has_few_words = len(words) <= MAX_NAME_WORDS
    has_few_ideographs = len(IS_IDEOGRAPH.findall(text)) <= MAX_NAME_IDEOGRAPHS
    has_few_letters = len(IS_UNSPACED_LETTER.findall(text)) <= MAX_NAME_LETTERS
    is_short = text.isascii() or len(text) < MAX_NAME_LENGTH
    return not (has_few_words and has_few_ideographs and has_few_letters and is_short)


def _has_address(text: str, address: str) -> bool:
    """Return True if a text has the whole address; case matters only in the path of a URL."""
    host = re.split("(?<![:/])/", address, maxsplit=1)[0]
    path = address[len(host) :]
    host_pattern = f"(?i:{re.escape(host)})"
    pattern = rf"(?<![\w@.-]){host_pattern}{re.escape(path)}(?![\w@/-]|\.\w)"
    return re.search(pattern, text, re.ASCII) is not None


def addresses(line: str, kind: re.Pattern[str] = ADDRESS) -> list[str]:
    """Return the URLs and e-mail addresses in a line, or one kind of them, without punctuation after them."""
    return [address.rstrip(AFTER_ADDRESS) for address in kind.findall(line)]


def is_looping(tokens: Sequence[int]) -> bool:
    """Return True if a sequence of up to 8 tokens occurs at least four times in a row, spanning at least 8 tokens."""
    num_repeated = len(tokens) - len(set(tokens))
    if num_repeated < MIN_REPEATED:  # too few for any loop
        return False

    for period in range(1, MAX_LOOP_LENGTH + 1):
        # Each token is compared to the one a period before.
        is_equal = list(map(eq, tokens[period:], tokens))
        min_equal = max(3 * period, 8 - period)
        if sum(is_equal) >= min_equal and _longest_run(is_equal) >= min_equal:
            return True
    return False


def _longest_run(values: Sequence[bool]) -> int:
    """Return the largest number of adjacent True values."""
    longest = 0
    for value, run in groupby(values):
        if value:
            length = len(list(run))
            longest = max(longest, length)
    return longest


def is_padded(tokens: Sequence[int], min_length: int) -> bool:
    """Return True if the tokens end with a repetition, without which they would be fewer than `min_length`."""
    min_period = max(1, len(tokens) - min_length + 1)
    max_period = len(tokens) // 2
    periods = range(min_period, max_period + 1)
    return any(_ends_with_repetition(tokens, period) for period in periods)


def _ends_with_repetition(tokens: Sequence[int], period: int) -> bool:
    before = tokens[-2 * period : -period]
    return tokens[-period:] == before


def agreement(texts: Sequence[str]) -> float:
    """Return the mean F1 score of the distinct character 4-grams of the first text and each other; 1 without others.

    For the confidence, this is as useful as chrF, and faster.
    """
    first_ngrams = _four_grams(texts[0])
    scores = []
    for text in texts[1:]:
        ngrams = _four_grams(text)
        num_common = len(first_ngrams & ngrams)
        num_all = len(first_ngrams) + len(ngrams)
        scores.append(2 * num_common / num_all)
    return fmean(scores) if scores else 1.0


def _four_grams(text: str) -> set[str]:
    """Return the distinct character 4-grams without spaces; a text of up to four characters is its only one."""
    characters = text.replace(" ", "")
    num_ngrams = max(1, len(characters) - 3)
    return {characters[start : start + 4] for start in range(num_ngrams)}


def expected_utilities(texts: Sequence[str]) -> dict[str, float]:
    """Return the mean sentence chrF2 of each text with all samples as references, for minimum Bayes risk decoding.

    See Eikema and Aziz 2020. Duplicate samples count as often as they occur.
    """
    from sacrebleu.metrics.chrf import CHRF

    scorer = CHRF()
    counts = Counter(texts)
    utilities = {}
    for text in counts:
        total = 0.0
        for reference, count in counts.items():
            chrf = scorer.sentence_score(text, [reference])
            total += chrf.score * count
        utilities[text] = total / len(texts)
    return utilities

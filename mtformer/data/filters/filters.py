"""Filters of training data; each check depends on a single pair only."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import compress, groupby
from operator import eq

import numpy as np
import regex
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.data.data_report import Columns
from mtformer.data.filters.duplicates import Mask, normalize
from mtformer.data.filters.language import WordCheck, confidences
from mtformer.data.filters.numbers import NumberRules, numbers_differ
from mtformer.data.filters.scripts import WEIGHTS, Alphabet, Counts, scripts_of
from mtformer.enums import StrEnum
from mtformer.text.characters import DOUBLE_QUOTES, EXCLAMATIONS, GREEK_QUESTION, QUESTIONS, TYPED_STOPS

KEPT = 0
"""Code of a pair that is not removed."""

Codes = NDArray[np.uint8]
"""For each pair, `KEPT` or the code of the reason for its removal."""

Identifier = Callable[[Sequence[str]], NDArray[np.float64]]
"""Function that returns the probability that each line is in the expected language."""

RATIO_FROM_TOKENS = 10
"""The length ratio is checked if the longer side has more tokens than this."""

FROM_LETTERS = 10
"""Script and identified language are checked on sides with at least this number of letters."""

VARIANCE = 6.8
"""Variance of the length difference of translations per character (Gale and Church 1993, section 3.3)."""

RATIO_DEVIATION = 0.15
"""Standard deviation of the length ratio between languages."""

RATIO_DEVIATION_IF_DENSE = 0.25
"""Standard deviation of the length ratio if a language is unknown or uses a script of `WEIGHTS`."""

FIRST_WORDS = 8
"""Number of words at the start of a line that are looked up before the rest of the line."""

TAGS = (
    "a|abbr|address|article|b|big|blockquote|body|br|button|center|cite|code|dd|del|div|dl|dt|em|embed|font|footer|form|"
    "frame|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|label|li|link|meta|nav|object|ol|option|p|param|pre|q|s|"
    "script|section|select|small|span|strike|strong|style|sub|sup|svg|table|tbody|td|textarea|tfoot|th|thead|title|tr|"
    "tt|u|ul|var|video"
)
"""Names of HTML elements, as a part of a pattern."""

MARKUP_PATTERN = re.compile(
    r"(?:https?:?//|www\.)[!-~]+|(?a:(?<![\w.+-])[\w.+-]+@[\w-]+\.\w[\w.-]*)"  # ASCII, as Japanese has no spaces
    rf"|</?(?:{TAGS})(?:[\s/][^<>]*)?>|<!--[^<>]*-->|&(?:#\d+|#x[\dA-Fa-f]+|[A-Za-z]+\d*);",
    re.IGNORECASE,
)
"""URLs, email addresses, HTML tags, comments and entities."""

MARKS = re.compile(r"""[?!:;()\[\]{}<>"|/\\%$€£¥§©®™+=*#@°•→←]""")
"""Punctuation that is compared. Periods, commas, apostrophes and dashes differ too much between languages."""

FULL_WIDTH = {chr(full): chr(full - 0xFEE0) for full in range(0xFF01, 0xFF5F)}
"""ASCII characters by their full-width forms."""

SAME_MARK = str.maketrans(
    {
        **dict.fromkeys(QUESTIONS, "?"),
        **dict.fromkeys(EXCLAMATIONS, "!"),
        **dict.fromkeys("⁏؛", ";"),
        **dict.fromkeys("٪﹪", "%"),
        **dict.fromkeys(f"{DOUBLE_QUOTES}《》〈〉", '"'),
        **dict.fromkeys("【〔〖", "["),
        **dict.fromkeys("】〕〗", "]"),
        **FULL_WIDTH,
        **{"⁇": "??", "‼": "!!", "⁈": "?!", "⁉": "!?"},
    }
)
"""Normalization of the forms of a mark in different scripts, and of quotation marks and brackets."""

GREEK_QUESTION_MARK = regex.compile(GREEK_QUESTION)

TYPED_STOP = regex.compile(TYPED_STOPS)


# ---- reasons for removal --------------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Reason for removal, in the order of the checks; the first reason of a pair is counted.

    Only `data clean` removes pairs with an invalid line; all other commands report an error.
    """

    INVALID = "invalid line"
    EMPTY = "empty"
    IDENTICAL = "identical"
    REPETITION = "repetition"
    MARKUP = "URLs and markup"
    LETTERS = "few letters"
    SCRIPT = "script"
    DIFFERENCE = "length difference"
    NUMBERS = "different numbers"
    PUNCTUATION = "punctuation"
    LANGUAGE = "language"
    TOO_LONG = "too long"
    RATIO = "length ratio"
    DUPLICATE = "duplicate"

    @property
    def code(self) -> int:
        """Code of the reason in an array of codes; `KEPT` is the code of a pair without a reason."""
        return 1 + list(Reason).index(self)


def reason_of(code: int) -> Reason:
    """Return the reason with this code, which is not `KEPT`."""
    return list(Reason)[code - 1]


def count_reasons(codes: Codes) -> dict[str, int]:
    """Return the number of pairs by reason, without zeros, in the order of the reasons."""
    num_codes = 1 + len(Reason)
    counts = np.bincount(codes, minlength=num_codes).tolist()
    return in_order({reason: counts[reason.code] for reason in Reason})


def in_order(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by reason, without zeros, in the order of the reasons."""
    present = [reason for reason in Reason if counts.get(reason)]
    return {reason.value: counts[reason] for reason in present}


# ---- the filter -----------------------------------------------------------------------------------------------------


class Filter:
    """Applies the checks of a config (None: keep all pairs), except for duplicates, which require the whole corpus.

    Raises ConfigError if the config needs a language identifier that is not installed.
    """

    def __init__(self, config: FilterConfig | None, src_lang: str, tgt_lang: str) -> None:
        self.config = config
        languages = (src_lang, tgt_lang)
        self._alphabets = (Alphabet(src_lang), Alphabet(tgt_lang))
        self._number_rules = NumberRules.of(*languages)
        is_dense = any(_may_be_dense(language) for language in languages)
        self._ratio_deviation = RATIO_DEVIATION_IF_DENSE if is_dense else RATIO_DEVIATION
        self._word_checks = (WordCheck(src_lang, tgt_lang), WordCheck(tgt_lang, src_lang))
        self._identifiers: list[Identifier] = []
        if config is not None and config.min_language_confidence > 0:
            self._identifiers = [confidences(language) for language in languages]

    def by_text(self, texts: Columns) -> Codes:
        """Return the codes of the checks that need only text, before tokenization."""
        config = self.config
        if config is None:
            return np.full(len(texts[0]), KEPT, dtype=np.uint8)

        pairs = _Pairs(texts, self._alphabets)
        _check_empty(pairs)
        if config.drop_identical:
            _check_identical(pairs)
        if config.max_repeats is not None:
            _check_repetition(pairs, config.max_repeats)
        if config.max_markup_share < 1:
            _check_markup(pairs, config.max_markup_share)
        for side in (pairs.src, pairs.tgt):
            _check_letters(pairs, side, config)
        if config.max_length_difference is not None:
            difference = _length_difference(pairs, self._ratio_deviation)
            pairs.mark(Reason.DIFFERENCE, difference > config.max_length_difference)

        # The other checks look at each line, which takes longer.
        if config.drop_different_numbers:
            self._check_numbers(pairs)
        if config.drop_other_languages:
            self._check_words(pairs)
        if config.max_different_punctuation is not None:
            _check_punctuation(pairs, config.max_different_punctuation)
        if self._identifiers:
            self._check_confidence(pairs, config.min_language_confidence)
        return pairs.codes

    def by_length(self, src_lengths: NDArray[np.int32], tgt_lengths: NDArray[np.int32]) -> Codes:
        """Return the codes of the checks that need token counts; a side without tokens counts as empty."""
        codes = np.full(len(src_lengths), KEPT, dtype=np.uint8)
        if self.config is None:
            return codes

        # Each check overwrites the codes of the checks before it, so that the most important reason remains.
        shorter = np.minimum(src_lengths, tgt_lengths)
        longer = np.maximum(src_lengths, tgt_lengths)
        if self.config.max_length_ratio is not None:
            is_long = longer > RATIO_FROM_TOKENS
            is_uneven = longer > self.config.max_length_ratio * shorter
            codes[is_long & is_uneven] = Reason.RATIO.code
        codes[longer > self.config.max_tokens] = Reason.TOO_LONG.code
        codes[shorter == 0] = Reason.EMPTY.code
        return codes

    def _check_numbers(self, pairs: "_Pairs") -> None:
        has_digits = pairs.src.digits + pairs.tgt.digits > 0
        fails = partial(numbers_differ, rules=self._number_rules)
        pairs.test(Reason.NUMBERS, has_digits, fails)

    def _check_words(self, pairs: "_Pairs") -> None:
        """Remove pairs with a line that has function words of another language."""
        src_check, tgt_check = self._word_checks
        src_lines, tgt_lines = pairs.texts
        pairs.remove(Reason.LANGUAGE, _foreign_rows(pairs, src_check, src_lines, tgt_lines))
        pairs.remove(Reason.LANGUAGE, _foreign_rows(pairs, tgt_check, tgt_lines, src_lines))

    def _check_confidence(self, pairs: "_Pairs", min_confidence: float) -> None:
        """Remove pairs with a line that the identifier assigns to another language."""
        sides = (pairs.src, pairs.tgt)
        for identify, lines, counts in zip(self._identifiers, pairs.texts, sides, strict=True):
            rows = pairs.kept(counts.weight >= FROM_LETTERS)
            confidence = identify([lines[row] for row in rows])
            pairs.remove(Reason.LANGUAGE, compress(rows, confidence < min_confidence))


class _Pairs:
    """Pairs with the counts of their characters and their codes; a removed pair keeps its first reason."""

    def __init__(self, texts: Columns, alphabets: tuple[Alphabet, Alphabet]) -> None:
        self.texts = texts
        self.src = alphabets[0].count(texts[0])
        self.tgt = alphabets[1].count(texts[1])
        self.codes: Codes = np.full(len(texts[0]), KEPT, dtype=np.uint8)

    def mark(self, reason: Reason, fails: Mask) -> None:
        """Remove the pairs in the mask `fails` for this reason."""
        is_kept = self.codes == KEPT
        self.codes[fails & is_kept] = reason.code

    def test(self, reason: Reason, may_fail: Mask | bool, fails: Callable[[str, str], bool]) -> None:
        """Remove the pairs that fail a test.

        Args:
            reason: reason for removal.
            may_fail: mask of the pairs to test; True: all.
            fails: function (source, target) that returns True for a pair to remove.
        """
        src, tgt = self.texts
        failing_rows: list[int] = []
        for row in self.kept(may_fail):
            if fails(src[row], tgt[row]):
                failing_rows.append(row)
        self.remove(reason, failing_rows)

    def remove(self, reason: Reason, rows: Iterable[int]) -> None:
        """Remove the pairs in these rows, which are kept so far, for this reason."""
        self.codes[list(rows)] = reason.code

    def kept(self, mask: Mask | bool = True) -> list[int]:
        """Return the rows of the remaining pairs that are in the mask (True: all)."""
        is_kept = self.codes == KEPT
        rows: list[int] = np.flatnonzero(is_kept & mask).tolist()
        return rows


# ---- checks of all pairs --------------------------------------------------------------------------------------------


def _check_empty(pairs: _Pairs) -> None:
    """Remove pairs with a side that is empty or consists of whitespace."""
    is_src_empty = pairs.src.visible == 0
    is_tgt_empty = pairs.tgt.visible == 0
    pairs.mark(Reason.EMPTY, is_src_empty | is_tgt_empty)


def _check_identical(pairs: _Pairs) -> None:
    """Remove pairs whose sides are equal apart from case, punctuation and spaces."""
    has_equal_letters = pairs.src.weight == pairs.tgt.weight
    has_equal_digits = pairs.src.digits == pairs.tgt.digits
    pairs.test(Reason.IDENTICAL, has_equal_letters & has_equal_digits, _are_identical)


def _check_repetition(pairs: _Pairs, max_repeats: int) -> None:
    """Remove pairs with a character or word that is repeated more than `max_repeats` times in a row."""
    longest_run = np.maximum(pairs.src.runs, pairs.tgt.runs)
    pairs.mark(Reason.REPETITION, longest_run > max_repeats)

    # Equal words have equal lengths, which are compared for all lines at once.
    longest_word_run = np.maximum(pairs.src.word_runs, pairs.tgt.word_runs)

    def fails(src: str, tgt: str) -> bool:
        return _repeats_words(src, max_repeats) or _repeats_words(tgt, max_repeats)

    pairs.test(Reason.REPETITION, longest_word_run > max_repeats, fails)


def _check_markup(pairs: _Pairs, max_share: float) -> None:
    """Remove pairs with a side that consists mostly of URLs and markup."""
    has_signs = pairs.src.markup + pairs.tgt.markup > 0
    longest_run = np.maximum(pairs.src.runs, pairs.tgt.runs)
    may_have_www = longest_run >= len("www")

    def fails(src: str, tgt: str) -> bool:
        return _is_markup(src, max_share) or _is_markup(tgt, max_share)

    pairs.test(Reason.MARKUP, has_signs | may_have_www, fails)


def _check_letters(pairs: _Pairs, side: Counts, config: FilterConfig) -> None:
    """Remove pairs with few letters on a side, or few letters of the scripts of its language."""
    min_letters = config.min_letter_share * (side.weight + side.other)
    pairs.mark(Reason.LETTERS, side.weight < min_letters)

    has_letters = side.weight >= FROM_LETTERS
    min_own_letters = config.min_script_share * side.weight
    has_few_own_letters = side.own < min_own_letters
    pairs.mark(Reason.SCRIPT, has_letters & has_few_own_letters)


def _length_difference(pairs: _Pairs, ratio_deviation: float) -> NDArray[np.float64]:
    """Return the length difference of each pair in standard deviations (Gale and Church 1993)."""
    src_length = pairs.src.length
    tgt_length = pairs.tgt.length
    mean = (src_length + tgt_length) / 2
    length_variance = VARIANCE * np.maximum(mean, 1)
    ratio_variance = (ratio_deviation * mean) ** 2
    deviation = np.sqrt(length_variance + ratio_variance)
    return np.abs(src_length - tgt_length) / deviation


def _check_punctuation(pairs: _Pairs, max_different: int) -> None:
    """Remove pairs with more than `max_different` punctuation marks without a match on the other side."""

    def fails(src: str, tgt: str) -> bool:
        return _different_marks(src, tgt) > max_different

    pairs.test(Reason.PUNCTUATION, may_fail=True, fails=fails)


def _may_be_dense(language: str) -> bool:
    """Return True for an unknown language, or one with a script whose letters correspond to several Latin letters."""
    scripts = scripts_of(language)
    return not scripts or not scripts.isdisjoint(WEIGHTS)


# ---- checks of one line or pair -------------------------------------------------------------------------------------


def _foreign_rows(pairs: _Pairs, check: WordCheck, lines: list[str], other_lines: list[str]) -> list[int]:
    """Return the rows of kept pairs whose line is in another language; `other_lines` are those of the other side."""
    foreign_rows: list[int] = []
    for row in pairs.kept():
        # In most lines, the first words include a common word of the language.
        first_words = lines[row].split(None, FIRST_WORDS)
        if not check.own_words.isdisjoint(first_words):
            continue
        if check.is_foreign(lines[row], other_lines[row]):
            foreign_rows.append(row)
    return foreign_rows


def _are_identical(src: str, tgt: str) -> bool:
    return src == tgt or normalize(src) == normalize(tgt)


def _repeats_words(line: str, most: int) -> bool:
    """Return True if a word occurs more than `most` times in a row."""
    words = line.split()
    # In such a run, a word at an index that is a multiple of `most` equals the next word.
    is_next_equal = map(eq, words[::most], words[1::most])
    if not any(is_next_equal):
        return False
    runs = (list(run) for _, run in groupby(words))
    return any(len(run) > most for run in runs)


def _is_markup(line: str, share: float) -> bool:
    """Return True if the share of characters in URLs, email addresses, tags and entities exceeds `share`."""
    if "<" not in line and "&" not in line and "@" not in line and "//" not in line and "www." not in line:
        return False
    matches = MARKUP_PATTERN.findall(line)
    num_characters = sum(map(len, matches))
    return num_characters > share * len(line.strip())


def _marks(line: str) -> list[str]:
    """Return the punctuation marks of a line that are compared, in one form for all scripts."""
    if ";" in line or "\u037e" in line:
        line = GREEK_QUESTION_MARK.sub("?", line)
    if ":" in line:
        line = TYPED_STOP.sub(".", line)
    return MARKS.findall(line.translate(SAME_MARK))


def _different_marks(src: str, tgt: str) -> int:
    """Return the number of punctuation marks without a match on the other side."""
    src_marks = Counter(_marks(src))
    tgt_marks = Counter(_marks(tgt))
    only_in_src = src_marks - tgt_marks
    only_in_tgt = tgt_marks - src_marks
    return only_in_src.total() + only_in_tgt.total()

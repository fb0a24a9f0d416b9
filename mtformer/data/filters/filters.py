"""Filters of training data; each check depends on a single pair only."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import groupby
from operator import eq

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.data.data_report import Columns
from mtformer.data.filters.duplicates import Mask, normalize
from mtformer.data.filters.language import WordCheck, confidences
from mtformer.data.filters.numbers import numbers_differ, writes_digits
from mtformer.data.filters.scripts import WEIGHTS, Alphabet, scripts_of

KEPT = 0
EMPTY, IDENTICAL, REPETITION, MARKUP, LETTERS = "empty", "identical", "repetition", "URLs and markup", "few letters"
SCRIPT, DIFFERENCE, NUMBERS, PUNCTUATION = "script", "length difference", "different numbers", "punctuation"
LANGUAGE, TOO_LONG, RATIO, DUPLICATE = "language", "too long", "length ratio", "duplicate"
INVALID = "invalid line"
REASONS = (
    INVALID, EMPTY, IDENTICAL, REPETITION, MARKUP, LETTERS, SCRIPT, DIFFERENCE, NUMBERS, PUNCTUATION, LANGUAGE,
    TOO_LONG, RATIO, DUPLICATE,
)  # fmt: skip
"""Reasons for removal in the order of checks; the first is counted. Invalid lines are errors except in `data clean`."""

RATIO_FROM_TOKENS = 10  # the length ratio is checked if the longer side has more tokens than this
FROM_LETTERS = 10  # script and identified language are checked on sides with at least this number of letters
VARIANCE = 6.8  # variance of the length difference of translations per character (Gale and Church 1993, section 3.3)
RATIO_DEVIATION, RATIO_DEVIATION_IF_DENSE = 0.15, 0.25
"""Standard deviation of length ratios between languages; the second if one is unknown or has a script of `WEIGHTS`."""

FIRST_WORDS = 8  # number of words at the start of a line that are looked up before the rest

TAGS = (
    "a|abbr|address|article|b|big|blockquote|body|br|button|center|cite|code|dd|del|div|dl|dt|em|embed|font|footer|form|"
    "frame|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|label|li|link|meta|nav|object|ol|option|p|param|pre|q|s|"
    "script|section|select|small|span|strike|strong|style|sub|sup|svg|table|tbody|td|textarea|tfoot|th|thead|title|tr|"
    "tt|u|ul|var|video"
)
MARKUP_PATTERN = re.compile(
    r"(?:https?:?//|www\.)[!-~]+|(?a:(?<![\w.+-])[\w.+-]+@[\w-]+\.\w[\w.-]*)"  # ASCII, as Japanese has no spaces
    rf"|</?(?:{TAGS})(?:[\s/][^<>]*)?>|<!--[^<>]*-->|&(?:#\d+|#x[\dA-Fa-f]+|[A-Za-z]+\d*);",
    re.IGNORECASE,
)
MARKS = re.compile(r"""[?!:;()\[\]{}<>"|/\\%$€£¥§©®™+=*#@°•→←]""")
"""Punctuation that is compared. Periods, commas, apostrophes and dashes differ too much between languages."""
SAME_MARK = str.maketrans({
    **dict.fromkeys("\u037e\u061b\uff1b", ";"), **dict.fromkeys("\u061f\uff1f", "?"), "\u066a": "%",
    **dict.fromkeys("„“”«»「」『』《》〈〉〝〟＂", '"'), "【": "[", "】": "]",
    **{chr(full): chr(full - 0xFEE0) for full in range(0xFF01, 0xFF5F) if full not in (0xFF02, 0xFF1B, 0xFF1F)},
})  # fmt: skip
"""Normalization of full-width and Arabic forms, and of quotes."""

Codes = NDArray[np.uint8]
"""For each pair, `KEPT`, or 1 + the index of the reason in `REASONS`."""


class Filter:
    """Applies the checks of a config (None: keep all pairs), except for duplicates, which require the whole corpus.

    Raises ConfigError if the config needs a language identifier that is not installed.
    """

    def __init__(self, config: FilterConfig | None, src_lang: str, tgt_lang: str) -> None:
        self.config = config
        self._alphabets = (Alphabet(src_lang), Alphabet(tgt_lang))
        self._in_digits = writes_digits((src_lang, tgt_lang))
        is_dense = any(not scripts or scripts & WEIGHTS.keys() for scripts in map(scripts_of, (src_lang, tgt_lang)))
        self._ratio_deviation = RATIO_DEVIATION_IF_DENSE if is_dense else RATIO_DEVIATION
        self._word_checks = WordCheck(src_lang, tgt_lang), WordCheck(tgt_lang, src_lang)
        identifies = config is not None and config.min_language_confidence > 0
        self._confidences = [confidences(code) for code in (src_lang, tgt_lang)] if identifies else []

    def by_text(self, texts: Columns) -> Codes:
        """Return the codes of the checks that need only text, before tokenization."""
        judged, config = _Judged(texts), self.config
        if config is None:
            return judged.codes
        sides = [alphabet.count(lines) for alphabet, lines in zip(self._alphabets, judged.texts, strict=True)]
        src, tgt = sides
        judged.mark(EMPTY, (src.visible == 0) | (tgt.visible == 0))
        if config.drop_identical:
            may_be = (src.weight == tgt.weight) & (src.digits == tgt.digits)
            judged.test(IDENTICAL, may_be, lambda s, t: s == t or normalize(s) == normalize(t))
        if (most := config.max_repeats) is not None:
            judged.mark(REPETITION, np.maximum(src.runs, tgt.runs) > most)
            may_be = np.maximum(src.word_runs, tgt.word_runs) > most
            judged.test(REPETITION, may_be, lambda s, t: _repeats_words(s, most) or _repeats_words(t, most))
        if (share := config.max_markup_share) < 1:
            may_be = (src.markup + tgt.markup > 0) | (np.maximum(src.runs, tgt.runs) >= len("www"))
            judged.test(MARKUP, may_be, lambda s, t: _is_markup(s, share) or _is_markup(t, share))
        for side in sides:
            judged.mark(LETTERS, side.weight < config.min_letter_share * (side.weight + side.other))
            is_long = side.weight >= FROM_LETTERS
            judged.mark(SCRIPT, is_long & (side.own < config.min_script_share * side.weight))
        if config.max_length_difference is not None:
            mean = (src.length + tgt.length) / 2
            deviation = np.sqrt(VARIANCE * np.maximum(mean, 1) + (self._ratio_deviation * mean) ** 2)
            judged.mark(DIFFERENCE, np.abs(src.length - tgt.length) / deviation > config.max_length_difference)
        if config.drop_different_numbers:
            judged.test(NUMBERS, src.digits + tgt.digits > 0, lambda s, t: numbers_differ(s, t, self._in_digits))
        if config.drop_other_languages:
            for check, lines, others in zip(self._word_checks, judged.texts, judged.texts[::-1], strict=True):
                # In most lines, the first words include a common word of the language.
                rows = [row for row in judged.kept() if check.own.isdisjoint(lines[row].split(None, FIRST_WORDS))]
                judged.codes[[row for row in rows if check.is_foreign(lines[row], others[row])]] = code(LANGUAGE)
        if (limit := config.max_different_punctuation) is not None:
            judged.test(PUNCTUATION, True, lambda s, t: _different_marks(s, t) > limit)
        for lines, counts, identify in zip(judged.texts, sides, self._confidences, strict=False):
            rows_of_letters = np.array(judged.kept(counts.weight >= FROM_LETTERS), dtype=np.int64)
            shares = identify([lines[row] for row in rows_of_letters.tolist()])
            judged.codes[rows_of_letters[shares < config.min_language_confidence]] = code(LANGUAGE)
        return judged.codes

    def by_length(self, src_lengths: NDArray[np.int32], tgt_lengths: NDArray[np.int32]) -> Codes:
        """Return the codes of the checks that need token counts; a side without tokens counts as empty."""
        codes = np.zeros(len(src_lengths), dtype=np.uint8)
        if self.config is None:
            return codes
        shorter, longer = np.minimum(src_lengths, tgt_lengths), np.maximum(src_lengths, tgt_lengths)
        if self.config.max_length_ratio is not None:
            is_long = longer > RATIO_FROM_TOKENS
            codes[is_long & (longer > self.config.max_length_ratio * shorter)] = code(RATIO)
        codes[longer > self.config.max_tokens] = code(TOO_LONG)
        codes[shorter == 0] = code(EMPTY)
        return codes


class _Judged:
    """Codes of pairs; a removed pair keeps its first reason."""

    def __init__(self, texts: Columns) -> None:
        self.texts = texts
        self.codes: Codes = np.zeros(len(texts[0]), dtype=np.uint8)

    def mark(self, reason: str, fails: Mask) -> None:
        """Set the code of the pairs in the mask `fails` to this reason."""
        self.codes[fails & (self.codes == KEPT)] = code(reason)

    def test(self, reason: str, may_fail: Mask | bool, fails: Callable[[str, str], bool]) -> None:
        """Mark the pairs for whose text `fails` returns True; only pairs in `may_fail` (True: all) are tested."""
        src, tgt = self.texts
        self.codes[[row for row in self.kept(may_fail) if fails(src[row], tgt[row])]] = code(reason)

    def kept(self, mask: Mask | bool = True) -> list[int]:
        return np.flatnonzero((self.codes == KEPT) & mask).tolist()


def code(reason: str) -> int:
    """Return the code of a reason."""
    return 1 + REASONS.index(reason)


def count_reasons(codes: Codes) -> dict[str, int]:
    """Return the number of pairs by reason, without zeros, in the order of `REASONS`."""
    return in_order(dict(zip(REASONS, np.bincount(codes, minlength=1 + len(REASONS))[1:].tolist(), strict=True)))


def in_order(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts by reason, without zeros, in the order of `REASONS`."""
    return {reason: counts[reason] for reason in REASONS if counts.get(reason)}


def _repeats_words(line: str, most: int) -> bool:
    """Return True if a word occurs more than `most` times in a row."""
    words = line.split()
    # In such a run, a word at an index that is a multiple of `most` equals the next word.
    if not any(map(eq, words[::most], words[1::most])):
        return False
    return any(sum(1 for _ in same) > most for _, same in groupby(words))


def _is_markup(line: str, share: float) -> bool:
    """Return True if the share of characters in URLs, email addresses, tags and entities exceeds `share`."""
    if "<" not in line and "&" not in line and "@" not in line and "//" not in line and "www." not in line:
        return False
    return sum(map(len, MARKUP_PATTERN.findall(line))) > share * len(line.strip())


def _different_marks(src: str, tgt: str) -> int:
    """Return the number of punctuation marks without a match on the other side."""
    one, other = (Counter(MARKS.findall(line.translate(SAME_MARK))) for line in (src, tgt))
    return ((one - other) + (other - one)).total()

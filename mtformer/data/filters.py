"""Why a pair is left out of the training data: each check looks at one pair and at nothing else."""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from operator import eq

import numpy as np
from numpy.typing import NDArray

from mtformer.config.data import FilterConfig
from mtformer.data.characters import WEIGHTS, Alphabet, Counts, scripts_of
from mtformer.data.language import WordCheck, confidences
from mtformer.data.numerals import CHARACTER_LANGUAGES, numbers_differ
from mtformer.data.report import Pair, sides

KEPT = 0
EMPTY, IDENTICAL, REPETITION, MARKUP, LETTERS = "empty", "identical", "repetition", "URLs and markup", "few letters"
SCRIPT, DIFFERENCE, NUMBERS, PUNCTUATION = "script", "length difference", "different numbers", "punctuation"
LANGUAGE, TOO_LONG, RATIO, DUPLICATE = "language", "too long", "length ratio", "duplicate"
REASONS = (
    EMPTY, IDENTICAL, REPETITION, MARKUP, LETTERS, SCRIPT, DIFFERENCE, NUMBERS, PUNCTUATION, LANGUAGE, TOO_LONG, RATIO,
    DUPLICATE,
)  # fmt: skip
"""In the order in which they are looked at; a pair is counted under the first that fits."""

RATIO_FROM_TOKENS = 10
"""The length ratio is checked when the longer side has more tokens than this."""
FROM_LETTERS = 10
"""The script, and the language by the identifier, are checked on sides of at least so many letters."""
VARIANCE = 6.8
"""Of the difference in length of translations, for each character (Gale and Church 1993, section 3.3)."""
RATIO_DEVIATION, RATIO_DEVIATION_IF_DENSE = 0.15, 0.25
"""Of the ratio of lengths from language to language: the second where characters are weighted, or a language is not
known."""
PAIRS_AT_ONCE = 4096

TAGS = (
    "a|abbr|address|article|b|big|blockquote|body|br|button|center|cite|code|dd|del|div|dl|dt|em|embed|font|footer|form|"
    "frame|h[1-6]|head|header|hr|html|i|iframe|img|input|ins|label|li|link|meta|nav|object|ol|option|p|param|pre|q|s|"
    "script|section|select|small|span|strike|strong|style|sub|sup|svg|table|tbody|td|textarea|tfoot|th|thead|title|tr|"
    "tt|u|ul|var|video"
)
MARKUP_PATTERN = re.compile(
    rf"https?:?//\S+|www\.\S+|(?<![\w.+-])[\w.+-]+@[\w-]+\.\w[\w.-]*|</?(?:{TAGS})(?:[\s/][^<>]*)?>|<!--[^<>]*-->"
    r"|&(?:#\d+|#x[\dA-Fa-f]+|[A-Za-z]+\d*);",
    re.IGNORECASE,
)
MARKS = re.compile(r"""[?!:;()\[\]{}<>"|/\\%$€£¥§©®™+=*#@°•→←]""")
"""Stops, commas, apostrophes and dashes are not there: languages use them too differently to count them."""
SAME_MARK = str.maketrans({
    **dict.fromkeys("\u037e\u061b\uff1b", ";"), **dict.fromkeys("\u061f\uff1f", "?"), "\u066a": "%",
    **dict.fromkeys("„“”«»「」『』《》〈〉〝〟＂", '"'), "【": "[", "】": "]",
    **{chr(full): chr(full - 0xFEE0) for full in range(0xFF01, 0xFF5F) if full not in (0xFF02, 0xFF1B, 0xFF1F)},
})  # fmt: skip
"""Full-width and Arabic forms, and all the kinds of quotes."""

Codes = NDArray[np.uint8]
"""Of each pair `KEPT`, or 1 + the place of its reason in `REASONS`."""
Mask = NDArray[np.bool_]


class Filter:
    """The checks of a config. Duplicates are found elsewhere, since they need all of a corpus.

    Args:
        config: None keeps everything (dev and test).
        src_lang: code of the source language.
        tgt_lang: code of the target language.

    Raises:
        ConfigError: if the config asks for a language identifier that is not installed.
    """

    def __init__(self, config: FilterConfig | None, src_lang: str, tgt_lang: str) -> None:
        self.config = config
        self._alphabets = (Alphabet(src_lang), Alphabet(tgt_lang))
        languages = {re.split("[-_]", code.lower())[0] for code in (src_lang, tgt_lang)}
        self._in_digits = not languages & CHARACTER_LANGUAGES
        is_dense = any(not scripts or scripts & WEIGHTS.keys() for scripts in map(scripts_of, (src_lang, tgt_lang)))
        self._ratio_deviation = RATIO_DEVIATION_IF_DENSE if is_dense else RATIO_DEVIATION
        self._word_checks = WordCheck(src_lang, tgt_lang), WordCheck(tgt_lang, src_lang)
        asks = config is not None and config.min_language_confidence > 0
        self._confidences = [confidences(code) for code in (src_lang, tgt_lang)] if asks else []

    def by_text(self, pairs: Sequence[Pair]) -> Codes:
        """What shows before a line is tokenised."""
        codes = np.zeros(len(pairs), dtype=np.uint8)
        if self.config is not None:
            for start in range(0, len(pairs), PAIRS_AT_ONCE):
                part = slice(start, start + PAIRS_AT_ONCE)
                codes[part] = self._judge(pairs[part], self.config)
        return codes

    def by_length(self, src_lengths: NDArray[np.int32], tgt_lengths: NDArray[np.int32]) -> Codes:
        """What shows in the token counts; a side without tokens counts as empty."""
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

    def _judge(self, pairs: Sequence[Pair], config: FilterConfig) -> Codes:
        lines = sides(pairs)
        src, tgt = (alphabet.count(side) for alphabet, side in zip(self._alphabets, lines, strict=True))
        judged = _Judged(pairs)
        judged.mark(EMPTY, (src.visible == 0) | (tgt.visible == 0))
        if config.drop_identical:
            may_be = (src.weight == tgt.weight) & (src.digits == tgt.digits)
            judged.look(IDENTICAL, may_be, lambda s, t: s == t or normalise(s) == normalise(t))
        if (most := config.max_repeats) is not None:
            judged.mark(REPETITION, np.maximum(src.runs, tgt.runs) > most)
            judged.look(REPETITION, None, lambda s, t: _repeats_words(s, most) or _repeats_words(t, most))
        if (share := config.max_markup_share) < 1:
            judged.look(MARKUP, None, lambda s, t: _is_markup(s, share) or _is_markup(t, share))
        for side in (src, tgt):
            judged.mark(LETTERS, side.weight < config.min_letter_share * (side.weight + side.other))
            is_long = side.weight >= FROM_LETTERS
            judged.mark(SCRIPT, is_long & (side.own < config.min_script_share * side.weight))
        if config.max_length_difference is not None:
            judged.mark(DIFFERENCE, _length_difference(src, tgt, self._ratio_deviation) > config.max_length_difference)
        if config.drop_different_numbers:
            judged.look(NUMBERS, src.digits + tgt.digits > 0, lambda s, t: numbers_differ(s, t, self._in_digits))
        if config.drop_other_languages:
            in_src, in_tgt = (check.is_foreign for check in self._word_checks)
            judged.look(LANGUAGE, None, lambda s, t: in_src(s, t) or in_tgt(t, s))
        if (limit := config.max_different_punctuation) is not None:
            judged.look(PUNCTUATION, None, lambda s, t: _different_marks(s, t) > limit)
        for texts, counts, ask in zip(lines, (src, tgt), self._confidences, strict=False):
            asked = np.flatnonzero((judged.codes == KEPT) & (counts.weight >= FROM_LETTERS))
            found = ask([texts[index] for index in asked.tolist()])
            judged.codes[asked[found < config.min_language_confidence]] = code(LANGUAGE)
        return judged.codes


class _Judged:
    """The codes of some pairs; one that is left out already stays under its reason."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.codes: Codes = np.zeros(len(pairs), dtype=np.uint8)

    def mark(self, reason: str, fails: Mask) -> None:
        self.codes[fails & (self.codes == KEPT)] = code(reason)

    def look(self, reason: str, may_fail: Mask | None, fails: Callable[[str, str], bool]) -> None:
        """Looks at the text of those that may fail; None: all."""
        kept = self.codes == KEPT
        number = code(reason)
        for index in np.flatnonzero(kept if may_fail is None else kept & may_fail).tolist():
            if fails(*self.pairs[index]):
                self.codes[index] = number


def code(reason: str) -> int:
    """The number of a reason in `Codes`."""
    return 1 + REASONS.index(reason)


def is_blank(line: str) -> bool:
    """Nothing but white space."""
    return not line or line.isspace()


def duplicate_key(pair: Pair, config: FilterConfig) -> str:
    """What two pairs have in common when one is a duplicate of the other."""
    src, tgt = map(normalise, pair) if config.normalize_duplicates else pair
    return f"{len(src)} {src}{tgt}"


def normalise(line: str) -> str:
    """A line without case, punctuation and white space; one of nothing else stays, but for white space at its ends."""
    return _dropped().sub("", line).casefold() or line.strip()


@cache
def _dropped() -> re.Pattern[str]:
    """All but letters, their accents and vowel signs, digits, and what stands between digits."""
    marks = "".join(chr(point) for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point))[0] == "M")
    return re.compile(rf"[^\w{marks}.,]+|_+|[.,](?!\d)|(?<!\d)[.,]")


def _repeats_words(line: str, most: int) -> bool:
    """Does a word come more than so many times in a row?"""
    words = line.split()
    # Of so many in a row, one that stands at a multiple of `most` is like the next.
    if not any(map(eq, words[::most], words[1::most])):
        return False
    return any(sum(1 for _ in same) > most for _, same in groupby(words))


def _is_markup(line: str, share: float) -> bool:
    """Is more than this share of the characters in URLs, mail addresses, tags and entities?"""
    if "<" not in line and "&" not in line and "@" not in line and "//" not in line and "www." not in line:
        return False
    return sum(map(len, MARKUP_PATTERN.findall(line))) > share * len(line.strip())


def _length_difference(src: Counts, tgt: Counts, ratio_deviation: float) -> NDArray[np.float64]:
    """Of the lengths in characters, in standard deviations: of translations, and from language to language."""
    mean = (src.length + tgt.length) / 2
    deviation: NDArray[np.float64] = np.sqrt(VARIANCE * np.maximum(mean, 1) + (ratio_deviation * mean) ** 2)
    return np.abs(src.length - tgt.length) / deviation


def _different_marks(src: str, tgt: str) -> int:
    """Marks that only one side has."""
    one, other = (Counter(MARKS.findall(line.translate(SAME_MARK))) for line in (src, tgt))
    return ((one - other) + (other - one)).total()

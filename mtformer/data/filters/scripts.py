"""Counts of the characters in lines (letters by script, digits, the rest), for many lines at once."""

import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.uint8]
Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

BLOCKS: dict[str, str] = {
    "Latin": "0041-024F 1E00-1EFF 2C60-2C7F A720-A7FF AB30-AB6F FB00-FB06 FF21-FF5A",
    "Greek": "0370-03FF 1F00-1FFF",
    "Cyrillic": "0400-052F 1C80-1C8F 2DE0-2DFF A640-A69F",
    "Armenian": "0531-058F FB13-FB17",
    "Hebrew": "0590-05FF FB1D-FB4F",
    "Arabic": "0600-06FF 0750-077F 0870-08FF FB50-FDFF FE70-FEFC",
    "Syriac": "0700-074F",
    "Thaana": "0780-07BF",
    "Nko": "07C0-07FF",
    "Devanagari": "0900-097F A8E0-A8FF",
    "Bengali": "0980-09FF",
    "Gurmukhi": "0A00-0A7F",
    "Gujarati": "0A80-0AFF",
    "Oriya": "0B00-0B7F",
    "Tamil": "0B80-0BFF",
    "Telugu": "0C00-0C7F",
    "Kannada": "0C80-0CFF",
    "Malayalam": "0D00-0D7F",
    "Sinhala": "0D80-0DFF",
    "Thai": "0E00-0E7F",
    "Lao": "0E80-0EFF",
    "Tibetan": "0F00-0FFF",
    "Myanmar": "1000-109F A9E0-A9FF AA60-AA7F",
    "Georgian": "10A0-10FF 1C90-1CBF 2D00-2D2F",
    "Hangul": "1100-11FF 3130-318F A960-A97F AC00-D7FF FFA0-FFDC",
    "Ethiopic": "1200-139F 2D80-2DDF AB00-AB2F",
    "Cherokee": "13A0-13FF AB70-ABBF",
    "Canadian": "1400-167F 18B0-18FF",
    "Khmer": "1780-17FF",
    "Mongolian": "1800-18AF",
    "Tifinagh": "2D30-2D7F",
    "Olchiki": "1C50-1C7F",
    "Meetei": "AAE0-AAFF ABC0-ABFF",
    "Kana": "3040-30FF 31F0-31FF FF66-FF9F 1B000-1B16F",
    "Bopomofo": "3100-312F 31A0-31BF",
    "Han": "2E80-2FDF 3005-3007 3021-3029 3400-4DBF 4E00-9FFF F900-FAFF 20000-323AF",
}
"""Scripts and the Unicode blocks that hold their letters; Hiragana and Katakana are one, as Japanese mixes them."""
SCRIPTS = tuple(BLOCKS)

LANGUAGES: dict[str, str] = {
    "Latin": "af az bs ca ceb cs cy da de en eo es et eu fi fil fo fr fy ga gd gl ha haw hmn hr ht hu id ig is it jv "
    "kl la lb ln lt lv mg mi ms mt nb nl nn no ny oc om pl pt qu rm ro rw sk sl sm sn so sq st su sv sw tk tl "
    "tn to tr ts vi wo xh yo zu",
    "Cyrillic": "ab av ba be bg ce cv kk ky mk os ru sah tg tt udm uk",
    "Greek": "el grc",
    "Arabic": "ar arz azb ckb fa ps sd ug ur",
    "Hebrew": "he iw yi",
    "Armenian": "hy",
    "Georgian": "ka",
    "Devanagari": "bho hi mai mr ne sa",
    "Bengali": "as bn",
    "Gurmukhi": "pa",
    "Gujarati": "gu",
    "Oriya": "or",
    "Tamil": "ta",
    "Telugu": "te",
    "Kannada": "kn",
    "Malayalam": "ml",
    "Sinhala": "si",
    "Thai": "th",
    "Lao": "lo",
    "Khmer": "km",
    "Myanmar": "my shn",
    "Tibetan": "bo dz",
    "Ethiopic": "am ti",
    "Thaana": "dv",
    "Hangul Han": "ko",
    "Han Kana": "ja",
    "Han Bopomofo": "lzh wuu yue zh",
    "Cyrillic Mongolian": "mn",
    "Latin Cyrillic": "sh sr uz",
    "Latin Arabic": "ku",
    "Latin Arabic Cyrillic": "crh",
    "Latin Canadian": "iu cr",
    "Latin Tifinagh": "ber kab zgh",
}
"""The scripts that languages are written in today, by their codes."""
SUBTAGS: dict[str, str] = {
    "latn": "Latin", "cyrl": "Cyrillic", "arab": "Arabic", "deva": "Devanagari", "hans": "Han Bopomofo",
    "hant": "Han Bopomofo", "jpan": "Han Kana", "hang": "Hangul Han", "kore": "Hangul Han", "mong": "Mongolian",
}  # fmt: skip
"""Scripts that a code may name itself: sr-Latn, zho_Hans."""

SPACE, DIGIT, MARK, SYMBOL, MARKUP, OTHER = range(6)
"""Kinds of characters that are no letter of a known script: MARK is an accent by itself, MARKUP a symbol of
`MARKUP_SIGNS`, OTHER an unlisted letter."""
FIRST_SCRIPT = 6
MARKUP_SIGNS = "<&@/"
"""Each URL, mail address, tag or entity has one of these, or three equal letters: www."""
WEIGHTS = {"Han": 3.5, "Kana": 2.0, "Hangul": 2.0, "Bopomofo": 1.5}
"""Latin letters that say as much as one letter of a script, roughly; 1 of all others."""


def scripts_of(language: str) -> frozenset[str]:
    """The scripts of a language code such as de, pt-BR or sr_Latn; none of a code that is not known."""
    base, *subtags = re.split("[-_]", language.lower())
    for subtag in subtags:
        if subtag in SUBTAGS:
            return frozenset(SUBTAGS[subtag].split())
    return frozenset(name for scripts, codes in LANGUAGES.items() if base in codes.split() for name in scripts.split())


@functools.cache
def kinds() -> Table:
    """Return the kind of each code point: one of those above, or FIRST_SCRIPT + the index of its script in SCRIPTS."""
    table = np.full(0x110000, SYMBOL, dtype=np.uint8)
    # Beyond these there are no letters.
    for point in range(0x33480):
        category = unicodedata.category(chr(point))
        if category[0] in "LM":
            table[point] = OTHER if category[0] == "L" else MARK
        elif category == "Nd":
            table[point] = DIGIT
        elif chr(point).isspace():
            table[point] = SPACE
    is_letter = (table == OTHER) | (table == MARK)
    for number, blocks in enumerate(BLOCKS.values()):
        for block in blocks.split():
            first, last = (int(end, 16) for end in block.split("-"))
            part = slice(first, last + 1)
            table[part][is_letter[part]] = FIRST_SCRIPT + number
    for sign in "ªºµ":  # Latin letters by name, which occur in all languages
        table[ord(sign)] = MARK
    for sign in MARKUP_SIGNS:
        table[ord(sign)] = MARKUP
    table[ord("〇")] = table[ord("々")] = FIRST_SCRIPT + SCRIPTS.index("Han")
    return table


class Counts(NamedTuple):
    """A number for each line; letters of `WEIGHTS` count more in `length`, `weight` and `own`."""

    length: Numbers
    """All characters, white space too."""
    visible: Numbers
    """Characters that are no white space."""
    other: Numbers
    """Those of them that are no letter and no accent: digits, punctuation, symbols."""
    digits: Numbers
    weight: Numbers
    """Letters."""
    own: Numbers
    """Letters of the scripts of the language."""
    foreign: Numbers
    """Letters of scripts that are neither the language's own nor Latin, unweighted."""
    markup: Numbers
    """Characters of `MARKUP_SIGNS`."""
    runs: Numbers
    """The longest run of one character, digits and white space left out."""
    word_runs: Numbers
    """The longest run of words of the same length."""


class Alphabet:
    """Counts what lines of a language are made of.

    Args:
        language: its code; of one that is not known, every script counts as its own.
    """

    def __init__(self, language: str) -> None:
        scripts = scripts_of(language)
        letters = [WEIGHTS.get(name, 1.0) for name in SCRIPTS]
        own = [weight * (not scripts or name in scripts) for name, weight in zip(SCRIPTS, letters, strict=True)]
        foreign = [float(bool(scripts) and name not in scripts | {"Latin"}) for name in SCRIPTS]
        ones, zeros = [1.0] * len(SCRIPTS), [0.0] * len(SCRIPTS)
        # A row for each field of Counts but the runs; columns: SPACE to OTHER as above, then the scripts.
        rows = [
            [1, 1, 0, 1, 1, 1, *letters],
            [0, 1, 1, 1, 1, 1, *ones],
            [0, 1, 0, 1, 1, 0, *zeros],
            [0, 1, 0, 0, 0, 0, *zeros],
            [0, 0, 0, 0, 0, 1, *letters],
            [0, 0, 0, 0, 0, 0 if scripts else 1, *own],
            [0, 0, 0, 0, 0, 0, *foreign],
            [0, 0, 0, 0, 1, 0, *zeros],
        ]
        self._table = np.array(rows, dtype=np.float64).T

    def count(self, lines: Sequence[str]) -> Counts:
        """Return the counts of all lines."""
        # A line break after each line ends the runs.
        points = np.frombuffer("\n".join([*lines, ""]).encode("utf-32-le", "surrogatepass"), dtype="<u4")
        found = np.take(kinds(), points)
        num_kinds = len(self._table)
        ends = np.cumsum(np.fromiter(map(len, lines), dtype=np.int64, count=len(lines)) + 1)
        cells = np.repeat(np.arange(len(lines)) * num_kinds, np.diff(ends, prepend=0)) + found
        histogram = np.bincount(cells, minlength=len(lines) * num_kinds).reshape(len(lines), num_kinds)
        histogram[:, SPACE] -= 1
        # Not by `@`: the threads of BLAS spin between its calls, and keep the cores from other work.
        present = np.flatnonzero(histogram.any(axis=0))
        sums = np.einsum("lk,kf->fl", histogram[:, present], self._table[present])
        return Counts._make([*sums, _longest_runs(points, found, ends), _longest_word_runs(found == SPACE, ends)])


def _longest_runs(points: NDArray[np.uint32], found: Table, ends: Integers) -> Numbers:
    """Return the longest run of a character in each line; `ends` are the positions after the line breaks."""
    is_equal = (points[1:] == points[:-1]) & (found[1:] != SPACE) & (found[1:] != DIGIT)
    return _longest(*_runs(is_equal), ends)


def _longest_word_runs(is_space: Mask, ends: Integers) -> Numbers:
    """Return the longest run of words of the same length in each line."""
    edges = np.flatnonzero(np.diff(is_space, prepend=True))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    is_equal = lengths[1:] == lengths[:-1]
    first_words = np.searchsorted(starts, ends[:-1])
    is_equal[first_words[(first_words > 0) & (first_words < len(starts))] - 1] = False
    first, sizes = _runs(is_equal)
    return _longest(starts[first], sizes, ends)


def _runs(is_equal: Mask) -> tuple[Integers, Integers]:
    """Return the index of the first item and the size of each run of items that equal the next one."""
    equal = np.flatnonzero(is_equal)
    first = np.flatnonzero(np.diff(equal, prepend=-2) != 1)
    return equal[first], np.diff(first, append=len(equal)) + 1


def _longest(positions: Integers, sizes: Integers, ends: Integers) -> Numbers:
    """Return the largest size in each line, at least 1; `positions` ascend."""
    longest = np.ones(len(ends))
    lines = np.searchsorted(ends, positions, side="right")
    first = np.flatnonzero(np.diff(lines, prepend=-1))
    if len(first):
        longest[lines[first]] = np.maximum.reduceat(sizes, first)
    return longest

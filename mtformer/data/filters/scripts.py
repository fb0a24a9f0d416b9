"""Count characters by kind (letters by script, digits, others) in many lines at once."""

import functools
import unicodedata
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from mtformer.config.languages import base_code, script_code

Table = NDArray[np.uint8]
Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_TABLES = yaml.safe_load(resources.files(__package__).joinpath("scripts.yaml").read_text(encoding="utf-8"))
BLOCKS: dict[str, str] = _TABLES["blocks"]
"""Ranges of hexadecimal code points by script."""

LANGUAGES: dict[str, str] = _TABLES["languages"]
"""Language codes by the scripts that these languages use."""

SUBTAGS: dict[str, str] = _TABLES["subtags"]
"""Scripts by the ISO 15924 code that selects them in a language code."""

SCRIPTS = tuple(BLOCKS)
"""Names of the scripts, in the order of their numbers."""

SPACE = 0
"""Kind of whitespace."""

DIGIT = 1
"""Kind of decimal digits."""

MARK = 2
"""Kind of combining marks."""

SYMBOL = 3
"""Kind of all characters that have no other kind, such as punctuation."""

MARKUP = 4
"""Kind of the characters of `MARKUP_SIGNS`."""

OTHER = 5
"""Kind of letters of an unlisted script."""

FIRST_SCRIPT = 6
"""Kind of the letters of the first script; the kinds of the other scripts follow."""

MARKUP_SIGNS = "<&@/"
"""Each URL, email address, tag or entity contains one of these characters, or a run of three letters (www)."""

WEIGHTS = {"Han": 3.5, "Kana": 2.0, "Hangul": 2.0, "Bopomofo": 1.5}
"""Approximate number of Latin letters that one letter of a script corresponds to; 1 for all other scripts."""

NUM_POINTS = 0x110000
"""Number of code points."""

LETTERS_END = 0x33480
"""There are no letters from this code point on."""


def scripts_of(language: str) -> frozenset[str]:
    """Return the scripts of a language code such as de, pt-BR or sr_Latn; empty if they are unknown."""
    script = script_code(language)
    if script:
        return frozenset(SUBTAGS.get(script, "").split())

    base = base_code(language)
    scripts: set[str] = set()
    for names, codes in LANGUAGES.items():
        if base in codes.split():
            scripts.update(names.split())
    return frozenset(scripts)


@functools.cache
def kinds() -> Table:
    """Return the kind of each code point: one of the kinds above, or FIRST_SCRIPT + the index of its script."""
    table = np.full(NUM_POINTS, SYMBOL, dtype=np.uint8)
    for point in range(LETTERS_END):
        table[point] = _kind(chr(point))

    is_letter = (table == OTHER) | (table == MARK)
    for number, blocks in enumerate(BLOCKS.values()):
        for block in blocks.split():
            first, last = block.split("-")
            points = slice(int(first, 16), int(last, 16) + 1)
            table[points][is_letter[points]] = FIRST_SCRIPT + number

    for sign in "ªºµ":  # Latin letters according to their names, but used in all languages
        table[ord(sign)] = MARK
    for sign in MARKUP_SIGNS:
        table[ord(sign)] = MARKUP
    table[ord("〇")] = FIRST_SCRIPT + SCRIPTS.index("Han")  # a number according to Unicode, but used like a letter
    return table


def _kind(character: str) -> int:
    """Return the kind of a character; a letter of any script is OTHER."""
    category = unicodedata.category(character)
    if category[0] == "L":
        return OTHER
    if category[0] == "M":
        return MARK
    if category == "Nd":
        return DIGIT
    return SPACE if character.isspace() else SYMBOL


class Counts(NamedTuple):
    """Counts per line; letters are weighted by `WEIGHTS` in `length`, `weight` and `own`."""

    length: Numbers
    """Number of characters, including whitespace."""
    visible: Numbers
    """Number of characters other than whitespace."""
    other: Numbers
    """Number of visible characters other than letters and marks: digits, punctuation, symbols."""
    digits: Numbers
    """Number of decimal digits."""
    weight: Numbers
    """Number of letters."""
    own: Numbers
    """Number of letters in scripts of the language."""
    foreign: Numbers
    """Number of letters in scripts other than Latin and the scripts of the language, unweighted."""
    markup: Numbers
    """Number of characters of `MARKUP_SIGNS`."""
    runs: Numbers
    """Length of the longest run of one character other than digits and whitespace."""
    word_runs: Numbers
    """Length of the longest run of words with the same length."""


class Alphabet:
    """Counts characters in lines of a language; if its code is unknown, all scripts count as its own."""

    def __init__(self, language: str) -> None:
        own_scripts = scripts_of(language)
        is_known = bool(own_scripts)

        # Weights of the letters of each script in the sums
        weights = [WEIGHTS.get(script, 1.0) for script in SCRIPTS]
        ones = [1.0] * len(SCRIPTS)
        zeros = [0.0] * len(SCRIPTS)
        own_weights = list(weights)
        foreign_weights = list(zeros)
        own_other = 1.0  # weight of letters of unlisted scripts
        if is_known:
            own_other = 0.0
            for index, script in enumerate(SCRIPTS):
                if script not in own_scripts:
                    own_weights[index] = 0.0
                    foreign_weights[index] = 0.0 if script == "Latin" else 1.0

        # The columns are the kinds SPACE, DIGIT, MARK, SYMBOL, MARKUP and OTHER, then the scripts.
        rows = {
            "length": [1, 1, 0, 1, 1, 1, *weights],
            "visible": [0, 1, 1, 1, 1, 1, *ones],
            "other": [0, 1, 0, 1, 1, 0, *zeros],
            "digits": [0, 1, 0, 0, 0, 0, *zeros],
            "weight": [0, 0, 0, 0, 0, 1, *weights],
            "own": [0, 0, 0, 0, 0, own_other, *own_weights],
            "foreign": [0, 0, 0, 0, 0, 0, *foreign_weights],
            "markup": [0, 0, 0, 0, 1, 0, *zeros],
        }
        table = np.array(list(rows.values()), dtype=np.float64)
        self._names = tuple(rows)
        self._table = table.T

    def count(self, lines: Sequence[str]) -> Counts:
        """Return the counts of all lines."""
        # All lines become one array of code points; a line break after each line ends all runs.
        text = "\n".join([*lines, ""])
        encoded = text.encode("utf-32-le", "surrogatepass")
        points = np.frombuffer(encoded, dtype="<u4")
        char_kinds = np.take(kinds(), points)

        num_lines = len(lines)
        lengths = np.fromiter(map(len, lines), dtype=np.int64, count=num_lines)
        sizes = lengths + 1  # including the line break
        ends = np.cumsum(sizes)

        # Count the kinds of each line, without the line breaks.
        num_kinds = len(self._table)
        first_bins = np.arange(num_lines) * num_kinds
        bins = np.repeat(first_bins, sizes) + char_kinds
        counts = np.bincount(bins, minlength=num_lines * num_kinds)
        histogram = counts.reshape(num_lines, num_kinds)
        histogram[:, SPACE] -= 1

        # `@` is not used, because BLAS threads spin between calls and occupy the cores.
        present = np.flatnonzero(histogram.any(axis=0))
        sums = np.einsum("lk,kf->fl", histogram[:, present], self._table[present])

        is_repeated = points[1:] == points[:-1]
        is_repeated &= char_kinds[1:] != SPACE
        is_repeated &= char_kinds[1:] != DIGIT
        run_starts, run_sizes = _runs(is_repeated)
        runs = _longest(run_starts, run_sizes, ends)
        word_runs = _longest_word_runs(char_kinds == SPACE, ends)
        named_sums = dict(zip(self._names, sums, strict=True))
        return Counts(**named_sums, runs=runs, word_runs=word_runs)


def _longest_word_runs(is_space: Mask, ends: Integers) -> Numbers:
    """Return the longest run of words of the same length in each line; `ends`: positions after the line breaks."""
    # The positions of the first character of each word, and of the first space after it, alternate.
    edges = np.flatnonzero(np.diff(is_space, prepend=True))
    starts = edges[::2]
    lengths = edges[1::2] - starts
    is_equal = lengths[1:] == lengths[:-1]

    # The last word of a line and the first word of the next one are not a run.
    first_words = np.searchsorted(starts, ends[:-1])
    has_neighbors = (first_words > 0) & (first_words < len(starts))
    is_equal[first_words[has_neighbors] - 1] = False

    first, sizes = _runs(is_equal)
    return _longest(starts[first], sizes, ends)


def _runs(is_equal: Mask) -> tuple[Integers, Integers]:
    """Return the start and size of each run of equal items; `is_equal` marks items that equal the next one."""
    equal = np.flatnonzero(is_equal)
    distances = np.diff(equal, prepend=-2)
    first = np.flatnonzero(distances != 1)
    sizes = np.diff(first, append=len(equal)) + 1
    return equal[first], sizes


def _longest(positions: Integers, sizes: Integers, ends: Integers) -> Numbers:
    """Return the largest size in each line, at least 1; `positions` are in ascending order."""
    longest = np.ones(len(ends))
    lines = np.searchsorted(ends, positions, side="right")
    first = np.flatnonzero(np.diff(lines, prepend=-1))  # index of the first size of each line
    if len(first):
        line_maxima = np.maximum.reduceat(sizes, first)
        longest[lines[first]] = line_maxima
    return longest

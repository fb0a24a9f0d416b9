"""Count characters by kind (letters by script, digits, others) in many lines at once."""

import functools
import re
import unicodedata
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from mtformer.config.languages import base_code

Table = NDArray[np.uint8]
Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

_TABLES = yaml.safe_load(resources.files(__package__).joinpath("scripts.yaml").read_text(encoding="utf-8"))
BLOCKS: dict[str, str] = _TABLES["blocks"]
LANGUAGES: dict[str, str] = _TABLES["languages"]
SUBTAGS: dict[str, str] = _TABLES["subtags"]
SCRIPTS = tuple(BLOCKS)

SPACE, DIGIT, MARK, SYMBOL, MARKUP, OTHER = range(6)
"""Kinds of characters other than letters of a known script: MARK is a combining mark, MARKUP is in `MARKUP_SIGNS`, and
OTHER a letter of an unlisted script."""
FIRST_SCRIPT = 6
MARKUP_SIGNS = "<&@/"  # each URL, email address, tag or entity contains one of these, or a run of three letters (www)
WEIGHTS = {"Han": 3.5, "Kana": 2.0, "Hangul": 2.0, "Bopomofo": 1.5}
"""Approximate number of Latin letters that one letter of a script corresponds to; 1 for all other scripts."""


def scripts_of(language: str) -> frozenset[str]:
    """Return the scripts of a language code such as de, pt-BR or sr_Latn; empty if it is unknown."""
    base = base_code(language)
    for subtag in re.split("[-_]", language.lower())[1:]:
        if subtag in SUBTAGS:
            return frozenset(SUBTAGS[subtag].split())
    return frozenset(name for scripts, codes in LANGUAGES.items() if base in codes.split() for name in scripts.split())


@functools.cache
def kinds() -> Table:
    """Return the kind of each code point: one of the kinds above, or FIRST_SCRIPT + the index of its script."""
    table = np.full(0x110000, SYMBOL, dtype=np.uint8)
    # There are no letters above this code point.
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
    for sign in "ªºµ":  # Latin letters according to their names, but used in all languages
        table[ord(sign)] = MARK
    for sign in MARKUP_SIGNS:
        table[ord(sign)] = MARKUP
    table[ord("〇")] = table[ord("々")] = FIRST_SCRIPT + SCRIPTS.index("Han")
    return table


class Counts(NamedTuple):
    """Counts per line; letters are weighted by `WEIGHTS` in `length`, `weight` and `own`."""

    length: Numbers
    """Number of characters, including whitespace."""
    visible: Numbers
    """Number of characters other than whitespace."""
    other: Numbers
    """Number of visible characters other than letters and marks: digits, punctuation, symbols."""
    digits: Numbers
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
        scripts = scripts_of(language)
        letters = [WEIGHTS.get(name, 1.0) for name in SCRIPTS]
        own = [weight * (not scripts or name in scripts) for name, weight in zip(SCRIPTS, letters, strict=True)]
        foreign = [float(bool(scripts) and name not in scripts | {"Latin"}) for name in SCRIPTS]
        ones, zeros = [1.0] * len(SCRIPTS), [0.0] * len(SCRIPTS)
        # One row per field of Counts except the runs; the columns are the kinds SPACE to OTHER, then the scripts.
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
        # A line break after each line ends all runs.
        points = np.frombuffer("\n".join([*lines, ""]).encode("utf-32-le", "surrogatepass"), dtype="<u4")
        found = np.take(kinds(), points)
        num_kinds = len(self._table)
        ends = np.cumsum(np.fromiter(map(len, lines), dtype=np.int64, count=len(lines)) + 1)
        cells = np.repeat(np.arange(len(lines)) * num_kinds, np.diff(ends, prepend=0)) + found
        histogram = np.bincount(cells, minlength=len(lines) * num_kinds).reshape(len(lines), num_kinds)
        histogram[:, SPACE] -= 1
        # `@` is not used, because BLAS threads spin between calls and occupy the cores.
        present = np.flatnonzero(histogram.any(axis=0))
        sums = np.einsum("lk,kf->fl", histogram[:, present], self._table[present])
        is_equal = (points[1:] == points[:-1]) & (found[1:] != SPACE) & (found[1:] != DIGIT)
        return Counts._make([*sums, _longest(*_runs(is_equal), ends), _longest_word_runs(found == SPACE, ends)])


def _longest_word_runs(is_space: Mask, ends: Integers) -> Numbers:
    """Return the longest run of words of the same length in each line; `ends`: positions after the line breaks."""
    edges = np.flatnonzero(np.diff(is_space, prepend=True))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    is_equal = lengths[1:] == lengths[:-1]
    first_words = np.searchsorted(starts, ends[:-1])
    is_equal[first_words[(first_words > 0) & (first_words < len(starts))] - 1] = False
    first, sizes = _runs(is_equal)
    return _longest(starts[first], sizes, ends)


def _runs(is_equal: Mask) -> tuple[Integers, Integers]:
    """Return the start and size of each run of equal items; `is_equal` marks items that equal the next one."""
    equal = np.flatnonzero(is_equal)
    first = np.flatnonzero(np.diff(equal, prepend=-2) != 1)
    return equal[first], np.diff(first, append=len(equal)) + 1


def _longest(positions: Integers, sizes: Integers, ends: Integers) -> Numbers:
    """Return the largest size in each line, at least 1; `positions` are in ascending order."""
    longest = np.ones(len(ends))
    lines = np.searchsorted(ends, positions, side="right")
    first = np.flatnonzero(np.diff(lines, prepend=-1))
    if len(first):
        longest[lines[first]] = np.maximum.reduceat(sizes, first)
    return longest

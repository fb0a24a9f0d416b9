"""Compare the numbers in two lines across the number formats of different languages."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import product

from mtformer.config.languages import MANY_CHARACTERS, base_code

DIGITS = re.compile(r"\d{1,18}")
"""A run of digits; longer runs are divided."""

DECIMAL = re.compile(r"\d{1,18}(?:[.,]\d{1,18})*")
"""Digits with separators: a decimal number, or several numbers as in a date."""

GROUPED = re.compile(r"[ .,'’\u00a0\u202f](?<=\d.)(?<!\d{4}.)(?=\d{3}(?!\d))")
"""Thousands separators, as in 1,000, 1.000 and 1'000. The pattern starts with the separator, which is fastest."""

SHORT_DATE = re.compile(r"(?<!\d)\d{1,2}[年月]")
"""Months, and years counted by era, as in 平成18年3月, which other languages write differently."""

FULL_YEAR = re.compile(r"\d{3,4}年")
"""A year that is not counted by era."""

LARGE_UNIT = re.compile(r"\d ?(?:[万萬億亿만억]|लाख|करोड|lakh|crore)")
"""A number of units that most languages do not have: 3億 is 300 million."""

SEPARATORS = {"٫": ".", "٬": ",", "，": ","}
"""Decimal and thousands separators of Arabic digits, the full-width comma, and the usual ones."""

ROMAN = re.compile(r"\b(?:[IVXLC]{2,}|[VX])(?=(?:e|ᵉ|ème)?\b)")
"""A Roman numeral; a single I, L or C is more often a letter."""

ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
"""Values of the letters of Roman numerals."""

SPELLED_OUT = 12
"""Numbers up to this are often spelled out, as are round numbers (20, 100, 3000); trailing zeros are ignored."""

CALENDARS = (543, 621, 622, -543, -621, -622, -1911)
"""Offsets in years between the Gregorian calendar and the Buddhist and Iranian calendars, in both directions, and to
the calendar of Taiwan."""


def writes_digits(languages: Iterable[str]) -> bool:
    """Return True if all of these languages write nearly all numbers with digits."""
    return not MANY_CHARACTERS.intersection(map(base_code, languages))


def numbers_differ(src: str, tgt: str, in_digits: bool, *, is_strict: bool = False) -> bool:
    """Return True if a number is replaced with another one, or most numbers have no counterpart.

    Numbers match if they differ only in leading or trailing zeros (2.5 million and 2,500,000), the use of a 12-hour
    clock, two-digit years or Roman numerals, or the calendar. Round numbers are ignored, because they may be
    spelled out; small numbers are compared only if both lines have the same number of unmatched ones.

    Args:
        src: one of the lines.
        tgt: the other line.
        in_digits: both languages write nearly all numbers with digits (see `writes_digits`). If False, small numbers
            and numbers that occur in one line only are ignored.
        is_strict: any number without a counterpart is a difference, unless it is small or round and only missing, and
            so is a value that is 10 or 100 times too large or small. Lines with units such as 億 are compared as in
            Japanese.
    """
    has_equal_digits = DIGITS.findall(src) == DIGITS.findall(tgt)
    if has_equal_digits and not _has_date_unit(src + tgt):
        return False  # possibly with different separators

    # Find values that are wrong by a factor of 10 or 100.
    if is_strict and LARGE_UNIT.search(src + tgt):
        is_strict = False
        in_digits = False
    if is_strict:
        src = _in_ascii(src)
        tgt = _in_ascii(tgt)
        if _has_misplaced_point(src, tgt):
            return True

    # Compare the numbers of both lines without zeros, then all their digits.
    src_numbers = _nonzero_numbers(src)
    tgt_numbers = _nonzero_numbers(tgt)
    if src_numbers == tgt_numbers:
        return False
    src_side = _Numbers.of(src, src_numbers, is_strict)
    tgt_side = _Numbers.of(tgt, tgt_numbers, is_strict)
    if src_side.cores == tgt_side.cores:
        return False
    if src_side.digits() == tgt_side.digits():
        return False

    # Look at the numbers that the other line does not contain in any form.
    src_unmatched = src_side.without_counterpart(tgt_side)
    tgt_unmatched = tgt_side.without_counterpart(src_side)
    num_src_small = _num_small(src_unmatched)
    num_tgt_small = _num_small(tgt_unmatched)
    if in_digits and num_src_small > 0 and num_src_small == num_tgt_small:
        return True
    if in_digits and is_strict:
        # A number is replaced, and not only missing, if the other line has an unmatched number, or as many numbers.
        has_unmatched_pair = bool(src_unmatched and tgt_unmatched)
        is_same_count = len(src_numbers) == len(tgt_numbers)
        if (src_unmatched or tgt_unmatched) and (has_unmatched_pair or is_same_count):
            return True

    # Round numbers, whose cores are small, may be spelled out in the other line.
    num_src_large = _num_large(map(_core, src_unmatched))
    num_tgt_large = _num_large(map(_core, tgt_unmatched))
    if num_src_large and num_tgt_large:
        return True
    num_shared = 0 if is_strict else _num_large(src_side.cores & tgt_side.cores)
    return in_digits and num_src_large + num_tgt_large > num_shared


def values(line: str) -> list[Decimal]:
    """Return the values of the numbers in a line; those with several separators, such as dates, are several numbers."""
    line = GROUPED.sub("", _in_ascii(line))
    numbers: list[Decimal] = []
    for number in DECIMAL.findall(line):
        parts = re.split("[.,]", number)
        if len(parts) > 2:
            numbers += map(Decimal, parts)
        else:
            numbers.append(Decimal(".".join(parts)))
    return numbers


def _has_date_unit(text: str) -> bool:
    return "年" in text or "月" in text


def _in_ascii(line: str) -> str:
    """Return a line with ASCII digits and separators."""
    characters = list(line)
    for index, character in enumerate(characters):
        if character.isdecimal():
            characters[index] = str(int(character))
        elif character in SEPARATORS:
            characters[index] = SEPARATORS[character]
    return "".join(characters)


def _has_misplaced_point(src: str, tgt: str) -> bool:
    """Return True if an unmatched value of a line is 10 or 100 times an unmatched value of the other line."""
    src_values = Counter(values(src))
    tgt_values = Counter(values(tgt))
    only_in_src = src_values - tgt_values
    only_in_tgt = tgt_values - src_values
    for pair in product(only_in_src, only_in_tgt):
        smaller, larger = sorted(pair)
        if larger in (10 * smaller, 100 * smaller):
            return True
    return False


def _nonzero_numbers(line: str) -> list[int]:
    """Return the digits between thousands separators and other characters as numbers, without short dates."""
    if _has_date_unit(line):
        line = SHORT_DATE.sub("", line)
    ungrouped = GROUPED.sub("", line)
    numbers = map(int, DIGITS.findall(ungrouped))
    return [number for number in numbers if number]


@dataclass(frozen=True)
class _Numbers:
    """The nonzero numbers of a line, in the forms in which they are compared."""

    line: str
    numbers: list[int]
    is_strict: bool
    divisor: int
    """See `_core`: 10, or 1000 if strict."""
    cores: set[int]
    """The numbers without trailing zeros."""

    @classmethod
    def of(cls, line: str, numbers: list[int], is_strict: bool) -> "_Numbers":
        """Return the forms of the numbers of a line.

        Args:
            line: the line.
            numbers: its numbers, from `_nonzero_numbers`.
            is_strict: see `numbers_differ`.
        """
        divisor = 1000 if is_strict else 10
        cores = {_core(number, divisor) for number in numbers}
        return cls(line, numbers, is_strict, divisor, cores)

    def digits(self) -> list[str]:
        """Return all nonzero digits, so that 3.5 equals 35, sorted, so that 2013-7-3 equals 3.7.2013.

        If strict, return the digits of each number between the first and the last nonzero one, in their order.
        """
        if self.is_strict:
            decimals = DECIMAL.findall(GROUPED.sub("", self.line))
            return [re.sub("[.,]", "", decimal).strip("0") for decimal in decimals]
        all_digits = "".join(map(str, self.numbers))
        return sorted(all_digits.replace("0", ""))

    def without_counterpart(self, other_line: "_Numbers") -> list[int]:
        """Return the numbers that the other line does not contain in any form."""
        numbers: list[int] = []
        for number in self.numbers:
            if _core(number, self.divisor) not in other_line.cores:
                numbers.append(number)
        if not numbers:
            return numbers

        has_year_of_era = "年" in other_line.line and not FULL_YEAR.search(other_line.line)
        if has_year_of_era:
            numbers = [number for number in numbers if not 100 <= number <= 2700]
        equivalents = other_line.equivalents()
        short_years = {number for number in other_line.numbers if number < 100}
        unmatched: list[int] = []
        for number in numbers:
            is_short_year = _is_year(number) and number % 100 in short_years
            if number not in equivalents and not is_short_year:
                unmatched.append(number)
        return unmatched

    def equivalents(self) -> set[int]:
        """Return the numbers that another language may write for those of this line."""
        equivalents = {_roman(numeral) for numeral in ROMAN.findall(self.line)}
        for number in self.numbers:
            if number <= 24:
                equivalents.add(number + 12)  # 3 p.m. is 15:00
                if number > 12:
                    equivalents.add(number - 12)
                equivalents.add(100 * number - 100)  # the 18th century is 1700-talet in Swedish
            elif _is_year(number):
                equivalents.add(number % 100 or number // 100 + 1)  # 1968 is '68, the 1920s are the twenties
                equivalents.update(number + years for years in CALENDARS)
        return equivalents


def _num_small(numbers: Iterable[int]) -> int:
    """Return how many of the numbers are often spelled out."""
    return sum(number <= SPELLED_OUT for number in numbers)


def _num_large(numbers: Iterable[int]) -> int:
    """Return how many of the numbers are usually written with digits."""
    return sum(number > SPELLED_OUT for number in numbers)


def _core(number: int, divisor: int = 10) -> int:
    """Return a number without trailing zeros or, if `divisor` is 1000, without groups of three trailing zeros."""
    while number % divisor == 0:
        number //= divisor
    return number


def _is_year(number: int) -> bool:
    return 1000 <= number <= 2700


def _roman(numeral: str) -> int:
    """Return the value of a Roman numeral: a letter before a letter of a higher value is subtracted."""
    total = 0
    previous = 0
    for letter in reversed(numeral):
        value = ROMAN_VALUES[letter]
        total += -value if value < previous else value
        previous = value
    return total

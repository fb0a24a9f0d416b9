"""Compare the numbers in two lines across the number formats of different languages."""

import re
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

from mtformer.config.languages import MANY_CHARACTERS, base_code

DIGITS = re.compile(r"\d{1,18}")
DECIMAL = re.compile(r"\d{1,18}(?:[.,]\d{1,18})*")
GROUPED = re.compile(r"[ .,'’\u00a0\u202f](?<=\d.)(?<!\d{4}.)(?=\d{3}(?!\d))")
"""Thousands separators, as in 1,000, 1.000 and 1'000. The pattern starts with the separator, which is fastest."""
SHORT_DATE = re.compile(r"(?<!\d)\d{1,2}[年月]")
"""Months, and years counted by era, as in 平成18年3月, which other languages write differently."""
FULL_YEAR = re.compile(r"\d{3,4}年")
LARGE_UNIT = re.compile(r"\d ?(?:[万萬億亿만억]|लाख|करोड|lakh|crore)")
"""A number of units that most languages do not have: 3億 is 300 million."""
SEPARATORS = {"٫": ".", "٬": ",", "，": ","}
"""Decimal and thousands separators of Arabic digits, the full-width comma, and the usual ones."""
ROMAN = re.compile(r"\b(?:[IVXLC]{2,}|[VX])(?=(?:e|ᵉ|ème)?\b)")
ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
SPELLED_OUT = 12
"""Numbers up to this are often spelled out, as are round numbers (20, 100, 3000); trailing zeros are ignored."""
CALENDARS = (543, 621, 622, -543, -621, -622, -1911)
"""Years from the Gregorian calendar to those of Buddhists, Iran (in both directions) and Taiwan."""


def writes_digits(languages: Iterable[str]) -> bool:
    """Return True if all of these languages write nearly all numbers with digits."""
    return not MANY_CHARACTERS.intersection(map(base_code, languages))


def numbers_differ(src: str, tgt: str, in_digits: bool, is_strict: bool = False) -> bool:
    """Return True if a number is replaced with another one, or most numbers have no counterpart.

    Numbers match if they differ only in leading or trailing zeros (2.5 million and 2,500,000), the use of a 12-hour
    clock, two-digit years or Roman numerals, or the calendar. Round numbers are ignored, because they may be
    spelled out; small numbers are compared only if both lines have the same number of unmatched ones. If `in_digits`
    is False (see `writes_digits`), small numbers and numbers that occur in one line only are ignored. If `is_strict`,
    any number without a counterpart is a difference, unless it is small or round and only missing, and so is a value
    that is 10 or 100 times too large or small. Lines with units such as 億 are compared as in Japanese.
    """
    if DIGITS.findall(src) == DIGITS.findall(tgt) and "年" not in src + tgt and "月" not in src + tgt:
        return False  # the same digits, possibly grouped differently (see below)
    if is_strict and LARGE_UNIT.search(src + tgt):
        is_strict = in_digits = False
    if is_strict:
        src, tgt = _in_ascii(src), _in_ascii(tgt)
        src_values, tgt_values = Counter(values(src)), Counter(values(tgt))
        times = {(a, b) for a in src_values - tgt_values for b in tgt_values - src_values}
        if any(larger in (10 * smaller, 100 * smaller) for a, b in times for larger, smaller in ((a, b), (b, a))):
            return True
    src_numbers, tgt_numbers = _numbers(src), _numbers(tgt)
    if src_numbers == tgt_numbers:
        return False
    unit = 1000 if is_strict else 10
    src_cores, tgt_cores = ({_core(number, unit) for number in numbers} for numbers in (src_numbers, tgt_numbers))
    src_digits, tgt_digits = (_all_digits(*side, is_strict) for side in ((src, src_numbers), (tgt, tgt_numbers)))
    if src_cores == tgt_cores or src_digits == tgt_digits:
        return False
    src_left = _unexplained([n for n in src_numbers if _core(n, unit) not in tgt_cores], tgt_numbers, tgt)
    tgt_left = _unexplained([n for n in tgt_numbers if _core(n, unit) not in src_cores], src_numbers, src)
    src_small, tgt_small = (sum(n <= SPELLED_OUT for n in left) for left in (src_left, tgt_left))
    is_replaced = (src_left and tgt_left) or (len(src_numbers) == len(tgt_numbers) and (src_left or tgt_left))
    if in_digits and ((src_small and src_small == tgt_small) or (is_strict and is_replaced)):
        return True
    src_large, tgt_large = (sum(_core(n) > SPELLED_OUT for n in left) for left in (src_left, tgt_left))
    if src_large and tgt_large:
        return True
    shared = 0 if is_strict else sum(core > SPELLED_OUT for core in src_cores & tgt_cores)
    return in_digits and src_large + tgt_large > shared


def values(line: str) -> list[Decimal]:
    """Return the values of the numbers in a line; those with several separators, such as dates, are several numbers."""
    found = (re.split("[.,]", number) for number in DECIMAL.findall(GROUPED.sub("", _in_ascii(line))))
    return [Decimal(one) for parts in found for one in (parts if len(parts) > 2 else [".".join(parts)])]


def _in_ascii(line: str) -> str:
    return "".join(str(int(one)) if one.isdecimal() else SEPARATORS.get(one, one) for one in line)


def _numbers(line: str) -> list[int]:
    if "年" in line or "月" in line:
        line = SHORT_DATE.sub("", line)
    found = DIGITS.findall(GROUPED.sub("", line))
    return [number for number in map(int, found) if number]


def _core(number: int, unit: int = 10) -> int:
    """Return a number without trailing zeros or, if `unit` is 1000, without groups of three trailing zeros."""
    while number % unit == 0:
        number //= unit
    return number


def _all_digits(line: str, numbers: list[int], is_strict: bool) -> list[str]:
    """Return all nonzero digits, so that 3.5 equals 35, sorted, so that 2013-7-3 equals 3.7.2013.

    If `is_strict`, return the digits of each number between the first and the last nonzero one, in their order.
    """
    if is_strict:
        return [re.sub("[.,]", "", number).strip("0") for number in DECIMAL.findall(GROUPED.sub("", line))]
    return sorted("".join(map(str, numbers)).replace("0", ""))


def _unexplained(numbers: list[int], others: list[int], other: str) -> list[int]:
    """Return the numbers without a counterpart in the other line."""
    if not numbers:
        return numbers
    if "年" in other and not FULL_YEAR.search(other):  # year of an era
        numbers = [number for number in numbers if not 100 <= number <= 2700]
    written = {_roman(numeral) for numeral in ROMAN.findall(other)}
    for number in others:
        if number <= 24:  # 3 p.m. is 15:00
            written |= {number - 12, number + 12} if number > 12 else {number + 12}
            written.add(100 * number - 100)  # the 18th century is 1700-talet in Swedish
        elif _is_year(number):  # 1968 is '68, the 1920s are the twenties
            written |= {number % 100 or number // 100 + 1, *(number + years for years in CALENDARS)}
    short = {number for number in others if number < 100}
    return [n for n in numbers if n not in written and not (_is_year(n) and n % 100 in short)]


def _is_year(number: int) -> bool:
    return 1000 <= number <= 2700


def _roman(numeral: str) -> int:
    values = [ROMAN_VALUES[letter] for letter in numeral]
    pairs = zip(values, [*values[1:], 0], strict=True)
    return sum(-value if value < after else value for value, after in pairs)

"""Compare the numbers in two lines across the number formats, calendars and numerals of different languages."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import product

import regex

from mtformer.config.languages import has_many_characters
from mtformer.data.filters.calendars import (
    FIRST_YEAR,
    HOURS_FROM_SUNRISE,
    LAST_DAY,
    LAST_YEAR,
    Calendar,
    calendars_of,
    date_with_own_month,
    language_codes,
)
from mtformer.data.filters.eras import Eras, has_date, has_unknown_year, short_dates, without_eras
from mtformer.data.filters.numerals import GROUPED, NUMBER, has_unit, in_ascii, possible_values
from mtformer.text.number_words import Forms, forms_of, letters_of, spells

DIGITS = re.compile(r"\d{1,18}")
"""A run of digits; longer runs are divided."""

DECIMAL = re.compile(NUMBER)
"""Digits with separators."""

TIME = regex.compile(
    r"\d[:.]\d\d(?!\d)|\d ?[ap]\.? ?m\b|\d ?h\b|o['’]clock|[ሰሳ][ዓአዐ]ት|\b(?:saa\b|saac|sa['’]aa|ssaawa|ssawa)",
    regex.IGNORECASE,
)
"""A time of day: a sign for hours, or the word for hour in a language that counts them from sunrise."""

CLOCK = re.compile(r"[0-2]?\d\.[0-5]\d")
"""A number with a decimal point that may be a time of day, as in 14.30."""

NUMERIC_DATE = re.compile(r"\d([./-])\d{1,2}\1\d")
"""A date in which the month is a number."""

ROMAN = re.compile(r"\b(?:[IVXLC]{2,}|[VX])(?=(?:e|ᵉ|ème)?\b)")
"""A Roman numeral; a single I, L or C is more often a letter."""

ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
"""Values of the letters of Roman numerals."""

SPELLED_OUT = 12
"""Numbers up to this are often spelled out, as are round numbers (20, 100, 3000); trailing zeros are ignored."""

HOURS = 24
"""Largest number of an hour."""


def writes_digits(languages: Iterable[str]) -> bool:
    """Return True if all of these languages write nearly all numbers with digits."""
    return not any(map(has_many_characters, languages))


@dataclass(frozen=True)
class NumberRules:
    """How two languages may write the same number."""

    in_digits: bool = True
    """Both languages write nearly all numbers with digits. If False, small numbers, and numbers that occur in one line
    only, are ignored unless the comparison is strict."""
    calendars: tuple[Calendar, ...] = ()
    """Calendars of the languages other than the Gregorian one."""
    counts_hours_from_sunrise: bool = False
    """A language counts hours from sunrise, so that 7:00 is one o'clock."""
    words: Forms = field(default_factory=dict, repr=False)
    """Numbers in words."""

    @classmethod
    def of(cls, *languages: str) -> "NumberRules":
        """Return the rules for lines in these languages, of the sources and of the targets."""
        codes = set().union(*map(language_codes, languages))
        return cls(
            in_digits=writes_digits(languages),
            calendars=calendars_of(languages),
            counts_hours_from_sunrise=not HOURS_FROM_SUNRISE.isdisjoint(codes),
            words=forms_of(languages),
        )

    def other_years(self, number: int) -> set[int]:
        """Return the years of other calendars for a Gregorian year, and the Gregorian years for one of another."""
        years: set[int] = set()
        for calendar in self.calendars:
            years |= calendar.years(number)
            years |= calendar.gregorian_years(number)
        return years

    def years_of_other_months(self, number: int) -> set[int]:
        """Return the same for the calendars whose months differ from the Gregorian ones."""
        calendars = tuple(calendar for calendar in self.calendars if calendar.month_starts)
        return NumberRules(calendars=calendars).other_years(number)

    def is_same_day(self, day: int, other_day: int) -> bool:
        """Return True if two numbers may be the same day in the Gregorian and another calendar."""
        return any(calendar.is_same_day(day, other_day) for calendar in self.calendars)


def numbers_differ(src: str, tgt: str, rules: NumberRules, *, is_strict: bool = False) -> bool:
    """Return True if a number is replaced with another one, or most numbers have no counterpart.

    Numbers match if they differ only in leading or trailing zeros (2.5 million and 2,500,000), the use of a 12-hour
    clock, two-digit years, the numerals or the calendar, or if the other line spells them out. Round numbers are
    ignored, because they may be spelled out; small numbers are compared only if both lines have the same number of
    unmatched ones.

    Args:
        src: one of the lines.
        tgt: the other line.
        rules: how the languages of the lines write numbers.
        is_strict: any number without a counterpart is a difference, unless it is small or round and only missing, and
            so is a decimal with other digits, or a value that is 10 or 100 times too large or small.
    """
    has_equal_digits = DIGITS.findall(src) == DIGITS.findall(tgt)
    if has_equal_digits and not has_date(src + tgt):
        return False  # possibly with different separators

    # Compare the numbers of both lines without zeros, then all their digits.
    has_units = has_unit(src) or has_unit(tgt)
    src_side = _Numbers.of(src, has_units=has_units, is_strict=is_strict)
    tgt_side = _Numbers.of(tgt, has_units=has_units, is_strict=is_strict)
    pair = _Pair(src_side, tgt_side, rules)
    if is_strict and (pair.has_misplaced_point() or pair.has_replaced_decimal()):
        return True
    if src_side.numbers == tgt_side.numbers or src_side.cores == tgt_side.cores:
        return False
    if src_side.digits() == tgt_side.digits():
        return False

    # Look at the numbers that the other line does not contain in any form.
    src_unmatched, tgt_unmatched = pair.unmatched
    num_src_small = _num_small(src_unmatched)
    num_tgt_small = _num_small(tgt_unmatched)
    if rules.in_digits and num_src_small > 0 and num_src_small == num_tgt_small:
        return True
    if rules.in_digits and is_strict:
        # A number is replaced, and not only missing, if the other line has an unmatched number, or as many numbers.
        has_unmatched_pair = bool(src_unmatched and tgt_unmatched)
        is_same_count = len(src_side.numbers) == len(tgt_side.numbers)
        if (src_unmatched or tgt_unmatched) and (has_unmatched_pair or is_same_count):
            return True

    # Round numbers, whose cores are small, may be spelled out in the other line.
    num_src_large = _num_large(map(_core, src_unmatched))
    num_tgt_large = _num_large(map(_core, tgt_unmatched))
    if num_src_large and num_tgt_large:
        return True
    num_shared = 0 if is_strict else pair.num_shared
    counts_missing = rules.in_digits or is_strict
    return counts_missing and num_src_large + num_tgt_large > num_shared


def values(line: str) -> list[Decimal]:
    """Return the values of the numbers in a line; those with several separators, such as dates, are several numbers."""
    return _values(in_ascii(line))


def _values(line: str) -> list[Decimal]:
    """Return the values of the numbers in a line with ASCII digits."""
    line = GROUPED.sub("", line)
    numbers: list[Decimal] = []
    for number in DECIMAL.findall(line):
        parts = re.split("[.,]", number)
        if len(parts) > 2:
            numbers += map(Decimal, parts)
        else:
            numbers.append(Decimal(".".join(parts)))
    return numbers


@dataclass(frozen=True)
class _Numbers:
    """The nonzero numbers of a line, in the forms in which they are compared."""

    given: str
    """The line as it is given."""
    line: str
    """The line with ASCII digits, and Gregorian years for those of eras."""
    compared: str
    """The same without months and years that are not compared."""
    numbers: list[int]
    """The nonzero numbers that are written with digits."""
    readings: dict[int, set[int]]
    """Other ways to write the Gregorian years of eras; see `Eras`."""
    not_compared: set[int]
    """Numbers that `compared` leaves out, and Gregorian years for years of eras that it leaves out."""
    has_units: bool
    is_strict: bool

    @classmethod
    def of(cls, given: str, *, has_units: bool, is_strict: bool) -> "_Numbers":
        """Return the forms of the numbers of a line.

        Args:
            given: the line.
            has_units: one of the lines has a unit such as 億; then 1.4 and 1,400,000,000 are the same number.
            is_strict: see `numbers_differ`.
        """
        line = in_ascii(given)
        eras = Eras(line, readings={}, left_out=set())
        compared = line
        not_compared: set[int] = set()
        if has_date(line):
            eras = without_eras(line)
            pattern = short_dates(eras, is_strict=is_strict)
            compared = pattern.sub(" ", eras.line)
            short_numbers = {int(match[0][:-1]) for match in pattern.finditer(eras.line)}
            not_compared = eras.left_out | short_numbers

        numbers = [number for number in _integers(compared, has_units) if number]
        return cls(given, eras.line, compared, numbers, eras.readings, not_compared, has_units, is_strict)

    @property
    def divisor(self) -> int:
        """See `_core`: 10, or 1000 if strict."""
        return 1000 if self.is_strict and not self.has_units else 10

    @property
    def has_unknown_year(self) -> bool:
        """True if the line may have a year whose Gregorian year is unknown."""
        return has_unknown_year(self.line, is_strict=self.is_strict)

    @cached_property
    def possible(self) -> set[int]:
        """Further numbers that the line may have, but need not."""
        return possible_values(self.given) | self.not_compared

    @cached_property
    def letters(self) -> str:
        """The letters of the line, in which words for numbers are found."""
        return letters_of(self.given)

    @cached_property
    def cores(self) -> set[int]:
        """The numbers without trailing zeros."""
        return {_core(number, self.divisor) for number in self.numbers}

    def digits(self) -> list[str]:
        """Return all nonzero digits, so that 3.5 equals 35, sorted, so that 2013-7-3 equals 3.7.2013.

        If strict, return the digits of each number between the first and the last nonzero one, in their order.
        """
        if self.is_strict:
            decimals = DECIMAL.findall(GROUPED.sub("", self.line))
            return [re.sub("[.,]", "", decimal).strip("0") for decimal in decimals]
        all_digits = "".join(map(str, self.numbers))
        return sorted(all_digits.replace("0", ""))

    def decimals(self) -> set[str]:
        """Return the digits of the numbers with a decimal point that are no times of day, as in `digits` if strict."""
        decimals: set[str] = set()
        for number in DECIMAL.findall(GROUPED.sub("", self.line)):
            parts = re.split("[.,]", number)
            if len(parts) == 2 and not CLOCK.fullmatch(number):
                decimals.add("".join(parts).strip("0"))
        return decimals

    def equivalents(self, rules: NumberRules, *, has_time: bool) -> set[int]:
        """Return the numbers that another language may write for those of this line.

        Args:
            rules: how the languages write numbers.
            has_time: one of the lines has a time of day.
        """
        equivalents = {_roman(numeral) for numeral in ROMAN.findall(self.line)}
        equivalents = equivalents.union(self.possible, *self.readings.values())
        for number in self.possible:
            equivalents |= rules.other_years(number)
        for number in self.numbers:
            equivalents |= rules.other_years(number)
            if number <= HOURS:
                equivalents |= {number + 12, number - 12}  # 3 p.m. is 15:00
                if has_time and rules.counts_hours_from_sunrise:
                    equivalents |= {number + 6, number + 18, number - 6, number - 18}  # 7:00 and 19:00 are one o'clock
                equivalents.add(100 * number - 100)  # the 18th century is 1700-talet in Swedish
            elif _is_year(number):
                equivalents.add(number % 100 or number // 100 + 1)  # 1968 is '68, the 1920s are the twenties
        return equivalents


@dataclass(frozen=True)
class _Pair:
    """The numbers of two lines."""

    src: _Numbers
    tgt: _Numbers
    rules: NumberRules

    @cached_property
    def unmatched(self) -> tuple[list[int], list[int]]:
        """The numbers of each line that the other line does not contain in any form."""
        src_unmatched = self._without_counterpart(self.src, self.tgt)
        tgt_unmatched = self._without_counterpart(self.tgt, self.src)
        if (src_unmatched or tgt_unmatched) and self.has_other_months:
            return self._without_dates(src_unmatched, tgt_unmatched)
        return src_unmatched, tgt_unmatched

    def _without_dates(self, src_numbers: list[int], tgt_numbers: list[int]) -> tuple[list[int], list[int]]:
        """Return the numbers without those that may be the same day or month in the Gregorian and another calendar."""
        if NUMERIC_DATE.search(self.src.line) and NUMERIC_DATE.search(self.tgt.line):
            # The numbers of months differ as well.
            src_others = [number for number in src_numbers if number > LAST_DAY]
            tgt_others = [number for number in tgt_numbers if number > LAST_DAY]
            return src_others, tgt_others

        src_others = [number for number in src_numbers if not self._is_day_of(number, self.tgt)]
        tgt_others = [number for number in tgt_numbers if not self._is_day_of(number, self.src)]
        return src_others, tgt_others

    def _is_day_of(self, number: int, other_side: _Numbers) -> bool:
        """Return True if a number may be the same day as one of the other line."""
        return any(self.rules.is_same_day(number, day) for day in other_side.numbers)

    @property
    def has_time(self) -> bool:
        """True if one of the lines has a time of day."""
        return any(TIME.search(side.line) for side in (self.src, self.tgt))

    @property
    def num_shared(self) -> int:
        """Number of distinct large numbers that both lines have, also as years of different calendars."""
        shared = self.src.cores & self.tgt.cores
        for number in set(self.src.numbers):
            if self.rules.other_years(number) & set(self.tgt.numbers):
                shared.add(_core(number))
        return _num_large(shared)

    @cached_property
    def has_other_months(self) -> bool:
        """True if a date is converted to another calendar with months of its own, so that its day and month differ."""
        has_calendars = any(calendar.month_starts for calendar in self.rules.calendars)
        if not has_calendars:
            return False
        if any(date_with_own_month().search(side.line) for side in (self.src, self.tgt)):
            return True
        src_numbers = set(self.src.numbers)
        tgt_numbers = set(self.tgt.numbers)
        only_in_tgt = tgt_numbers - src_numbers
        return any(self.rules.years_of_other_months(number) & only_in_tgt for number in src_numbers - tgt_numbers)

    def has_misplaced_point(self) -> bool:
        """Return True if an unmatched value of a line is 10 or 100 times an unmatched value of the other line."""
        src_values = Counter(_values(self.src.compared))
        tgt_values = Counter(_values(self.tgt.compared))
        only_in_src = src_values - tgt_values
        only_in_tgt = tgt_values - src_values
        for pair in product(only_in_src, only_in_tgt):
            smaller, larger = sorted(pair)
            if larger in (10 * smaller, 100 * smaller):
                may_be_date = self.rules.is_same_day(int(larger), int(smaller)) and self.has_other_months
                if not may_be_date:
                    return True
        return False

    def has_replaced_decimal(self) -> bool:
        """Return True if both lines have a number with a decimal point whose digits the other line does not have."""
        only_in_src = self.src.decimals().difference(self.tgt.digits())
        only_in_tgt = self.tgt.decimals().difference(self.src.digits())
        return bool(only_in_src and only_in_tgt)

    def _without_counterpart(self, side: _Numbers, other_side: _Numbers) -> list[int]:
        """Return the numbers of one line that the other line does not contain in any form."""
        numbers: list[int] = []
        for number in side.numbers:
            if _core(number, side.divisor) not in other_side.cores:
                numbers.append(number)
        if not numbers:
            return numbers

        if other_side.has_unknown_year:
            numbers = [number for number in numbers if not 100 <= number <= LAST_YEAR]
        equivalents = other_side.equivalents(self.rules, has_time=self.has_time)
        other_numbers = other_side.possible.union(other_side.numbers)
        short_years = {number for number in other_numbers if number < 100}
        unmatched: list[int] = []
        for number in numbers:
            is_short_year = _is_year(number) and number % 100 in short_years
            is_other_reading = not other_numbers.isdisjoint(side.readings.get(number, ()))
            if number in equivalents or is_short_year or is_other_reading:
                continue
            if not spells(other_side.letters, number, self.rules.words):
                unmatched.append(number)
        return unmatched


def _integers(line: str, has_units: bool) -> list[int]:
    """Return the digits between thousands separators and other characters as numbers.

    Args:
        line: a line with ASCII digits.
        has_units: the digits around a decimal point are one number.
    """
    line = GROUPED.sub("", line)
    if not has_units:
        return [int(digits) for digits in DIGITS.findall(line)]

    numbers: list[int] = []
    for decimal in DECIMAL.findall(line):
        parts = re.split("[.,]", decimal)
        numbers += map(int, parts) if len(parts) > 2 else [int("".join(parts))]
    return numbers


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
    return FIRST_YEAR <= number <= LAST_YEAR


def _roman(numeral: str) -> int:
    """Return the value of a Roman numeral: a letter before a letter of a higher value is subtracted."""
    total = 0
    previous = 0
    for letter in reversed(numeral):
        value = ROMAN_VALUES[letter]
        total += -value if value < previous else value
        previous = value
    return total

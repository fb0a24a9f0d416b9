"""Years of Japanese eras, and years of unknown eras, in lines of Japanese and Chinese text.

The years of an era count from its first one: 平成18年 (Heisei 18) is 2006. A year before 1873 began and ended some
weeks after the Gregorian one, and its months were other ones.
"""

import re
import unicodedata
from dataclasses import dataclass

import regex

from mtformer.data.filters.calendars import ERAS
from mtformer.data.filters.numerals import HAN_NUMERALS, han_value

ERA_YEAR = re.compile(
    rf"(?P<era>{'|'.join(ERAS)})\s?(?:(?P<digits>\d{{1,2}})|(?P<han>[{HAN_NUMERALS}]{{1,3}}|元))年(?!代)"
    r"(?P<date>\d{1,2}月(?P<day>\d{1,2})日)?"
)
"""A year of a Japanese era, as in 平成18年, 平成十八年 and 平成元年, possibly with a date."""

ERA_SIGN = re.compile("[\u32ff\u337b-\u337e]")
"""The name of an era as one character, such as ㍻ for 平成."""

FIRST_SOLAR_YEAR = 1873
"""First year in which the months of Japan are the Gregorian ones."""

FULL_YEAR = re.compile(r"\d{3,4}年")
"""A year that is not counted by era."""

SHORT_DATE = re.compile(r"(?<!\d)\d{1,2}[年月]")
"""Months, and years counted by era, as in 平成18年3月, which other languages write differently."""

BEFORE_DURATION = "了过過的约約近第在共达達满滿经經有整続續续業业婚立"
"""Characters that end no name of an era, but words before a duration: 了37年, for 37 years."""

ERA = rf"(?<=[同翌]|\p{{Script=Han}}{{2}})(?<![{BEFORE_DURATION}])"
"""The end of what may be the name of an unknown era, as in 康熙37年, or a word for the same or the next one."""

SHORT_DATE_IF_STRICT = regex.compile(
    rf"(?<!\d)\d{{1,2}}(?:月|年(?=\d{{1,2}}月|\s?[（(]\d{{3,4}}年))|{ERA}\d{{1,2}}年(?![間间ぶりも以])"
)
"""The same without years that may be a duration (37年, 37 years): only those before a month or a Gregorian year, or
after what may be an era."""

YEAR_OF_ERA = regex.compile(rf"{ERA}(?:\d{{1,2}}|[{HAN_NUMERALS}]{{1,3}}|元)年|\d{{1,2}}年\d{{1,2}}月|[同翌前昨今]年")
"""A year of an era, which may be unknown or implied (同年, the same year)."""


@dataclass(frozen=True)
class Eras:
    """A line with Gregorian years instead of those of Japanese eras."""

    line: str
    readings: dict[int, set[int]]
    """Other ways to write the Gregorian years of the line: 18 for 2006 (平成18年), 5 and 1859 for 1858 (安政5年)."""
    left_out: set[int]
    """Numbers that the line leaves out: years of eras in Chinese characters or in a line that has a Gregorian year too,
    and the days of their months before 1873."""


def has_date(line: str) -> bool:
    """Return True if a line may have a year or month in Chinese characters."""
    return "年" in line or "月" in line


def without_eras(line: str) -> Eras:
    """Return a line, whose digits are ASCII, with Gregorian years instead of those of Japanese eras."""
    line = ERA_SIGN.sub(lambda match: unicodedata.normalize("NFKC", match[0]), line)
    has_full_year = FULL_YEAR.search(line) is not None  # it may be the same year, as in 1858年（安政5年）
    readings: dict[int, set[int]] = {}
    left_out: set[int] = set()
    parts: list[str] = []
    end = 0
    for match in ERA_YEAR.finditer(line):
        parts.append(line[end : match.start()])
        end = match.end()

        number = _year_of_era(match)
        year = ERAS[match["era"]] + number - 1
        date = match["date"] or ""
        other_years = {number}
        if year < FIRST_SOLAR_YEAR:
            other_years.add(year + 1)
            if date:
                left_out.add(int(match["day"]))
                date = ""

        if has_full_year or match["digits"] is None:
            left_out |= {year, *other_years}
            parts.append(date)
        else:
            readings[year] = other_years
            parts.append(f"{year}年{date}")

    parts.append(line[end:])
    return Eras("".join(parts), readings, left_out)


def _year_of_era(match: re.Match[str]) -> int:
    """Return the number of a year in its era; 元年 is the first year."""
    if match["digits"]:
        return int(match["digits"])
    return 1 if match["han"] == "元" else han_value(match["han"])


def short_dates(eras: Eras, *, is_strict: bool) -> "re.Pattern[str] | regex.Pattern[str]":
    """Return the pattern of the years and months of a line that cannot be compared.

    Args:
        eras: the line; if it has an era, its other short years may be of the same era.
        is_strict: take few years for those of an era.
    """
    has_era = bool(eras.readings or eras.left_out)
    return SHORT_DATE_IF_STRICT if is_strict and not has_era else SHORT_DATE


def has_unknown_year(line: str, *, is_strict: bool) -> bool:
    """Return True if a line may have a year whose Gregorian year is unknown."""
    if is_strict:
        return YEAR_OF_ERA.search(line) is not None
    return "年" in line and not FULL_YEAR.search(line)

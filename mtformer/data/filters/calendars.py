"""Years of other calendars: which ones fall into a Gregorian year, and which languages use them.

An Amharic text writes 2008 for 2016, a Persian one 1395, an Arabic one 1437, and a Japanese one 平成28 (Heisei 28). A
pair of lines with such years is right. In a pair of languages without the calendar, the same numbers are an error.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from importlib import resources

import yaml

from mtformer.config.languages import base_code

_TABLES = yaml.safe_load(resources.files(__package__).joinpath("calendars.yaml").read_text(encoding="utf-8"))

FIRST_YEAR = 1000
"""First Gregorian year that is converted; smaller numbers are seldom years."""

LAST_YEAR = 2700
"""Last Gregorian year that is converted."""

ISLAMIC_EPOCH = 227015
"""First day of the Islamic calendar, 19 July 622 (Gregorian), as a day number of `datetime.date`."""

FIRST_ISLAMIC_YEAR = 622
"""Gregorian year in which the Islamic calendar starts."""

LUNAR_YEAR = 10631 / 30 / 365.2425
"""Mean length of an Islamic year in Gregorian years."""

CYCLE_YEARS = 30
"""Years of a cycle of the tabular Islamic calendar."""

CYCLE_DAYS = 10631
"""Days of a cycle of the tabular Islamic calendar."""

CYCLE_OFFSET = 10646
"""Term by which the division of days by years gives the year 1 on the first day, and leap years their extra day."""

TOLERANCE = 2
"""Days by which the observed Islamic calendar may differ from the tabular one."""

LAST_DAY = 32
"""Largest number of a day in the calendars with months of their own."""

SHORTEST_MONTH = 28
"""Number of days of the shortest Gregorian month."""

LONGEST_MONTH = 31
"""Number of days of the longest Gregorian month."""

HOURS_FROM_SUNRISE = frozenset(_TABLES["hours_from_sunrise"].split())
"""Codes of languages whose speakers count hours from sunrise and sunset, six hours later than others."""


@dataclass(frozen=True)
class Calendar:
    """A calendar, and the languages whose texts use it; see calendars.yaml."""

    offsets: tuple[int, ...]
    """Differences between its year and the Gregorian one; empty for the Islamic calendar."""
    month_starts: tuple[int, int] | None
    """First and last day of a Gregorian month on which its months start; None if its months are the Gregorian ones."""
    codes: frozenset[str]
    """Language codes and script subtags."""

    def years(self, year: int) -> set[int]:
        """Return the years of the calendar that overlap with a Gregorian year."""
        if not FIRST_YEAR <= year <= LAST_YEAR:
            return set()
        if not self.offsets:
            return _islamic_years(year)
        years = {year + offset for offset in self.offsets}
        return {calendar_year for calendar_year in years if calendar_year > 0}

    def gregorian_years(self, year: int) -> set[int]:
        """Return the Gregorian years that overlap with a year of the calendar."""
        candidates = [year - offset for offset in self.offsets]
        if not self.offsets:
            estimate = FIRST_ISLAMIC_YEAR + int(year * LUNAR_YEAR)
            candidates = [estimate - 1, estimate, estimate + 1]
        return {candidate for candidate in candidates if year in self.years(candidate)}

    def is_same_day(self, day: int, other_day: int) -> bool:
        """Return True if one of these may be the day of a Gregorian month, and the other the same day of its month."""
        if self.month_starts is None or max(day, other_day) > LAST_DAY:
            return False
        first_start, last_start = self.month_starts
        difference = abs(day - other_day)
        is_same_month = first_start - 1 <= difference <= last_start - 1
        is_next_month = SHORTEST_MONTH + 1 - last_start <= difference <= LONGEST_MONTH + 1 - first_start
        return is_same_month or is_next_month


def _calendars() -> Iterable[Calendar]:
    """Yield the calendars of the table."""
    for entry in _TABLES["calendars"].values():
        offsets = tuple(entry["offsets"])
        codes = frozenset(entry["codes"].split())
        month_starts = tuple(entry["month_starts"]) if entry["month_starts"] else None
        yield Calendar(offsets, month_starts, codes)


CALENDARS = tuple(_calendars())
"""Calendars other than the Gregorian one; the eras of Japan are in `ERAS`."""

ERAS: dict[str, int] = {}
"""First year of each Japanese era by its name."""
for _era in _TABLES["eras"].split():
    _name, _, _first_year = _era.partition(":")
    ERAS[_name] = int(_first_year)


def language_codes(language: str) -> set[str]:
    """Return the two-letter code of a language, if it has one, and its script subtag: ti and ethi for tir_Ethi."""
    subtags = re.split("[-_]", language.lower())[1:]
    scripts = {subtag for subtag in subtags if len(subtag) == 4}
    return {base_code(language), *scripts}


def calendars_of(languages: Iterable[str]) -> tuple[Calendar, ...]:
    """Return the calendars that texts in one of these languages may use."""
    codes = set().union(*map(language_codes, languages))
    return tuple(calendar for calendar in CALENDARS if not calendar.codes.isdisjoint(codes))


@functools.cache
def date_with_own_month() -> re.Pattern[str]:
    """Return the pattern of a day beside the name of a month that starts on another day than the Gregorian ones."""
    names: list[str] = []
    for names_in_language in _TABLES["months"].values():
        names += names_in_language.split()
    longest_first = sorted(names, key=len, reverse=True)
    month = "|".join(longest_first).replace("_", r"\s")

    # Words of up to three letters may stand between them, as in 26 ቀን ኅዳር, and prefixes before the name, as in ከኅዳር.
    between = r"(?:\W|\w{1,3}\W)?\W{0,2}\w?"
    return re.compile(rf"\d\w?{between}(?:{month})(?!\w)|(?<!\w)\w{{0,2}}(?:{month})\w?{between}\d")


def _islamic_years(year: int) -> set[int]:
    """Return the years of the Islamic calendar that overlap with a Gregorian year."""
    first_day = date(year, 1, 1).toordinal() - TOLERANCE
    last_day = date(year, 12, 31).toordinal() + TOLERANCE
    return set(range(_islamic_year(first_day), _islamic_year(last_day) + 1))


def _islamic_year(day: int) -> int:
    """Return the year of the tabular Islamic calendar on a day, which is a day number of `datetime.date`."""
    return (CYCLE_YEARS * (day - ISLAMIC_EPOCH) + CYCLE_OFFSET) // CYCLE_DAYS

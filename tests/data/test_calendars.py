"""Years of calendars, and the languages that use them."""

import pytest

from mtformer.data.filters.calendars import (
    CALENDARS,
    ERAS,
    FIRST_YEAR,
    LAST_YEAR,
    Calendar,
    calendars_of,
    date_with_own_month,
)


@pytest.mark.parametrize(
    ("language", "year", "expected"),
    [
        ("am", 2016, {2008, 2009}),
        ("fa", 2021, {1399, 1400, 1442, 1443}),
        ("fa", 1979, {1357, 1358, 1399, 1400}),
        ("ur_Arab", 2008, {1930, 1929, 1428, 1429, 1430}),
        ("he", 2026, {5786, 5787}),
        ("th", 2026, {2568, 2569}),
        ("lo", 2026, {2568, 2569}),
        ("km", 2026, {2569, 2570}),
        ("zh-TW", 2026, {115}),
        ("bn", 2026, {1432, 1433, 1947, 1948, 1447, 1448}),
        ("ne", 2026, {2082, 2083, 1146, 1147}),
        ("bo", 2026, {2152, 2153}),
        ("my", 2026, {1387, 1388, 2569, 2570}),
        ("de", 2026, set()),
        ("pt-BR", 2026, set()),
        ("en-IN", 2026, set()),
        ("gez_Ethi", 2016, {2008, 2009}),
    ],
)
def test_years_in_a_language(language: str, year: int, expected: set[int]) -> None:
    years: set[int] = set()
    for calendar in calendars_of([language]):
        years |= calendar.years(year)
    assert years == expected


@pytest.mark.parametrize("calendar", CALENDARS, ids=lambda calendar: min(calendar.codes))
def test_years_of_a_calendar_are_those_of_their_gregorian_years(calendar: Calendar) -> None:
    for year in (FIRST_YEAR, 1492, 1873, 2000, 2026, LAST_YEAR):
        years = calendar.years(year)
        assert (year > 2000) <= len(years) <= 3
        assert all(year in calendar.gregorian_years(calendar_year) for calendar_year in years)
    assert calendar.years(FIRST_YEAR - 1) == calendar.years(LAST_YEAR + 1) == set()


def test_islamic_years_are_shorter() -> None:
    [islamic] = [calendar for calendar in CALENDARS if not calendar.offsets]
    assert islamic.years(2026) == {1447, 1448}
    assert islamic.years(2000) == {1420, 1421}
    assert islamic.years(1900) == {1317, 1318}
    assert islamic.gregorian_years(1400) == {1979, 1980}


def test_first_years_of_eras() -> None:
    assert ERAS["明治"] == 1868
    assert ERAS["平成"] == 1989
    assert ERAS["令和"] == 2019
    assert len(ERAS) == 237


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ከጥቅምት 26 በኋላ", True),
        ("በ19 ኅዳር", True),
        ("۷ مهر ۱۳۹۷", True),
        ("ב-5 בתשרי", True),
        ("٥ رمضان", True),
        ("۱۷ وږی", True),
        ("५ वैशाख", True),
        ("26 ሰዎች", False),
        ("ጥቅምት", False),
        ("November 26", False),
    ],
)
def test_a_day_beside_the_name_of_a_month(line: str, expected: bool) -> None:
    assert (date_with_own_month().search(line) is not None) == expected

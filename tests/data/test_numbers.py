"""Comparison of the numbers in two lines: equal numbers in different formats, and different numbers."""

import pytest

from mtformer.data.filters.numbers import NumberRules, numbers_differ, writes_digits

IN_DIGITS = NumberRules.of("en", "de", "ar", "hi", "th")
IN_CHARACTERS = NumberRules.of("ja", "zh", "ko", "hi", "en")


@pytest.mark.parametrize(("src", "tgt"), [
    ("no number", "keine Zahl"),
    ("1,000.5 metres", "1.000,5 Meter"),
    ("12,500 people", "12 500 Menschen".replace(" 500", "\u00a0500")),
    ("1,234,567", "1'234'567"),
    ("2.35 million", "2.350.000"),
    ("3/17/2013", "17.03.2013"),
    ("2013-03-17", "17. März 2013"),
    ("20130317", "2013-03-17"),
    ("at 3 p.m.", "um 15 Uhr"),
    ("at 8:45 pm", "um 20.45 Uhr"),
    ("two rooms", "2 Zimmer"),
    ("a hundred and 20 rooms", "100 und zwanzig Zimmer"),
    ("in the 18th century", "en el siglo XVIII"),
    ("in the 19th century", "au XIXe siècle"),
    ("in the 18th century", "på 1700-talet"),
    ("The two firms employ 12,345 people.", "Les 2 firmes emploient 12 345 personnes."),
    ("12,345 people on 5 March 2010", "12 345 personnes le 5.3.2010"),
    ("in 2010 300 people", "300 Menschen im Jahr 2010"),
    ("Louis XIV", "Ludwig der 14."),
    ("in 1968", "im Jahr '68"),
    ("the twenties, the 1920s", "die 20er Jahre"),
    ("in 2013", "ในปี 2556"),
    ("in 2013", "в ２０１３ году"),
    ("٢٥ كتابا", "25 books"),
    ("7/24", "24/7"),
    ("page 007", "Seite 7"),
    ("0", "null"),
])  # fmt: skip
def test_equal_numbers(src: str, tgt: str) -> None:
    assert not numbers_differ(src, tgt, IN_DIGITS)
    assert not numbers_differ(tgt, src, IN_DIGITS)


@pytest.mark.parametrize(("src", "tgt"), [
    ("in 1926", "im Jahr 1026"),
    ("Hotels (19)", "Hotels (6)"),
    ("3 rooms", "4 Zimmer"),
    ("born 1926 in house 41, room 17", "geboren 1926 in Haus 41, Zimmer 18"),
    ("at 3 p.m.", "um 16 Uhr"),
    ("for 35 euros", "für wenig Geld"),
    ("in the 19th century", "au XVIIIe siècle"),
    ("in the 18th century", "på 1600-talet"),
    ("1,500", "1,600"),
    ("in 2013", "2557"),
])  # fmt: skip
def test_different_numbers(src: str, tgt: str) -> None:
    assert numbers_differ(src, tgt, IN_DIGITS)
    assert numbers_differ(tgt, src, IN_DIGITS)


def test_an_additional_number_is_accepted_if_others_match() -> None:
    assert not numbers_differ("1926 and 1927, 35", "1926 and 1927", IN_DIGITS)
    assert numbers_differ("1926, 35 and 43", "1926", IN_DIGITS)


@pytest.mark.parametrize(("src", "tgt"), [
    ("平成18年3月", "March 2006"),
    ("昭和48年、25歳", "twenty-five years old in 1973"),
    ("同年4月17日", "April 17, 823"),
    ("2006年（平成18年）、三十五人", "35 people in 2006"),
    ("安政5年（1858年）", "in 1858"),
    ("二十五人", "25 people"),
    ("第4回近畿の駅百選", "the Fourth Selection of 100 stations"),
    ("1万5600円", "15,600 yen"),
    ("9世", "10th generation"),
    ("2億3500万年", "235 million years"),
])  # fmt: skip
def test_languages_that_also_write_numbers_without_digits(src: str, tgt: str) -> None:
    assert not numbers_differ(src, tgt, IN_CHARACTERS)


@pytest.mark.parametrize("code", ["ja", "jpn", "jpn_Jpan", "zh-Hans", "zho_Hans", "cmn", "kor", "nan", "hak_Hant"])
def test_codes_of_languages_that_also_write_numbers_without_digits(code: str) -> None:
    assert not writes_digits(["en", code])
    assert writes_digits(["en", "deu_Latn", "nan_Latn", "th"])


def test_a_replaced_large_number_is_a_mismatch_in_all_languages() -> None:
    assert numbers_differ("1926年（大正15年）3月13日", "March 13, 1026", IN_CHARACTERS)


NOT_EQUAL = [
    *(("in 1945", "1954"), ("12 dogs", "21 Hunde"), ("13 and 24", "31 und 42"), ("105", "15"), ("500", "50")),
    *(("500", "5000"), ("1.05", "105"), ("7.5", "75"), ("flight 370", "Flug 37"), ("PIN 0042", "PIN 4200")),
    *(("300 rooms", "400 Zimmer"), ("20 euros", "50 Euro"), ("1000 men", "2000 Männer"), ("10", "20"), ("7", "5 3")),
    ("the number 100 and 12", "die Nummer 100 und 10"),
    *(("1 man and 5 dogs", "15 Hunde"), ("13 and 21", "Nummer 1321"), ("room 12, floor 3", "Zimmer 123")),
    *(("on 4 5 2016", "am 452016"), ("3-1", "31 Tore"), ("2 men and 5 dogs and 30 cats", "25 Hunde und 30 Katzen")),
    *(("2:2", "2:3"), ("11.11.2020", "12.11.2020"), ("version 2.3.1", "Version 2.3.2"), ("90 to 90", "90 zu 80")),
]


@pytest.mark.parametrize(("src", "tgt"), NOT_EQUAL)
def test_digits_in_another_order_differ_if_all_numbers_must_match(src: str, tgt: str) -> None:
    assert numbers_differ(src, tgt, IN_DIGITS, is_strict=True)
    for same, other in (
        *(("1.05 million", "1.050.000"), ("2013-07-03", "3.7.2013"), ("2.5 million", "2,500,000")),
        *(
            ("5 million, 12 men", "5.000.000, 12 Männer"),
            ("20 men and 3", "zwanzig Männer und 3"),
            ("12 men", "Männer"),
        ),
    ):
        assert not numbers_differ(same, other, IN_DIGITS, is_strict=True)


@pytest.mark.parametrize(("src", "tgt"), [
    ("他们花了3亿元。", "They spent 300 million yuan."),
    ("印度有14亿人。", "India has 1.4 billion people."),
    ("500万人", "5 million people"),
    ("200만 명", "two million people"),
    ("5 करोड़ रुपये", "50 million rupees"),
    ("1,250 dollars", "١٬٢٥٠ دولارا"),
    ("7.5 kilometers", "٧٫٥ كيلومتر"),
    ("१,२३,४५६ रुपये", "123,456 rupees"),
])  # fmt: skip
def test_units_and_digits_of_other_languages(src: str, tgt: str) -> None:
    for rules in (IN_CHARACTERS, IN_DIGITS):
        assert not numbers_differ(src, tgt, rules, is_strict=True)
        assert not numbers_differ(tgt, src, rules, is_strict=True)


@pytest.mark.parametrize(
    ("src", "tgt"), [("50本の本", "500 books"), ("印度有14亿人。", "India has 370 people."), ("१,२५०", "1,290")]
)
def test_other_numbers_with_units_and_digits_of_other_languages(src: str, tgt: str) -> None:
    assert numbers_differ(src, tgt, IN_CHARACTERS, is_strict=True)

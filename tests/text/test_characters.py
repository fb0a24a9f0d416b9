"""Classes of characters agree with the data of Unicode."""

import unicodedata

import pytest
import regex

from mtformer.config.languages import UNSPACED_SCRIPTS
from mtformer.text.characters import (
    COMMAS,
    DOUBLE_QUOTES,
    EXCLAMATIONS,
    FINAL_STOP,
    FULL_STOPS,
    LOW_QUOTES,
    PUNCTUATION,
    QUESTIONS,
    SEPARATOR,
    WITHOUT_SPACES,
    letters_and_digits,
)

ALL_CHARACTERS = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
COMBINED_SCRIPTS = {"hanb": "Hani", "hans": "Hani", "hant": "Hani", "jpan": "Hira", "hrkt": "Kana"}
"""Script of Unicode for codes of several scripts."""


@pytest.mark.parametrize("code", sorted(UNSPACED_SCRIPTS))
def test_letters_without_spaces_are_those_of_the_scripts_without_spaces(code: str) -> None:
    script = COMBINED_SCRIPTS.get(code, code)
    letters = regex.findall(rf"[\p{{Script={script}}}&&\p{{L}}]", ALL_CHARACTERS, regex.V1)
    unspaced = regex.findall(WITHOUT_SPACES, "".join(letters))
    assert len(unspaced) > 0.7 * len(letters) > 0


@pytest.mark.parametrize(
    "code",
    ["latn", "grek", "cyrl", "armn", "hebr", "arab", "deva", "beng", "taml", "ethi", "hang", "cher", "nkoo", "olck"],
)
def test_letters_of_other_scripts_have_spaces(code: str) -> None:
    letters = regex.findall(rf"[\p{{Script={code}}}&&\p{{L}}]", ALL_CHARACTERS, regex.V1)
    assert regex.findall(WITHOUT_SPACES, "".join(letters)) == []


def test_questions_and_exclamations_are_those_with_such_names() -> None:
    marks = regex.findall(r"\p{Sentence_Terminal}", ALL_CHARACTERS)
    names = {mark: unicodedata.name(mark, "") for mark in marks}
    other_names = {"\u055c": "EXCLAMATION MARK", "\u055e": "QUESTION MARK", "\uaaf1": "QUESTION MARK"}
    for mark, name in {**names, **other_names}.items():
        is_question = "QUESTION" in name
        is_exclamation = "EXCLAMATION" in name or "INTERROBANG" in name
        assert (mark in QUESTIONS) == is_question, name
        assert (mark in EXCLAMATIONS) == (is_exclamation and not is_question), name


def test_low_quotes_are_quotation_marks_that_unicode_calls_brackets() -> None:
    quotes = regex.findall(r"[\p{Quotation_Mark}&&[\p{Ps}\p{Pe}]]", ALL_CHARACTERS, regex.V1)
    assert {quote for quote in quotes if "CORNER BRACKET" not in unicodedata.name(quote)} == set(LOW_QUOTES)


def test_double_quotes_are_quotation_marks_that_are_no_apostrophes() -> None:
    quotes = set(regex.findall(r"\p{Quotation_Mark}", ALL_CHARACTERS))
    single = {quote for quote in quotes if "SINGLE" in unicodedata.name(quote)} | {"'", "＇"}
    assert set(DOUBLE_QUOTES) == quotes - single


def test_full_stops_are_neither_commas_nor_questions() -> None:
    stops = set(regex.findall(FULL_STOPS, ALL_CHARACTERS, regex.V1))
    assert stops.isdisjoint({*COMMAS, *QUESTIONS, *EXCLAMATIONS})
    assert stops >= {*".。．｡।॥۔։።။។།᱾꯫᠃꧉᭟᜶෴᪨꩝꓿꘎꛳᙮꤯"}


@pytest.mark.parametrize("text", ["Ja.", "はい。", "ہاں۔", "हाँ।", "አዎ።", "አዎ፡፡", "አዎ፡ ፡", "བོད།", "ဟုတ်ကဲ့။", "ꦲ꧉"])
def test_a_final_stop_is_found_in_all_scripts(text: str) -> None:
    assert FINAL_STOP.search(text) is not None


@pytest.mark.parametrize("text", ["Ja", "Ja?", "کیا؟", "ምን፧", "ဟုတ်၊", "Ինչո՞ւ", "አዎ፡", "ꦲ꧈", "Ja…", ""])
def test_other_text_has_no_final_stop(text: str) -> None:
    assert FINAL_STOP.search(text) is None


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("Ça va, l'été 2026?", "Çavalété2026"),
        ("हिन्दी है।", "हिन्दीहै"),
        ("ภาษาไทย ที่ดี", "ภาษาไทยที่ดี"),
        ("ကျောင်း၊", "ကျောင်း"),
        ("לֵב־אָדָם", "לֵבאָדָם"),
        ("ߒߞߏ߸ ߞߊ߲", "ߒߞߏߞߊ߲"),
        ("ሰላም፡፡", "ሰላም"),
    ],
)
def test_letters_keep_their_marks(text: str, letters: str) -> None:
    assert letters_and_digits(text) == letters


@pytest.mark.parametrize("mark", [*"،؛؟۔।፡።፣፧၊။។᱾߸꧈։、。！？—…《》"])
def test_marks_of_single_scripts_separate_words(mark: str) -> None:
    assert regex.fullmatch(SEPARATOR, mark, regex.V1)
    assert regex.fullmatch(PUNCTUATION, mark, regex.V1)


@pytest.mark.parametrize("mark", [*"-'’.,:/&_·״՞"])
def test_marks_inside_words_do_not_separate_them(mark: str) -> None:
    assert not regex.fullmatch(SEPARATOR, mark, regex.V1)
    assert regex.fullmatch(PUNCTUATION, mark, regex.V1)


@pytest.mark.parametrize("symbol", [*"😀✓🏽ー゛", "a", "९", "ི"])
def test_symbols_and_marks_of_letters_are_no_punctuation(symbol: str) -> None:
    assert not regex.fullmatch(PUNCTUATION, symbol, regex.V1)

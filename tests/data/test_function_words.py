"""Lines in a language that is not theirs; names in other languages stay."""

import pytest

from mtformer.data.function_words import SAME, WORDS, WordCheck, words_of


@pytest.mark.parametrize(("line", "other"), [
    ("La casa que vimos ayer", "Das Haus, das wir gestern sahen"),
    ("Dom jest duży, ale nie ma ogrodu", "Das Haus ist groß"),
    ("Das Haus ist groß und hat keinen Garten", "Das Haus ist groß und hat keinen Garten."),
    ("Это не дом", "Das ist kein Haus"),
])  # fmt: skip
def test_foreign_lines(line: str, other: str) -> None:
    assert WordCheck("en", "de").is_foreign(line, other)


@pytest.mark.parametrize(("line", "other"), [
    ("The house", "Das Haus"),
    ("", ""),
    ("12 %", "12 %"),
    ("Hotel de la Paix", "Hotel de la Paix"),
    ("Hotel Sacher in Vienna", "Hotel Sacher in Wien"),
    ("Ludwig van Beethoven", "Ludwig van Beethoven"),
    ("A walk on the Playa de las Américas", "Ein Gang am Strand"),
    ("Die Zeit, und", "Die Zeit, und"),
    ("»The« casa que los vimos", "Das Haus"),
    ("o e y ö", "x"),
])  # fmt: skip
def test_lines_that_may_stay(line: str, other: str) -> None:
    assert not WordCheck("en", "de").is_foreign(line, other)


def test_a_line_left_in_the_language_of_the_other_side() -> None:
    line = "Download here the file that you have"
    assert WordCheck("de", "en").is_foreign(line, line)
    assert not WordCheck("en", "de").is_foreign(line, line)


def test_near_languages_are_not_told_apart() -> None:
    assert not WordCheck("nb", "en").is_foreign("hvad er det og hvor er han nu", "what is it")
    assert not WordCheck("no", "en").is_foreign("hvad nu efter kun", "what now")


def test_languages_without_words_are_not_checked() -> None:
    assert not WordCheck("tlh", "de").is_foreign("La casa que vimos ayer", "x")
    assert not WordCheck("mt", "de").is_foreign("the house that we have seen", "x")


def test_lists_have_no_word_twice_and_know_other_codes() -> None:
    for language, words in WORDS.items():
        assert len(words.split()) == len(set(words.split())) >= 20, language
        assert words == words.lower()
    assert all(words_of(code) for code in SAME)
    assert words_of("pt-BR") == words_of("pt")

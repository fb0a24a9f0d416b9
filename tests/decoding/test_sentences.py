"""Long lines come apart at sentence ends and are the same text when put together."""

import random
import re
from collections.abc import Callable, Sequence

import pytest

from mtformer.decoding.sentences import join_lines, split_line


def words(texts: Sequence[str]) -> list[int]:
    """A token a word."""
    return [len(text.split()) for text in texts]


def characters(texts: Sequence[str]) -> list[int]:
    """A token a character that is no space."""
    return [len(re.sub(r"\s", "", text)) for text in texts]


def test_a_short_line_is_one_part() -> None:
    line = "One. Two! Three?  Four…"
    assert split_line(line, words, 4, 10) == [line]
    assert split_line("", words, 4, 10) == [""]


def test_each_sentence_is_a_part() -> None:
    line = 'A b c dd. E f g hh! "I j k ll?" M n o pp.  Q r s t'
    assert split_line(line, words, 19, 30) == ["A b c dd. ", "E f g hh! ", '"I j k ll?" ', "M n o pp.  ", "Q r s t"]


def test_a_very_short_one_goes_with_the_next_within_the_limit() -> None:
    line = "Yes. No. A b c dd. Oh! E f g h ii."
    assert split_line(line, words, 10, 10) == ["Yes. No. A b c dd. ", "Oh! E f g h ii."]
    assert split_line(line, words, 5, 10) == ["Yes. No. ", "A b c dd. ", "Oh! ", "E f g h ii."]


def test_a_sentence_is_not_cut_while_the_model_can_take_it() -> None:
    long = "one, two; three: four five six. "
    assert split_line(f"Short one. {long}Short two.", words, 3, 6) == ["Short one. ", long, "Short two."]


def test_a_sentence_above_the_limit_is_cut_at_clauses_then_at_words_into_parts_that_training_saw() -> None:
    sentence = "a b, c d; e f: g h i j k l m n o p."
    assert split_line(sentence, words, 4, 6) == ["a b, c d; ", "e f: ", "g h i j ", "k l m n ", "o p."]


def test_a_giant_word_is_cut_anywhere() -> None:
    parts = split_line("see " + "x" * 1000 + " there", characters, 50, 100)
    assert "".join(parts) == "see " + "x" * 1000 + " there"
    assert max(characters(parts)) <= 100
    assert len(parts) < 25


def test_abbreviations_and_numbers() -> None:
    line = (
        "Dr. Smith paid 3.50 euros. He left at 5 p.m. and went. On the 3. May J. R. Smith came. Then (B. Jones) left."
    )
    assert split_line(line, words, 15, 20) == [
        "Dr. Smith paid 3.50 euros. ", "He left at 5 p.m. and went. ", "On the 3. May J. R. Smith came. ",
        "Then (B. Jones) left.",
    ]  # fmt: skip
    assert split_line("価格は３．５円です．次の文．", characters, 9, 20) == ["価格は３．５円です．", "次の文．"]


def test_text_without_capitals_has_sentences_too() -> None:
    sentences = ["he came at once. ", "she left soon after. ", "they sat down again."]
    assert split_line("".join(sentences), words, 8, 10) == sentences


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("我来了。你好吗？很好！再见", ["我来了。", "你好吗？", "很好！", "再见"]),
        ("「はい！？」と言った。次。", ["「はい！？」", "と言った。", "次。"]),
        ("यह है। वह है।", ["यह है। ", "वह है।"]),
        ("هل هذا؟ نعم.", ["هل هذا؟ ", "نعم."]),
        ("Er sagte: »Geh!« Dann ging er. (Ja.) Gut.", ["Er sagte: »Geh!« ", "Dann ging er. ", "(Ja.) ", "Gut."]),
    ],
)
def test_sentence_ends_of_many_scripts(line: str, parts: list[str]) -> None:
    assert split_line(line, characters, 1, 1000) == parts


@pytest.mark.parametrize("count", [words, characters])
def test_any_text_put_together_again_is_the_text_in_parts_within_the_limits(
    count: Callable[[Sequence[str]], list[int]],
) -> None:
    rng = random.Random(1)
    alphabet = ["ab", "cde", "f", " ", " ", " ", "  ", ". ", "! ", ", ", "。", "、", "』", '." ', "…", "1.5"]
    for _ in range(300):
        line = "".join(rng.choice(alphabet) for _ in range(rng.randint(0, 120)))
        wanted = rng.randint(1, 12)
        most = wanted + rng.randint(0, 12)
        parts = split_line(line, count, wanted, most)
        assert "".join(parts) == line
        assert max(count(parts)) <= most


def test_parts_are_joined_as_the_script_has_it() -> None:
    assert join_lines(["One. ", " Two.", "", "  ", "Three."]) == "One. Two. Three."
    assert join_lines(["我来了。", "你好"]) == "我来了。你好"
    assert join_lines(["版本 2.0", "然后走。", "Go"]) == "版本 2.0然后走。Go"
    assert join_lines(["나는 간다", "너는 온다."]) == "나는 간다 너는 온다."
    assert join_lines(["Nice 😀", "Yes."]) == "Nice 😀 Yes."
    assert join_lines([]) == join_lines([" ", ""]) == ""

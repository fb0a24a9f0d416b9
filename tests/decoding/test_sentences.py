"""Tests of sentence splitting: long lines are split at sentence ends, and joining the parts restores the text."""

import random
import re
import time
from collections.abc import Callable, Sequence

import pytest

from mtformer.decoding.lines.sentences import join_lines, split_line, split_sentences


def words(texts: Sequence[str]) -> list[int]:
    """Count each word as one token."""
    return [len(text.split()) for text in texts]


def characters(texts: Sequence[str]) -> list[int]:
    """Count each character except spaces as one token."""
    return [len(re.sub(r"\s", "", text)) for text in texts]


CLAUSES = "one, two; three: four five six. "
TITLES = "Dr. Smith paid 3.50 euros. He left at 5 p.m. and went. On the 3. May J. R. Smith came. Then (B. Jones) left."
ARABIC = "هل هذا؟ نعم."


@pytest.mark.parametrize(
    ("line", "count", "wanted", "most", "parts"),
    [
        ("One. Two! Three?  Four…", words, 4, 10, ["One. ", "Two! ", "Three?  ", "Four…"]),
        ("", words, 4, 10, []),
        (
            'A b c dd. E f g hh! "I j k ll?" M n o pp.  Q r s t', words, 19, 30,
            ["A b c dd. ", "E f g hh! ", '"I j k ll?" ', "M n o pp.  ", "Q r s t"],
        ),
        # a sentence stays whole if the model supports it; longer ones are split at clauses, then at words
        (f"Short one. {CLAUSES}Short two.", words, 3, 6, ["Short one. ", CLAUSES, "Short two."]),
        (
            "a b, c d; e f: g h i j k l m n o p.", words, 4, 6,
            ["a b, c d; ", "e f: ", "g h i j ", "k l m n ", "o p."],
        ),
        # abbreviations, numbers, text without capitals
        (
            TITLES, words, 15, 20,
            ["Dr. Smith paid 3.50 euros. ", "He left at 5 p.m. and went. ", "On the 3. May J. R. Smith came. ",
             "Then (B. Jones) left."],
        ),
        (
            "he came at once. she left soon after. they sat down again.", words, 8, 10,
            ["he came at once. ", "she left soon after. ", "they sat down again."],
        ),
        # many scripts
        ("価格は３．５円です．次の文．", characters, 9, 20, ["価格は３．５円です．", "次の文．"]),
        ("我来了。你好吗？很好！再见", characters, 1, 1000, ["我来了。", "你好吗？", "很好！", "再见"]),
        ("我来了。你好吗?很好!?再见", characters, 1, 1000, ["我来了。", "你好吗?", "很好!?", "再见"]),  # as after NFKC
        ("「はい!?」と言った。Yahoo!ニュース", characters, 1, 1000, ["「はい!?」", "と言った。", "Yahoo!ニュース"]),
        ("「はい！？」と言った。次。", characters, 1, 1000, ["「はい！？」", "と言った。", "次。"]),
        ("यह है। वह है।", characters, 1, 1000, ["यह है। ", "वह है।"]),
        (ARABIC, characters, 1, 1000, [ARABIC[:8], ARABIC[8:]]),
        (
            "Er sagte: »Geh!« Dann ging er. (Ja.) Gut.", characters, 1, 1000,
            ["Er sagte: »Geh!« ", "Dann ging er. ", "(Ja.) ", "Gut."],
        ),
    ],
)  # fmt: skip
def test_a_line_is_split_into_its_sentences(
    line: str, count: Callable[[Sequence[str]], list[int]], wanted: int, most: int, parts: list[str]
) -> None:
    assert split_line(line, count, wanted, most) == parts


@pytest.mark.parametrize(
    "parts",
    [
        ["Tom ging nach Hause. ", "Dann aß er etwas."],
        ["Wer? ", "Wie? ", "Was?"],
        ["Nein. ", "Er ist hier. ", '"Wer ist da?" ', "– Tom."],
        ["Mr. Lee met Prof. J. R. Smith at Mt. Fuji on Sept. 5."],
        ["Am 21. März ging er."],
        ["I came at 5 p.m. ", "The U.S. Army left."],
        ['"Geh!" rief er (Warum? Er war müde.) und ging. '],
        ["「なぜ？」と彼は言った。", "「はい。」", "「いいえ。」"],
        ["er kam z.b. gestern. ", "sie ging."],
        ["他说：“好。”", "“不。”她说。"],
        ["“你好吗？”他问。", "我来了。"],
        ["« Bonjour. » ", "Il sourit."],
        ["« Tu viens ? » demanda-t-il."],
        ["Er rief: „Geh!“ ", "Dann ging er."],
        ["Բարև ձեզ։ ", "Ես Արամն եմ։"],
        ["ሰላም። ", "እዚህ ነኝ።"],
        ["សួស្តី។ ", "ខ្ញុំ។"],
        ["Πού είσαι; ", "Είμαι εδώ."],
        ["Πού είσαι\u037e ", "Είμαι εδώ."],
        ["የት ነህ፧ ", "እዚህ ነኝ።"],
        ["Hello; there. ", "Yes."],
        ["What a word! ..."],
        [" "],
        [],
    ],
)
def test_uncertain_sentence_ends_do_not_split_a_line(parts: list[str]) -> None:
    assert split_sentences("".join(parts)) == parts


def test_a_very_long_word_is_split_at_any_character() -> None:
    parts = split_line("see " + "x" * 1000 + " there", characters, 50, 100)
    assert "".join(parts) == "see " + "x" * 1000 + " there"
    assert max(characters(parts)) <= 100
    assert len(parts) < 25


@pytest.mark.parametrize("count", [words, characters])
def test_parts_are_within_the_limits_and_their_concatenation_is_the_text(
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


def test_parts_are_joined_with_spaces_if_the_script_uses_them() -> None:
    assert join_lines(["One. ", " Two.", "", "  ", "Three."]) == "One. Two. Three."
    assert join_lines(["我来了。", "你好"]) == "我来了。你好"
    assert join_lines(["版本 2.0", "然后走。", "Go"]) == "版本 2.0然后走。Go"
    assert join_lines(["他说：“好。”", "2020年他走了。", "“不。”"]) == "他说：“好。”2020年他走了。“不。”"
    assert join_lines(["“Yes.”", "“No.”"]) == "“Yes.” “No.”"
    assert join_lines(["나는 간다", "너는 온다."]) == "나는 간다 너는 온다."
    assert join_lines(["Nice 😀", "Yes."]) == "Nice 😀 Yes."
    assert join_lines([]) == join_lines([" ", ""]) == ""


def test_a_line_of_many_uncertain_ends_takes_linear_time() -> None:
    line = "Contents " + ". " * 20_000 + "I think so. " + "the dog runs. " * 5000
    start = time.process_time()
    assert "".join(split_sentences(line)) == line
    assert time.process_time() - start < 20  # minutes, if each end is searched from the start of the line

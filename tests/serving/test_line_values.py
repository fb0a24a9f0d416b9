"""Values for the page: words joined from tokens, with their attention."""

from dataclasses import replace

import pytest

from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.decoding.translator import Translator
from mtformer.serving.page import line_values


def line(
    src: list[str], tgt: list[str], weights: list[list[float]], starts: list[int] | None = None
) -> dict[str, object]:
    attention = Attention(src, tgt, weights, starts or [0] * len(tgt))
    return line_values(Translation("text", -0.5, [], flags=("copy",), attention=attention), 1)


def test_the_attention_of_a_word_is_the_mean_over_its_tokens() -> None:
    shown = line(["▁a", "▁do", "g"], ["▁H", "und", "."], [[0.0, 1.0, 0.0], [0.0, 0.5, 0.5], [0.9, 0.006, 0.094]])
    assert shown["source"] == [" a", " do", "g"]
    (one,) = shown["hypotheses"]
    assert (one["text"], one["score"], one["flags"]) == ("text", -0.5, ["copy"])
    (word,) = one["words"]
    assert word["text"] == " Hund."
    assert dict(word["attention"]) == pytest.approx({0: 0.3, 1: 0.502, 2: 0.198}, abs=1e-3)
    shown = line(["▁a", "▁b"], ["▁x"], [[0.995, 0.005]])  # 0.005 is below MIN_WEIGHT
    assert shown["hypotheses"][0]["words"] == [{"text": " x", "attention": [[0, 0.995]]}]


def test_byte_tokens_are_joined_into_characters() -> None:
    smile = [f"<0x{byte:02X}>" for byte in "🙂".encode()]
    shown = line(["▁", *smile, "▁a"], ["▁b", *smile], [[0.2] * 6] * 5)
    assert shown["source"] == [" 🙂", " a"]
    (word,) = shown["hypotheses"][0]["words"]
    assert word["text"] == " b🙂"
    assert dict(word["attention"]) == pytest.approx({0: 1.0, 1: 0.2})


def test_text_without_spaces_is_split_into_tokens() -> None:
    shown = line(["▁a"], ["▁猫", "が", "走る", "。"], [[1.0]] * 4)
    assert [word["text"] for word in shown["hypotheses"][0]["words"]] == [" 猫", "が", "走る", "。"]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["▁ฉัน", "กิน", "ข้าว"], [" ฉัน", "กิน", "ข้าว"]),
        (["▁ข", "้าว"], [" ข้าว"]),
        (["▁བོད", "་ཡིག", "།"], [" བོད", "་ཡིག", "།"]),
        (["▁ꆈ", "ꌠ", "ꉙ"], [" ꆈ", "ꌠ", "ꉙ"]),
        (["▁ကျ", "ောင်း", "သွား"], [" ကျောင်း", "သွား"]),
        (["▁ሰላ", "ም", "።"], [" ሰላም።"]),
        (["▁हि", "न्दी", "।"], [" हिन्दी।"]),
        (["▁한", "국", "어"], [" 한국어"]),
    ],
)
def test_words_of_the_page_follow_the_script(tokens: list[str], words: list[str]) -> None:
    shown = line(["▁a"], tokens, [[1.0]] * len(tokens))
    assert [word["text"] for word in shown["hypotheses"][0]["words"]] == words


def test_segments_of_a_split_line_attend_to_their_own_tokens() -> None:
    shown = line(["▁a", "▁b", "▁c"], ["▁x", "▁y"], [[0.3, 0.7], [1.0]], [0, 2])
    assert [word["attention"] for word in shown["hypotheses"][0]["words"]] == [[[0, 0.3], [1, 0.7]], [[2, 1.0]]]


def test_no_more_translations_than_requested_are_shown() -> None:
    attention = Attention(["▁a"], ["▁x"], [[1.0]], [0])
    one = Translation("x", 0.0, [], attention=attention)
    shown = line_values(replace(one, alternatives=(replace(one, text="y"), replace(one, text="z"))), 2)
    assert [each["text"] for each in shown["hypotheses"]] == ["x", "y"]


def test_the_joined_words_of_a_line_equal_the_translation(translator: Translator) -> None:
    lines = ["the dog sees the red cat", "ein mann", "the dog sleeps. " * 12, ""]
    for source, one in zip(lines, translator.translate(lines, n_best=2, attention=True), strict=True):
        shown = line_values(one, 2)
        assert "".join(shown["source"]).split() == source.split()
        for each in shown["hypotheses"]:
            assert "".join(word["text"] for word in each["words"]).split() == each["text"].split()

"""Tests of word alignments from attention, and of joining the translations of a line's segments."""

import pytest
import torch

from mtformer.decoding.lines.translation import (
    Attention,
    Translation,
    join,
    word_numbers,
)


def align(weights_TS: torch.Tensor, src: list[str], tgt: list[str]) -> list[tuple[int, int]]:
    return Attention(src, tgt, weights_TS.tolist(), [0] * len(weights_TS)).alignment


def part(text: str, pieces: list[str], log_probs: list[float], attention: Attention | None = None) -> Translation:
    total = sum(log_probs)
    score = total / len(log_probs) ** 0.6
    tokens = list(range(4, 4 + len(pieces)))
    return Translation(text, score, tokens, total, log_probs, [*pieces, "</s>"], attention=attention)


def look(src: list[str], tgt: list[str], weights: list[list[float]]) -> Attention:
    return Attention(src, tgt, weights, [0] * len(tgt))


def test_scores_and_tokens_are_joined() -> None:
    first, second = part("A b.", ["▁A", "▁b."], [-1.0, -2.0, -0.5]), part("C.", ["▁C."], [-3.0, -0.25])
    whole = join([first, second], 0.6)
    assert whole.text == "A b. C."
    assert whole.tokens == [4, 5, 4]
    assert whole.pieces == ["▁A", "▁b.", "</s>", "▁C.", "</s>"]
    assert whole.token_log_probabilities == [-1.0, -2.0, -0.5, -3.0, -0.25]
    assert len(whole.pieces) == len(whole.token_log_probabilities)
    assert whole.log_probability == -6.75
    assert whole.score == pytest.approx(-6.75 / 5**0.6)


def test_the_agreement_of_parts_is_averaged() -> None:
    parts = [Translation("a", 0.0, [4], agreement=value) for value in (0.5, None, 0.7)]
    assert join(parts, 1.0).agreement == pytest.approx(0.6)
    assert join(parts[1:2] * 2, 1.0).agreement is None


def test_joined_flags_contain_no_duplicates() -> None:
    one = Translation("a", 0.0, [4], flags=("repetition", "length limit"))
    other = Translation("b", 0.0, [4], flags=("length limit", "low confidence"))
    assert join([one, other], 1.0).flags == ("repetition", "length limit", "low confidence")


def test_joined_attention_has_consecutive_word_numbers() -> None:
    first = look(["▁a", "▁do", "g."], ["▁ein", "▁Hund."], [[0.9, 0.05, 0.05], [0.1, 0.5, 0.4]])
    second = look(["▁it", "▁runs."], ["▁er", "▁renn", "t."], [[0.8, 0.2], [0.1, 0.9], [0.2, 0.8]])
    whole = join(
        [part("ein Hund.", first.tgt_pieces, [-1.0], first), part("er rennt.", second.tgt_pieces, [-1.0], second)], 1.0
    ).attention
    assert whole is not None
    assert whole.src_pieces == ["▁a", "▁do", "g.", "▁it", "▁runs."]
    assert whole.tgt_pieces == ["▁ein", "▁Hund.", "▁er", "▁renn", "t."]
    assert whole.src_starts == [0, 0, 3, 3, 3]
    assert whole.weights == [*first.weights, *second.weights]
    assert whole.alignment == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_words_joined_without_a_space_count_as_one() -> None:
    first = look(["▁a."], ["▁是。"], [[1.0]])
    second = look(["▁b", "▁c."], ["▁不", "是。"], [[0.1, 0.9], [0.2, 0.8]])
    whole = join(
        [part("是。", first.tgt_pieces, [-1.0], first), part("不是。", second.tgt_pieces, [-1.0], second)], 1.0
    )
    assert whole.text == "是。不是。"
    assert whole.attention is not None
    assert "".join(whole.attention.tgt_pieces) == "▁是。不是。"
    assert whole.attention.alignment == [(0, 0), (2, 0)]


def test_a_segment_that_begins_within_a_word_is_joined_with_a_space() -> None:
    first, second = look(["▁a"], ["▁ein"], [[1.0]]), look(["▁b"], ["en"], [[1.0]])
    whole = join([part("ein", first.tgt_pieces, [-1.0], first), part("en", second.tgt_pieces, [-1.0], second)], 1.0)
    assert whole.text == "ein en"
    assert whole.attention is not None
    assert whole.attention.tgt_pieces == ["▁ein", "▁en"]
    assert whole.attention.alignment == [(0, 0), (1, 1)]


def test_a_long_word_split_into_segments_is_one_source_word() -> None:
    first = look(["▁xx", "xx"], ["▁aa"], [[0.5, 0.5]])
    second = look(["xx", "▁y"], ["▁bb", "▁c"], [[0.9, 0.1], [0.1, 0.9]])
    parts = [part("aa", first.tgt_pieces, [-1.0], first), part("bb c", second.tgt_pieces, [-1.0], second)]
    whole = join(parts, 1.0).attention
    assert whole is not None
    assert whole.alignment == [(0, 0), (0, 1), (1, 2)]


def test_join_without_attention_has_no_attention() -> None:
    assert join([part("a", ["▁a"], [-1.0]), part("b", ["▁b"], [-1.0])], 1.0).attention is None
    assert Attention([], [], [], []).alignment == []


@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [
        (["▁the", "▁dog", "s", "▁run", "."], [0, 1, 1, 2, 2]),
        (["▁", "x", "▁", "y", "z"], [0, 0, 1, 1, 1]),  # a single space belongs to the next word
        (["a", "b", "▁c"], [0, 0, 1]),  # no leading space
        (["▁New▁York", "▁is"], [0, 2]),  # one piece with two words
        (["▁a", "▁⁇▁", "b"], [0, 1, 2]),
        (["▁a", "▁"], [0, 0]),
        (["▁a", "", "b"], [0, 0, 0]),
        (["▁"], [0]),
        ([], []),
    ],
)
def test_word_numbers(pieces: list[str], numbers: list[int]) -> None:
    assert word_numbers(pieces) == numbers


def test_words_are_aligned_by_the_sum_over_their_pieces() -> None:
    src, tgt = ["▁a", "▁dog", "s", "▁run"], ["▁Hun", "de", "▁laufen"]
    weights_TS = torch.tensor(
        [  # a    dog    s    run   eos
            [0.35, 0.20, 0.25, 0.10, 0.10],
            [0.35, 0.30, 0.10, 0.10, 0.15],
            [0.10, 0.10, 0.10, 0.25, 0.45],
            [0.00, 0.00, 0.00, 0.00, 1.00],
        ]
    )
    # Each piece of "dogs" has less weight than "a", but their sum is larger; eos is ignored.
    assert align(weights_TS, src, tgt) == [(1, 0), (2, 1)]
    weights = [row[:4] for row in weights_TS[:3].tolist()]
    # The word of two pieces has their mean: (0.20 + 0.25 + 0.30 + 0.10) / 2.
    assert Attention(src[:4], tgt[:3], weights, [0] * 3).links == [
        (1, 0, pytest.approx(0.425)), (2, 1, pytest.approx(0.25))
    ]  # fmt: skip


def test_empty_text_has_no_alignment() -> None:
    assert align(torch.zeros(1, 3), ["▁a", "▁b"], []) == []
    assert align(torch.zeros(2, 1), [], ["▁a"]) == []
    assert align(torch.zeros(1, 2), ["▁a", "▁b"], ["▁"]) == [], "a space is not a word"


def test_a_piece_with_two_words_aligns_only_the_first_word() -> None:
    weights_TS = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert align(weights_TS, ["▁New▁York", "▁ist"], ["▁NY", "▁is"]) == [(0, 0), (2, 1)]

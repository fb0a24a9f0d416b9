"""The translations of a line's parts become one."""

import pytest

from mtformer.decoding.translation import Attention, Translation, join


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


def test_coverage_penalties_add_up() -> None:
    first, second = part("A.", ["▁A."], [-1.0, -0.5]), part("B.", ["▁B."], [-2.0, -0.5])
    penalised = Translation(second.text, second.score - 0.7, second.tokens, -2.5, [-2.0, -0.5], second.pieces)
    assert join([first, penalised], 0.6).score == pytest.approx(join([first, second], 0.6).score - 0.7)


def test_each_flag_comes_once() -> None:
    one = Translation("a", 0.0, [4], flags=("repetition", "length limit"))
    other = Translation("b", 0.0, [4], flags=("length limit", "low confidence"))
    assert join([one, other], 1.0).flags == ("repetition", "length limit", "low confidence")


def test_attention_is_joined_with_words_counted_through() -> None:
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


def test_where_no_space_is_set_the_words_are_one() -> None:
    first = look(["▁a."], ["▁是。"], [[1.0]])
    second = look(["▁b", "▁c."], ["▁不", "是。"], [[0.1, 0.9], [0.2, 0.8]])
    whole = join(
        [part("是。", first.tgt_pieces, [-1.0], first), part("不是。", second.tgt_pieces, [-1.0], second)], 1.0
    )
    assert whole.text == "是。不是。"
    assert whole.attention is not None
    assert "".join(whole.attention.tgt_pieces) == "▁是。不是。"
    assert whole.attention.alignment == [(0, 0), (2, 0)]


def test_a_part_that_begins_within_a_word_is_set_apart_all_the_same() -> None:
    first, second = look(["▁a"], ["▁ein"], [[1.0]]), look(["▁b"], ["en"], [[1.0]])
    whole = join([part("ein", first.tgt_pieces, [-1.0], first), part("en", second.tgt_pieces, [-1.0], second)], 1.0)
    assert whole.text == "ein en"
    assert whole.attention is not None
    assert whole.attention.tgt_pieces == ["▁ein", "▁en"]
    assert whole.attention.alignment == [(0, 0), (1, 1)]


def test_a_giant_word_that_was_cut_is_one_source_word() -> None:
    first = look(["▁xx", "xx"], ["▁aa"], [[0.5, 0.5]])
    second = look(["xx", "▁y"], ["▁bb", "▁c"], [[0.9, 0.1], [0.1, 0.9]])
    parts = [part("aa", first.tgt_pieces, [-1.0], first), part("bb c", second.tgt_pieces, [-1.0], second)]
    whole = join(parts, 1.0).attention
    assert whole is not None
    assert whole.alignment == [(0, 0), (0, 1), (1, 2)]


def test_without_attention_there_is_none() -> None:
    assert join([part("a", ["▁a"], [-1.0]), part("b", ["▁b"], [-1.0])], 1.0).attention is None
    assert Attention([], [], [], []).alignment == []

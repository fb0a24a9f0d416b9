"""From attention over pieces to words that belong together, on matrices made by hand."""

import pytest
import torch

from mtformer.decoding.translation import align, best_source_words, pharaoh, word_numbers


@pytest.mark.parametrize(
    ("pieces", "numbers"),
    [
        (["▁the", "▁dog", "s", "▁run", "."], [0, 1, 1, 2, 2]),
        (["▁", "x", "▁", "y", "z"], [0, 0, 1, 1, 1]),  # a space alone goes with what follows
        (["a", "b", "▁c"], [0, 0, 1]),  # no space in front
        (["▁New▁York", "▁is"], [0, 2]),  # a piece of two words
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
    # Each piece of "dogs" has less than "a", but together they have more; what eos has does not count.
    assert align(weights_TS, src, tgt) == [(1, 0), (2, 1)]


def test_nothing_is_aligned_with_nothing() -> None:
    assert align(torch.zeros(1, 3), ["▁a", "▁b"], []) == []
    assert align(torch.zeros(2, 1), [], ["▁a"]) == []
    assert align(torch.zeros(1, 2), ["▁a", "▁b"], ["▁"]) == [], "a space is no word"


def test_a_piece_of_two_words_aligns_the_first() -> None:
    weights_TS = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert align(weights_TS, ["▁New▁York", "▁ist"], ["▁NY", "▁is"]) == [(0, 0), (2, 1)]


def test_an_unknown_takes_the_whole_word_it_looks_at() -> None:
    pieces = ["▁the", "▁dog", "s", "▁run"]
    weights_TS = torch.tensor([[0.1, 0.3, 0.35, 0.25, 0.0], [0.0, 0.0, 0.0, 0.2, 0.8]])
    assert best_source_words(weights_TS, pieces, [False] * 4) == ["dogs", "run"]


def test_of_a_word_with_unknown_pieces_it_takes_those() -> None:
    pieces = ["▁(", "☃", ")x", "é", "▁run"]
    weights_TS = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1], [0.3, 0.1, 0.1, 0.4, 0.1], [0.0, 0.0, 0.0, 0.1, 0.9]])
    assert best_source_words(weights_TS, pieces, [False, True, False, True, False]) == ["☃", "é", "run"]


def test_without_spaces_it_takes_the_piece() -> None:
    pieces = ["▁", "私", "は", "東京", "です"]
    weights_TS = torch.tensor([[0.1, 0.1, 0.2, 0.5, 0.1], [0.6, 0.2, 0.1, 0.1, 0.0]])
    assert best_source_words(weights_TS, pieces, [False] * 5) == ["東京", "私"]


def test_pharaoh_format() -> None:
    assert pharaoh([(0, 0), (12, 1)]) == "0-0 12-1"
    assert pharaoh([]) == ""

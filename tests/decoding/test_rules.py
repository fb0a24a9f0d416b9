"""Tests of rules: they exclude exactly the right tokens and change nothing else."""

import random
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from toy import (
    Limits,
    ToyModel,
    assert_same,
    batch,
    beam_search,
    begin_with,
    forbid,
    greedy,
    no_repeated,
    repeats,
    sample,
    sentences,
    up_to,
)

from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.rules import Rule, penalize_repetition
from mtformer.text.tokenizer import EOS, UNK

TEN = [4, 5, 6, 5, 4, 6, 6, 4, 5, 5]


def everything(rules: Sequence[Rule], model: ToyModel, limits: Limits, source: list[int] = TEN) -> list[Hypothesis]:
    """Return the hypotheses from a search whose beam is wide enough to keep all of them."""
    return beam_search(model, *batch(source), 400, 0.6, limits, rules=rules)[0]


def everywhere(rules: Sequence[Rule], many: list[list[int]], limits: Limits) -> list[list[Hypothesis]]:
    """Run beam search, greedy search and sampling, check the scores, and return all hypotheses of each sentence."""
    model, src = ToyModel(seed=1), batch(*many)
    found = [beam_search(model, *src, beam_size, 0.6, limits, rules=rules) for beam_size in (1, 4)]
    found.append([[one] for one in greedy(model, *src, limits, 0.6, rules)])
    found.append(sample(model, *src, limits, 3, None, 0.6, rules))
    for n_bests in found:
        for source, n_best in zip(many, n_bests, strict=True):
            assert n_best
            for one in n_best:  # scores are those of the model, for any rules
                expected = model.token_log_probabilities((*source, EOS), one.tokens)
                assert one.token_log_probabilities == pytest.approx(expected, rel=1e-5, abs=1e-6)
                assert one.log_probability == pytest.approx(sum(expected), rel=1e-5)
                assert one.score == pytest.approx(sum(expected) / (len(one.tokens) + 1) ** 0.6, rel=1e-5)
    return [[one for n_best in of_one for one in n_best] for of_one in zip(*found, strict=True)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_ngram_is_repeated_and_nothing_else_is_excluded(n: int) -> None:
    model = ToyModel(seed=n, vocab=6)
    expected = [h for h in model.exhaustive((*TEN, EOS), 0.6, 0, 5) if not repeats(h.tokens, n)]
    assert 10 < len(expected) < 364
    assert_same(everything([no_repeated(n)], model, up_to(5)), expected)
    free = everywhere([], sentences(20), Limits(max_length=12))
    assert any(repeats(h.tokens, n) for n_best in free for h in n_best), "nothing to exclude, so nothing was tested"
    for n_best in everywhere([no_repeated(n)], sentences(20), Limits(max_length=12)):
        assert not any(repeats(h.tokens, n) for h in n_best)


@pytest.mark.parametrize("prefix", [[4], [6, 6], [1, 5, 4]])
def test_wide_beam_with_a_prefix_equals_exhaustive_search(prefix: list[int]) -> None:
    model = ToyModel(seed=2)
    expected = [h for h in model.exhaustive((*TEN, EOS), 0.6, 0, 4) if h.tokens[: len(prefix)] == prefix]
    assert_same(everything([begin_with([prefix])], model, up_to(4)), expected)


def test_each_sentence_has_its_own_optional_prefix() -> None:
    many, rng = sentences(30, seed=6), random.Random(1)
    prefixes = [[rng.choice((UNK, 4, 5, 6)) for _ in range(rng.choice((0, 0, 1, 3, 6)))] for _ in many]
    limits = Limits(reserved=[len(prefix) for prefix in prefixes])
    found = everywhere([begin_with(prefixes)], many, limits)
    plain = everywhere([], many, limits)
    for prefix, n_best, without in zip(prefixes, found, plain, strict=True):
        assert all(h.tokens[: len(prefix)] == prefix for h in n_best)
        assert (n_best == without) == (prefix == [])


def test_prefixes_override_other_rules() -> None:
    prefix = [4, 4, 4, 6, 4, 6]
    others = [partial(penalize_repetition, 3.0), no_repeated(2), forbid(5)]
    rules: list[Rule] = [*others, begin_with([prefix] * 20)]
    limits = Limits(max_length=3, reserved=[len(prefix)] * 20)
    for n_best in everywhere(rules, sentences(20), limits):
        assert all(h.tokens == prefix for h in n_best), "the length limit allows only the prefix"
    for n_best in everywhere(rules, sentences(20), Limits()):
        assert all(h.tokens[:6] == prefix for h in n_best)
        assert not any(5 in h.tokens[6:] or repeats(h.tokens[6:], 2) for h in n_best)
        assert max(len(h.tokens) for h in n_best) > 6


def test_rules_can_be_combined() -> None:
    prefix = [5, 1]
    rules: list[Rule] = [no_repeated(2), forbid(6), begin_with([prefix])]
    model = ToyModel(seed=6)
    expected = [
        h
        for h in model.exhaustive((*TEN, EOS), 0.6, 3, 4)
        if h.tokens[:2] == prefix and not repeats(h.tokens, 2) and 6 not in h.tokens[2:]
    ]
    assert 1 < len(expected) < 20
    assert_same(everything(rules, model, up_to(4, fewest=3)), expected)


def test_length_bounds() -> None:
    lengths_B = torch.tensor([1, 2, 11, 41])  # including eos: 0, 1, 10 and 40 tokens

    def bounds(limits: Limits) -> list[list[int]]:
        found = limits.bounds(lengths_B)
        return [found.min_B.tolist(), found.max_B.tolist()]

    assert bounds(Limits()) == [[0, 0, 0, 0], [10, 12, 30, 90]]
    assert bounds(Limits(1.5, 0.25)) == [[0, 0, 2, 10], [10, 12, 25, 70]]
    assert bounds(Limits(max_length=20, min_length=3)) == [[3, 3, 3, 3], [10, 12, 20, 20]]
    assert bounds(Limits(max_length=20, reserved=[0, 15, 25, 60])) == [[0, 0, 0, 0], [10, 15, 25, 60]]
    assert bounds(Limits(capacity=50, reserved=[0, 70, 0, 0])) == [[0, 0, 0, 0], [10, 50, 30, 50]]
    assert bounds(Limits(max_length_ratio=1e300))[1][1:] == [10_000] * 3
    assert bounds(Limits(min_length=40, max_length=8)) == [[8, 8, 8, 8], [8, 8, 8, 8]], "the maximum takes precedence"


def test_length_bounds_hold_with_any_rules() -> None:
    limits = Limits(max_length_ratio=0.1, min_length=7, max_length=11)
    lengths = set()
    every: list[Rule] = [partial(penalize_repetition, 1.3), no_repeated(3), forbid(5)]
    for rules in ([], every):
        for n_best in everywhere(rules, sentences(20, seed=9), limits):
            lengths |= {len(h.tokens) for h in n_best}
    assert lengths == {7, 8, 9, 10, 11}


def test_a_row_without_allowed_tokens_ends() -> None:
    limits = Limits(min_length=8)  # but there are only four words
    for n_best in everywhere([no_repeated(1)], sentences(20), limits):
        assert all(sorted(h.tokens) == [UNK, 4, 5, 6] for h in n_best)
    for n_best in everywhere([forbid(UNK, 4, 5, 6)], sentences(5), limits):
        assert all(h.tokens == [] for h in n_best)

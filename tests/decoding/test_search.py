"""Tests of candidate selection and beam search (compared to naive implementations), and of planning batches."""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies
from toy import (
    Limits,
    Steer,
    ToyModel,
    assert_same,
    batch,
    beam_search,
    begin_with,
    greedy,
    naive_beam_search,
    no_repeated,
    repeats,
)

from mtformer.config.schema import DecodingConfig, ModelConfig, Stopping
from mtformer.decoding.search.candidates import top_candidates
from mtformer.decoding.search.engine import plan_batches
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.rules import Rule, penalize_repetition
from mtformer.decoding.search.transformer_engine import TransformerEngine
from mtformer.model.transformer import Transformer
from mtformer.text.tokenizer import EOS


@pytest.mark.parametrize("vocab", [6, 64, 127, 640, 1000])
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_top_candidates_equal_sorting(vocab: int, beams: int) -> None:
    generator = torch.Generator().manual_seed(vocab + beams)
    log_prob_BRV = torch.randn(7, beams, vocab, generator=generator).log_softmax(-1)
    log_prob_BRV[0, 0, -3:] += 9.0  # the best ones are in the last columns, which may not fill a chunk
    score_BR = -torch.rand(7, beams, generator=generator)
    for K in {1, 2 * beams}:
        expected = (log_prob_BRV + score_BR.unsqueeze(2)).flatten(1).sort(dim=1, descending=True)
        score_BK, beam_BK, token_BK = top_candidates(log_prob_BRV, score_BR, K)
        assert torch.equal(score_BK, expected.values[:, :K])
        assert torch.equal(beam_BK * vocab + token_BK, expected.indices[:, :K])


def test_dead_beams_are_not_candidates() -> None:
    log_prob_BRV = torch.randn(3, 4, 500).log_softmax(-1)
    score_BR = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf]).expand(3, 4)
    _, beam_BK, _ = top_candidates(log_prob_BRV, score_BR, 8)
    assert (beam_BK == 0).all()


def plain_ngrams(n: int) -> Steer:
    return lambda tokens, own: [-math.inf if repeats([*tokens, t], n) else p for t, p in enumerate(own)]


def plain_penalty(theta: float) -> Steer:
    return lambda tokens, own: [theta * p if t in tokens else p for t, p in enumerate(own)]


def plain_prefix(prefix: Sequence[int]) -> Steer:
    def steer(tokens: tuple[int, ...], own: list[float]) -> list[float]:
        if len(tokens) >= len(prefix):
            return own
        return [p if token == prefix[len(tokens)] else -math.inf for token, p in enumerate(own)]

    return steer


SENTENCES = strategies.lists(strategies.sampled_from((4, 5, 6)), min_size=1, max_size=9)
RULES: list[tuple[Callable[[int], list[Rule]], Steer]] = [
    (lambda count: [], lambda tokens, own: own),
    (lambda count: [no_repeated(1)], plain_ngrams(1)),
    (lambda count: [no_repeated(2)], plain_ngrams(2)),
    (lambda count: [partial(penalize_repetition, 1.5)], plain_penalty(1.5)),
    (lambda count: [begin_with([[6, 4, 1]] * count)], plain_prefix([6, 4, 1])),
]
"""Functions that return rules for a number of sentences, each with an equivalent that uses Python lists."""


@pytest.mark.parametrize("early_stopping", ["auto", "ended", "estimate", "certain"])
@pytest.mark.parametrize("rules", RULES, ids=["none", "unigrams", "bigrams", "penalty", "prefix"])
def test_beam_search_equals_naive_implementation(
    rules: tuple[Callable[[int], list[Rule]], Steer], early_stopping: Stopping
) -> None:
    """Covers batches, beam sizes, length penalties and limits; beam size 1 is greedy search."""
    make_rules, steer = rules

    @settings(max_examples=25)
    @given(
        many=strategies.lists(SENTENCES, min_size=1, max_size=4),
        seed=strategies.integers(0, 5),
        width=strategies.sampled_from((1, 2, 3, 6)),
        alpha=strategies.sampled_from((0.0, 0.6, 1.0)),
        ratios=strategies.sampled_from([(0.8, 0.2), (0.7, 0.3), (0.4, 0.0)]),
    )
    def holds(
        many: list[list[int]],
        seed: int,
        width: int,
        alpha: float,
        ratios: tuple[float, float],
    ) -> None:
        model, limits = ToyModel(seed), Limits(*ratios)
        found = beam_search(
            model,
            *batch(*many),
            width,
            alpha,
            limits,
            rules=make_rules(len(many)),
            early_stopping=early_stopping,
        )
        for source, n_best in zip(many, found, strict=True):
            expected = naive_beam_search(
                model, (*source, EOS), width, alpha, limits, steer=steer, early_stopping=early_stopping
            )
            assert_same(n_best, expected)
            for one, other in zip(n_best, expected, strict=True):  # the model's values, for any rules and penalties
                assert one.token_log_probabilities == pytest.approx(other.token_log_probabilities, rel=1e-5, abs=1e-6)
        if width == 1 and early_stopping == "ended":
            one_by_one = greedy(model, *batch(*many), limits, alpha, make_rules(len(many)))
            assert_same(one_by_one, [n_best[0] for n_best in found])

    holds()


def test_batch_plan_contains_each_sentence_once_within_the_budget() -> None:
    rng = random.Random(1)
    lengths = [rng.randint(1, 90) for _ in range(500)]
    batches = plan_batches(lengths, 1000, 5)
    assert sorted(sentence for few in batches for sentence in few) == list(range(500))
    flat = [lengths[sentence] for few in batches for sentence in few]
    assert flat == sorted(flat, reverse=True)
    for few in batches[:-1]:
        longest = max(lengths[sentence] for sentence in few)
        assert len(few) * 5 * longest <= 1000 < (len(few) + 1) * 5 * longest


def test_a_sentence_above_the_budget_forms_its_own_batch() -> None:
    assert plan_batches([5, 3000, 4], 100, 5) == [[1], [0, 2]]
    assert plan_batches([], 100, 5) == []


@pytest.mark.parametrize(("device", "default"), [("cpu", 8192), ("cuda", 65_536)])
def test_the_default_batch_size_depends_on_the_device(device: str, default: int) -> None:
    engine = TransformerEngine([InferenceModel(Transformer(ModelConfig(d_model=8, num_heads=2, d_ff=8), 9, 9))])
    engine.device = device
    assert engine.beam_tokens(DecodingConfig()) == default
    assert engine.beam_tokens(DecodingConfig(beam_tokens=100)) == 100

"""Tests of sampling and greedy search: samples follow the model's distribution and depend only on seed and line."""

import math
import random
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
import torch
from toy import Limits, ToyModel, assert_same, batch, greedy, sample, sentences, up_to

from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.sampling import draw_tokens
from mtformer.text.tokenizer import BOS, EOS, PAD

TEN = [4, 5, 6, 5, 4, 6, 6, 4, 5, 5]
Probabilities = npt.NDArray[np.float64]
SHAPES = [(1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 0, 1.0), (1.0, 2, 1.0), (1.0, 0, 0.7), (1.5, 3, 0.8)]
"""Temperature, top-k and top-p."""


def shaped(log_probs: Probabilities, temperature: float, top_k: int, top_p: float) -> Probabilities:
    """Return the distribution to draw from, computed as in the papers, one token at a time."""
    probs = np.exp(log_probs / temperature)
    probs /= probs.sum()
    order = np.argsort(-probs)
    kept = order[:top_k] if top_k else order
    total, nucleus = 0.0, []
    for token in kept:
        if total < top_p:
            nucleus.append(token)
        total += probs[token] / probs[kept].sum()
    found = np.zeros_like(probs)
    found[nucleus] = probs[nucleus]
    return found / found.sum()


def distribution(
    model: ToyModel, source: tuple[int, ...], most: int, shape: tuple[float, int, float]
) -> dict[tuple[int, ...], float]:
    """Return the probability of each translation of up to `most` tokens."""
    found: dict[tuple[int, ...], float] = {}

    def grow(tokens: tuple[int, ...], probability: float) -> None:
        if len(tokens) == most:
            found[tokens] = probability
            return
        logits = model.logits(source, (BOS, *tokens)).double().numpy().copy()
        logits[[PAD, BOS]] = -np.inf
        for token, p in enumerate(shaped(logits, *shape).tolist()):
            if token == EOS and p:
                found[tokens] = probability * p
            elif p:
                grow((*tokens, token), probability * p)

    grow((), 1.0)
    assert sum(found.values()) == pytest.approx(1.0)
    return found


def chi_square(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> tuple[float, float]:
    """Return Pearson's statistic with rare outcomes merged, and its critical value for p = 1/10,000."""
    num_draws = sum(counts.values())
    assert set(counts) <= set(expected), "an impossible outcome was drawn"
    common = [outcome for outcome, p in expected.items() if p * num_draws >= 5]
    observed = [counts[outcome] for outcome in common]
    wanted = [expected[outcome] * num_draws for outcome in common]
    if (rest := num_draws - sum(wanted)) >= 5:
        observed, wanted = [*observed, num_draws - sum(observed)], [*wanted, rest]
    freedom = len(wanted) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.719 * math.sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty 1931
    return sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True)), limit


def draw(
    model: ToyModel, many: list[list[int]], count: int, limits: Limits, keys: list[int] | None = None, **how: float
) -> list[list[Hypothesis]]:
    return sample(model, *batch(*many), limits, count, keys, **how)


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_follow_the_distribution_over_whole_translations(shape: tuple[float, int, float]) -> None:
    model = ToyModel(seed=7, vocab=6)
    temperature, top_k, top_p = shape
    found = draw(model, [TEN], 5000, up_to(3), temperature=temperature, top_k=top_k, top_p=top_p)[0]
    counts = Counter(tuple(h.tokens) for h in found)
    statistic, limit = chi_square(counts, distribution(model, (*TEN, EOS), 3, shape))
    assert statistic < limit
    others = [distribution(model, (*TEN, EOS), 3, other) for other in SHAPES if other != shape]
    for other in others:
        if set(counts) <= set(other):
            statistic, limit = chi_square(counts, other)
            assert statistic > 3 * limit, "the test would also pass for another distribution"


@pytest.mark.parametrize("shape", SHAPES)
def test_draw_tokens_maps_uniform_numbers_to_token_probabilities(shape: tuple[float, int, float]) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=12) * 2
    logits[[0, 5, 11]] = -np.inf
    uniform = torch.arange(20_000, dtype=torch.float64) / 20_000
    rows = torch.from_numpy(logits).float().expand(20_000, 12)
    shares = np.bincount(draw_tokens(rows, uniform, *shape), minlength=12) / 20_000
    np.testing.assert_allclose(shares, shaped(logits.astype(np.float32).astype(float), *shape), atol=1e-4)


def test_excluded_tokens_are_never_drawn() -> None:
    row = torch.tensor([-math.inf, -1e4, 0.0, -1e4, -math.inf])
    edges = torch.tensor([0.0, 1e-300, 0.5, 1.0 - 2**-53], dtype=torch.float64)
    for shape in [(1.0, 0, 1.0), (1.0, 3, 1.0), (1.0, 0, 1e-9), (1e-320, 0, 1.0), (1e-320, 2, 0.5)]:
        assert draw_tokens(row.expand(4, 5), edges, *shape).tolist() == [2] * 4
    even = torch.full((4, 5), 0.2).log().masked_fill(torch.tensor([True, False, False, False, True]), -math.inf)
    assert draw_tokens(even, edges, 1.0, 0, 1.0).tolist() == [1, 1, 2, 3]


@pytest.mark.parametrize("temperature", [1e-6, 1e-320])
def test_sampling_at_very_low_temperature_is_greedy(temperature: float) -> None:
    model, many = ToyModel(seed=2), sentences(30)
    expected = greedy(model, *batch(*many), Limits())
    for one, drawn in zip(expected, draw(model, many, 2, Limits(), temperature=temperature), strict=True):
        assert_same(drawn, [one, one])
    for how in ({"top_k": 1}, {"top_p": 1e-6}):
        assert_same([drawn[0] for drawn in draw(model, many, 1, Limits(), **how)], expected)


def test_a_sample_depends_only_on_seed_line_and_sample_number() -> None:
    model, many = ToyModel(seed=3), sentences(30, seed=1)
    keys = [100 + i for i in range(30)]
    together = draw(model, many, 4, Limits(), keys)
    order = random.Random(0).sample(range(30), 30)
    shuffled = draw(model, [many[i] for i in order], 4, Limits(), [keys[i] for i in order])
    for place, i in enumerate(order):
        assert_same(shuffled[place], together[i])
    for i in range(10):
        assert_same(draw(model, [many[i]], 4, Limits(), [keys[i]])[0], together[i])
        assert_same(draw(model, [many[i]], 9, Limits(), [keys[i]])[0][:4], together[i])
    first, second = (draw(model, many, 4, Limits(), keys, seed=seed) for seed in (1, 2))
    assert first == together
    num_same = sum(a.tokens == b.tokens for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))
    assert num_same < 40, "of 120 samples"


def test_samples_differ_within_a_line_and_between_equal_lines() -> None:
    drawn = draw(ToyModel(seed=4), [TEN] * 20, 20, Limits())
    assert len({tuple(h.tokens) for of_line in drawn for h in of_line}) > 100, "of 400 samples"
    assert all(len({tuple(h.tokens) for h in of_line}) > 10 for of_line in drawn)

"""Batches of like lengths within a budget."""

import random

from mtformer.decoding.engine import plan_batches


def test_each_sentence_once_within_the_budget_and_as_few_batches_as_that_order_allows() -> None:
    rng = random.Random(1)
    lengths = [rng.randint(1, 90) for _ in range(500)]
    batches = plan_batches(lengths, 1000, 5)
    assert sorted(sentence for batch in batches for sentence in batch) == list(range(500))
    flat = [lengths[sentence] for batch in batches for sentence in batch]
    assert flat == sorted(flat, reverse=True)
    for batch in batches[:-1]:
        longest = max(lengths[sentence] for sentence in batch)
        assert len(batch) * 5 * longest <= 1000 < (len(batch) + 1) * 5 * longest


def test_a_sentence_above_the_budget_goes_alone() -> None:
    assert plan_batches([5, 3000, 4], 100, 5) == [[1], [0, 2]]
    assert plan_batches([], 100, 5) == []

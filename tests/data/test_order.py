"""Permutations without memory: each place once, and no pattern."""

import numpy as np
import pytest

from mtformer.data.order import permuted


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 17, 255, 1000, 65_537])
def test_each_place_once(size: int) -> None:
    for key in range(3):
        assert np.array_equal(np.sort(permuted(np.arange(size), size, key)), np.arange(size))


def test_a_part_is_what_the_whole_says() -> None:
    whole = permuted(np.arange(1000), 1000, 7, "news", 3)
    assert np.array_equal(permuted(np.array([5, 999, 5, 0]), 1000, 7, "news", 3), whole[[5, 999, 5, 0]])


def test_every_part_of_the_key_counts() -> None:
    keys = [(1, "a", 0), (2, "a", 0), (1, "b", 0), (1, "a", 1)]
    orders = {tuple(permuted(np.arange(50), 50, *key).tolist()) for key in keys}
    assert len(orders) == 4


def test_all_permutations_are_about_as_likely() -> None:
    """Chi-square with 23 degrees of freedom: above 49.7 once in a thousand."""
    orders = [tuple(permuted(np.arange(4), 4, key).tolist()) for key in range(6000)]
    counts = np.unique(np.array(orders), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 250) ** 2 / 250).sum() < 49.7


def test_neighbours_part() -> None:
    order = permuted(np.arange(78_125), 78_125, 1)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.02
    assert abs(np.corrcoef(np.arange(len(order)), order)[0, 1]) < 0.02
    assert (np.abs(np.diff(order)) < 100).mean() < 0.01

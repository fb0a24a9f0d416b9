"""Padding and subsequent masks against numpy."""

import numpy as np
import torch

from mtformer.model.masks import padding_keep, subsequent_keep


def test_padding_keep_of_a_sentence() -> None:
    keep_BS = padding_keep(torch.tensor([3, 0, 5]), 5)
    assert keep_BS.dtype == torch.bool
    expected = [[True] * 3 + [False] * 2, [False] * 5, [True] * 5]
    np.testing.assert_array_equal(keep_BS.numpy(), np.array(expected))


def test_padding_keep_of_a_query() -> None:
    lengths_BT = np.array([[1, 4, 2], [3, 0, 5]])
    keep_BTS = padding_keep(torch.from_numpy(lengths_BT), 6)
    assert keep_BTS.dtype == torch.bool
    expected = np.zeros((2, 3, 6), dtype=bool)
    for b in range(2):
        for t in range(3):
            expected[b, t, : lengths_BT[b, t]] = True
    np.testing.assert_array_equal(keep_BTS.numpy(), expected)


def test_subsequent_keep_is_the_lower_triangle() -> None:
    keep_TT = subsequent_keep(4)
    assert keep_TT.dtype == torch.bool
    np.testing.assert_array_equal(keep_TT.numpy(), np.tri(4, dtype=bool))


def test_subsequent_keep_of_the_last_queries_is_the_last_rows() -> None:
    for T in range(1, 7):
        assert torch.equal(subsequent_keep(T, 6), subsequent_keep(6)[-T:])

"""Dropout's share, mean, place and gradient."""

import pytest
import torch
from torch import Tensor

from mtformer.model.dropout import Dropout, dropout

N = 1 << 17
"""Elements for each of the 8 bytes that come from one random word."""


def share(p: float) -> float:
    """The probability as the documentation rounds it."""
    return max(1, round(p * 256)) / 256


def dropped(p: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    torch.manual_seed(11)
    y = dropout(torch.ones(8 * N, dtype=dtype), p)
    return y, y == 0


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_each_byte_of_a_random_word_drops_its_share(p: float) -> None:
    """Within 5 standard deviations at each index mod 8; p below 1/512 still drops 1 of 256."""
    _, zero = dropped(p)
    expected = share(p)
    deviation = (expected * (1 - expected) / N) ** 0.5
    for shares in zero.view(N, 8).double().mean(dim=0).tolist():
        assert abs(shares - expected) < 5 * deviation


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_the_rest_is_scaled_so_that_the_mean_stays(p: float) -> None:
    y, zero = dropped(p)
    kept = y[~zero]
    assert torch.equal(kept, torch.full_like(kept, 1 / (1 - share(p))))
    deviation = (share(p) / (1 - share(p)) / (8 * N)) ** 0.5
    assert abs(y.double().mean().item() - 1.0) < 5 * deviation


def test_neighbours_are_dropped_independently() -> None:
    """Correlations of an element with each of the 16 after it, within 5 standard deviations of 0."""
    _, zero = dropped(0.3)
    centred = zero.double() - zero.double().mean()
    for distance in range(1, 17):
        correlation = (centred[distance:] * centred[:-distance]).mean() / centred.var()
        assert abs(correlation.item()) < 5 / (8 * N) ** 0.5


@pytest.mark.parametrize("shape", [(1,), (13,), (3, 5, 7), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_shape_and_dtype_stay(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    y = dropout(torch.ones(shape, dtype=dtype), 0.5)
    assert y.shape == shape
    assert y.dtype == dtype


def test_a_seed_gives_the_same_mask_and_the_next_call_another() -> None:
    x = torch.ones(10_000)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)


def test_backward_has_the_mask_of_forward() -> None:
    torch.manual_seed(0)
    x = torch.rand(30, 50, dtype=torch.float64).add_(1).requires_grad_()
    y = dropout(x, 0.4)
    gradient = torch.randn(30, 50, dtype=torch.float64)
    y.backward(gradient)
    assert (y == 0).any()
    assert torch.allclose(x.grad, gradient * (y / x).detach(), rtol=1e-14, atol=0)
    assert torch.equal(x.grad == 0, y == 0)


def test_a_transposed_input_is_dropped_like_any_other() -> None:
    x = torch.rand(40, 50).add_(1)
    torch.manual_seed(0)
    turned = dropout(x.t(), 0.5)
    torch.manual_seed(0)
    assert torch.equal(turned, dropout(x.t().contiguous(), 0.5))


def test_nothing_is_dropped_at_0_or_in_evaluation() -> None:
    x = torch.randn(100)
    state = torch.get_rng_state()
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(Dropout(0.0)(x), x)
    module = Dropout(0.5)
    assert torch.equal(module.eval()(x), x)
    assert torch.equal(torch.get_rng_state(), state)  # nor is chance touched
    assert not torch.equal(module.train()(x), x)


def test_a_probability_next_to_1_drops_almost_all() -> None:
    """The config allows any p below 1."""
    y, zero = dropped(0.999)
    assert 0.99 < zero.double().mean().item() < 1
    assert y.isfinite().all()

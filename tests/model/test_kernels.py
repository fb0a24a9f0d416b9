"""Compare each kernel for one device with its plain formula."""

import pytest
import torch
from tiny import assert_same, random, randomize
from torch import Tensor
from torch.nn import functional as F

from mtformer.model.kernels import (
    CPU_VECTOR_BYTES,
    additive_mask,
    dropout,
    linear,
    linear_with_copies,
    softmax_over_keys,
)
from mtformer.model.ops import Dropout, Linear, padding_mask

N = 1 << 17
"""Number of random words, each of which has 8 bytes for 8 elements."""
probabilities = pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])


def with_gradient(y: Tensor, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return y, and the gradient of x for a gradient of y."""
    return y.detach(), torch.autograd.grad(y, x, gradient)[0]


@pytest.mark.parametrize("num_queries", [1, 5])
@pytest.mark.parametrize("num_keys", [1, 7, 8, 9])
def test_softmax_of_short_rows_equals_the_plain_softmax(num_queries: int, num_keys: int) -> None:
    """A row of 8 float64 fills a vector register."""
    assert CPU_VECTOR_BYTES == 8 * 8
    scores = random(3, 2, num_queries, num_keys).mul_(5).requires_grad_()
    gradient = random(3, 2, num_queries, num_keys, seed=1)
    short = with_gradient(softmax_over_keys(scores), scores, gradient)
    plain = with_gradient(scores.softmax(dim=-1), scores, gradient)
    for result, expected in zip(short, plain, strict=True):
        assert_same(result, expected, 1e-14)
    is_transposed = softmax_over_keys(scores).stride(-1) != 1
    assert is_transposed == (num_queries > 1 and num_keys < 8)


def gradients(linear: Linear, x: Tensor, gradient: Tensor, *rows: int | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the output, and the gradients of x, weight and bias."""
    x = x.clone().requires_grad_()
    y = linear(x, *rows)
    y.backward(gradient)
    found = y.detach(), x.grad, linear.weight.grad, linear.bias.grad
    linear.zero_grad()
    return found


@pytest.mark.parametrize("rows", [(0, None), (16, None), (0, 16)], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (127,), (4, 32), (3, 43)], ids=str)
def test_padded_rows_change_neither_output_nor_gradients(
    shape: tuple[int, ...], rows: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    linear = randomize(Linear(32, 16, 8)).float()
    x, gradient = torch.randn(*shape, 32).bfloat16(), torch.randn(*shape, 24).bfloat16()[..., slice(*rows)]
    numbers_of_rows, product = [], F.linear
    monkeypatch.setattr(F, "linear", lambda x, *args: (numbers_of_rows.append(len(x)), product(x, *args))[1])
    found = gradients(linear, x, gradient, *rows)
    monkeypatch.undo()
    assert numbers_of_rows == [256 if shape == (3, 43) else 128]
    expected = gradients(randomize(Linear(32, 16, 8)), x.double(), gradient.double(), *rows)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() < 0.01 * other.norm()


@pytest.mark.parametrize("shape", [(1, 1), (127,), (3, 43)], ids=str)
def test_padded_rows_equal_the_plain_product(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(*shape, 32).bfloat16()
    weight, bias = torch.randn(24, 32), torch.randn(24)
    plain = F.linear(x, weight.bfloat16(), bias.bfloat16())
    assert_same(linear(x, weight, bias, is_training=False), plain, 0.0)
    padded = linear(x, weight, bias, is_training=True)
    assert (padded.dtype, padded.shape) == (plain.dtype, plain.shape)
    assert (padded - plain).norm() < 0.01 * plain.norm()


def test_a_product_with_copies_equals_the_plain_product() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 9, 32).bfloat16().requires_grad_()
    weight, bias = torch.randn(24, 32).requires_grad_(), torch.randn(24).requires_grad_()
    weight_copy, bias_copy = weight.detach().bfloat16(), bias.detach().bfloat16()
    gradient = torch.randn(4, 9, 24).bfloat16()
    plain = F.linear(x, weight.bfloat16(), bias.bfloat16())
    copied = linear_with_copies(x, weight, bias, weight_copy, bias_copy)
    assert_same(copied, plain, 0.0)
    expected = torch.autograd.grad(plain, (x, weight, bias), gradient)
    for result, plain_gradient in zip(torch.autograd.grad(copied, (x, weight, bias), gradient), expected, strict=True):
        assert result.dtype == plain_gradient.dtype
        assert (result - plain_gradient).norm() < 0.01 * plain_gradient.norm()


def test_additive_mask_is_aligned() -> None:
    mask = padding_mask(torch.tensor([3, 5, 1]), 5)[:, None, None, :]
    added = additive_mask(mask, torch.zeros(1, dtype=torch.bfloat16))
    assert (added.dtype, added.shape) == (torch.bfloat16, (3, 1, 1, 8))
    assert torch.equal(added[..., :5] == 0, mask)
    assert torch.equal(added[..., :5] == -torch.inf, ~mask)
    assert all(stride % 8 == 0 for stride in added.index_select(0, torch.tensor([2, 0])).stride()[:-1])


def rounded(p: float) -> float:
    """Return the probability that dropout uses on a CPU."""
    return max(1, round(p * 256)) / 256


def dropped(p: float) -> tuple[Tensor, Tensor]:
    torch.manual_seed(11)
    y = dropout(torch.ones(8 * N), p)
    return y, y == 0


@probabilities
def test_each_byte_of_a_random_word_drops_the_same_share_of_elements(p: float) -> None:
    """The share at each index mod 8 is within 5 standard deviations; p below 1/512 still drops 1 of 256 elements."""
    shares = dropped(p)[1].view(N, 8).double().mean(dim=0)
    deviation = (rounded(p) * (1 - rounded(p)) / N) ** 0.5
    assert (shares - rounded(p)).abs().max() < 5 * deviation


@probabilities
def test_kept_elements_are_scaled_to_preserve_the_mean(p: float) -> None:
    y, zero = dropped(p)
    kept = y[~zero]
    assert torch.equal(kept, torch.full_like(kept, 1 / (1 - rounded(p))))
    deviation = (rounded(p) / (1 - rounded(p)) / (8 * N)) ** 0.5
    assert abs(y.double().mean().item() - 1.0) < 5 * deviation


def test_adjacent_elements_are_dropped_independently() -> None:
    """Correlations with each of the next 16 elements are within 5 standard deviations of 0."""
    zero = dropped(0.3)[1].double()
    centered = zero - zero.mean()
    for distance in range(1, 17):
        correlation = (centered[distance:] * centered[:-distance]).mean() / centered.var()
        assert abs(correlation.item()) < 5 / (8 * N) ** 0.5


@pytest.mark.parametrize("shape", [(1,), (13,), (3, 5, 7), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_keeps_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    y = dropout(torch.ones(shape, dtype=dtype), 0.5)
    assert (y.shape, y.dtype) == (shape, dtype)


def test_dropout_depends_on_the_seed_and_differs_between_calls() -> None:
    x = torch.ones(10_000)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.5), first)
    assert not torch.equal(first, second)


def test_backward_of_dropout_drops_the_same_elements() -> None:
    torch.manual_seed(0)
    x = torch.rand(30, 50, dtype=torch.float64).add_(1).requires_grad_()
    y = dropout(x, 0.4)
    gradient = torch.randn(30, 50, dtype=torch.float64)
    y.backward(gradient)
    assert (y == 0).any()
    assert torch.allclose(x.grad, gradient * (y / x).detach(), rtol=1e-14, atol=0)
    assert torch.equal(x.grad == 0, y == 0)


def test_dropout_works_for_transposed_inputs() -> None:
    x = torch.rand(40, 50).add_(1)
    torch.manual_seed(0)
    transposed = dropout(x.t(), 0.5)
    torch.manual_seed(0)
    assert torch.equal(transposed, dropout(x.t().contiguous(), 0.5))


def test_nothing_is_dropped_at_probability_0_or_in_evaluation() -> None:
    x, module = torch.randn(100), Dropout(0.5)
    state = torch.get_rng_state()
    for y in (dropout(x, 0.0), Dropout(0.0)(x), module.eval()(x)):
        assert torch.equal(y, x)
    assert torch.equal(torch.get_rng_state(), state)  # no random numbers are drawn
    assert not torch.equal(module.train()(x), x)


def test_a_probability_close_to_1_drops_almost_all_elements() -> None:
    """The config allows any p below 1."""
    y, zero = dropped(0.999)
    assert 0.99 < zero.double().mean().item() < 1
    assert y.isfinite().all()

"""Compare projections, norms, dropout and masks with NumPy and torch.nn."""

import numpy as np
import pytest
import reference
import torch
from tiny import EXACT, assert_same, random, randomize
from torch import Tensor, nn

from mtformer.model import ops
from mtformer.model.ops import NORMS, Dropout, Linear, LinearCopies, additive_mask, causal_mask, dropout, padding_mask

N = 1 << 17
"""Number of random words, each of which has 8 bytes for 8 elements."""
probabilities = pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])


def test_linear_and_its_gradients_equal_torch() -> None:
    ours = randomize(Linear(6, 10))
    theirs = nn.Linear(6, 10).double()
    theirs.load_state_dict(ours.state_dict())
    x_ours, x_theirs = (random(3, 4, 6).requires_grad_() for _ in range(2))
    y_ours, y_theirs = ours(x_ours), theirs(x_theirs)
    assert_same(y_ours, y_theirs, EXACT)
    for y in (y_ours, y_theirs):
        y.backward(random(3, 4, 10, seed=1))
    assert_same(x_ours.grad, x_theirs.grad)
    assert_same(ours.weight.grad, theirs.weight.grad)
    assert_same(ours.bias.grad, theirs.bias.grad)


@pytest.mark.parametrize(("start", "stop"), [(0, 4), (4, 7), (4, None), (7, 9)])
def test_rows_of_a_fused_projection_are_a_slice_of_the_output(start: int, stop: int | None) -> None:
    fused, x = randomize(Linear(6, 4, 3, 2)), random(5, 6)
    assert_same(fused(x, start, stop), fused(x)[..., start:stop])


def test_linear_computes_in_the_dtype_of_its_input_and_has_float32_gradients() -> None:
    torch.manual_seed(0)
    linear, x = randomize(Linear(32, 16)).float(), torch.randn(64, 32)
    narrow, wide, gradient = linear(x.bfloat16()), linear(x), torch.randn(64, 16)
    assert narrow.dtype == torch.bfloat16
    assert 0 < (narrow - wide).norm() < 0.01 * wide.norm()  # the result is rounded
    wide.backward(gradient)
    expected = linear.weight.grad.clone()
    linear.zero_grad()
    narrow.backward(gradient.bfloat16())
    for parameter in linear.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
    assert (linear.weight.grad - expected).norm() < 0.01 * expected.norm()


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
    numbers_of_rows, product = [], torch.nn.functional.linear
    monkeypatch.setattr(ops.F, "linear", lambda x, *args: (numbers_of_rows.append(len(x)), product(x, *args))[1])
    found = gradients(linear, x, gradient, *rows)
    monkeypatch.undo()
    assert numbers_of_rows == [256 if shape == (3, 43) else 128]
    expected = gradients(randomize(Linear(32, 16, 8)), x.double(), gradient.double(), *rows)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() < 0.01 * other.norm()


@pytest.mark.parametrize("rows", [(0, None), (16, None), (0, 16)], ids=str)
def test_copies_change_only_the_rounding_of_weight_gradients(rows: tuple[int, int | None]) -> None:
    torch.manual_seed(0)
    linear = randomize(Linear(32, 16, 8)).float()
    x, gradient = torch.randn(4, 64, 32).bfloat16(), torch.randn(4, 64, 24).bfloat16()[..., slice(*rows)]
    cast = gradients(linear, x, gradient, *rows)
    exact = gradients(randomize(Linear(32, 16, 8)), x.double(), gradient.double(), *rows)
    LinearCopies(linear, torch.bfloat16)
    copied = gradients(linear, x, gradient, *rows)
    for one, other in zip(copied[:2], cast[:2], strict=True):
        assert_same(one, other, 0.0)  # output and gradient of x: the same bits
    for one, other, expected in zip(copied[2:], cast[2:], exact[2:], strict=True):
        assert one.dtype == torch.float32
        assert (one - expected).norm() < 1e-5 * expected.norm() < (other - expected).norm()


def test_copies_follow_the_weights_and_are_used_in_training_only() -> None:
    model = nn.ModuleList([randomize(Linear(6, 4)).float(), randomize(Linear(4, 3)).float()])
    x = torch.randn(5, 6).bfloat16()
    copies = LinearCopies(model, torch.bfloat16)
    before = model[0](x)
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    assert_same(model[0](x), before, 0.0)
    assert not torch.equal(model.eval()[0](x), before), "evaluation reads the weights"
    copies.refresh()
    assert_same(model.train()[0](x), model.eval()[0](x), 0.0)


def test_additive_mask_is_aligned() -> None:
    mask = padding_mask(torch.tensor([3, 5, 1]), 5)[:, None, None, :]
    added = additive_mask(mask, torch.zeros(1, dtype=torch.bfloat16))
    assert (added.dtype, added.shape) == (torch.bfloat16, (3, 1, 1, 8))
    assert torch.equal(added[..., :5] == 0, mask)
    assert torch.equal(added[..., :5] == -torch.inf, ~mask)
    assert all(stride % 8 == 0 for stride in added.index_select(0, torch.tensor([2, 0])).stride()[:-1])


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("scale", [4.0, 1e-3])
def test_norm_equals_the_formula(kind: str, scale: float) -> None:
    """At scale 1e-3, the variance is about epsilon, so a wrong epsilon would be detected."""
    norm, x = randomize(NORMS[kind](12)), (random(3, 5, 12) + 0.25) * scale
    formula = {"layernorm": reference.layer_norm, "rmsnorm": reference.rms_norm}[kind]
    expected = formula(x.numpy(), *(parameter.detach().numpy() for parameter in norm.parameters()))
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("kind", NORMS)
def test_norm_computes_in_the_dtype_of_its_input_and_has_float32_gradients(kind: str) -> None:
    norm = NORMS[kind](8)
    y = norm(torch.randn(2, 8, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    y.float().pow(2).sum().backward()
    assert norm.weight.dtype == norm.weight.grad.dtype == torch.float32
    assert norm.weight.grad.any()


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


@pytest.mark.parametrize("lengths", [[3, 0, 5], [[1, 4, 2], [3, 0, 5]]], ids=["per sentence", "per query"])
def test_padding_mask_is_true_at_the_first_positions(lengths: list[int] | list[list[int]]) -> None:
    mask = padding_mask(torch.tensor(lengths), 6)
    assert mask.dtype == torch.bool
    for index, length in np.ndenumerate(np.array(lengths)):
        assert mask[index].tolist() == [True] * length + [False] * (6 - length)


def test_causal_mask_is_the_lower_triangle() -> None:
    mask_TT = causal_mask(4)
    assert mask_TT.dtype == torch.bool
    np.testing.assert_array_equal(mask_TT.numpy(), np.tri(4, dtype=bool))

"""Compare projections, norms and masks with NumPy and torch.nn."""

import numpy as np
import pytest
import reference
import torch
from tiny import EXACT, assert_same, random, randomize
from torch import nn

from mtformer.model.ops import NORMS, Linear, causal_mask, padding_mask


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

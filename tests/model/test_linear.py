"""A linear layer in the precision of its input, alone or fused."""

import pytest
import torch
from tiny import EXACT, assert_same, random, randomise
from torch import nn

from mtformer.model.linear import Linear


def test_linear_is_torchs_with_its_gradients() -> None:
    ours = randomise(Linear(6, 10))
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
def test_rows_of_a_fused_projection_are_a_part_of_the_whole(start: int, stop: int | None) -> None:
    fused, x = randomise(Linear(6, 4, 3, 2)), random(5, 6)
    assert_same(fused(x, start, stop), fused(x)[..., start:stop])


def test_bf16_in_bf16_out_and_float32_gradients() -> None:
    torch.manual_seed(0)
    linear, x = Linear(32, 16), torch.randn(64, 32)
    narrow = linear(x.bfloat16())
    assert narrow.dtype == torch.bfloat16
    wide = linear(x)
    assert (narrow - wide).abs().max() < 0.05
    assert (narrow - wide).abs().max() > 0  # it was rounded
    gradient = torch.randn(64, 16)
    wide.backward(gradient)
    expected = linear.weight.grad.clone()
    linear.zero_grad()
    narrow.backward(gradient.bfloat16())
    for parameter in linear.parameters():
        assert parameter.dtype == parameter.grad.dtype == torch.float32
    assert (linear.weight.grad - expected).norm() < 0.01 * expected.norm()

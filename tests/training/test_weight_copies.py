"""Copies of weights in the dtype of the activations."""

import pytest
import torch
from torch import Tensor, nn

from mtformer.model.ops import Linear
from mtformer.training.weight_copies import WeightCopies


def random_linear(in_width: int, *out_widths: int) -> Linear:
    """Return a layer with the same random weights and biases at each call."""
    linear = Linear(in_width, *out_widths)
    generator = torch.Generator().manual_seed(0)
    for parameter in linear.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return linear


def output_and_gradients(linear: Linear, x: Tensor, gradient: Tensor, *rows: int | None) -> list[Tensor]:
    """Return the output, and the gradients of x, weight and bias."""
    x = x.clone().requires_grad_()
    y = linear(x, *rows)
    y.backward(gradient)
    results = [y.detach(), x.grad, linear.weight.grad, linear.bias.grad]
    linear.zero_grad()
    return results


@pytest.mark.parametrize("rows", [(0, None), (16, None), (0, 16)], ids=str)
def test_copies_change_only_the_rounding_of_weight_gradients(rows: tuple[int, int | None]) -> None:
    torch.manual_seed(0)
    linear = random_linear(32, 16, 8)
    x, gradient = torch.randn(4, 64, 32).bfloat16(), torch.randn(4, 64, 24).bfloat16()[..., slice(*rows)]
    cast = output_and_gradients(linear, x, gradient, *rows)
    exact = output_and_gradients(random_linear(32, 16, 8).double(), x.double(), gradient.double(), *rows)
    WeightCopies(linear, torch.bfloat16)
    copied = output_and_gradients(linear, x, gradient, *rows)
    assert torch.equal(copied[0], cast[0])
    assert torch.equal(copied[1], cast[1])
    for with_copies, without, expected in zip(copied[2:], cast[2:], exact[2:], strict=True):
        assert with_copies.dtype == torch.float32
        assert (with_copies - expected).norm() < 1e-5 * expected.norm() < (without - expected).norm()


def test_copies_follow_the_weights_and_are_used_in_training_only() -> None:
    model = nn.ModuleList([random_linear(6, 4), random_linear(4, 3)])
    x = torch.randn(5, 6).bfloat16()
    copies = WeightCopies(model, torch.bfloat16)
    before = model[0](x)
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    assert torch.equal(model[0](x), before)
    assert not torch.equal(model.eval()[0](x), before), "evaluation reads the weights"
    copies.refresh()
    assert torch.equal(model.train()[0](x), model.eval()[0](x))

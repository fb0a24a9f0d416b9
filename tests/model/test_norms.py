"""LayerNorm and RMSNorm against their formulas."""

import numpy as np
import pytest
import reference
import torch
from tiny import EXACT, random, randomise

from mtformer.model.norms import LayerNorm, RMSNorm, make_norm


def test_layer_norm_is_the_formula() -> None:
    norm, x = randomise(LayerNorm(12)), random(3, 5, 12) * 4 + 1
    expected = reference.layer_norm(x.numpy(), norm.weight.detach().numpy(), norm.bias.detach().numpy())
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=0, atol=EXACT)


def test_rms_norm_is_the_formula() -> None:
    norm, x = randomise(RMSNorm(12)), random(3, 5, 12) * 4 + 1
    expected = reference.rms_norm(x.numpy(), norm.weight.detach().numpy())
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_epsilon_counts_where_x_is_tiny(kind: str) -> None:
    """x of about 1e-3 has a variance of about epsilon: another epsilon, or one outside the root, shows here."""
    norm, x = randomise(make_norm(kind, 8)), random(4, 8) * 1e-3
    weight = norm.weight.detach().numpy()
    if kind == "layernorm":
        expected = reference.layer_norm(x.numpy(), weight, norm.bias.detach().numpy())
    else:
        expected = reference.rms_norm(x.numpy(), weight)
    np.testing.assert_allclose(norm(x).detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_norm_keeps_the_precision_of_its_input(kind: str) -> None:
    norm = make_norm(kind, 8)
    y = norm(torch.randn(2, 8, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    y.float().pow(2).sum().backward()
    assert norm.weight.dtype == norm.weight.grad.dtype == torch.float32
    assert norm.weight.grad.any()

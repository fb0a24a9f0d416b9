"""Compare layers with NumPy, and check where dropout applies; test_transformer.py compares them with torch.nn."""

from collections.abc import Callable

import numpy as np
import pytest
import reference
import torch
from tiny import (
    EXACT,
    D,
    F,
    H,
    as_numpy,
    assert_same,
    random,
    randomize,
    tiny_config,
)
from torch import Tensor

from mtformer.model.cache import EncoderOutput
from mtformer.model.ops import padding_mask
from mtformer.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual

B, T, S = 3, 5, 7
MASK_BS = padding_mask(torch.tensor([7, 2, 4]), S)


def arrays(**parameters: Tensor) -> reference.Weights:
    return {name: parameter.detach().numpy() for name, parameter in parameters.items()}


@pytest.mark.usefixtures("kernel")
def test_post_norm_encoder_layer_equals_section_3_1() -> None:
    layer, x_BSD = randomize(EncoderLayer(tiny_config(norm_position="post"))), random(B, S, D)
    expand, contract = layer.feed_forward.expand, layer.feed_forward.contract
    norm1, norm2 = layer.self_attention_residual.norm, layer.feed_forward_residual.norm
    rest = arrays(w1=expand.weight, b1=expand.bias, w2=contract.weight, b2=contract.bias)
    rest |= arrays(norm1=norm1.weight, norm1_bias=norm1.bias, norm2=norm2.weight, norm2_bias=norm2.bias)
    mask_BSS = MASK_BS[:, None].expand(B, S, S).numpy()
    expected = reference.post_norm_encoder_layer(x_BSD.numpy(), as_numpy(layer.self_attention), rest, H, mask_BSS)
    actual = layer(x_BSD, MASK_BS[:, None, None])
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize(
    ("name", "function"), [("relu", reference.relu), ("gelu", reference.gelu), ("silu", reference.swish)]
)
def test_feed_forward_equals_equation_2(name: str, function: Callable[[reference.Array], reference.Array]) -> None:
    layer, x = randomize(FeedForward(tiny_config(activation=name))), random(B, T, D)
    expand, contract = layer.expand, layer.contract
    weights = arrays(w1=expand.weight, b1=expand.bias, w2=contract.weight, b2=contract.bias)
    expected = reference.feed_forward(x.numpy(), weights, function)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize(("name", "function"), [("swiglu", reference.swish), ("geglu", reference.gelu)])
def test_gated_feed_forward_equals_shazeer(name: str, function: Callable[[reference.Array], reference.Array]) -> None:
    """The gate comes first in the fused matrix."""
    layer, x = randomize(FeedForward(tiny_config(activation=name))), random(B, T, D)
    (w, v), (b, c) = layer.expand.weight.split(F), layer.expand.bias.split(F)
    weights = arrays(w=w, v=v, b=b, c=c, w2=layer.contract.weight, b2=layer.contract.bias)
    expected = reference.gated_feed_forward(x.numpy(), weights, function)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_residual_equals_its_formula(norm: str, norm_position: str) -> None:
    residual, x = randomize(Residual(tiny_config(norm=norm, norm_position=norm_position))), random(B, T, D)
    expected = x + torch.sin(residual.norm(x)) if norm_position == "pre" else residual.norm(x + torch.sin(x))
    assert_same(residual(x, torch.sin), expected)


def test_dropout_applies_to_the_sublayer_and_not_to_the_residual() -> None:
    """With pre-norm and a sub-layer that returns ones, 0 or 1 / (1 - 0.25) is added to x."""
    torch.manual_seed(0)
    residual, x = Residual(tiny_config(dropout=0.25)).double(), random(40, D)
    added = residual(x, torch.ones_like) - x
    assert ((added - 1 / 0.75).abs().lt(EXACT) | added.abs().lt(EXACT)).all()
    assert 0.15 < added.abs().lt(EXACT).double().mean().item() < 0.35
    assert_same(residual.eval()(x, torch.ones_like), x + 1)


def test_post_norm_dropout_applies_before_the_norm() -> None:
    """The normalized sum has mean 0 even if the output of the sub-layer is dropped."""
    torch.manual_seed(0)
    residual, x = Residual(tiny_config(dropout=0.5, norm_position="post")).double(), random(40, D)
    y = residual(x, torch.ones_like)
    assert (y - residual.eval()(x, torch.ones_like)).abs().max() > 0.1
    assert_same(y.mean(dim=-1), torch.zeros(40, dtype=torch.float64))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_layer_drop_leaves_out_the_sublayer_for_some_sentences(norm_position: str) -> None:
    """The others are not scaled, and nothing is left out at inference (Fan et al. 2020)."""
    torch.manual_seed(0)
    config = tiny_config(layer_drop=0.25, norm_position=norm_position)
    residual, x_BTD = randomize(Residual(config)), random(400, T, D)
    without, full = residual.eval()(x_BTD, torch.zeros_like), residual(x_BTD, torch.sin)
    out_BTD = residual.train()(x_BTD, torch.sin)
    is_dropped_B, is_full_B = ((out_BTD - one).abs().amax(dim=(1, 2)) < EXACT for one in (without, full))
    assert (is_dropped_B ^ is_full_B).all()
    assert 0.18 < is_dropped_B.double().mean().item() < 0.32


@pytest.mark.parametrize("layer", [EncoderLayer, DecoderLayer])
def test_layer_drop_applies_to_all_sublayers_and_keeps_their_gradients(
    layer: type[torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all sub-layers are dropped, the gradients are 0, but not None, as DDP requires."""
    drawn = []

    def rand(*shape: int, **more: object) -> Tensor:
        drawn.append(shape)
        return torch.zeros(shape)

    subject, x_BTD = randomize(layer(tiny_config(layer_drop=0.5))), random(B, T, D)
    monkeypatch.setattr(torch, "rand", rand)
    source = EncoderOutput(random(B, S, D), MASK_BS[:, None, None])
    out_BTD = subject(x_BTD, None if layer is EncoderLayer else source)
    assert torch.equal(out_BTD, x_BTD)
    assert drawn == [(B, 1, 1)] * (2 if layer is EncoderLayer else 3)
    gradients = torch.autograd.grad(out_BTD.sum() + 0.0, list(subject.parameters()))
    assert not any(gradient.any() for gradient in gradients)


def test_activation_dropout_applies_between_the_projections() -> None:
    """The second projection sums its inputs, so all outputs of a row are equal unless some are dropped after it."""
    torch.manual_seed(0)
    layer = randomize(FeedForward(tiny_config(activation_dropout=0.5)))
    torch.nn.init.ones_(layer.contract.weight)
    torch.nn.init.zeros_(layer.contract.bias)
    x = random(20, D)
    trained, evaluated = layer.train()(x), layer.eval()(x)
    assert_same(trained, trained[:, :1].expand_as(trained), 1e-12)
    assert (trained - evaluated).abs().max() > 0.1
    assert_same(layer(x), evaluated)


def test_all_attention_layers_use_the_attention_dropout_of_the_config() -> None:
    torch.manual_seed(0)
    config, x = tiny_config(attention_dropout=0.5), random(B, T, D)
    encoder_layer, decoder_layer = randomize(EncoderLayer(config)), randomize(DecoderLayer(config))
    for attention in (encoder_layer.self_attention, decoder_layer.self_attention, decoder_layer.cross_attention):
        assert (attention.train()(x) - attention.eval()(x)).abs().max() > 0.01

"""Layers against numpy and against torch.nn, outputs and gradients."""

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
    assert_same,
    attention_gradients,
    copy_attention,
    copy_linear,
    random,
    randomise,
    tiny_config,
)
from torch import Tensor, nn

from mtformer.config.schema import ModelConfig
from mtformer.model.cache import EncoderOutput
from mtformer.model.ops import causal_mask, padding_mask
from mtformer.model.transformer import DecoderLayer, EncoderLayer, FeedForward, Residual

B, T, S = 3, 5, 7
MASK_BS = padding_mask(torch.tensor([7, 2, 4]), S)


def numpy_of(parameter: Tensor) -> reference.Array:
    return parameter.detach().numpy()


@pytest.mark.usefixtures("kernel")
def test_post_norm_encoder_layer_is_the_papers() -> None:
    layer, x_BSD = randomise(EncoderLayer(tiny_config(norm_position="post"))), random(B, S, D)
    attention, rest = layer.self_attention, layer.feed_forward
    q, k, v = (numpy_of(w) for w in attention.in_projection.weight.chunk(3))
    q_bias, k_bias, v_bias = (numpy_of(b) for b in attention.in_projection.bias.chunk(3))
    out, out_bias = numpy_of(attention.out_projection.weight), numpy_of(attention.out_projection.bias)
    expected = reference.post_norm_encoder_layer(
        x_BSD.numpy(),
        {
            "q": q,
            "k": k,
            "v": v,
            "out": out,
            "q_bias": q_bias,
            "k_bias": k_bias,
            "v_bias": v_bias,
            "out_bias": out_bias,
        },
        {
            "w1": numpy_of(rest.expand.weight),
            "b1": numpy_of(rest.expand.bias),
            "w2": numpy_of(rest.contract.weight),
            "b2": numpy_of(rest.contract.bias),
            "norm1": numpy_of(layer.self_attention_residual.norm.weight),
            "norm1_bias": numpy_of(layer.self_attention_residual.norm.bias),
            "norm2": numpy_of(layer.feed_forward_residual.norm.weight),
            "norm2_bias": numpy_of(layer.feed_forward_residual.norm.bias),
        },
        H,
        MASK_BS[:, None].expand(B, S, S).numpy(),
    )
    actual = layer(x_BSD, MASK_BS[:, None, None])
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize(
    ("name", "function"), [("relu", reference.relu), ("gelu", reference.gelu), ("silu", reference.swish)]
)
def test_feed_forward_is_equation_2(name: str, function: Callable[[reference.Array], reference.Array]) -> None:
    layer, x = randomise(FeedForward(tiny_config(activation=name))), random(B, T, D)
    weights = {
        "w1": layer.expand.weight,
        "b1": layer.expand.bias,
        "w2": layer.contract.weight,
        "b2": layer.contract.bias,
    }
    expected = reference.feed_forward(x.numpy(), {key: numpy_of(w) for key, w in weights.items()}, function)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize(("name", "function"), [("swiglu", reference.swish), ("geglu", reference.gelu)])
def test_gated_feed_forward_is_shazeers(name: str, function: Callable[[reference.Array], reference.Array]) -> None:
    """The gate comes first in the fused matrix."""
    layer, x = randomise(FeedForward(tiny_config(activation=name))), random(B, T, D)
    (w, v), (b, c) = layer.expand.weight.split(F), layer.expand.bias.split(F)
    weights = {"w": w, "v": v, "b": b, "c": c, "w2": layer.contract.weight, "b2": layer.contract.bias}
    expected = reference.gated_feed_forward(x.numpy(), {key: numpy_of(w) for key, w in weights.items()}, function)
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, rtol=0, atol=EXACT)


def assert_same_gradients(ours: EncoderLayer | DecoderLayer, theirs: nn.Module) -> None:
    """Every parameter of the layer, ours against torch's."""
    pairs = [(ours.self_attention, theirs.self_attn)]
    norms = [(ours.feed_forward_residual.norm, theirs.norm2)]
    if isinstance(ours, DecoderLayer):
        pairs.append((ours.cross_attention, theirs.multihead_attn))
        norms = [(ours.self_attention_residual.norm, theirs.norm1), (ours.cross_attention_residual.norm, theirs.norm2)]
        norms.append((ours.feed_forward_residual.norm, theirs.norm3))
    else:
        norms.append((ours.self_attention_residual.norm, theirs.norm1))
    compared = 0
    for one, other in pairs:
        for gradient, expected in zip(attention_gradients(one), attention_gradients(other), strict=True):
            assert_same(gradient, expected)
            compared += 1
    linears = [(ours.feed_forward.expand, theirs.linear1), (ours.feed_forward.contract, theirs.linear2)]
    for one, other in norms + linears:
        for parameter, expected in zip(one.parameters(), other.parameters(), strict=True):
            assert parameter.grad.any()
            assert_same(parameter.grad, expected.grad)
            compared += 1
    assert compared == len(list(ours.parameters()))


def torch_layer(kind: type[nn.Module], config: ModelConfig) -> nn.Module:
    layer = kind(
        D, H, F, dropout=0.0, activation=config.activation, batch_first=True, norm_first=config.norm_position == "pre"
    )
    return layer.double()


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.usefixtures("kernel")
def test_encoder_layer_is_torchs(norm_position: str, activation: str) -> None:
    config = tiny_config(norm_position=norm_position, activation=activation)
    ours, theirs = randomise(EncoderLayer(config)), torch_layer(nn.TransformerEncoderLayer, config)
    copy_attention(theirs.self_attn, ours.self_attention)
    copy_linear(theirs.linear1, ours.feed_forward.expand)
    copy_linear(theirs.linear2, ours.feed_forward.contract)
    theirs.norm1.load_state_dict(ours.self_attention_residual.norm.state_dict())
    theirs.norm2.load_state_dict(ours.feed_forward_residual.norm.state_dict())

    x_ours, x_theirs = (random(B, S, D).requires_grad_() for _ in range(2))
    y_ours = ours(x_ours, MASK_BS[:, None, None])
    y_theirs = theirs(x_theirs, src_key_padding_mask=~MASK_BS)
    assert_same(y_ours, y_theirs)
    for y in (y_ours, y_theirs):
        y.backward(random(B, S, D, seed=1))
    assert_same(x_ours.grad, x_theirs.grad)
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.usefixtures("kernel")
def test_decoder_layer_is_torchs(norm_position: str, activation: str) -> None:
    config = tiny_config(norm_position=norm_position, activation=activation)
    ours, theirs = randomise(DecoderLayer(config)), torch_layer(nn.TransformerDecoderLayer, config)
    copy_attention(theirs.self_attn, ours.self_attention)
    copy_attention(theirs.multihead_attn, ours.cross_attention)
    copy_linear(theirs.linear1, ours.feed_forward.expand)
    copy_linear(theirs.linear2, ours.feed_forward.contract)
    theirs.norm1.load_state_dict(ours.self_attention_residual.norm.state_dict())
    theirs.norm2.load_state_dict(ours.cross_attention_residual.norm.state_dict())
    theirs.norm3.load_state_dict(ours.feed_forward_residual.norm.state_dict())

    x_ours, x_theirs = (random(B, T, D).requires_grad_() for _ in range(2))
    source_ours, source_theirs = (random(B, S, D, seed=1).requires_grad_() for _ in range(2))
    y_ours = ours(x_ours, EncoderOutput(source_ours, MASK_BS[:, None, None]))
    y_theirs = theirs(
        x_theirs, source_theirs, tgt_mask=~causal_mask(T), memory_key_padding_mask=~MASK_BS, tgt_is_causal=True
    )
    assert_same(y_ours, y_theirs)
    for y in (y_ours, y_theirs):
        y.backward(random(B, T, D, seed=2))
    assert_same(x_ours.grad, x_theirs.grad)
    assert_same(source_ours.grad, source_theirs.grad)
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_residual_is_its_formula(norm: str, norm_position: str) -> None:
    residual, x = randomise(Residual(tiny_config(norm=norm, norm_position=norm_position))), random(B, T, D)
    expected = x + torch.sin(residual.norm(x)) if norm_position == "pre" else residual.norm(x + torch.sin(x))
    assert_same(residual(x, torch.sin), expected)


def test_dropout_falls_on_the_sublayer_and_spares_the_residual() -> None:
    """Pre-norm with a sublayer that returns ones: what is added to x is 0 or 1 / (1 - 0.25)."""
    torch.manual_seed(0)
    residual, x = Residual(tiny_config(dropout=0.25)).double(), random(40, D)
    added = residual(x, torch.ones_like) - x
    assert ((added - 1 / 0.75).abs().lt(EXACT) | added.abs().lt(EXACT)).all()
    assert 0.15 < added.abs().lt(EXACT).double().mean().item() < 0.35
    assert_same(residual.eval()(x, torch.ones_like), x + 1)


def test_post_norm_dropout_falls_before_the_norm() -> None:
    """The normalized sum has mean 0 even where the output of the sublayer was dropped."""
    torch.manual_seed(0)
    residual, x = Residual(tiny_config(dropout=0.5, norm_position="post")).double(), random(40, D)
    y = residual(x, torch.ones_like)
    assert (y - residual.eval()(x, torch.ones_like)).abs().max() > 0.1
    assert_same(y.mean(dim=-1), torch.zeros(40, dtype=torch.float64))


def test_activation_dropout_falls_between_the_two_projections() -> None:
    """With a contraction that sums, every output of a row is the same number: none was dropped after it."""
    torch.manual_seed(0)
    layer = randomise(FeedForward(tiny_config(activation_dropout=0.5)))
    torch.nn.init.ones_(layer.contract.weight)
    torch.nn.init.zeros_(layer.contract.bias)
    x = random(20, D)
    trained, evaluated = layer.train()(x), layer.eval()(x)
    assert_same(trained, trained[:, :1].expand_as(trained), 1e-12)
    assert (trained - evaluated).abs().max() > 0.1
    assert_same(layer(x), evaluated)


def test_each_attention_takes_the_attention_dropout_of_the_config() -> None:
    torch.manual_seed(0)
    config, x = tiny_config(attention_dropout=0.5), random(B, T, D)
    encoder_layer, decoder_layer = randomise(EncoderLayer(config)), randomise(DecoderLayer(config))
    for attention in (encoder_layer.self_attention, decoder_layer.self_attention, decoder_layer.cross_attention):
        assert (attention.train()(x) - attention.eval()(x)).abs().max() > 0.01

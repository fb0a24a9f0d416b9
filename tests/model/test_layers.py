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
from mtformer.model.layers import DecoderLayer, EncoderLayer, FeedForward, SubLayer
from mtformer.model.masks import padding_keep, subsequent_keep

B, T, S = 3, 5, 7
KEEP_BS = padding_keep(torch.tensor([7, 2, 4]), S)


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
            "norm1": numpy_of(layer.around_attention.norm.weight),
            "norm1_bias": numpy_of(layer.around_attention.norm.bias),
            "norm2": numpy_of(layer.around_feed_forward.norm.weight),
            "norm2_bias": numpy_of(layer.around_feed_forward.norm.bias),
        },
        H,
        KEEP_BS[:, None].expand(B, S, S).numpy(),
    )
    actual = layer(x_BSD, KEEP_BS[:, None, None], None)
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize(("name", "function"), [("relu", reference.relu), ("gelu", reference.gelu)])
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
    norms = [(ours.around_feed_forward.norm, theirs.norm2)]
    if isinstance(ours, DecoderLayer):
        pairs.append((ours.cross_attention, theirs.multihead_attn))
        norms = [(ours.around_self_attention.norm, theirs.norm1), (ours.around_cross_attention.norm, theirs.norm2)]
        norms.append((ours.around_feed_forward.norm, theirs.norm3))
    else:
        norms.append((ours.around_attention.norm, theirs.norm1))
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
    theirs.norm1.load_state_dict(ours.around_attention.norm.state_dict())
    theirs.norm2.load_state_dict(ours.around_feed_forward.norm.state_dict())

    x_ours, x_theirs = (random(B, S, D).requires_grad_() for _ in range(2))
    y_ours = ours(x_ours, KEEP_BS[:, None, None], None)
    y_theirs = theirs(x_theirs, src_key_padding_mask=~KEEP_BS)
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
    theirs.norm1.load_state_dict(ours.around_self_attention.norm.state_dict())
    theirs.norm2.load_state_dict(ours.around_cross_attention.norm.state_dict())
    theirs.norm3.load_state_dict(ours.around_feed_forward.norm.state_dict())

    x_ours, x_theirs = (random(B, T, D).requires_grad_() for _ in range(2))
    memory_ours, memory_theirs = (random(B, S, D, seed=1).requires_grad_() for _ in range(2))
    y_ours = ours(x_ours, memory_ours, KEEP_BS[:, None, None], None)
    y_theirs = theirs(
        x_theirs, memory_theirs, tgt_mask=~subsequent_keep(T), memory_key_padding_mask=~KEEP_BS, tgt_is_causal=True
    )
    assert_same(y_ours, y_theirs)
    for y in (y_ours, y_theirs):
        y.backward(random(B, T, D, seed=2))
    assert_same(x_ours.grad, x_theirs.grad)
    assert_same(memory_ours.grad, memory_theirs.grad)
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_sub_layer_is_its_formula(norm: str, norm_position: str) -> None:
    sub_layer, x = randomise(SubLayer(tiny_config(norm=norm, norm_position=norm_position))), random(B, T, D)
    norm_of = sub_layer.norm
    expected = x + torch.sin(norm_of(x)) if norm_position == "pre" else norm_of(x + torch.sin(x))
    assert_same(sub_layer(x, torch.sin), expected)


def test_dropout_falls_on_the_sub_layer_and_spares_the_residual() -> None:
    """Pre-norm with a function that gives ones: what is added to x is 0 or 1 / (1 - 0.25)."""
    torch.manual_seed(0)
    sub_layer, x = SubLayer(tiny_config(dropout=0.25)).double(), random(40, D)
    added = sub_layer(x, torch.ones_like) - x
    assert ((added - 1 / 0.75).abs().lt(EXACT) | added.abs().lt(EXACT)).all()
    assert 0.15 < added.abs().lt(EXACT).double().mean().item() < 0.35
    assert_same(sub_layer.eval()(x, torch.ones_like), x + 1)


def test_post_norm_dropout_falls_before_the_norm() -> None:
    """The normalised sum has mean 0 and variance 1 even where the function's output was dropped."""
    torch.manual_seed(0)
    sub_layer, x = SubLayer(tiny_config(dropout=0.5, norm_position="post")).double(), random(40, D)
    y = sub_layer(x, torch.ones_like)
    assert (y - sub_layer.eval()(x, torch.ones_like)).abs().max() > 0.1
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

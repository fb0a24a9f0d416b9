"""Tiny models, sentences and comparisons for the model tests."""

import math
from typing import Any

import pytest
import reference
import torch
from torch import Tensor, nn

from mtformer.config.schema import ModelConfig
from mtformer.model import kernels
from mtformer.model.attention import MultiHeadAttention
from mtformer.model.cache import DecoderCache
from mtformer.model.transformer import Transformer

D, H, F = 16, 4, 24
V = 13
PAD, EOS = 0, 3
EXACT = 1e-10
"""Maximum difference in float64 between two computations of the same number."""


def tiny_config(**changes: Any) -> ModelConfig:
    """Return a config with a few thousand parameters and without dropout."""
    sizes = {"d_model": D, "num_heads": H, "d_ff": F, "num_encoder_layers": 2, "num_decoder_layers": 2}
    return ModelConfig(**{**sizes, "dropout": 0.0, "max_positions": 32, **changes})


def randomize(module: nn.Module, seed: int = 0) -> Any:
    """Convert to float64 and randomize all parameters, including biases and norms, so that each affects the result."""
    generator = torch.Generator().manual_seed(seed)
    module.double()
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
        parameter.data = noise + 1.0 if "norm" in name and name.endswith("weight") else noise
    return module


def tiny_model(seed: int = 0, **changes: Any) -> Transformer:
    """Return a float64 Transformer with random parameters; vocabularies are separate unless tied."""
    model = Transformer(tiny_config(**changes), V, V)
    randomize(model, seed)
    return model


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(*shape: int, seed: int = 0) -> Tensor:
    """Return random ids of regular tokens."""
    return torch.randint(4, V, shape, generator=torch.Generator().manual_seed(seed))


def sources(lengths: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return padded source ids, each ending with eos, and their lengths."""
    src_BS = tokens(len(lengths), max(lengths), seed=seed)
    for row, length in zip(src_BS, lengths, strict=True):
        row[length - 1] = EOS
        row[length:] = PAD
    return src_BS, torch.tensor(lengths)


def use_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `attend` without dropout always use the fused kernel (`fused`), or never (`unfused`)."""
    threshold = 0 if name == "fused" else math.inf
    monkeypatch.setattr(kernels, "CPU_FUSED_FROM", dict.fromkeys(kernels.CPU_FUSED_FROM, threshold))


def step(model: Transformer, token_N: Tensor, cache: DecoderCache) -> Tensor:
    """Decode one position of each beam and return its hidden states (N, D)."""
    return model.decode(token_N.view(-1, cache.R), cache.encoder_output, cache).flatten(0, 1)


def assert_same(actual: Tensor, expected: Tensor, tolerance: float = EXACT) -> None:
    """Check that shapes are equal and differences are at most the tolerance (NaN always fails)."""
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max().item() <= tolerance


def copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    """Copy the weights; both modules fuse queries, keys and values in this order."""
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.in_projection.weight)
        theirs.in_proj_bias.copy_(ours.in_projection.bias)
    theirs.out_proj.load_state_dict(ours.out_projection.state_dict())


def attention_gradients(attention: nn.MultiheadAttention | MultiHeadAttention) -> list[Tensor]:
    """Return the gradients of the four parameters in the same order for both modules."""
    if isinstance(attention, MultiHeadAttention):
        into, out = attention.in_projection, attention.out_projection
        parameters: list[Tensor] = [into.weight, into.bias, out.weight, out.bias]
    else:
        out_proj = attention.out_proj
        parameters = [attention.in_proj_weight, attention.in_proj_bias, out_proj.weight, out_proj.bias]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    assert [gradient.any().item() for gradient in gradients] == [True] * 4
    return gradients


def as_numpy(attention: MultiHeadAttention) -> reference.Weights:
    """Return the weights in the format of `reference.multi_head_attention`."""
    rows = [attention.H * attention.K, attention.G * attention.K, attention.G * attention.K]
    weights, biases = (x.detach().split(rows) for x in (attention.in_projection.weight, attention.in_projection.bias))
    named = {name: weight.numpy() for name, weight in zip("qkv", weights, strict=True)}
    named |= {f"{name}_bias": bias.numpy() for name, bias in zip("qkv", biases, strict=True)}
    out = attention.out_projection
    return {**named, "out": out.weight.detach().numpy(), "out_bias": out.bias.detach().numpy()}

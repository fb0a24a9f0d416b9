"""Attention against numpy, against torch.nn.MultiheadAttention, and its two forms against each other."""

import numpy as np
import pytest
import reference
import torch
from tiny import (
    EXACT,
    D,
    H,
    assert_same,
    attention_gradients,
    copy_attention,
    random,
    randomise,
)
from torch import Tensor, nn

from mtformer.model.attention import CPU_FUSED_FROM, MultiHeadAttention, attend, attend_fused, use_fused
from mtformer.model.masks import padding_keep, subsequent_keep
from mtformer.model.positions import RotaryPositions

B, T, S = 3, 5, 7
SOURCE_KEEP_B11S = padding_keep(torch.tensor([7, 2, 4]), S)[:, None, None]
QUERY_KEEP_B1TS = padding_keep(torch.tensor([[1, 7, 3, 2, 5], [4, 4, 1, 6, 7], [2, 3, 4, 5, 6]]), S)[:, None]
MASKS = {
    "none": None,
    "padding": SOURCE_KEEP_B11S,
    "per query": QUERY_KEEP_B1TS,
    "last queries": subsequent_keep(T, S),
    "both": SOURCE_KEEP_B11S & subsequent_keep(T, S),
}
masks = pytest.mark.parametrize("keep", MASKS.values(), ids=MASKS.keys())


def heads(K: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    shapes = [(B, H, T, K), (B, H, S, K), (B, H, S, K)]
    return tuple(random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes))


@masks
def test_attend_is_equation_1(keep: Tensor | None) -> None:
    q, k, v = heads()
    out, weights = attend(q, k, v, keep)
    keep_BHTS = np.broadcast_to(True if keep is None else keep.numpy(), (B, H, T, S))
    for b in range(B):
        for h in range(H):
            q_TK, k_SK, v_SK = (x[b, h].detach().numpy() for x in (q, k, v))
            expected, expected_weights = reference.attention(q_TK, k_SK, v_SK, keep_BHTS[b, h])
            np.testing.assert_allclose(out[b, h].detach().numpy(), expected, rtol=0, atol=EXACT)
            np.testing.assert_allclose(weights[b, h].detach().numpy(), expected_weights, rtol=0, atol=EXACT)


@masks
def test_weights_sum_to_1_and_are_0_where_masked(keep: Tensor | None) -> None:
    weights = attend(*heads(), keep)[1]
    assert_same(weights.sum(dim=-1), torch.ones(B, H, T, dtype=torch.float64))
    assert torch.equal(
        weights > 0, torch.ones_like(weights, dtype=torch.bool) if keep is None else keep.expand_as(weights)
    )


@masks
def test_written_and_fused_forms_are_equal(keep: Tensor | None) -> None:
    """Outputs and the gradients of queries, keys and values."""
    written, fused = heads(), heads()
    outs = attend(*written, keep)[0], attend_fused(*fused, keep)
    assert_same(*outs)
    for out in outs:
        out.backward(random(*out.shape, seed=9))
    for one, other in zip(written, fused, strict=True):
        assert one.grad.any()
        assert_same(one.grad, other.grad)


def test_fused_causal_is_the_subsequent_mask() -> None:
    q, k, v = (random(2, H, 6, 4, seed=seed) for seed in range(3))
    assert_same(attend_fused(q, k, v, is_causal=True), attend(q, k, v, subsequent_keep(6))[0])


def test_dropout_falls_on_the_weights_and_the_returned_weights_have_none() -> None:
    """With v the identity the output is the dropped weights themselves."""
    torch.manual_seed(0)
    q, k = random(1, 2, 50, 4), random(1, 2, 40, 4, seed=1)
    out, weights = attend(q, k, torch.eye(40, dtype=torch.float64).expand(1, 2, 40, 40), dropout_p=0.25)
    assert_same(weights, attend(q, k, k)[1])
    ratio = out / weights
    assert ((ratio - 1 / 0.75).abs().lt(EXACT) | ratio.eq(0)).all()
    assert 0.2 < (ratio == 0).double().mean().item() < 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_follows_the_size_the_dtype_and_the_dropout(dtype: torch.dtype) -> None:
    def pick(T: int, dropout_p: float) -> bool:
        return use_fused(torch.empty(1, 1, T, 1, dtype=dtype), CPU_FUSED_FROM[dtype] // 128, dropout_p)

    assert [pick(127, 0.0), pick(128, 0.0), pick(128, 0.1)] == [False, True, False]


def as_numpy(attention: MultiHeadAttention) -> reference.Weights:
    rows = [attention.H * attention.K, attention.G * attention.K, attention.G * attention.K]
    weights, biases = (x.detach().split(rows) for x in (attention.in_projection.weight, attention.in_projection.bias))
    named = {name: weight.numpy() for name, weight in zip("qkv", weights, strict=True)}
    named |= {f"{name}_bias": bias.numpy() for name, bias in zip("qkv", biases, strict=True)}
    out = attention.out_projection
    return {**named, "out": out.weight.detach().numpy(), "out_bias": out.bias.detach().numpy()}


@pytest.mark.parametrize("G", [4, 2, 1])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.usefixtures("kernel")
def test_multi_head_attention_is_section_3_2_2(G: int, rotary: bool, cross: bool) -> None:
    """Self-attention and cross-attention, grouped heads, rotary positions, each with padding."""
    attention = randomise(MultiHeadAttention(D, H, G))
    x, memory = random(B, T, D), random(B, S, D, seed=1) if cross else None
    keys = x if memory is None else memory
    keep_BS = padding_keep(torch.tensor([keys.size(1), 2, 4]), keys.size(1))
    out = attention(x, keep_BS[:, None, None], memory_BSD=memory, rotary=RotaryPositions(S, D // H) if rotary else None)
    keep_BTS = keep_BS[:, None].expand(B, T, -1).numpy()
    expected = reference.multi_head_attention(x.numpy(), keys.numpy(), as_numpy(attention), H, G, keep_BTS, rotary)
    tolerance = 1e-6 if rotary else EXACT  # the table of angles is float32
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=0, atol=tolerance)


@pytest.mark.usefixtures("kernel")
def test_causal_multi_head_attention() -> None:
    attention, x = randomise(MultiHeadAttention(D, H, 2)), random(B, T, D)
    keep_BTS = np.broadcast_to(np.tri(T, dtype=bool), (B, T, T))
    expected = reference.multi_head_attention(x.numpy(), x.numpy(), as_numpy(attention), H, 2, keep_BTS)
    np.testing.assert_allclose(attention(x, is_causal=True).detach().numpy(), expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize(
    ("cross", "mask"), [(False, "none"), (False, "padding"), (False, "causal"), (True, "none"), (True, "padding")]
)
@pytest.mark.usefixtures("kernel")
def test_multi_head_attention_is_torchs(cross: bool, mask: str) -> None:
    """Outputs, and gradients of every input and parameter."""
    ours, theirs = randomise(MultiHeadAttention(D, H)), nn.MultiheadAttention(D, H, batch_first=True).double()
    copy_attention(theirs, ours)
    x_ours, x_theirs = (random(B, T, D).requires_grad_() for _ in range(2))
    memory_ours, memory_theirs = (random(B, S, D, seed=1).requires_grad_() if cross else None for _ in range(2))
    keys = x_theirs if memory_theirs is None else memory_theirs
    keep_BS = padding_keep(torch.tensor([keys.size(1), 2, 4]), keys.size(1)) if mask == "padding" else None

    out_ours = ours(
        x_ours,
        None if keep_BS is None else keep_BS[:, None, None],
        memory_BSD=memory_ours,
        is_causal=mask == "causal",
    )
    out_theirs, _ = theirs(
        x_theirs,
        keys,
        keys,
        key_padding_mask=None if keep_BS is None else ~keep_BS,
        attn_mask=~subsequent_keep(T) if mask == "causal" else None,
        need_weights=False,
    )
    assert_same(out_ours, out_theirs)
    for out in (out_ours, out_theirs):
        out.backward(random(B, T, D, seed=2))
    assert_same(x_ours.grad, x_theirs.grad)
    if cross:
        assert_same(memory_ours.grad, memory_theirs.grad)
    for one, other in zip(attention_gradients(ours), attention_gradients(theirs), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("cross", [False, True])
def test_the_weights_shown_are_torchs(cross: bool) -> None:
    ours, theirs = randomise(MultiHeadAttention(D, H)), nn.MultiheadAttention(D, H, batch_first=True).double()
    copy_attention(theirs, ours)
    x, memory = random(B, T, D), random(B, S, D, seed=1) if cross else None
    keys = x if memory is None else memory
    keep_BS = padding_keep(torch.tensor([keys.size(1), 2, 4]), keys.size(1))
    expected = theirs(x, keys, keys, key_padding_mask=~keep_BS, average_attn_weights=False)[1]
    assert_same(ours.weights(x, keep_BS[:, None, None], memory), expected)


@pytest.mark.usefixtures("kernel")
def test_grouped_heads_are_full_heads_with_shared_keys_and_values() -> None:
    """Ainslie et al. 2023: copying each key/value head H/G times gives plain multi-head attention."""
    grouped, full = randomise(MultiHeadAttention(D, H, 2)), randomise(MultiHeadAttention(D, H))
    K = D // H
    q, kv = grouped.in_projection.weight.split([H * K, 2 * 2 * K])
    q_bias, kv_bias = grouped.in_projection.bias.split([H * K, 2 * 2 * K])
    with torch.no_grad():
        full.in_projection.weight.copy_(torch.cat([q, kv.view(2, 2, 1, K, D).expand(2, 2, 2, K, D).reshape(-1, D)]))
        full.in_projection.bias.copy_(torch.cat([q_bias, kv_bias.view(2, 2, 1, K).expand(2, 2, 2, K).flatten()]))
    full.out_projection.load_state_dict(grouped.out_projection.state_dict())
    x, memory = random(B, T, D), random(B, S, D, seed=1)
    assert_same(grouped(x, is_causal=True), full(x, is_causal=True))
    assert_same(grouped(x, SOURCE_KEEP_B11S, memory_BSD=memory), full(x, SOURCE_KEEP_B11S, memory_BSD=memory))


@pytest.mark.usefixtures("kernel")
def test_attention_dropout_is_for_training() -> None:
    attention, plain = randomise(MultiHeadAttention(D, H, dropout_p=0.5)), randomise(MultiHeadAttention(D, H))
    x, expected = random(B, T, D), plain(random(B, T, D))
    assert_same(attention.eval()(x), expected)
    assert (attention.train()(x) - expected).abs().max() > 0.01

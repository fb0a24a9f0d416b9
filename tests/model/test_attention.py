"""Compare attention with NumPy and torch.nn.MultiheadAttention, and its two implementations with each other."""

import numpy as np
import pytest
import reference
import torch
from tiny import (
    EXACT,
    D,
    H,
    as_numpy,
    assert_same,
    attention_gradients,
    copy_attention,
    random,
    randomize,
    use_kernel,
)
from torch import Tensor, nn
from torch.nn import functional

from mtformer.model.attention import MultiHeadAttention, attend, attention_weights, record_weights
from mtformer.model.kernels import CPU_FUSED_FROM, additive_mask
from mtformer.model.ops import causal_mask, padding_mask
from mtformer.model.positions import RotaryPositions

B, T, S = 3, 5, 7
PADDING_B11S = padding_mask(torch.tensor([7, 2, 4]), S)[:, None, None]
PER_QUERY_B1TS = padding_mask(torch.tensor([[1, 7, 3, 2, 5], [4, 4, 1, 6, 7], [2, 3, 4, 5, 6]]), S)[:, None]
MASKS = {"none": None, "padding": PADDING_B11S, "per query": PER_QUERY_B1TS, "both": PADDING_B11S & PER_QUERY_B1TS}
NOTHING_B11S = padding_mask(torch.tensor([7, 0, 4]), S)[:, None, None]
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())


def heads(K: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    shapes = [(B, H, T, K), (B, H, S, K), (B, H, S, K)]
    return tuple(random(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes))


@masks
@pytest.mark.usefixtures("kernel")
def test_attend_equals_equation_1(mask: Tensor | None) -> None:
    q, k, v = (x.detach() for x in heads())
    out, weights = attend(q, k, v, mask), attention_weights(q, k, mask)
    if mask is not None:  # the masks on a GPU, also when weights are recorded
        assert_same(attention_weights(q, k, additive_mask(mask, q)), weights)
    mask_BHTS = np.broadcast_to(True if mask is None else mask.numpy(), (B, H, T, S))
    for b in range(B):
        for h in range(H):
            q_TK, k_SK, v_SK = (x[b, h].numpy() for x in (q, k, v))
            expected, expected_weights = reference.attention(q_TK, k_SK, v_SK, mask_BHTS[b, h])
            np.testing.assert_allclose(out[b, h], expected, rtol=0, atol=EXACT)
            np.testing.assert_allclose(weights[b, h], expected_weights, rtol=0, atol=EXACT)


@pytest.mark.parametrize("mask", [*MASKS.values(), NOTHING_B11S], ids=[*MASKS, "nothing"])
def test_unfused_and_fused_kernels_are_equal(mask: Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare outputs and gradients of queries, keys and values."""
    outs, inputs = [], []
    for kernel in ("unfused", "fused"):
        use_kernel(kernel, monkeypatch)
        inputs.append(heads())
        outs.append(attend(*inputs[-1], mask))
        outs[-1].backward(random(B, H, T, 6, seed=9))
    assert_same(*outs)
    for one, other in zip(*inputs, strict=True):
        assert one.grad.any()
        assert_same(one.grad, other.grad)


@pytest.mark.parametrize("is_compiling", [False, True])
@pytest.mark.usefixtures("kernel")
def test_outputs_of_fully_masked_queries_are_0(is_compiling: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: is_compiling)
    q, k, v = heads()
    out = attend(q, k, v, NOTHING_B11S)
    assert out[0].all()
    assert not out[1].any()
    assert not attention_weights(q, k, NOTHING_B11S)[1].any()
    out.sum().backward()
    assert not q.grad[1].any()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.usefixtures("kernel")
def test_is_causal_equals_the_causal_mask_and_cannot_be_combined_with_a_mask() -> None:
    q, k, v = (random(2, H, 6, 4, seed=seed) for seed in range(3))
    assert_same(attend(q, k, v, is_causal=True), attend(q, k, v, causal_mask(6)))
    with pytest.raises(AssertionError, match="mask and is_causal"):
        attend(q, k, v, causal_mask(6), is_causal=True)


def test_dropout_applies_to_the_weights() -> None:
    """If v is the identity, the output equals the weights after dropout."""
    torch.manual_seed(0)
    q, k = random(1, 2, 50, 4), random(1, 2, 40, 4, seed=1)
    out = attend(q, k, torch.eye(40, dtype=torch.float64).expand(1, 2, 40, 40), dropout_p=0.25)
    ratio = out / attention_weights(q, k)
    assert ((ratio - 1 / 0.75).abs().lt(EXACT) | ratio.eq(0)).all()
    assert 0.2 < (ratio == 0).double().mean().item() < 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_selection_by_size_dtype_and_dropout(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    fused: list[Tensor] = []
    monkeypatch.setattr(functional, "scaled_dot_product_attention", lambda q, *_, **__: fused.append(q) or q)

    def is_fused(T: int, dropout_p: float) -> bool:
        fused.clear()
        q, k = torch.ones(1, 1, T, 1, dtype=dtype), torch.ones(1, 1, CPU_FUSED_FROM[dtype] // 128, 1, dtype=dtype)
        attend(q, k, k, dropout_p=dropout_p)
        return bool(fused)

    assert [is_fused(127, 0.0), is_fused(128, 0.0), is_fused(128, 0.1)] == [False, True, False]


@pytest.mark.parametrize("G", [4, 2, 1])
@pytest.mark.parametrize("kind", ["self", "rotary", "causal", "cross"])
@pytest.mark.usefixtures("kernel")
def test_multi_head_attention_equals_section_3_2_2(G: int, kind: str) -> None:
    """Test self-attention (rotary, causal) and cross-attention, with grouped heads and padding."""
    attention, x = randomize(MultiHeadAttention(D, H, G)), random(B, T, D)
    keys = random(B, S, D, seed=1) if kind == "cross" else x
    kv = attention.keys_values(keys) if kind == "cross" else None
    rotation = RotaryPositions(S, D // H)(slice(T)) if kind == "rotary" else None
    if kind == "causal":
        out = attention(x, is_causal=True)
        mask_BTS = causal_mask(T).expand(B, T, T)
    else:
        mask_BS = padding_mask(torch.tensor([keys.size(1), 2, 4]), keys.size(1))
        out = attention(x, kv, mask_BS[:, None, None], rotation=rotation)
        mask_BTS = mask_BS[:, None].expand(B, T, -1)
    expected = reference.multi_head_attention(
        x.numpy(), keys.numpy(), as_numpy(attention), H, G, mask_BTS.numpy(), kind == "rotary"
    )
    tolerance = 1e-6 if kind == "rotary" else EXACT  # the table of angles is float32
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("is_cross", "kind"), [(False, "none"), (False, "padding"), (False, "causal"), (True, "none"), (True, "padding")]
)
@pytest.mark.usefixtures("kernel")
def test_multi_head_attention_equals_torch(is_cross: bool, kind: str) -> None:
    """Compare outputs, weights, and gradients of all inputs and parameters."""
    ours, theirs = randomize(MultiHeadAttention(D, H)), nn.MultiheadAttention(D, H, batch_first=True).double()
    copy_attention(theirs, ours)
    x_ours, x_theirs = (random(B, T, D).requires_grad_() for _ in range(2))
    source_ours, source_theirs = (random(B, S, D, seed=1).requires_grad_() for _ in range(2))
    keys = source_theirs if is_cross else x_theirs
    mask_BS = padding_mask(torch.tensor([keys.size(1), 2, 4]), keys.size(1)) if kind == "padding" else None

    arguments = {
        "kv": ours.keys_values(source_ours) if is_cross else None,
        "mask": None if mask_BS is None else mask_BS[:, None, None],
        "is_causal": kind == "causal",
    }
    with record_weights([ours]) as recorded:
        out_ours = ours(x_ours, **arguments)
    out_theirs, weights_theirs = theirs(
        x_theirs,
        keys,
        keys,
        key_padding_mask=None if mask_BS is None else ~mask_BS,
        attn_mask=~causal_mask(T) if kind == "causal" else None,
        average_attn_weights=False,
    )
    assert_same(out_ours, out_theirs)
    assert_same(recorded[ours], weights_theirs)
    for out in (out_ours, out_theirs):
        out.backward(random(B, T, D, seed=2))
    assert_same(x_ours.grad, x_theirs.grad)
    if is_cross:
        assert_same(source_ours.grad, source_theirs.grad)
    for one, other in zip(attention_gradients(ours), attention_gradients(theirs), strict=True):
        assert_same(one, other)


@pytest.mark.usefixtures("kernel")
def test_grouped_heads_equal_full_heads_with_copied_keys_and_values() -> None:
    """Copying each key/value head H/G times gives multi-head attention (Ainslie et al. 2023)."""
    grouped, full = randomize(MultiHeadAttention(D, H, 2)), randomize(MultiHeadAttention(D, H))
    K = D // H
    q, kv = grouped.in_projection.weight.split([H * K, 2 * 2 * K])
    q_bias, kv_bias = grouped.in_projection.bias.split([H * K, 2 * 2 * K])
    with torch.no_grad():
        full.in_projection.weight.copy_(torch.cat([q, kv.view(2, 2, 1, K, D).expand(2, 2, 2, K, D).reshape(-1, D)]))
        full.in_projection.bias.copy_(torch.cat([q_bias, kv_bias.view(2, 2, 1, K).expand(2, 2, 2, K).flatten()]))
    full.out_projection.load_state_dict(grouped.out_projection.state_dict())
    x, source = random(B, T, D), random(B, S, D, seed=1)
    assert_same(grouped(x, is_causal=True), full(x, is_causal=True))
    cross = [attention(x, attention.keys_values(source), PADDING_B11S) for attention in (grouped, full)]
    assert_same(*cross)


@pytest.mark.usefixtures("kernel")
def test_attention_dropout_applies_in_training_only() -> None:
    attention, plain = randomize(MultiHeadAttention(D, H, dropout_p=0.5)), randomize(MultiHeadAttention(D, H))
    x, expected = random(B, T, D), plain(random(B, T, D))
    assert_same(attention.eval()(x), expected)
    with record_weights([attention, plain]) as recorded:
        assert (attention.train()(x) - plain(x)).abs().max() > 0.01
    assert_same(recorded[attention], recorded[plain])  # weights before dropout


def test_recorded_weights_are_those_of_the_last_forward_pass() -> None:
    attention, other = randomize(MultiHeadAttention(D, H)), randomize(MultiHeadAttention(D, H), seed=1)
    x, source = random(B, T, D), random(B, S, D, seed=1)
    with record_weights([attention]) as recorded:
        attention(x, is_causal=True)
        other(x)
        kv = attention.keys_values(source)
        attention(x, kv, mask=PADDING_B11S)
    attention(x)
    assert recorded.keys() == {attention}
    with record_weights([attention]) as expected:
        attention(x, kv, mask=PADDING_B11S)
    assert_same(recorded[attention], expected[attention])

r"""Scaled dot-product attention and multi-head attention (Vaswani et al. 2017, section 3.2).

With grouped-query attention (Ainslie et al. 2023; G < H) several query heads share one head of keys and values:

    H = 8 query heads            0   1   2   3   4   5   6   7
                                  \   \ /   /     \   \ /   /
    G = 2 key and value heads         0               1

B batch, T query length, S key length, D model width, H heads, G key and value heads, K width of a head.
"""

import contextlib
import threading
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.model.cache import KeyValues, LayerCache
from mtformer.model.ops import Linear, causal_mask, dropout
from mtformer.model.positions import Rotation

# Smallest T x S for which the fused kernel is used on a CPU. Time of forward and backward in ms on two Zen 4 cores
# (unfused, fused): fp32 14 x 14: 5.6, 10.1; 128 x 128: 14.2, 10.5; bf16 14 x 14: 3.5, 35.9; 512 x 512: 22.2, 32.4.
CPU_FUSED_FROM = {torch.float32: 128 * 128, torch.float64: 128 * 128, torch.bfloat16: 1024 * 1024}
_recording = threading.local()  # other threads may translate with the same model


def attend(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """Return softmax(q k^T / sqrt(K)) v (equation 1) using the faster kernel for the device and sizes.

    `mask`: bool, broadcastable to (B, H, T, S), True = attend, or the result of `additive_mask`; columns after S are
    ignored. If `is_causal`, each query attends only to its own position and earlier ones, and `mask` must be None.
    """
    assert mask is None or not is_causal, "mask and is_causal are mutually exclusive"
    threshold = CPU_FUSED_FROM.get(q_BHTK.dtype, 128 * 128)
    is_fast_on_cpu = dropout_p == 0.0 and q_BHTK.size(2) * k_BHSK.size(2) >= threshold
    if q_BHTK.device.type != "cpu" or is_fast_on_cpu:
        mask = None if mask is None else mask[..., : k_BHSK.size(2)]
        return F.scaled_dot_product_attention(
            q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, is_causal=is_causal, dropout_p=dropout_p
        )
    return dropout(attention_weights(q_BHTK, k_BHSK, mask, is_causal), dropout_p) @ v_BHSK


def attention_weights(q_BHTK: Tensor, k_BHSK: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Return softmax(q k^T / sqrt(K)), (B, H, T, S); fully masked rows are 0. See `attend` for the arguments."""
    scores_BHTS = (q_BHTK * q_BHTK.size(-1) ** -0.5) @ k_BHSK.transpose(-2, -1)
    if is_causal:
        mask = causal_mask(q_BHTK.size(2), device=q_BHTK.device)
    if mask is None:
        return _softmax(scores_BHTS)
    mask = mask[..., : k_BHSK.size(2)]
    if mask.dtype != torch.bool:
        mask = mask == 0
    has_keys = mask.any(dim=-1, keepdim=True)
    if not torch.compiler.is_compiling() and has_keys.all():  # always true in practice
        return _softmax(scores_BHTS.masked_fill(~mask, float("-inf")))
    # The softmax of a fully masked row, and its gradient, would be NaN.
    return _softmax(scores_BHTS.masked_fill(~mask & has_keys, float("-inf"))).masked_fill(~has_keys, 0.0)


def _softmax(scores_BHTS: Tensor) -> Tensor:
    """Return the softmax over the keys.

    The CPU kernel is slow on rows that are shorter than one vector register (64 bytes), so short rows are transposed:
    this reduces attention over 290 sentences of 14 tokens from 2.3 to 0.7 ms, forward and backward (bf16). A single
    query is not transposed, because the resulting memory layout would make the product with v ten times slower.
    """
    is_short = scores_BHTS.size(-1) * scores_BHTS.element_size() < 64 and scores_BHTS.size(-2) > 1
    if scores_BHTS.device.type == "cpu" and is_short:
        return scores_BHTS.movedim(-1, 0).contiguous().softmax(dim=0).movedim(0, -1)
    return scores_BHTS.softmax(dim=-1)


class MultiHeadAttention(nn.Module):
    """Self-attention and cross-attention with H query heads and G heads of keys and values.

    A single matrix with H*K + G*K + G*K rows projects queries, keys and values.
    """

    def __init__(self, D: int, num_heads: int, num_kv_heads: int | None = None, dropout_p: float = 0.0) -> None:
        super().__init__()
        self.H, self.G, self.K = num_heads, num_kv_heads or num_heads, D // num_heads
        self.dropout_p = dropout_p
        self.in_projection = Linear(D, D, self.G * self.K, self.G * self.K)
        self.out_projection = Linear(D, D)

    def keys_values(self, x_BSD: Tensor) -> KeyValues:
        """Return the keys and values (B, G, S, K) of another sequence, for cross-attention."""
        k, v = self.in_projection(x_BSD, self.H * self.K).chunk(2, dim=-1)
        return KeyValues(self._split(k), self._split(v))

    def forward(
        self,
        x_BTD: Tensor,
        kv: KeyValues | None = None,
        mask: Tensor | None = None,
        is_causal: bool = False,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Return the attention output, projected to (B, T, D).

        Args:
            x_BTD: inputs of the query projection; when decoding with a cache, T is the number of beams at one position.
            kv: keys and values of another sequence (cross-attention); None: project them from x (self-attention).
            mask: bool, broadcastable to (B, H, T, S), True = attend; None: attend to all positions.
            is_causal: attend only to the query's own position and earlier ones; cannot be combined with `mask`.
            rotation: rotary embeddings for the positions of x (self-attention only).
            cache: keys and values of earlier positions; the keys and values of x are appended.
        """
        if kv is not None:
            q_BHTK, (k_BGSK, v_BGSK) = self._split(self.in_projection(x_BTD, 0, self.H * self.K)), kv
        else:
            heads_BTHK = self.in_projection(x_BTD).unflatten(-1, (-1, self.K))
            rotated_BTHK, v_BTGK = heads_BTHK.split([self.H + self.G, self.G], dim=2)
            if rotation is not None:
                rotated_BTHK = rotation(rotated_BTHK)
            q_BHTK, k_BGSK = rotated_BTHK.transpose(1, 2).split([self.H, self.G], dim=1)
            v_BGSK = v_BTGK.transpose(1, 2)
            if cache is not None:
                k_BGSK, v_BGSK = cache.append(k_BGSK, v_BGSK)
        k_BHSK, v_BHSK = self._repeat(k_BGSK), self._repeat(v_BGSK)
        if not torch.compiler.is_compiling() and self in getattr(_recording, "weights", ()):
            _recording.weights[self] = attention_weights(q_BHTK, k_BHSK, mask, is_causal)
        out_BHTK = attend(q_BHTK, k_BHSK, v_BHSK, mask, is_causal, self.dropout_p if self.training else 0.0)
        return self.out_projection(out_BHTK.transpose(1, 2).flatten(-2))

    def _repeat(self, x_BGSK: Tensor) -> Tensor:
        """Repeat each head of keys or values H/G times and return (B, H, S, K)."""
        return x_BGSK if self.G == self.H else x_BGSK.repeat_interleave(self.H // self.G, dim=1)

    def _split(self, x_BTX: Tensor) -> Tensor:
        """Split X = heads * K and return (B, heads, T, K)."""
        return x_BTX.unflatten(-1, (-1, self.K)).transpose(1, 2)


@contextlib.contextmanager
def record_weights(modules: Iterable[MultiHeadAttention]) -> Iterator[dict[MultiHeadAttention, Tensor]]:
    """Record the weights (B, H, T, S), before dropout, of each module's last forward pass in the calling thread."""
    _recording.weights = recorded = dict.fromkeys(modules, torch.empty(0))
    try:
        yield recorded
    finally:
        del _recording.weights

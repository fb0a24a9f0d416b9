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
from mtformer.model.kernels import dropout, is_fused_faster, softmax_over_keys
from mtformer.model.ops import Linear, causal_mask
from mtformer.model.positions import Rotation

_recording = threading.local()
"""Modules whose weights the calling thread records; other threads may translate with the same model."""


def attend(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """Return softmax(q k^T / sqrt(K)) v (equation 1), (B, H, T, K), with the faster kernel for the device and sizes.

    Args:
        q_BHTK: queries.
        k_BHSK: keys.
        v_BHSK: values.
        mask: bool, broadcastable to (B, H, T, S), True = attend, or the result of `additive_mask`; columns after S are
            ignored. None: attend to all positions.
        is_causal: attend only to the query's own position and earlier ones; cannot be combined with `mask`.
        dropout_p: probability of dropping an attention weight.
    """
    assert mask is None or not is_causal, "mask and is_causal are mutually exclusive"
    if is_fused_faster(q_BHTK, k_BHSK, dropout_p):
        if mask is not None:
            mask = _without_padding(mask, k_BHSK)
        return F.scaled_dot_product_attention(
            q_BHTK, k_BHSK, v_BHSK, attn_mask=mask, is_causal=is_causal, dropout_p=dropout_p
        )

    weights_BHTS = attention_weights(q_BHTK, k_BHSK, mask, is_causal)
    weights_BHTS = dropout(weights_BHTS, dropout_p)
    return weights_BHTS @ v_BHSK


def attention_weights(q_BHTK: Tensor, k_BHSK: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Return softmax(q k^T / sqrt(K)), (B, H, T, S); fully masked rows are 0. See `attend` for the arguments."""
    T, K = q_BHTK.shape[2:]
    scaled_q_BHTK = q_BHTK * K**-0.5
    scores_BHTS = scaled_q_BHTK @ k_BHSK.transpose(-2, -1)

    if is_causal:
        mask = causal_mask(T, device=q_BHTK.device)
    if mask is None:
        return softmax_over_keys(scores_BHTS)

    mask = _without_padding(mask, k_BHSK)
    if mask.dtype != torch.bool:  # the result of `additive_mask`
        mask = mask == 0
    return _masked_softmax(scores_BHTS, mask)


def _without_padding(mask: Tensor, k_BHSK: Tensor) -> Tensor:
    """Return the columns of a mask that belong to the S keys."""
    S = k_BHSK.size(2)
    return mask[..., :S]


def _masked_softmax(scores_BHTS: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax over the keys that the mask allows."""
    has_keys = mask.any(dim=-1, keepdim=True)
    # Always true in practice. A compiled graph cannot branch on the value of a tensor.
    if not torch.compiler.is_compiling() and has_keys.all():
        scores_BHTS = scores_BHTS.masked_fill(~mask, float("-inf"))
        return softmax_over_keys(scores_BHTS)

    # The softmax of a fully masked row, and its gradient, would be NaN, so no score of such a row is masked.
    is_masked = ~mask & has_keys
    scores_BHTS = scores_BHTS.masked_fill(is_masked, float("-inf"))
    weights_BHTS = softmax_over_keys(scores_BHTS)
    return weights_BHTS.masked_fill(~has_keys, 0.0)


class MultiHeadAttention(nn.Module):
    """Self-attention and cross-attention with H query heads and G heads of keys and values.

    A single matrix with H*K + G*K + G*K rows projects queries, keys and values.

    Args:
        D: width of the inputs and of the output.
        num_heads: number of query heads, H.
        num_kv_heads: number of heads of keys and values, G; None: H.
        dropout_p: probability of dropping an attention weight in training.
    """

    def __init__(self, D: int, num_heads: int, num_kv_heads: int | None = None, dropout_p: float = 0.0) -> None:
        super().__init__()
        self.H = num_heads
        self.G = num_kv_heads or num_heads
        self.K = D // num_heads
        self.dropout_p = dropout_p
        self.query_width = self.H * self.K
        self.key_width = self.G * self.K
        self.in_projection = Linear(D, self.query_width, self.key_width, self.key_width)
        self.out_projection = Linear(D, D)

    def keys_values(self, x_BSD: Tensor) -> KeyValues:
        """Return the keys and values (B, G, S, K) of another sequence, for cross-attention."""
        first_row = self.query_width  # after the rows for queries
        keys_values = self.in_projection(x_BSD, first_row)  # (B, S, G*K + G*K)
        k_BSX, v_BSX = keys_values.chunk(2, dim=-1)  # X = G*K
        return KeyValues(self._split(k_BSX), self._split(v_BSX))

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
            q_BTX = self.in_projection(x_BTD, 0, self.query_width)  # X = H*K
            q_BHTK = self._split(q_BTX)
        else:
            q_BHTK, kv = self._queries_keys_values(x_BTD, rotation)
            if cache is not None:
                kv = cache.append(kv)

        k_BHSK = self._repeat(kv.k_BGSK)
        v_BHSK = self._repeat(kv.v_BGSK)
        if self._is_recorded():
            _recording.weights[self] = attention_weights(q_BHTK, k_BHSK, mask, is_causal)
        dropout_p = self.dropout_p if self.training else 0.0
        out_BHTK = attend(q_BHTK, k_BHSK, v_BHSK, mask, is_causal, dropout_p)

        out_BTHK = out_BHTK.transpose(1, 2)
        out_BTD = out_BTHK.flatten(-2)
        return self.out_projection(out_BTD)

    def _queries_keys_values(self, x_BTD: Tensor, rotation: Rotation | None) -> tuple[Tensor, KeyValues]:
        """Return queries (B, H, T, K), keys and values (B, G, T, K) of the same sequence."""
        projections = self.in_projection(x_BTD)
        heads_BTXK = projections.unflatten(-1, (-1, self.K))  # X = H + G + G

        # Queries and keys are rotated in one step.
        num_rotated = self.H + self.G
        queries_keys_BTXK, v_BTGK = heads_BTXK.split([num_rotated, self.G], dim=2)
        if rotation is not None:
            queries_keys_BTXK = rotation(queries_keys_BTXK)

        queries_keys_BXTK = queries_keys_BTXK.transpose(1, 2)
        q_BHTK, k_BGTK = queries_keys_BXTK.split([self.H, self.G], dim=1)
        v_BGTK = v_BTGK.transpose(1, 2)
        return q_BHTK, KeyValues(k_BGTK, v_BGTK)

    def _is_recorded(self) -> bool:
        """Return True inside `record_weights`, for one of its modules; a compiled graph records nothing."""
        return not torch.compiler.is_compiling() and self in getattr(_recording, "weights", ())

    def _repeat(self, x_BGSK: Tensor) -> Tensor:
        """Repeat each head of keys or values H/G times and return (B, H, S, K)."""
        if self.G == self.H:
            return x_BGSK
        heads_per_group = self.H // self.G
        return x_BGSK.repeat_interleave(heads_per_group, dim=1)

    def _split(self, x_BTX: Tensor) -> Tensor:
        """Split X = heads * K and return (B, heads, T, K)."""
        heads_BTHK = x_BTX.unflatten(-1, (-1, self.K))
        return heads_BTHK.transpose(1, 2)


@contextlib.contextmanager
def record_weights(modules: Iterable[MultiHeadAttention]) -> Iterator[dict[MultiHeadAttention, Tensor]]:
    """Record the weights (B, H, T, S), before dropout, of each module's last forward pass in the calling thread."""
    weights = dict.fromkeys(modules, torch.empty(0))
    _recording.weights = weights
    try:
        yield weights
    finally:
        del _recording.weights

"""Scaled dot-product attention and its many heads ("Attention Is All You Need", section 3.2).

B batch, T query length, S key length, D model width, H heads, G key/value heads, K width of a head, R beams.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.model.cache import LayerCache
from mtformer.model.dropout import dropout
from mtformer.model.linear import Linear
from mtformer.model.masks import subsequent_keep
from mtformer.model.positions import RotaryPositions


def attend(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, keep: Tensor | None = None, dropout_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(q k^T / sqrt(K)) v (equation 1), written out.

    Args:
        keep: bool, broadcastable to (B, H, T, S), True = attend; None: everything.

    Returns:
        The output (B, H, T, K) and the weights (B, H, T, S), before dropout.
    """
    scores_BHTS = (q_BHTK * q_BHTK.size(-1) ** -0.5) @ k_BHSK.transpose(-2, -1)
    if keep is not None:
        scores_BHTS = scores_BHTS.masked_fill(~keep, float("-inf"))
    weights_BHTS = _softmax(scores_BHTS)
    return dropout(weights_BHTS, dropout_p) @ v_BHSK, weights_BHTS


def _softmax(scores_BHTS: Tensor) -> Tensor:
    """Softmax over the keys.

    A CPU's kernel is slow over rows shorter than one of its vectors (64 bytes): there the keys come first instead. The
    attention of 290 sentences of 14 tokens takes 0.7 ms so, forward and backward, and else 2.3 (bf16). A single query
    gains nothing, and its weights would lie in a way that makes the product with v ten times slower.
    """
    is_short = scores_BHTS.size(-1) * scores_BHTS.element_size() < 64 and scores_BHTS.size(-2) > 1
    if scores_BHTS.device.type == "cpu" and is_short:
        return scores_BHTS.movedim(-1, 0).contiguous().softmax(dim=0).movedim(0, -1)
    return scores_BHTS.softmax(dim=-1)


def attend_fused(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    keep: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """The same through PyTorch's fused kernels, which never hold the (T, S) weights. Returns (B, H, T, K)."""
    return F.scaled_dot_product_attention(
        q_BHTK, k_BHSK, v_BHSK, attn_mask=keep, is_causal=is_causal, dropout_p=dropout_p
    )


# T x S from which the fused kernel is taken on CPU. Forward and backward on two Zen 4 cores, ms written out / fused:
# fp32 14 x 14 5.6 / 10.1, 128 x 128 14.2 / 10.5; bf16 14 x 14 3.5 / 35.9, 512 x 512 22.2 / 32.4 (longer not measured).
CPU_FUSED_FROM = {torch.float32: 128 * 128, torch.float64: 128 * 128, torch.bfloat16: 1024 * 1024}


def use_fused(q_BHTK: Tensor, S: int, dropout_p: float) -> bool:
    """Whether the fused kernel is the quicker one for this device and these sizes."""
    if q_BHTK.device.type != "cpu":
        return True
    return dropout_p == 0.0 and q_BHTK.size(2) * S >= CPU_FUSED_FROM.get(q_BHTK.dtype, 128 * 128)


class MultiHeadAttention(nn.Module):
    """Self-attention, or cross-attention onto a memory; with grouped key/value heads when G < H (Ainslie et al. 2023).

    The projections of queries, keys and values lie in one matrix of H*K + G*K + G*K rows.
    """

    def __init__(self, D: int, num_heads: int, num_kv_heads: int | None = None, dropout_p: float = 0.0) -> None:
        super().__init__()
        self.H, self.G, self.K = num_heads, num_kv_heads or num_heads, D // num_heads
        self.dropout_p = dropout_p
        self.in_projection = Linear(D, D, self.G * self.K, self.G * self.K)
        self.out_projection = Linear(D, D)

    def forward(
        self,
        x_BTD: Tensor,
        keep: Tensor | None = None,
        *,
        memory_BSD: Tensor | None = None,
        is_causal: bool = False,
        rotary: RotaryPositions | None = None,
    ) -> Tensor:
        """Attends from x to x, or to the memory when there is one.

        Args:
            keep: bool, broadcastable to (B, H, T, S); True = attend.
            is_causal: each position sees itself and what stands before it (without `keep`).
        """
        assert keep is None or not is_causal, "one mask or the other"
        q_BHTK, k_BGSK, v_BGSK = self._project(x_BTD, memory_BSD, rotary)
        return self._merge(self._attend(q_BHTK, k_BGSK, v_BGSK, keep, is_causal))

    def step(
        self,
        x_BRD: Tensor,
        cache: LayerCache,
        keep: Tensor | None,
        position: int,
        rotary: RotaryPositions | None = None,
    ) -> Tensor:
        """Self-attention of one new position of R beams a sentence; its keys and values join the cache.

        The beams stand where a sequence's T queries would. `keep`: see `DecoderCache.history_keep`.
        """
        q_BHRK, k_BGRK, v_BGRK = self._project(x_BRD, None)
        if rotary is not None:
            q_BHRK, k_BGRK = rotary.at(q_BHRK, position), rotary.at(k_BGRK, position)
        k_BGSK, v_BGSK = cache.append(k_BGRK, v_BGRK, position * x_BRD.size(1))
        return self._merge(self._attend(q_BHRK, k_BGSK, v_BGSK, keep, False))

    def project_memory(self, memory_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, G, S, K) of a memory, once for all steps of decoding."""
        k_BSX, v_BSX = self.in_projection(memory_BSD, self.H * self.K).chunk(2, dim=-1)
        return self._split(k_BSX).contiguous(), self._split(v_BSX).contiguous()

    def cross_step(self, x_BRD: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, keep: Tensor) -> Tensor:
        """Cross-attention of R beams a sentence onto keys and values that `project_memory` made."""
        q_BHRK = self._split(self.in_projection(x_BRD, 0, self.H * self.K))
        return self._merge(self._attend(q_BHRK, k_BGSK, v_BGSK, keep, False))

    def weights(
        self,
        x_BTD: Tensor,
        keep: Tensor | None = None,
        memory_BSD: Tensor | None = None,
        is_causal: bool = False,
        rotary: RotaryPositions | None = None,
    ) -> Tensor:
        """The weights (B, H, T, S) by which `forward` attends when it is given the same, before dropout."""
        q_BHTK, k_BGSK, v_BGSK = self._project(x_BTD, memory_BSD, rotary)
        if is_causal:
            keep = subsequent_keep(q_BHTK.size(2), device=q_BHTK.device)
        return attend(q_BHTK, self._repeat(k_BGSK), self._repeat(v_BGSK), keep)[1]

    def _project(
        self, x_BTD: Tensor, memory_BSD: Tensor | None, rotary: RotaryPositions | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        widths = [self.H * self.K, self.G * self.K, self.G * self.K]
        if memory_BSD is None:
            q, k, v = self.in_projection(x_BTD).split(widths, dim=-1)
        else:
            q = self.in_projection(x_BTD, 0, widths[0])
            k, v = self.in_projection(memory_BSD, widths[0]).chunk(2, dim=-1)
        q_BHTK, k_BGSK, v_BGSK = self._split(q), self._split(k), self._split(v)
        return (q_BHTK, k_BGSK, v_BGSK) if rotary is None else (rotary(q_BHTK), rotary(k_BGSK), v_BGSK)

    def _attend(self, q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, keep: Tensor | None, is_causal: bool) -> Tensor:
        k_BHSK, v_BHSK = self._repeat(k_BGSK), self._repeat(v_BGSK)
        dropout_p = self.dropout_p if self.training else 0.0
        if use_fused(q_BHTK, k_BHSK.size(2), dropout_p):
            return attend_fused(q_BHTK, k_BHSK, v_BHSK, keep, is_causal, dropout_p)
        if is_causal:
            keep = subsequent_keep(q_BHTK.size(2), device=q_BHTK.device)
        return attend(q_BHTK, k_BHSK, v_BHSK, keep, dropout_p)[0]

    def _repeat(self, x_BGSK: Tensor) -> Tensor:
        return x_BGSK if self.G == self.H else x_BGSK.repeat_interleave(self.H // self.G, dim=1)

    def _split(self, x_BTX: Tensor) -> Tensor:
        return x_BTX.unflatten(-1, (-1, self.K)).transpose(1, 2)

    def _merge(self, x_BHTK: Tensor) -> Tensor:
        return self.out_projection(x_BHTK.transpose(1, 2).flatten(-2))

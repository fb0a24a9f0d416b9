"""Encoder and decoder layers ("Attention Is All You Need", sections 3.1 and 3.3).

Pre-norm (Xiong et al. 2020): x + dropout(f(norm(x))). Post-norm (the paper): norm(x + dropout(f(x))).

B batch, T target length, S source length, D model width, R beams of a decoding step.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.config.schema import ModelConfig
from mtformer.model.attention import MultiHeadAttention
from mtformer.model.cache import LayerCache
from mtformer.model.dropout import Dropout
from mtformer.model.linear import Linear
from mtformer.model.norms import make_norm
from mtformer.model.positions import RotaryPositions

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}


class FeedForward(nn.Module):
    """W2 f(W1 x + b1) + b2 (equation 2); the GLU forms are W2 (f(W1 x) * V x) (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_gated = config.activation in ("swiglu", "geglu")
        self.activation = ACTIVATIONS[config.activation]
        self.expand = Linear(config.d_model, *([config.d_ff] * (2 if self.is_gated else 1)))
        self.contract = Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        h = self.expand(x)
        if self.is_gated:
            gate, up = h.chunk(2, dim=-1)
            h = self.activation(gate) * up
        else:
            h = self.activation(h)
        return self.contract(self.dropout(h))


class SubLayer(nn.Module):
    """Norm, dropout and residual connection around any function of x."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_pre_norm = config.norm_position == "pre"
        self.norm = make_norm(config.norm, config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        if self.is_pre_norm:
            return x + self.dropout(function(self.norm(x)))
        return self.norm(x + self.dropout(function(x)))

    def argument(self, x: Tensor) -> Tensor:
        """What the function gets to see."""
        return self.norm(x) if self.is_pre_norm else x


def _attention(config: ModelConfig) -> MultiHeadAttention:
    return MultiHeadAttention(config.d_model, config.num_heads, config.num_kv_heads, config.attention_dropout)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.feed_forward = FeedForward(config)
        self.around_attention = SubLayer(config)
        self.around_feed_forward = SubLayer(config)

    def forward(self, x_BSD: Tensor, keep_B11S: Tensor, rotary: RotaryPositions | None) -> Tensor:
        x_BSD = self.around_attention(x_BSD, lambda x: self.self_attention(x, keep_B11S, rotary=rotary))
        return self.around_feed_forward(x_BSD, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention onto the source, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.cross_attention = _attention(config)
        self.feed_forward = FeedForward(config)
        self.around_self_attention = SubLayer(config)
        self.around_cross_attention = SubLayer(config)
        self.around_feed_forward = SubLayer(config)

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor, keep_B11S: Tensor, rotary: RotaryPositions | None) -> Tensor:
        """No target mask beside the causal one: targets are padded on the right, and the loss skips padding."""
        x_BTD = self.around_self_attention(x_BTD, lambda x: self.self_attention(x, is_causal=True, rotary=rotary))
        x_BTD = self.around_cross_attention(x_BTD, lambda x: self.cross_attention(x, keep_B11S, memory_BSD=memory_BSD))
        return self.around_feed_forward(x_BTD, self.feed_forward)

    def source_attention(
        self, x_BTD: Tensor, memory_BSD: Tensor, keep_B11S: Tensor, rotary: RotaryPositions | None
    ) -> Tensor:
        """Where each target position looks in the source: weights (B, T, S), the mean over the heads."""
        x_BTD = self.around_self_attention(x_BTD, lambda x: self.self_attention(x, is_causal=True, rotary=rotary))
        query_BTD = self.around_cross_attention.argument(x_BTD)
        return self.cross_attention.weights(query_BTD, keep_B11S, memory_BSD).mean(dim=1)

    def step(
        self,
        x_BRD: Tensor,
        cache: LayerCache,
        cross: tuple[Tensor, Tensor],
        history_keep: Tensor | None,
        keep_B11S: Tensor,
        position: int,
        rotary: RotaryPositions | None,
    ) -> Tensor:
        """One new position of R beams a sentence."""
        x_BRD = self.around_self_attention(
            x_BRD, lambda x: self.self_attention.step(x, cache, history_keep, position, rotary)
        )
        x_BRD = self.around_cross_attention(x_BRD, lambda x: self.cross_attention.cross_step(x, *cross, keep_B11S))
        return self.around_feed_forward(x_BRD, self.feed_forward)

"""The Transformer ("Attention Is All You Need", Vaswani et al. 2017), from token ids to logits.

    source ids -> embedding + positions -> N x EncoderLayer -> norm -> EncoderOutput
    target ids -> embedding + positions -> N x DecoderLayer -> norm -> hidden states -> project -> logits

B batch, S source length, T target length (with a cache: the R beams at one position), D model width, V vocabulary.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.config.schema import ModelConfig
from mtformer.model.attention import MultiHeadAttention
from mtformer.model.cache import DecoderCache, EncoderOutput, LayerCache
from mtformer.model.ops import NORMS, Dropout, Linear, drop_sentences, kernel_mask, padding_mask
from mtformer.model.positions import AddedPositions, RotaryPositions, Rotation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}


class FeedForward(nn.Module):
    """Feed-forward layer W2 f(W1 x + b1) + b2 (equation 2); gated variants: W2 (f(W1 x) * V x) (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_gated = config.activation in ("swiglu", "geglu")
        self.activation = ACTIVATIONS[config.activation]
        self.expand = Linear(config.d_model, *([config.d_ff] * (2 if self.is_gated else 1)))
        self.contract = Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (..., D)."""
        h = self.expand(x)
        if self.is_gated:
            gate, up = h.chunk(2, dim=-1)
            h = self.activation(gate) * up
        else:
            h = self.activation(h)
        return self.contract(self.dropout(h))


class Residual(nn.Module):
    """Norm, dropout and residual connection of a sub-layer.

    Pre-norm (Xiong et al. 2020): x + dropout(f(norm(x))). Post-norm (the paper): norm(x + dropout(f(x))). In training,
    LayerDrop (Fan et al. 2020, arXiv 1909.11556) leaves out f for random sentences; f is not scaled at inference.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_pre_norm = config.norm_position == "pre"
        self.norm = NORMS[config.norm](config.d_model)
        self.dropout = Dropout(config.dropout)
        self.layer_drop = config.layer_drop

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the output of the sub-layer with norm, dropout and residual connection."""
        added = self.dropout(sublayer(self.norm(x) if self.is_pre_norm else x))
        if self.training and self.layer_drop:
            added = drop_sentences(added, self.layer_drop)
        return x + added if self.is_pre_norm else self.norm(x + added)


def _attention(config: ModelConfig) -> MultiHeadAttention:
    return MultiHeadAttention(config.d_model, config.num_heads, config.num_kv_heads, config.attention_dropout)


class EncoderLayer(nn.Module):
    """Self-attention followed by a feed-forward layer (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.feed_forward = FeedForward(config)
        self.self_attention_residual = Residual(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x_BSD: Tensor, mask_B11S: Tensor, rotation: Rotation | None = None) -> Tensor:
        """Return the hidden states (B, S, D)."""
        x_BSD = self.self_attention_residual(x_BSD, lambda x: self.self_attention(x, mask=mask_B11S, rotation=rotation))
        return self.feed_forward_residual(x_BSD, self.feed_forward)


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the source, and a feed-forward layer (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.cross_attention = _attention(config)
        self.feed_forward = FeedForward(config)
        self.self_attention_residual = Residual(config)
        self.cross_attention_residual = Residual(config)
        self.feed_forward_residual = Residual(config)

    def forward(
        self,
        x_BTD: Tensor,
        encoder_output: EncoderOutput,
        rotation: Rotation | None = None,
        cache: LayerCache | None = None,
        history_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states (B, T, D).

        Without a cache the causal mask is the only target mask: targets are padded on the right, and the loss ignores
        padding. With a cache, T is the number of beams at one position, and `history_mask` is `DecoderCache.own_B1RX`.
        """
        states_BSD, source_mask = encoder_output
        kv = self.cross_attention.keys_values(states_BSD) if cache is None else cache.source
        attend = partial(
            self.self_attention, mask=history_mask, is_causal=cache is None, rotation=rotation, cache=cache
        )
        x_BTD = self.self_attention_residual(x_BTD, attend)
        x_BTD = self.cross_attention_residual(x_BTD, lambda x: self.cross_attention(x, kv, source_mask))
        return self.feed_forward_residual(x_BTD, self.feed_forward)


class Transformer(nn.Module):
    """Encoder-decoder Transformer.

    Tied embeddings are a single parameter object, so they are stored, counted and optimized once.
    """

    def __init__(self, config: ModelConfig, src_vocab: int, tgt_vocab: int) -> None:
        super().__init__()
        assert config.tie_embeddings != "all" or src_vocab == tgt_vocab, "tying all embeddings needs a joint vocabulary"
        D, tie, is_pre_norm = config.d_model, config.tie_embeddings, config.norm_position == "pre"
        self.config = config
        self.compute_dtype: torch.dtype | None = None
        """Dtype of the activations; None: the dtype of the weights."""
        self.tgt_embedding = nn.Parameter(torch.empty(tgt_vocab, D))
        self.src_embedding = self.tgt_embedding if tie == "all" else nn.Parameter(torch.empty(src_vocab, D))
        self.output = nn.Parameter(torch.empty(tgt_vocab, D)) if tie == "none" else self.tgt_embedding
        self.output_bias = nn.Parameter(torch.zeros(tgt_vocab)) if config.output_bias else None
        is_rotary, is_learned = config.positions == "rotary", config.positions == "learned"
        added = (None if is_rotary else AddedPositions(config.max_positions, D, is_learned) for _ in range(2))
        self.src_positions, self.tgt_positions = added
        self.rotary = RotaryPositions(config.max_positions, D // config.num_heads) if is_rotary else None
        self.embedding_dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.encoder_norm = NORMS[config.norm](D) if is_pre_norm else nn.Identity()
        self.decoder_norm = NORMS[config.norm](D) if is_pre_norm else nn.Identity()
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialize matrices and embeddings.

        Matrices: Xavier uniform (Glorot and Bengio 2010); projections that share a matrix are initialized separately,
        each with its own fan-in and fan-out. Embeddings: normal with standard deviation D^-0.5; scaled by sqrt(D) they
        have unit variance, and the tied output projection of a normalized state gives logits of unit variance. The
        constructors set biases to 0 and norm weights to 1.
        """
        embeddings = dict.fromkeys((self.tgt_embedding, self.src_embedding, self.output))
        learned = [weight for name, weight in self.named_parameters() if "positions" in name]
        for weight in (*embeddings, *learned):
            nn.init.normal_(weight, std=weight.size(1) ** -0.5)
        for module in self.modules():
            if isinstance(module, Linear):
                for projection in module.weight.split(module.out_widths):
                    nn.init.xavier_uniform_(projection)

    def forward(
        self,
        src_BS: Tensor,
        src_lengths_B: Tensor,
        tgt_in_BT: Tensor,
        src_mask_BS: Tensor | None = None,
        tgt_mask_BT: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states (B, T, D), to be passed to `project`; position t depends on target tokens up to t.

        The embeddings of tokens for which a mask is False are set to zero; None: all tokens are used.
        """
        return self.decode(tgt_in_BT, self.encode(src_BS, src_lengths_B, src_mask_BS), mask_BT=tgt_mask_BT)

    def encode(self, src_BS: Tensor, src_lengths_B: Tensor, mask_BS: Tensor | None = None) -> EncoderOutput:
        """Encode source ids (ending with eos, padded on the right); lengths include eos. See `forward` for the mask."""
        positions = slice(src_BS.size(1))
        x_BSD = self._embed(src_BS, self.src_embedding, self.src_positions, positions, mask_BS)
        mask_B11S = kernel_mask(padding_mask(src_lengths_B, src_BS.size(1))[:, None, None, :], x_BSD)
        rotation = self.rotary(positions) if self.rotary is not None else None
        for layer in self.encoder:
            x_BSD = layer(x_BSD, mask_B11S, rotation)
        return EncoderOutput(self.encoder_norm(x_BSD), mask_B11S)

    def decode(
        self,
        tgt_in_BT: Tensor,
        encoder_output: EncoderOutput,
        cache: DecoderCache | None = None,
        mask_BT: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states (B, T, D) for full targets, which start with bos and are padded on the right.

        With a cache (see `new_cache`), one position is appended: the targets are the last token of each beam (B, R),
        and the encoder output is that of the cache, without finished sentences. For the mask see `forward`.
        """
        positions = slice(tgt_in_BT.size(1)) if cache is None else slice(cache.length, cache.length + 1)
        assert cache is None or cache.length < self.config.max_positions, "longer than max_positions"
        history_mask = None if cache is None or cache.R == 1 else cache.own_B1RX
        x_BTD = self._embed(tgt_in_BT, self.tgt_embedding, self.tgt_positions, positions, mask_BT)
        rotation = self.rotary(positions) if self.rotary is not None else None
        for i, layer in enumerate(self.decoder):
            layer_cache = None if cache is None else cache.layers[i]
            x_BTD = layer(x_BTD, encoder_output, rotation, layer_cache, history_mask)
        if cache is not None:
            cache.length += 1
        return self.decoder_norm(x_BTD)

    def project(self, hidden: Tensor) -> Tensor:
        """Project hidden states (..., D) to logits (..., V)."""
        bias = self.output_bias.to(hidden.dtype) if self.output_bias is not None else None
        return F.linear(hidden, self.output.to(hidden.dtype), bias)

    def new_cache(self, encoder_output: EncoderOutput, num_beams: int, max_length: int) -> DecoderCache:
        """Return an empty cache for `max_length` steps with `num_beams` beams per sentence."""
        layers = []
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            source = layer.cross_attention.keys_values(encoder_output.states_BSD)
            layers.append(LayerCache(source, max_length * num_beams))
        return DecoderCache(encoder_output, layers, num_beams, max_length)

    def _embed(
        self, ids: Tensor, weight: Tensor, added: nn.Module | None, positions: slice, mask: Tensor | None
    ) -> Tensor:
        # Section 3.4 scales by sqrt(D). The lookup uses the dtype of the weights, so that gradients are summed in it.
        x = F.embedding(ids, weight) * self.config.d_model**0.5
        if mask is not None:
            x = x * mask.unsqueeze(-1).to(x.dtype)
        if added is not None:
            x = x + added(positions).to(x.dtype)
        return self.embedding_dropout(x.to(self.compute_dtype or weight.dtype))


def count_parameters(model: Transformer) -> dict[str, int]:
    """Return the number of parameters of each part of the model and their `total`; tied parameters count once."""
    parts: dict[str, int] = {"embeddings": 0, "positions": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        first = name.split(".")[0]
        is_embedding = first in ("src_embedding", "tgt_embedding", "output", "output_bias")
        part = "embeddings" if is_embedding else "positions" if "positions" in first else first.split("_")[0]
        parts[part] += parameter.numel()
    return {**parts, "total": sum(parts.values())}

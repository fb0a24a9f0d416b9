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
from mtformer.model.kernels import kernel_mask
from mtformer.model.ops import NORMS, Dropout, Linear, drop_sentences, padding_mask
from mtformer.model.positions import AddedPositions, RotaryPositions, Rotation

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": F.gelu,
}
"""Functions by `model.activation`; of the gated variants, the function of the gate."""
GATED_ACTIVATIONS = ("swiglu", "geglu")
"""Activations whose output is multiplied with a second projection."""


class FeedForward(nn.Module):
    """Feed-forward layer W2 f(W1 x + b1) + b2 (equation 2); gated variants: W2 (f(W1 x) * V x) (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_gated = config.activation in GATED_ACTIVATIONS
        self.activation = ACTIVATIONS[config.activation]
        num_projections = 2 if self.is_gated else 1
        widths = num_projections * [config.d_ff]
        self.expand = Linear(config.d_model, *widths)
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
        normalized = self.norm(x) if self.is_pre_norm else x
        added = self.dropout(sublayer(normalized))
        if self.training and self.layer_drop:
            added = drop_sentences(added, self.layer_drop)

        if self.is_pre_norm:
            return x + added
        return self.norm(x + added)


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
        """Return the hidden states (B, S, D).

        Args:
            x_BSD: hidden states of the source positions.
            mask_B11S: padding mask of the source, converted by `kernel_mask`.
            rotation: rotary embeddings for the source positions.
        """
        attend = partial(self.self_attention, mask=mask_B11S, rotation=rotation)
        x_BSD = self.self_attention_residual(x_BSD, attend)
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
        padding. With a cache, T is the number of beams at one position.

        Args:
            x_BTD: hidden states of the target positions.
            encoder_output: output of the encoder, and its padding mask.
            rotation: rotary embeddings for the target positions.
            cache: keys and values of the source, and of earlier target positions.
            history_mask: `DecoderCache.history_B1RX`; None without a cache, or with one beam.
        """
        states_BSD, source_mask = encoder_output
        source_kv = self.cross_attention.keys_values(states_BSD) if cache is None else cache.source
        is_causal = cache is None

        attend_to_target = partial(
            self.self_attention, mask=history_mask, is_causal=is_causal, rotation=rotation, cache=cache
        )
        x_BTD = self.self_attention_residual(x_BTD, attend_to_target)

        attend_to_source = partial(self.cross_attention, kv=source_kv, mask=source_mask)
        x_BTD = self.cross_attention_residual(x_BTD, attend_to_source)

        return self.feed_forward_residual(x_BTD, self.feed_forward)


class Transformer(nn.Module):
    """Encoder-decoder Transformer.

    Tied embeddings are a single parameter object, so they are stored, counted and optimized once.

    Args:
        config: the `model` section.
        src_vocab: source vocabulary size.
        tgt_vocab: target vocabulary size.
        compute_dtype: dtype of the activations; None: the dtype of the weights.
    """

    def __init__(
        self, config: ModelConfig, src_vocab: int, tgt_vocab: int, *, compute_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        D = config.d_model
        tie = config.tie_embeddings
        assert tie != "all" or src_vocab == tgt_vocab, "tying all embeddings needs a joint vocabulary"
        self.config = config
        self.compute_dtype = compute_dtype

        self.tgt_embedding = _matrix(tgt_vocab, D)
        self.src_embedding = self.tgt_embedding if tie == "all" else _matrix(src_vocab, D)
        self.output = _matrix(tgt_vocab, D) if tie == "none" else self.tgt_embedding
        self.output_bias = nn.Parameter(torch.zeros(tgt_vocab)) if config.output_bias else None

        self.src_positions = _added_positions(config)
        self.tgt_positions = _added_positions(config)
        self.rotary = _rotary_positions(config)
        self.embedding_dropout = Dropout(config.dropout)

        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.encoder_norm = _final_norm(config)
        self.decoder_norm = _final_norm(config)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """Initialize matrices and embeddings.

        Matrices: Xavier uniform (Glorot and Bengio 2010); projections that share a matrix are initialized separately,
        each with its own fan-in and fan-out. Embeddings: normal with standard deviation D^-0.5; scaled by sqrt(D) they
        have unit variance, and the tied output projection of a normalized state gives logits of unit variance. The
        constructors set biases to 0 and norm weights to 1.
        """
        D = self.config.d_model
        embeddings = dict.fromkeys([self.tgt_embedding, self.src_embedding, self.output])  # tied ones once
        learned_positions = [weight for name, weight in self.named_parameters() if "positions" in name]
        for weight_XD in (*embeddings, *learned_positions):
            nn.init.normal_(weight_XD, std=D**-0.5)

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

        Args:
            src_BS: source ids, which end with eos and are padded on the right.
            src_lengths_B: number of source tokens, including eos.
            tgt_in_BT: target ids, which start with bos and are padded on the right.
            src_mask_BS: bool; the embeddings of tokens for which it is False are set to zero. None: use all tokens.
            tgt_mask_BT: the same for the target.
        """
        encoder_output = self.encode(src_BS, src_lengths_B, src_mask_BS)
        return self.decode(tgt_in_BT, encoder_output, mask_BT=tgt_mask_BT)

    def encode(self, src_BS: Tensor, src_lengths_B: Tensor, mask_BS: Tensor | None = None) -> EncoderOutput:
        """Encode source ids. See `forward` for the arguments; `mask_BS` is its `src_mask_BS`."""
        S = src_BS.size(1)
        positions = slice(S)
        x_BSD = self._embed(src_BS, self.src_embedding, self.src_positions, positions, mask_BS)
        is_source_BS = padding_mask(src_lengths_B, S)
        is_source_B11S = is_source_BS[:, None, None, :]
        mask_B11S = kernel_mask(is_source_B11S, x_BSD)
        rotation = self._rotation(positions)

        for layer in self.encoder:
            x_BSD = layer(x_BSD, mask_B11S, rotation)
        states_BSD = self.encoder_norm(x_BSD)
        return EncoderOutput(states_BSD, mask_B11S)

    def decode(
        self,
        tgt_in_BT: Tensor,
        encoder_output: EncoderOutput,
        cache: DecoderCache | None = None,
        mask_BT: Tensor | None = None,
    ) -> Tensor:
        """Return hidden states (B, T, D) for full targets or, with a cache, for the last token of each beam.

        Args:
            tgt_in_BT: target ids, which start with bos and are padded on the right; with a cache, the last token of
                each beam (B, R).
            encoder_output: result of `encode`; with a cache, that of the cache, without finished sentences.
            cache: earlier positions (see `new_cache`), to which one is appended; None: decode full targets.
            mask_BT: `tgt_mask_BT` of `forward`.
        """
        if cache is None:
            T = tgt_in_BT.size(1)
            positions = slice(T)
            history_mask = None
        else:
            assert cache.length < self.config.max_positions, "longer than max_positions"
            positions = slice(cache.length, cache.length + 1)
            history_mask = cache.history_B1RX if cache.R > 1 else None

        x_BTD = self._embed(tgt_in_BT, self.tgt_embedding, self.tgt_positions, positions, mask_BT)
        rotation = self._rotation(positions)
        for i, layer in enumerate(self.decoder):
            layer_cache = None if cache is None else cache.layers[i]
            x_BTD = layer(x_BTD, encoder_output, rotation, layer_cache, history_mask)

        if cache is not None:
            cache.length += 1
        return self.decoder_norm(x_BTD)

    def project(self, hidden: Tensor) -> Tensor:
        """Project hidden states (..., D) to logits (..., V)."""
        weight_VD = self.output.to(hidden.dtype)
        if self.output_bias is None:
            return F.linear(hidden, weight_VD)
        bias_V = self.output_bias.to(hidden.dtype)
        return F.linear(hidden, weight_VD, bias_V)

    def new_cache(self, encoder_output: EncoderOutput, num_beams: int, max_length: int) -> DecoderCache:
        """Return an empty cache for `decode`.

        Args:
            encoder_output: result of `encode` for B sentences.
            num_beams: number of beams per sentence, R.
            max_length: maximum number of steps, T.
        """
        capacity = max_length * num_beams
        layer_caches = []
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            source = layer.cross_attention.keys_values(encoder_output.states_BSD)
            layer_caches.append(LayerCache(source, capacity))
        return DecoderCache(encoder_output, layer_caches, num_beams, max_length)

    def _embed(
        self,
        ids_BT: Tensor,
        weight_VD: Tensor,
        added_positions: AddedPositions | None,
        positions: slice,
        mask_BT: Tensor | None,
    ) -> Tensor:
        """Return the embeddings of tokens, scaled by sqrt(D) (section 3.4), with their positions and dropout."""
        # The lookup uses the dtype of the weights, so that gradients are summed in it.
        x_BTD = F.embedding(ids_BT, weight_VD)
        x_BTD = x_BTD * self.config.d_model**0.5
        if mask_BT is not None:
            mask_BT1 = mask_BT.unsqueeze(-1)
            x_BTD = x_BTD * mask_BT1.to(x_BTD.dtype)
        if added_positions is not None:
            vectors_TD = added_positions(positions)
            x_BTD = x_BTD + vectors_TD.to(x_BTD.dtype)

        dtype = self.compute_dtype or weight_VD.dtype
        return self.embedding_dropout(x_BTD.to(dtype))

    def _rotation(self, positions: slice) -> Rotation | None:
        """Return the rotation for these positions; None without rotary embeddings."""
        if self.rotary is None:
            return None
        rotation: Rotation = self.rotary(positions)
        return rotation


def _matrix(height: int, width: int) -> nn.Parameter:
    """Return a parameter that is not initialized."""
    return nn.Parameter(torch.empty(height, width))


def _added_positions(config: ModelConfig) -> AddedPositions | None:
    if config.positions == "rotary":
        return None
    return AddedPositions(config.max_positions, config.d_model, is_learned=config.positions == "learned")


def _rotary_positions(config: ModelConfig) -> RotaryPositions | None:
    if config.positions != "rotary":
        return None
    head_width = config.d_model // config.num_heads
    return RotaryPositions(config.max_positions, head_width)


def _final_norm(config: ModelConfig) -> nn.Module:
    """Return the norm after the last layer; with post-norm, the layers already end with a norm."""
    if config.norm_position == "pre":
        return NORMS[config.norm](config.d_model)
    return nn.Identity()


def count_parameters(model: Transformer) -> dict[str, int]:
    """Return the number of parameters of each part of the model and their `total`; tied parameters count once."""
    parts = {"embeddings": 0, "positions": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        part = _part_of(name)
        parts[part] += parameter.numel()
    total = sum(parts.values())
    return {**parts, "total": total}


def _part_of(name: str) -> str:
    """Return the part of the model to which the parameter with this name belongs."""
    module = name.split(".")[0]
    if module in ("src_embedding", "tgt_embedding", "output", "output_bias"):
        return "embeddings"
    if "positions" in module:
        return "positions"
    return module.split("_")[0]  # `encoder_norm` belongs to the encoder

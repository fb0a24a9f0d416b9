"""The whole model: embeddings, encoder, decoder, output projection.

B batch, S source length, T target length, D model width, V vocabulary, N rows of a decoding step (B x beams).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.config.schema import ModelConfig
from mtformer.model.cache import DecoderCache, LayerCache
from mtformer.model.dropout import Dropout
from mtformer.model.initialisation import init_embedding
from mtformer.model.layers import DecoderLayer, EncoderLayer
from mtformer.model.masks import padding_keep
from mtformer.model.norms import make_norm
from mtformer.model.positions import LearnedPositions, RotaryPositions, SinusoidalPositions


class Memory(NamedTuple):
    """What the encoder made of the source, and which of its positions are real."""

    memory_BSD: Tensor
    keep_B11S: Tensor


class Transformer(nn.Module):
    """Encoder-decoder Transformer.

    Tied embeddings are one parameter object, so they are stored, counted and optimised once.

    Args:
        config: the `model` section.
        src_vocab, tgt_vocab: pieces of each tokenizer.
    """

    def __init__(self, config: ModelConfig, src_vocab: int, tgt_vocab: int) -> None:
        super().__init__()
        assert config.tie_embeddings != "all" or src_vocab == tgt_vocab, "tying all embeddings needs one vocabulary"
        D = config.d_model
        self.config = config
        self.compute_dtype: torch.dtype | None = None
        """Dtype of the activations; None: that of the weights."""
        self.packed_output: Callable[[Tensor], Tensor] | None = None
        """The output projection when the weights are packed (`mtformer.model.packed`)."""
        self.tgt_embedding = _embedding(tgt_vocab, D)
        self.src_embedding = self.tgt_embedding if config.tie_embeddings == "all" else _embedding(src_vocab, D)
        self.output = _embedding(tgt_vocab, D) if config.tie_embeddings == "none" else self.tgt_embedding
        self.output_bias = nn.Parameter(torch.zeros(tgt_vocab)) if config.output_bias else None
        self.src_positions, self.tgt_positions = _added_positions(config), _added_positions(config)
        rotary = config.positions == "rotary"
        self.rotary = RotaryPositions(config.max_positions, D // config.num_heads) if rotary else None
        self.embedding_dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        final = config.norm_position == "pre"
        self.encoder_norm = make_norm(config.norm, D) if final else nn.Identity()
        self.decoder_norm = make_norm(config.norm, D) if final else nn.Identity()

    def forward(self, src_BS: Tensor, src_lengths_B: Tensor, tgt_in_BT: Tensor) -> Tensor:
        """States (B, T, D) that `project` turns into logits; position t has seen target tokens up to t."""
        return self.decode(tgt_in_BT, self.encode(src_BS, src_lengths_B))

    def encode(self, src_BS: Tensor, src_lengths_B: Tensor) -> Memory:
        """Reads source ids (eos at the end, padded on the right); lengths count eos."""
        keep_B11S = padding_keep(src_lengths_B, src_BS.size(1))[:, None, None, :]
        x_BSD = self._embed(src_BS, self.src_embedding, self.src_positions, 0)
        for layer in self.encoder:
            x_BSD = layer(x_BSD, keep_B11S, self.rotary)
        return Memory(self.encoder_norm(x_BSD), keep_B11S)

    def decode(self, tgt_in_BT: Tensor, memory: Memory) -> Tensor:
        """States (B, T, D) of a whole target (bos first, padded on the right)."""
        x_BTD = self._embed(tgt_in_BT, self.tgt_embedding, self.tgt_positions, 0)
        for layer in self.decoder:
            x_BTD = layer(x_BTD, memory.memory_BSD, memory.keep_B11S, self.rotary)
        return self.decoder_norm(x_BTD)

    def source_attention(self, tgt_in_BT: Tensor, memory: Memory) -> Tensor:
        """Weights (B, T, S) by which position t, that predicts target token t, looks at the source.

        Those of the last decoder layer but one (of the only one, if so), the mean over its heads: there they come
        nearest to word alignments (Garg et al. 2019, section 4.1).
        """
        x_BTD = self._embed(tgt_in_BT, self.tgt_embedding, self.tgt_positions, 0)
        chosen = max(0, len(self.decoder) - 2)
        for layer in self.decoder[:chosen]:
            x_BTD = layer(x_BTD, memory.memory_BSD, memory.keep_B11S, self.rotary)
        last = self.decoder[chosen]
        assert isinstance(last, DecoderLayer)
        return last.source_attention(x_BTD, memory.memory_BSD, memory.keep_B11S, self.rotary)

    def project(self, hidden: Tensor) -> Tensor:
        """(..., D) -> logits (..., V)."""
        if self.packed_output is not None:
            return self.packed_output(hidden)
        bias = self.output_bias.to(hidden.dtype) if self.output_bias is not None else None
        return F.linear(hidden, self.output.to(hidden.dtype), bias)

    def start(self, memory: Memory, num_beams: int, max_length: int) -> DecoderCache:
        """An empty cache for `max_length` steps of B x num_beams rows."""
        B = memory.memory_BSD.size(0)
        caches, cross = [], []
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            attention = layer.self_attention
            cross.append(layer.cross_attention.project_memory(memory.memory_BSD))
            # In the dtype of projections, which may be narrower than the memory's (`packed.py`).
            caches.append(LayerCache(B, attention.G, attention.K, max_length * num_beams, cross[-1][0]))
        return DecoderCache(caches, cross, memory.keep_B11S, num_beams, max_length)

    def step(self, token_N: Tensor, cache: DecoderCache) -> Tensor:
        """Logits (N, V) of the token after token_N; the cache grows by one step."""
        position = cache.length
        x_N1D = self._embed(token_N.unsqueeze(1), self.tgt_embedding, self.tgt_positions, position)
        x_BRD, history_keep = x_N1D.view(-1, cache.R, x_N1D.size(2)), cache.history_keep()
        for layer, layer_cache, cross in zip(self.decoder, cache.layers, cache.cross, strict=True):
            assert isinstance(layer, DecoderLayer)
            x_BRD = layer.step(x_BRD, layer_cache, cross, history_keep, cache.keep_B11S, position, self.rotary)
        cache.length += 1
        hidden_ND = self.decoder_norm(x_BRD).flatten(0, 1)
        logits_NV = self.project(hidden_ND)
        if logits_NV.dtype != hidden_ND.dtype:
            cache.exact_logits = partial(self._exact_logits, hidden_ND)
        return logits_NV

    def _exact_logits(self, hidden_ND: Tensor, row: Tensor, token: Tensor) -> Tensor:
        """Logits (...,) of some rows and tokens (...,), without rounding them as a narrow `project` does."""
        logits = (hidden_ND[row] * F.embedding(token, self.output)).sum(dim=-1)
        return logits if self.output_bias is None else logits + self.output_bias[token]

    def _embed(self, ids: Tensor, weight: Tensor, positions: nn.Module | None, offset: int) -> Tensor:
        # Scaled by sqrt(D): section 3.4. The lookup is in the weights' own dtype, so that its gradient adds up there.
        x = F.embedding(ids, weight) * self.config.d_model**0.5
        if positions is not None:
            x = positions(x, offset)
        return self.embedding_dropout(x.to(self.compute_dtype or weight.dtype))


def _embedding(V: int, D: int) -> nn.Parameter:
    weight = nn.Parameter(torch.empty(V, D))
    init_embedding(weight)
    return weight


def _added_positions(config: ModelConfig) -> nn.Module | None:
    if config.positions == "sinusoidal":
        return SinusoidalPositions(config.max_positions, config.d_model)
    if config.positions == "learned":
        return LearnedPositions(config.max_positions, config.d_model)
    return None


def count_parameters(model: Transformer) -> dict[str, int]:
    """Parameters by part, tied ones once; `total` is their sum."""
    parts: dict[str, int] = {"embeddings": 0, "positions": 0, "encoder": 0, "decoder": 0}
    for name, parameter in model.named_parameters():
        first = name.split(".")[0]
        is_embedding = first in ("src_embedding", "tgt_embedding", "output", "output_bias")
        part = "embeddings" if is_embedding else "positions" if "positions" in first else first.split("_")[0]
        parts[part] += parameter.numel()
    return {**parts, "total": sum(parts.values())}

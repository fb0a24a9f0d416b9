"""Models as search uses them: one Transformer or an ensemble, one decoding step at a time.

On a CPU the matrices are converted once to the layout of the kernels, in fp32 or bf16. Embeddings, norms and the
residual stream stay in float32, which costs little and keeps nearly all translations the same (LOG.md has figures).

B sentences, S source length, R beams, N = B x R rows (row b*R + r), D model width, V vocabulary.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.decoding.search import CacheT, Decodable, ExactLogits
from mtformer.device import DTYPES, disable_cudnn_attention
from mtformer.model.cache import DecoderCache
from mtformer.model.ops import Linear
from mtformer.model.transformer import Transformer

ROWS = 256
"""Rows of a typical matrix product, for which the layout is chosen."""


class PackedMatrix:
    """x -> x W^T + b with a weight in the layout of the kernel; the result has the dtype of the weight.

    Args:
        weight: (out, in), float32.
        bias: (out,), or None.
        dtype: of the product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.bias = None if bias is None else bias.detach().to(dtype)
        plain = weight.detach().to(dtype).contiguous()
        has_mkldnn = torch.backends.mkldnn.is_available()
        self.packed: Any = torch.ops.mkldnn._reorder_linear_weight(plain, ROWS) if has_mkldnn else plain

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        if self.packed.is_mkldnn:
            return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return F.linear(x, self.packed, self.bias)


class PackedLinear(nn.Module):
    """Replacement of a `Linear`; parts of a fused matrix are packed when they are first used."""

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear, self.dtype = linear, dtype
        self.parts: dict[tuple[int, int | None], PackedMatrix] = {}

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the same as `Linear.forward`."""
        part = self.parts.get((start, stop))
        if part is None:
            rows = slice(start, stop)
            part = PackedMatrix(self.linear.weight[rows], self.linear.bias[rows], self.dtype)
            self.parts[start, stop] = part
        return part(x)


class InferenceModel:
    """A Transformer that search decodes with, one step at a time (see `search.Decodable`).

    Args:
        transformer: on its device; it may be in training.
        output: projection to logits that replaces the transformer's own.
    """

    def __init__(self, transformer: Transformer, output: PackedMatrix | None = None) -> None:
        self.transformer = transformer
        self.project = transformer.project if output is None else output

    @classmethod
    def prepare(cls, transformer: Transformer, device: torch.device, precision: str) -> "InferenceModel":
        """Move a float32 model from a CPU to a device and a precision; on a CPU it can no longer be trained.

        Args:
            precision: `fp32`, `bf16`, or `fp16` (CUDA).
        """
        transformer.eval()
        disable_cudnn_attention(device)
        if device.type != "cpu":
            return cls(transformer.to(device=device, dtype=DTYPES[precision]))
        for module in list(transformer.modules()):
            for name, child in module.named_children():
                if isinstance(child, Linear):
                    setattr(module, name, PackedLinear(child, DTYPES[precision]))
        return cls(transformer, PackedMatrix(transformer.output, transformer.output_bias, DTYPES[precision]))

    def start(self, src_BS: Tensor, src_lengths_B: Tensor, num_beams: int, max_length: int) -> DecoderCache:
        """Encode the source and return an empty cache."""
        return self.transformer.new_cache(self.transformer.encode(src_BS, src_lengths_B), num_beams, max_length)

    def step(self, token_N: Tensor, cache: DecoderCache) -> tuple[Tensor, ExactLogits | None]:
        """Return the logits (N, V) of the token after token_N, and a way to exact ones where these are rounded."""
        token_BR = token_N.view(-1, cache.R)
        hidden_ND = self.transformer.decode(token_BR, cache.encoder_output, cache).flatten(0, 1)
        logits_NV = self.project(hidden_ND)
        is_rounded = logits_NV.dtype != hidden_ND.dtype
        return logits_NV, partial(self._exact_logits, hidden_ND) if is_rounded else None

    def _exact_logits(self, hidden_ND: Tensor, row: Tensor, token: Tensor) -> Tensor:
        logits = (hidden_ND[row] * F.embedding(token, self.transformer.output)).sum(dim=-1)
        return logits if self.transformer.output_bias is None else logits + self.transformer.output_bias[token]


class EnsembleCache(Generic[CacheT]):
    """One cache for each member."""

    def __init__(self, caches: list[CacheT]) -> None:
        self.caches = caches

    def reorder(self, rows_N: Tensor) -> None:
        """Let row i continue the history of row rows_N[i], in each member."""
        for cache in self.caches:
            cache.reorder(rows_N)

    def keep(self, sentences_B: Tensor) -> None:
        """Keep only these sentences in the batch, in each member."""
        for cache in self.caches:
            cache.keep(sentences_B)


class Ensemble(Generic[CacheT]):
    """Models of any sizes with one vocabulary; p(token) is the mean over the members."""

    def __init__(self, models: Sequence[Decodable[CacheT]]) -> None:
        self.models = models

    def start(self, src_BS: Tensor, src_lengths_B: Tensor, num_beams: int, max_length: int) -> EnsembleCache[CacheT]:
        """Return an empty cache of each member."""
        return EnsembleCache([model.start(src_BS, src_lengths_B, num_beams, max_length) for model in self.models])

    def step(self, token_N: Tensor, cache: EnsembleCache[CacheT]) -> tuple[Tensor, None]:
        """Return the log-probabilities (N, V) of the token after token_N, in float32."""
        logits = [model.step(token_N, one)[0] for model, one in zip(self.models, cache.caches, strict=True)]
        return mean_log_probs(logits), None


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """Return the log of the members' mean probabilities, (..., V) in float32; of one member its log-probabilities."""
    log_probs = torch.stack([torch.log_softmax(one, dim=-1, dtype=torch.float32) for one in logits])
    return log_probs.logsumexp(dim=0) - math.log(len(logits))

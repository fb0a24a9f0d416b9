"""Models for inference, one Transformer or an ensemble: steps of search, scores and attention of given translations.

On a CPU the matrices are converted once to the layout of the kernels, in fp32 or bf16. Embeddings, norms and the
residual stream stay in float32, which costs little and keeps nearly all translations the same.

B sentences, S source length, T target length (eos counted), R beams, N = B x R rows (row b*R + r), D model width,
V vocabulary.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.decoding.search import Cache, Decodable, ExactLogits
from mtformer.device import DTYPES, set_up_kernels
from mtformer.model.attention import record_weights
from mtformer.model.cache import DecoderCache
from mtformer.model.ops import Linear, padding_mask
from mtformer.model.transformer import DecoderLayer, Transformer
from mtformer.text.tokenizer import BOS, EOS, PAD

ROWS = 256
"""Rows of a typical matrix product, for which the layout is chosen."""
POSITIONS_AT_ONCE = 2048
"""Target positions whose V probabilities are in memory at the same time."""


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
        has_kernel = torch.backends.mkldnn.is_available() and (
            dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        )
        self.packed: Any = torch.ops.mkldnn._reorder_linear_weight(plain, ROWS) if has_kernel else plain

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
    """A Transformer that decodes one step at a time (see `search.Decodable`).

    Args:
        transformer: on its device; it may be in training.
        output: projection to logits that replaces the transformer's own.
    """

    def __init__(self, transformer: Transformer, output: PackedMatrix | None = None) -> None:
        self.transformer = transformer
        self.project = transformer.project if output is None else output

    @classmethod
    def prepare(cls, transformer: Transformer, device: torch.device, precision: str) -> "InferenceModel":
        """Move a float32 model from a CPU to a device and a precision; afterwards a CPU can no longer train it.

        Args:
            precision: `fp32`, `bf16`, or `fp16` (CUDA).
        """
        transformer.eval()
        set_up_kernels(device)
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
        """Return the logits (N, V) of the token after token_N, and a function for exact ones if these are rounded."""
        token_BR = token_N.view(-1, cache.R)
        hidden_ND = self.transformer.decode(token_BR, cache.encoder_output, cache).flatten(0, 1)
        logits_NV = self.project(hidden_ND)
        is_rounded = logits_NV.dtype != hidden_ND.dtype
        return logits_NV, partial(self._exact_logits, hidden_ND) if is_rounded else None

    def _exact_logits(self, hidden_ND: Tensor, row: Tensor, token: Tensor) -> Tensor:
        logits = (hidden_ND[row] * F.embedding(token, self.transformer.output)).sum(dim=-1)
        return logits if self.transformer.output_bias is None else logits + self.transformer.output_bias[token]


class EnsembleCache:
    """One cache for each member."""

    def __init__(self, caches: list[Cache]) -> None:
        self.caches = caches

    def reorder(self, rows_N: Tensor) -> None:
        """Let row i continue the history of row rows_N[i], in each member."""
        for cache in self.caches:
            cache.reorder(rows_N)

    def keep(self, sentences_B: Tensor) -> None:
        """Keep only these sentences in the batch, in each member."""
        for cache in self.caches:
            cache.keep(sentences_B)


class Ensemble:
    """Models of any sizes with one vocabulary; p(token) is the mean over the members."""

    def __init__(self, models: Sequence[Decodable]) -> None:
        self.models = models

    def start(self, src_BS: Tensor, src_lengths_B: Tensor, num_beams: int, max_length: int) -> EnsembleCache:
        """Return an empty cache of each member."""
        return EnsembleCache([model.start(src_BS, src_lengths_B, num_beams, max_length) for model in self.models])

    def step(self, token_N: Tensor, cache: EnsembleCache) -> tuple[Tensor, None]:
        """Return the log-probabilities (N, V) of the token after token_N, in float32."""
        logits = [model.step(token_N, one)[0] for model, one in zip(self.models, cache.caches, strict=True)]
        return mean_log_probs(logits), None


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """Return the log of the members' mean probabilities, (..., V) in float32; of one member its log-probabilities."""
    log_probs = torch.stack([torch.log_softmax(one, dim=-1, dtype=torch.float32) for one in logits])
    return log_probs.logsumexp(dim=0) - math.log(len(logits))


def pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows of ids padded on the right, (B, longest), and their lengths (B,); int64."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    filled = [[*row, *[PAD] * (longest - len(row))] for row in rows]
    return torch.tensor(filled, device=device), torch.tensor(lengths, device=device)


@torch.inference_mode()
def score_targets(
    models: Sequence[InferenceModel],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    start: int = BOS,
) -> list[list[float]]:
    """Return log p(token | source, previous tokens) for each token of each target and its eos.

    Args:
        models: in evaluation mode; several: their mean probabilities.
        sources: ids with eos.
        targets: ids without bos and eos.
        start: first token of the decoder.
    """
    device = models[0].transformer.output.device
    src_BS, src_lengths_B = pad(sources, device)
    tgt_BT, lengths_B = pad([[start, *target, EOS] for target in targets], device)
    is_real_BT = padding_mask(lengths_B - 1, tgt_BT.size(1) - 1)
    hidden_ND = [model.transformer(src_BS, src_lengths_B, tgt_BT[:, :-1])[is_real_BT] for model in models]
    next_N = tgt_BT[:, 1:][is_real_BT]
    found = []
    for first in range(0, len(next_N), POSITIONS_AT_ONCE):
        here = slice(first, first + POSITIONS_AT_ONCE)
        logits = [model.project(hidden[here]) for model, hidden in zip(models, hidden_ND, strict=True)]
        found += mean_log_probs(logits).gather(1, next_N[here].unsqueeze(1)).squeeze(1).tolist()
    remaining = iter(found)
    return [[next(remaining) for _ in range(len(target) + 1)] for target in targets]


@torch.inference_mode()
def attention_of_targets(
    models: Sequence[InferenceModel],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    start: int = BOS,
) -> list[Tensor]:
    """Return the attention (T, S) of the tokens of each target and its eos to the source, on the CPU.

    Arguments as in `score_targets`; several models: the mean. The weights are float32, the mean over the heads of
    `alignment_layer`.
    """
    device = models[0].transformer.output.device
    src_BS, src_lengths_B = pad(sources, device)
    tgt_in_BT, _ = pad([[start, *target] for target in targets], device)
    weights = []
    for model in models:
        decoder = model.transformer.decoder
        layer = decoder[alignment_layer(len(decoder))]
        assert isinstance(layer, DecoderLayer)
        attention = layer.cross_attention
        with record_weights([attention]) as recorded:
            model.transformer(src_BS, src_lengths_B, tgt_in_BT)
        weights.append(recorded[attention].mean(dim=1).float())
    mean_BTS = torch.stack(weights).mean(dim=0).cpu()
    pairs = zip(mean_BTS, sources, targets, strict=True)
    return [weights_TS[: len(target) + 1, : len(source)].clone() for weights_TS, source, target in pairs]


def alignment_layer(num_layers: int) -> int:
    """Return the decoder layer whose cross-attention is closest to word alignments: the penultimate, if any.

    Garg et al. 2019, section 4.1.
    """
    return max(0, num_layers - 2)

"""Models prepared for search.

On a CPU, weights are converted once to the layout of the kernels, in fp32 or bf16. Embeddings, norms and the
residual stream stay in float32, which costs little time and leaves nearly all translations unchanged.

B sentences, S source length, R beams, N = B x R rows (b*R + r), D width, V vocabulary, X tokens.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.decoding.search.candidates import Correction
from mtformer.device import DTYPES, set_up_kernels
from mtformer.model.cache import DecoderCache
from mtformer.model.ops import Linear
from mtformer.model.transformer import Transformer
from mtformer.text.tokenizer import PAD

ROWS = 256
"""Number of rows of a typical matrix product, for which the layout is optimized."""

PackedPart = tuple[Tensor, Tensor | None]
"""Packed weight and bias."""


class PackedLinear(nn.Module):
    """Linear layer x W^T + b with the weight (out, in) in the layout of the kernel; the output has dtype `dtype`.

    A matrix, or each slice of a fused one, is packed on first use.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.dtype = dtype
        self.parts: dict[tuple[int, int | None], PackedPart] = {}
        """The packed part for each slice (start, stop) of the rows."""

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the output of `Linear.forward` for the same arguments."""
        key = (start, stop)
        if key not in self.parts:
            self.parts[key] = self._pack(slice(start, stop))
        weight, bias = self.parts[key]

        x = x.to(self.dtype)
        if weight.is_mkldnn:
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return F.linear(x, weight, bias)

    def _pack(self, rows: slice) -> PackedPart:
        weight = self.weight[rows].detach()
        weight = weight.to(self.dtype).contiguous()
        if _can_pack(self.dtype):
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        if self.bias is None:
            return weight, None
        bias = self.bias[rows].detach()
        return weight, bias.to(self.dtype)


def _can_pack(dtype: torch.dtype) -> bool:
    """Return True if oneDNN can pack matrices of this dtype; for bf16, that depends on the processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


class InferenceModel:
    """A Transformer that decodes one step at a time; `output` replaces its projection to logits."""

    def __init__(self, transformer: Transformer, output: PackedLinear | None = None) -> None:
        self.transformer = transformer
        self.project = transformer.project if output is None else output

    @classmethod
    def prepare(cls, transformer: Transformer, device: torch.device, precision: str) -> "InferenceModel":
        """Convert a model in place; on a CPU, it can then no longer be trained.

        Args:
            transformer: float32 model on the CPU.
            device: device of the search.
            precision: `fp32`, `bf16`, or `fp16` (CUDA only).
        """
        transformer.eval()
        set_up_kernels(device)
        dtype = DTYPES[precision]
        if device.type != "cpu":
            return cls(transformer.to(device=device, dtype=dtype))

        for module in list(transformer.modules()):
            for name, child in module.named_children():
                if isinstance(child, Linear):
                    packed = PackedLinear(child.weight, child.bias, dtype)
                    setattr(module, name, packed)
        output = PackedLinear(transformer.output, transformer.output_bias, dtype)
        return cls(transformer, output)

    def start(self, src_BS: Tensor, src_lengths_B: Tensor, num_beams: int, max_length: int) -> DecoderCache:
        """Encode the source and return an empty cache.

        Args:
            src_BS: source ids, which end with eos and are padded on the right.
            src_lengths_B: source lengths, including eos.
            num_beams: number R of rows per sentence.
            max_length: maximum number of steps.
        """
        encoder_output = self.transformer.encode(src_BS, src_lengths_B)
        return self.transformer.new_cache(encoder_output, num_beams, max_length)

    def step(self, token_N: Tensor, cache: DecoderCache) -> tuple[Tensor, Correction | None]:
        """Return the logits (N, V) of the next token, and the correction of their rounding, if any."""
        token_BR = token_N.view(-1, cache.R)
        hidden_BRD = self.transformer.decode(token_BR, cache.encoder_output, cache)
        hidden_ND = hidden_BRD.flatten(0, 1)
        logits_NV = self.project(hidden_ND)
        if logits_NV.dtype == hidden_ND.dtype:
            return logits_NV, None
        return logits_NV, partial(self._correction, hidden_ND, logits_NV)

    def _correction(self, hidden_ND: Tensor, logits_NV: Tensor, beam_BX: Tensor, token_BX: Tensor) -> Tensor:
        """Return the exact logits (B, X) of these tokens minus the rounded ones; see `Correction`."""
        B = len(beam_BX)
        N = len(logits_NV)
        first_row_B = torch.arange(0, N, N // B, device=beam_BX.device)
        row_BX = beam_BX + first_row_B.unsqueeze(1)

        embedding_BXD = F.embedding(token_BX, self.transformer.output)
        product_BXD = hidden_ND[row_BX] * embedding_BXD
        exact_BX = product_BXD.sum(dim=-1)
        if self.transformer.output_bias is not None:
            exact_BX = exact_BX + self.transformer.output_bias[token_BX]

        rounded_BX = logits_NV[row_BX, token_BX].float()
        return (exact_BX - rounded_BX).nan_to_num(0.0)  # infinite logits are exact


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """Return the log of the mean probabilities of all models, (..., V) in float32."""
    log_probs = [torch.log_softmax(logits_of_model, dim=-1, dtype=torch.float32) for logits_of_model in logits]
    log_sum = torch.stack(log_probs).logsumexp(dim=0)
    num_models = len(logits)
    return log_sum - math.log(num_models)


def pad(rows: Sequence[Sequence[int]], device: torch.device, value: int = PAD) -> tuple[Tensor, Tensor]:
    """Return rows of ids padded on the right, (B, longest), and their lengths (B,), both int64.

    Args:
        rows: the ids of each row; at least one row.
        device: device of the result.
        value: id with which the rows are padded.
    """
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    padded = []
    for row in rows:
        padding = [value] * (longest - len(row))
        padded.append([*row, *padding])
    return torch.tensor(padded, device=device), torch.tensor(lengths, device=device)


def alignment_layer(num_layers: int) -> int:
    """Return the index of the decoder layer whose cross-attention best matches word alignments: the penultimate one.

    See Garg et al. 2019, section 4.1. A decoder with a single layer has index 0.
    """
    return max(0, num_layers - 2)

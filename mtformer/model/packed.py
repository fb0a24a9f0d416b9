"""Weights made ready for decoding on a CPU: laid out once as the kernels want them, in fp32, bf16 or int8.

The products run in that precision, and with bf16 the attention between them; embeddings, norms and the residual stream
stay in float32, which costs little and keeps nearly all translations as they are in float32 (LOG.md has figures).
"""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.errors import DeviceError
from mtformer.model.hardware import DTYPES, disable_cudnn_attention
from mtformer.model.linear import Linear
from mtformer.model.transformer import Transformer

ROWS = 256
"""Rows of a typical product, for which the layout is chosen."""


class PackedMatrix:
    """x -> x W^T + b with a weight that is laid out once.

    Args:
        weight: (out, in), float32.
        bias: (out,), or None.
        precision: `fp32`; `bf16`, which gives bf16 back; or `int8`: a scale for each output, and for each input batch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, precision: str) -> None:
        self.is_int8 = precision == "int8"
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.bias = None if bias is None else bias.detach().to(self.dtype)
        if self.is_int8:
            self.packed: Any = _int8(weight.detach(), self.bias)
        else:
            plain = weight.detach().to(self.dtype).contiguous()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(plain, ROWS) if _has_mkldnn() else plain

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_int8:
            return torch.ops.quantized.linear_dynamic(x, self.packed)
        x = x.to(self.dtype)
        if self.packed.is_mkldnn:
            return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return F.linear(x, self.packed, self.bias)


class PackedLinear(nn.Module):
    """Stands in the place of a `Linear`; the parts of a fused matrix are packed when they are first asked for."""

    def __init__(self, linear: Linear, precision: str) -> None:
        super().__init__()
        self.linear, self.precision = linear, precision
        self.parts: dict[tuple[int, int | None], PackedMatrix] = {}

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """As `Linear.forward`."""
        part = self.parts.get((start, stop))
        if part is None:
            rows = slice(start, stop)
            part = PackedMatrix(self.linear.weight[rows], self.linear.bias[rows], self.precision)
            self.parts[start, stop] = part
        return part(x)


def for_decoding(model: Transformer, device: torch.device, precision: str) -> Transformer:
    """The model on its device and in its precision, in evaluation mode; on a CPU it cannot be trained any more.

    Args:
        model: in float32, on a CPU.
        device: where it will be.
        precision: `fp32`, `bf16`, `fp16` (CUDA), or `int8` (CPU).
    """
    if device.type == "cpu":
        return pack(model, precision).eval()
    disable_cudnn_attention(device)
    return model.to(device=device, dtype=DTYPES[precision]).eval()


def pack(model: Transformer, precision: str) -> Transformer:
    """The model with its matrices packed."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, Linear):
                setattr(module, name, PackedLinear(child, precision))
    model.packed_output = PackedMatrix(model.output, model.output_bias, precision)
    return model


def _has_mkldnn() -> bool:
    return torch.backends.mkldnn.is_available()


def _int8(weight: Tensor, bias: Tensor | None) -> Any:
    """Symmetric, a scale for each output; inputs are quantised as they come (`quantized.linear_dynamic`)."""
    scale = weight.abs().amax(dim=1).clamp(min=1e-8) / 127
    zero = torch.zeros(len(weight), dtype=torch.long)
    before = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plans to move all this to another package
        try:
            if "onednn" in torch.backends.quantized.supported_engines:
                torch.backends.quantized.engine = "onednn"  # the quickest, by half
            quantised = torch.quantize_per_channel(weight, scale.double(), zero, 0, torch.qint8)
            return torch.ops.quantized.linear_prepack(quantised, bias)
        except (AttributeError, RuntimeError) as error:
            raise DeviceError("precision 'int8': this PyTorch cannot multiply in it; use bf16 or fp32") from error
        finally:
            torch.backends.quantized.engine = before

"""Building blocks of all layers: projection, dropout, norms, masks.

Mixed precision (Micikevicius et al. 2018) does not use autocast: weights stay float32 for the optimizer and are cast to
the dtype of the activations where they are used, and their gradients are float32. All activations therefore have the
same dtype, whereas autocast converts back and forth.

Masks are boolean, True = attend. For a sentence of 3 tokens in a batch padded to 5, and for a target of 4 tokens:

    padding_mask             1 1 1 0 0        causal_mask    1 0 0 0
    (one row per sentence)                    (row = query,  1 1 0 0
                                               column = key) 1 1 1 0
                                                             1 1 1 1

B batch, T target (query) length, S source (key) length, D width.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NORM_EPS = 1e-5


class Linear(nn.Module):
    """Linear layer y = x W^T + b, or several projections of the same x fused in one matrix.

    Args:
        in_width: width of x.
        *out_widths: width of each projection. `Transformer.init_weights` initializes each by its own fan-out.
    """

    def __init__(self, in_width: int, *out_widths: int) -> None:
        super().__init__()
        self.out_widths = out_widths
        self.weight = nn.Parameter(torch.empty(sum(out_widths), in_width))
        self.bias = nn.Parameter(torch.zeros(sum(out_widths)))

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the projections (..., stop - start) of rows start:stop of the matrix; all rows by default."""
        return F.linear(x, self.weight[start:stop].to(x.dtype), self.bias[start:stop].to(x.dtype))


class LayerNorm(nn.Module):
    """Layer normalization: (x - mean) / sqrt(var + eps) * weight + bias over the last dimension (Ba et al. 2016)."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))
        self.bias = nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalized to mean 0 and variance 1, scaled and shifted, in the dtype of x."""
        return F.layer_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.bias.to(x.dtype), NORM_EPS)


class RMSNorm(nn.Module):
    """RMS normalization: x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019)."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalized to a root mean square of 1 and scaled, in the dtype of x."""
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), NORM_EPS)


NORMS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


class Dropout(nn.Module):
    """Apply `dropout` in training mode and return the input unchanged in evaluation mode."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Return x, with random elements set to zero in training mode."""
        return dropout(x, self.p if self.training else 0.0)


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 - p) (Srivastava et al. 2014)."""
    if p == 0.0:
        return x
    return _CpuDropout.apply(x, p) if x.device.type == "cpu" else F.dropout(x, p)


class _CpuDropout(torch.autograd.Function):
    """Dropout with one random byte per element instead of a float: 5.6 ms for 4096 x 1024, `F.dropout` takes 25.9 ms.

    The probability is rounded to a multiple of 1/256, and the scale uses the rounded value, so the mean stays exact.
    """

    @staticmethod
    def forward(ctx, x: Tensor, p: float) -> Tensor:  # type: ignore[no-untyped-def]  # ctx has no public type
        threshold = min(255, max(1, round(p * 256)))
        words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64)
        # Use the full range: by default, `random_` leaves the sign bit 0, and thus every eighth byte below 128.
        noise = words.random_(-(2**63), None).view(torch.uint8)[: x.numel()].view(x.shape)
        # The in-place comparison keeps the dtype uint8 (0 or 1), which is cast six times as fast as bool.
        ctx.multiplier = noise.ge_(threshold).to(x.dtype).mul_(256 / (256 - threshold))
        return x * ctx.multiplier

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]  # as above
        return grad * ctx.multiplier, None


def padding_mask(lengths: Tensor, S: int) -> Tensor:
    """Return a mask (B, S) that is True at the first `lengths` (B,) positions; for lengths (B, T), return (B, T, S)."""
    return torch.arange(S, device=lengths.device) < lengths.unsqueeze(-1)


def causal_mask(T: int, device: torch.device | None = None) -> Tensor:
    """Return (T, T): True where the key position is at most the query position (Vaswani et al. 2017, section 3.2.3)."""
    return torch.ones(T, T, dtype=torch.bool, device=device).tril()

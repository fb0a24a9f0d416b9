"""Building blocks of all layers: projection, dropout, norms, masks.

Mixed precision (Micikevicius et al. 2018) does not use autocast: weights stay float32 for the optimizer and are cast to
the dtype of the activations where they are used, and their gradients are float32. All activations therefore have the
same dtype, whereas autocast repeatedly converts between dtypes.

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
CPU_BF16_ROWS = 128  # rows are padded to a multiple in training: oneDNN generates kernels for each number of rows


class Linear(nn.Module):
    """Linear layer y = x W^T + b, or several projections of the same x, of `out_widths`, fused in one matrix."""

    def __init__(self, in_width: int, *out_widths: int) -> None:
        super().__init__()
        self.out_widths = out_widths
        self.weight = nn.Parameter(torch.empty(sum(out_widths), in_width))
        self.bias = nn.Parameter(torch.zeros(sum(out_widths)))
        self.copies: tuple[Tensor, Tensor] | None = None
        """Weight and bias in the dtype of the activations, for training on a GPU; None: cast them at each use."""

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the projections (..., stop - start) of rows start:stop of the matrix; all rows by default."""
        weight, bias = _rows(self.weight, start, stop), _rows(self.bias, start, stop)
        if self.copies is not None and self.training:
            copies = (_rows(copy, start, stop) for copy in self.copies)
            return _LinearWithCopies.apply(x, weight, bias, *copies)
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        if x.dtype != torch.bfloat16 or x.device.type != "cpu" or not self.training:
            return F.linear(x, weight, bias)
        x_NI = x.flatten(0, -2)
        padded_NI = F.pad(x_NI, (0, 0, 0, -len(x_NI) % CPU_BF16_ROWS))
        return F.linear(padded_NI, weight, bias)[: len(x_NI)].unflatten(0, x.shape[:-1])


def _rows(x: Tensor, start: int, stop: int | None) -> Tensor:
    """Return x[start:stop], or x itself for all rows, because the gradient of a view would be a copy."""
    return x if start == 0 and stop is None else x[start:stop]


class _LinearWithCopies(torch.autograd.Function):
    """x W^T + b with rounded copies of W and b; gradients of W and b are computed in float32 without rounding."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]  # ctx has no public type
        ctx, x: Tensor, weight: Tensor, bias: Tensor, weight_copy: Tensor, bias_copy: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight_copy)
        return F.linear(x, weight_copy, bias_copy)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[no-untyped-def]  # as above
        x, weight_copy = ctx.saved_tensors
        grad_NO, x_NI = grad.flatten(0, -2), x.flatten(0, -2)
        if grad.device.type == "cpu":  # `out_dtype` requires CUDA
            grad_weight_OI = grad_NO.t().float() @ x_NI.float()
        else:
            grad_weight_OI = torch.mm(grad_NO.t(), x_NI, out_dtype=torch.float32)
        return grad @ weight_copy, grad_weight_OI, grad_NO.sum(dim=0, dtype=torch.float32), None, None


class LinearCopies:
    """Copies of all weights and biases of the `Linear` modules of a model in the dtype of its activations.

    They are used in training, after `refresh`. Copying launches one kernel per step, not several per micro-batch.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        modules = [module for module in model.modules() if isinstance(module, Linear)]
        self.sources = [one.detach() for module in modules for one in (module.weight, module.bias)]
        self.copies = [one.to(dtype) for one in self.sources]
        for module, weight, bias in zip(modules, self.copies[::2], self.copies[1::2], strict=True):
            module.copies = weight, bias

    def refresh(self) -> None:
        """Copy the current weights."""
        torch._foreach_copy_(self.copies, self.sources)


class LayerNorm(nn.LayerNorm):
    """Layer normalization: (x - mean) / sqrt(var + eps) * weight + bias over the last dimension (Ba et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalized to mean 0 and variance 1, scaled and shifted, in the dtype of x."""
        return F.layer_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.bias.to(x.dtype), NORM_EPS)


class RMSNorm(nn.RMSNorm):
    """RMS normalization: x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalized to a root mean square of 1 and scaled, in the dtype of x."""
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), NORM_EPS)


NORMS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


class Dropout(nn.Dropout):
    """Apply `dropout` in training mode and return the input unchanged in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x, with random elements set to zero in training mode."""
        return dropout(x, self.p if self.training else 0.0)


def dropout(x: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 - p) (Srivastava et al. 2014)."""
    if p == 0.0:
        return x
    return _CpuDropout.apply(x, p) if x.device.type == "cpu" else F.dropout(x, p)


class _CpuDropout(torch.autograd.Function):
    """Dropout with one random byte per element instead of a float: 5.6 ms for 4096 x 1024 (`F.dropout`: 25.9 ms).

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


def drop_sentences(x_BTD: Tensor, p: float) -> Tensor:
    """Set each sentence of a batch to zero with probability p, without scaling the others.

    The product with a mask gives all weights a gradient, which DDP requires; skipping a layer would not.
    """
    mask_B11 = torch.rand(x_BTD.size(0), 1, 1, device=x_BTD.device) >= p
    return x_BTD * mask_B11.to(x_BTD.dtype)


def padding_mask(lengths: Tensor, S: int) -> Tensor:
    """Return a mask (B, S) that is True at the first `lengths` (B,) positions; for lengths (B, T), return (B, T, S)."""
    return torch.arange(S, device=lengths.device) < lengths.unsqueeze(-1)


def additive_mask(mask: Tensor, x: Tensor) -> Tensor:
    """Return a mask with 0 where a boolean mask is True and -inf elsewhere, in the dtype of x.

    Rows are padded to a multiple of 8 elements, because fused GPU kernels otherwise copy the mask; attention ignores
    the padding. There is always padding, because `torch.compile` would compile again for a mask without it.
    """
    S = mask.size(-1)
    added = x.new_zeros(*mask.shape[:-1], S // 8 * 8 + 8)
    added[..., :S].masked_fill_(~mask, float("-inf"))
    return added


def kernel_mask(mask: Tensor, x: Tensor) -> Tensor:
    """Convert a mask once for all layers on a GPU, where each layer would otherwise convert a boolean mask again."""
    return mask if mask.device.type == "cpu" else additive_mask(mask, x)


def causal_mask(T: int, device: torch.device | None = None) -> Tensor:
    """Return (T, T): True where the key position is at most the query position (Vaswani et al. 2017, section 3.2.3)."""
    return torch.ones(T, T, dtype=torch.bool, device=device).tril()

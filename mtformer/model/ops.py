"""Building blocks of all layers: projection, norms, dropout, masks.

Mixed precision (Micikevicius et al. 2018) does not use autocast: weights stay float32 for the optimizer and are cast to
the dtype of the activations where they are used, and their gradients are float32. All activations therefore have the
same dtype, whereas autocast repeatedly converts between dtypes.

Masks are boolean, True = attend. For a sentence of 3 tokens in a batch padded to 5, and for a target of 4 tokens:

    padding_mask             1 1 1 0 0        causal_mask    1 0 0 0
    (one row per sentence)                    (row = query,  1 1 0 0
                                               column = key) 1 1 1 0
                                                             1 1 1 1

B batch, T target (query) length, S source (key) length, D width, O sum of the widths of fused projections.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.model.kernels import dropout, linear, linear_with_copies

NORM_EPS = 1e-5
"""Number that is added to the variance (or the mean square) in a norm."""


class Linear(nn.Module):
    """Linear layer y = x W^T + b, or several projections of the same x, of `out_widths`, fused in one matrix."""

    def __init__(self, in_width: int, *out_widths: int) -> None:
        super().__init__()
        self.out_widths = out_widths
        out_width = sum(out_widths)
        self.weight = nn.Parameter(torch.empty(out_width, in_width))
        self.bias = nn.Parameter(torch.zeros(out_width))
        self._copies: tuple[Tensor, Tensor] | None = None

    def use_copies(self, weight: Tensor, bias: Tensor) -> None:
        """Use copies of weight and bias, in the dtype of the activations, in training mode.

        The caller updates them when the parameters change. Without copies, the parameters are cast at each use.
        """
        self._copies = weight, bias

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return the projections (..., stop - start) by some rows of the matrix.

        Args:
            x: inputs (..., in_width).
            start: first row.
            stop: row after the last one; None: use all rows from `start`.
        """
        weight = _rows(self.weight, start, stop)
        bias = _rows(self.bias, start, stop)
        if self._copies is None or not self.training:
            return linear(x, weight, bias, is_training=self.training)

        all_weight_copy, all_bias_copy = self._copies
        weight_copy = _rows(all_weight_copy, start, stop)
        bias_copy = _rows(all_bias_copy, start, stop)
        return linear_with_copies(x, weight, bias, weight_copy, bias_copy)


def _rows(x: Tensor, start: int, stop: int | None) -> Tensor:
    """Return x[start:stop], or x itself for all rows, because the gradient of a view would be a copy."""
    if start == 0 and stop is None:
        return x
    return x[start:stop]


class LayerNorm(nn.LayerNorm):
    """Layer normalization: (x - mean) / sqrt(var + eps) * weight + bias over the last dimension (Ba et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalized to mean 0 and variance 1, scaled and shifted, in the dtype of x."""
        D = x.size(-1)
        weight_D = self.weight.to(x.dtype)
        bias_D = self.bias.to(x.dtype)
        return F.layer_norm(x, (D,), weight_D, bias_D, NORM_EPS)


class RMSNorm(nn.RMSNorm):
    """RMS normalization: x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalized to a root mean square of 1 and scaled, in the dtype of x."""
        D = x.size(-1)
        weight_D = self.weight.to(x.dtype)
        return F.rms_norm(x, (D,), weight_D, NORM_EPS)


NORMS = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}
"""Norms by their name in `model.norm`."""


class Dropout(nn.Dropout):
    """Apply `dropout` in training mode and return the input unchanged in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x, with random elements set to zero in training mode."""
        p = self.p if self.training else 0.0
        return dropout(x, p)


def drop_sentences(x_BTD: Tensor, p: float) -> Tensor:
    """Set each sentence of a batch to zero with probability p, without scaling the others.

    The product with a mask gives all weights a gradient, which DDP requires; skipping a layer would not.
    """
    B = x_BTD.size(0)
    noise_B11 = torch.rand(B, 1, 1, device=x_BTD.device)
    is_kept_B11 = noise_B11 >= p
    return x_BTD * is_kept_B11.to(x_BTD.dtype)


def padding_mask(lengths: Tensor, S: int) -> Tensor:
    """Return a mask (B, S) that is True at the first `lengths` (B,) positions; for lengths (B, T), return (B, T, S)."""
    positions_S = torch.arange(S, device=lengths.device)
    return positions_S < lengths.unsqueeze(-1)


def causal_mask(T: int, device: torch.device | None = None) -> Tensor:
    """Return (T, T): True where the key position is at most the query position (Vaswani et al. 2017, section 3.2.3)."""
    all_keys_TT = torch.ones(T, T, dtype=torch.bool, device=device)
    return all_keys_TT.tril()

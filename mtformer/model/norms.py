"""LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), in the precision of what comes in."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-5


class LayerNorm(nn.Module):
    """(x - mean) / sqrt(var + eps) * weight + bias over the last dimension."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))
        self.bias = nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.bias.to(x.dtype), EPS)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

    def __init__(self, D: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), EPS)


def make_norm(kind: str, D: int) -> nn.Module:
    """The norm that the config names."""
    return {"layernorm": LayerNorm, "rmsnorm": RMSNorm}[kind](D)

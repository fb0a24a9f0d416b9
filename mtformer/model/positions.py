"""Position encodings: sinusoidal, learned, or rotary. T length, D model width, H heads, K width of a head."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

SINUSOID_BASE = 10000.0
"""Base of the frequencies: the longest wave has length 2 pi times this number."""


def sinusoid(num_positions: int, D: int) -> Tensor:
    """Return the (num_positions, D) table of Vaswani et al. 2017, section 3.5, in float32.

    angle(pos, i) = pos / 10000^(2i/D) for i < D/2. The sines fill the first half and the cosines the second
    ([sin | cos]; the paper interleaves them, which gives the same features in another order).
    """
    position = torch.arange(num_positions, dtype=torch.float64).unsqueeze(1)
    exponent = torch.arange(0, D, 2, dtype=torch.float64) / D
    angle = position / SINUSOID_BASE**exponent
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()


class AddedPositions(nn.Module):
    """Position encoding that is added to the embeddings: fixed sinusoids, or learned vectors (Gehring et al. 2017)."""

    def __init__(self, max_positions: int, D: int, is_learned: bool) -> None:
        super().__init__()
        if is_learned:
            self.weight: Tensor = nn.Parameter(torch.empty(max_positions, D))
        else:
            self.weight = nn.Buffer(sinusoid(max_positions, D), persistent=False)

    def forward(self, positions: slice) -> Tensor:
        """Return the vectors (T, D) to add to the embeddings."""
        return self.weight[positions]


class Rotation(NamedTuple):
    """Cosines and signed sines (T, 1, K) of the rotation angles of some positions."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x_BTHK: Tensor) -> Tensor:
        """Rotate queries or keys; a rotation of one position is broadcast over dimension 1."""
        cos = self.cos.to(x_BTHK.dtype)
        sin = self.sin.to(x_BTHK.dtype)
        half = x_BTHK.size(-1) // 2
        partners_BTHK = x_BTHK.roll(half, dims=-1)
        return torch.addcmul(x_BTHK * cos, partners_BTHK, sin)


class RotaryPositions(nn.Module):
    """Rotary position encoding, with which q k^T depends on relative positions only (Su et al. 2021, equation 34).

    Dimension i of a head is paired with i + K/2; the pair is rotated by pos / 10000^(2i/K).
    """

    def __init__(self, max_positions: int, K: int) -> None:
        super().__init__()
        table_T1K = sinusoid(max_positions, K).unsqueeze(1)
        sin, cos = table_T1K.chunk(2, dim=-1)
        self.cos = nn.Buffer(torch.cat([cos, cos], dim=-1), persistent=False)
        self.sin = nn.Buffer(torch.cat([-sin, sin], dim=-1), persistent=False)

    def forward(self, positions: slice) -> Rotation:
        """Return the rotation for these positions."""
        return Rotation(self.cos[positions], self.sin[positions])

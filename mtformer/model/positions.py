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
    positions = torch.arange(num_positions, dtype=torch.float64)
    exponents = torch.arange(0, D, 2, dtype=torch.float64) / D
    denominators = SINUSOID_BASE**exponents
    angles = positions.unsqueeze(1) / denominators
    table = torch.cat([angles.sin(), angles.cos()], dim=1)
    return table.float()


class AddedPositions(nn.Module):
    """Position encoding that is added to the embeddings: fixed sinusoids, or learned vectors (Gehring et al. 2017)."""

    def __init__(self, max_positions: int, D: int, is_learned: bool) -> None:
        super().__init__()
        if is_learned:
            vectors = torch.empty(max_positions, D)
            self.weight: Tensor = nn.Parameter(vectors)
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
        K = x_BTHK.size(-1)
        partners_BTHK = x_BTHK.roll(K // 2, dims=-1)
        # x cos + partners sin
        return torch.addcmul(x_BTHK * cos, partners_BTHK, sin)


class RotaryPositions(nn.Module):
    """Rotary position encoding, with which q k^T depends on relative positions only (Su et al. 2021, equation 34).

    Dimension i of a head is paired with i + K/2; the pair is rotated by pos / 10000^(2i/K).
    """

    def __init__(self, max_positions: int, K: int) -> None:
        super().__init__()
        table_TK = sinusoid(max_positions, K)
        sin, cos = table_TK.unsqueeze(1).chunk(2, dim=-1)  # (T, 1, K / 2)
        # The pair (x, y) becomes (x cos - y sin, y cos + x sin).
        cos_T1K = torch.cat([cos, cos], dim=-1)
        signed_sin_T1K = torch.cat([-sin, sin], dim=-1)
        self.cos = nn.Buffer(cos_T1K, persistent=False)
        self.sin = nn.Buffer(signed_sin_T1K, persistent=False)

    def forward(self, positions: slice) -> Rotation:
        """Return the rotation for these positions."""
        return Rotation(self.cos[positions], self.sin[positions])

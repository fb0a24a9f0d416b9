"""Where a token stands: sinusoidal, learned, or rotary.

B batch, T length, D model width, H heads, K width of a head.
"""

import torch
from torch import Tensor, nn

from mtformer.model.initialisation import init_embedding


def sinusoid(num_positions: int, D: int) -> Tensor:
    """(num_positions, D) table of "Attention Is All You Need", section 3.5, in float32.

    angle(pos, i) = pos / 10000^(2i/D) for i < D/2. The sines fill the first half and the cosines the second
    ([sin | cos] where the paper interleaves them: the same features in another order).
    """
    position = torch.arange(num_positions, dtype=torch.float64).unsqueeze(1)
    exponent = torch.arange(0, D, 2, dtype=torch.float64) / D
    angle = position / 10000.0**exponent
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()


class SinusoidalPositions(nn.Module):
    """Adds the sinusoid table; nothing is learned."""

    table: Tensor

    def __init__(self, max_positions: int, D: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoid(max_positions, D), persistent=False)

    def forward(self, x_BTD: Tensor, offset: int = 0) -> Tensor:
        """Adds positions offset .. offset + T - 1."""
        return x_BTD + self.table[offset : offset + x_BTD.size(1)].to(x_BTD.dtype)


class LearnedPositions(nn.Module):
    """Adds one learned vector a position (Gehring et al. 2017)."""

    def __init__(self, max_positions: int, D: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_positions, D))
        init_embedding(self.weight)

    def forward(self, x_BTD: Tensor, offset: int = 0) -> Tensor:
        """Adds positions offset .. offset + T - 1."""
        return x_BTD + self.weight[offset : offset + x_BTD.size(1)].to(x_BTD.dtype)


class RotaryPositions(nn.Module):
    """Turns queries and keys, so that their product depends on the distance alone (Su et al. 2021, equation 34).

    Dimension i of a head is paired with i + K/2; the pair is turned by pos / 10000^(2i/K).
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, max_positions: int, K: int) -> None:
        super().__init__()
        sin, cos = sinusoid(max_positions, K).chunk(2, dim=1)
        self.register_buffer("cos", cos.contiguous(), persistent=False)
        self.register_buffer("sin", sin.contiguous(), persistent=False)

    def forward(self, x_BHTK: Tensor, offset: int = 0) -> Tensor:
        """Turns positions offset .. offset + T - 1."""
        return self._turn(x_BHTK, slice(offset, offset + x_BHTK.size(2)))

    def at(self, x_BHRK: Tensor, position: int) -> Tensor:
        """Turns all rows as those of one position."""
        assert position < self.cos.size(0), "beyond max_positions"
        return self._turn(x_BHRK, slice(position, position + 1))

    def _turn(self, x_BHTK: Tensor, here: slice) -> Tensor:
        cos, sin = self.cos[here].to(x_BHTK.dtype), self.sin[here].to(x_BHTK.dtype)
        a, b = x_BHTK.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

"""y = x W^T + b in the precision of x.

Mixed precision (Micikevicius et al. 2018) without autocast: weights stay float32 for the optimizer, and the few
kilobytes that a product needs are rounded to the dtype of the activations where they are used. Gradients come back
as float32. This keeps the whole stream of activations in one narrow dtype, where autocast goes back and forth.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from mtformer.model.initialisation import init_projections


class Linear(nn.Module):
    """A projection, or several with the same input fused into one matrix (their widths in `out_widths`)."""

    def __init__(self, in_width: int, *out_widths: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.Linear(in_width, sum(out_widths), bias=False).weight.detach())
        self.bias = nn.Parameter(self.weight.detach().new_zeros(sum(out_widths)))
        init_projections(self.weight, list(out_widths))

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """(..., in) -> (..., stop - start): all projections, or rows start:stop of the fused matrix."""
        return F.linear(x, self.weight[start:stop].to(x.dtype), self.bias[start:stop].to(x.dtype))

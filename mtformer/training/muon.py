"""Muon, an optimizer for the matrices of linear layers."""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOMENTUM = 0.95
"""Share of the momentum that remains after each step."""
ITERATIONS = 5
"""Number of iterations of `orthogonalize`."""
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x^3 and x^5 in each iteration, which takes singular values between 0 and 1 towards 1."""
UPDATE_RMS = 0.2
"""Root mean square of the elements of an update at a learning rate of 1, about that of Adam's updates."""


class _Projection(NamedTuple):
    """Rows start:stop of a weight matrix, which are a projection of their own."""

    weight: Tensor
    start: int
    stop: int

    def of(self, x: Tensor) -> Tensor:
        """Return these rows of a tensor shaped like the weight, as a matrix that is not taller than wide."""
        rows = x[self.start : self.stop]
        is_tall = rows.size(0) > rows.size(1)
        return rows.mT if is_tall else rows


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) for matrices, AdamW for the rest.

    For the gradient G of a projection matrix W of width n and height m:

        M <- momentum M + G
        W <- (1 - lr weight_decay) W - lr 0.2 sqrt(max(n, m)) orthogonalize(G + momentum M)

    The factor, from Liu et al. (2025, arXiv 2502.16982), lets matrices have the learning rate of AdamW. Projections
    that are fused in one matrix are updated separately, and matrices of the same shape are multiplied in one batch. As
    in fused AdamW, a step with `found_inf` changes nothing, and the host does not wait for the device.

    Args:
        matrices: weights of linear layers with the heights of their projections.
        other_parameters: all parameters but the matrices, for AdamW without weight decay.
        dtype: dtype of the products in `orthogonalize`.
        weight_decay: weight decay of the matrices.
        adam: learning rate and further arguments of AdamW.
    """

    found_inf: Tensor | None = None
    """1 if the step is to be skipped; set before each step, as `GradScaler` does."""

    def __init__(
        self,
        matrices: Collection[tuple[Tensor, tuple[int, ...]]],
        other_parameters: Iterable[Tensor],
        dtype: torch.dtype,
        weight_decay: float,
        **adam: Any,
    ) -> None:
        self.dtype = dtype
        self.batches: dict[tuple[int, int], list[_Projection]] = {}
        """Projections by height and width, after transposition."""
        for weight, heights in matrices:
            start = 0
            for num_rows in heights:
                projection = _Projection(weight, start, start + num_rows)
                height, width = projection.of(weight).shape
                self.batches.setdefault((height, width), []).append(projection)
                start += num_rows

        weights = [weight for weight, _ in matrices]
        matrix_group = {"params": weights, "weight_decay": weight_decay}
        other_group = {"params": list(other_parameters), "weight_decay": 0.0}
        super().__init__([matrix_group, other_group], fused=True, **adam)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closures
        """Update all parameters; afterwards, the matrices have no gradients."""
        group = self.param_groups[0]
        for weight in group["params"]:
            if not self.state[weight]:  # AdamW requires a step number in loaded states
                self.state[weight] = {"step": torch.zeros(()), "momentum": torch.zeros_like(weight)}

        for projections in self.batches.values():
            self._update(projections, group["lr"], group["weight_decay"])
        # Without gradients, AdamW ignores the matrices.
        for weight in group["params"]:
            weight.grad = None
        super().step()

    def _update(self, projections: list[_Projection], lr: float, weight_decay: float) -> None:
        """Update projections of the same shape, and their momenta."""
        gradients = []
        momenta = []
        weights = []
        for projection in projections:
            gradient = projection.weight.grad
            assert gradient is not None, "all matrices are used"
            gradients.append(projection.of(gradient))
            momentum = self.state[projection.weight]["momentum"]
            momenta.append(projection.of(momentum))
            weights.append(projection.of(projection.weight.detach()))

        G = torch.stack(gradients)  # (number of projections, height, width)
        old_M = torch.stack(momenta)
        found_inf = torch.zeros((), device=G.device) if self.found_inf is None else self.found_inf
        is_skipped = found_inf > 0
        M = torch.where(is_skipped, old_M, G.add(old_M, alpha=MOMENTUM))
        torch._foreach_copy_(momenta, list(M.unbind()))

        directions = orthogonalize(G.add_(M, alpha=MOMENTUM), self.dtype)
        updates = torch.where(is_skipped, 0.0, directions)
        if weight_decay:
            factor = torch.where(is_skipped, 1.0, 1 - lr * weight_decay)
            torch._foreach_mul_(weights, factor)
        width = G.size(2)  # the larger side
        scale = lr * UPDATE_RMS * width**0.5
        torch._foreach_add_(weights, list(updates.unbind()), alpha=-scale)


def orthogonalize(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Return matrices with the same singular vectors and singular values near 1 (0.7 to 1.2), in float32.

    Args:
        matrices: (number of matrices, height, width), with height <= width.
        dtype: dtype of the products.
    """
    first, third, fifth = POLYNOMIAL
    norms = matrices.norm(dim=(1, 2), keepdim=True)  # at least the largest singular value
    x = (matrices / (norms + 1e-7)).to(dtype)
    for _ in range(ITERATIONS):
        squares = x @ x.mT
        factors = torch.baddbmm(squares, squares, squares, beta=third, alpha=fifth)
        x = torch.baddbmm(x, factors, x, beta=first)
    return x.float()

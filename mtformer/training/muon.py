"""Muon, an optimizer for the matrices of linear layers."""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

MOMENTUM = 0.95
ITERATIONS = 5
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
        return rows if rows.size(0) <= rows.size(1) else rows.mT


class Muon(torch.optim.AdamW):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) for matrices, AdamW for the rest.

    For the gradient G of a projection matrix W of width n and height m:

        M <- momentum M + G
        W <- (1 - lr weight_decay) W - lr 0.2 sqrt(max(n, m)) orthogonalize(G + momentum M)

    The factor, from Liu et al. (2025, arXiv 2502.16982), lets matrices have the learning rate of AdamW. Projections
    that are fused in one matrix are updated separately, and matrices of the same shape are multiplied in one batch. As
    in fused AdamW, a step with `found_inf` changes nothing, and the host does not wait for the device.

    `matrices` are weights of linear layers with the heights of their projections; only they get the weight decay.
    `dtype` is that of the products in `orthogonalize`.
    """

    found_inf: Tensor | None = None
    """1 if the step is to be skipped; set before each step, as `GradScaler` does."""

    def __init__(
        self,
        matrices: Collection[tuple[Tensor, tuple[int, ...]]],
        others: Iterable[Tensor],
        dtype: torch.dtype,
        weight_decay: float,
        **adam: Any,
    ) -> None:
        self.dtype = dtype
        self.batches: dict[tuple[int, int], list[_Projection]] = {}
        """Projections by height and width, after transposition."""
        for weight, heights in matrices:
            stop = 0
            for height in heights:
                projection = _Projection(weight, stop, stop := stop + height)
                height, width = projection.of(weight).shape
                self.batches.setdefault((height, width), []).append(projection)
        first = {"params": [weight for weight, _ in matrices], "weight_decay": weight_decay}
        super().__init__([first, {"params": list(others), "weight_decay": 0.0}], fused=True, **adam)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closures
        """Update all parameters; afterwards, the matrices have no gradients."""
        group = self.param_groups[0]
        for weight in group["params"]:
            if not self.state[weight]:  # AdamW requires a step number in loaded states
                self.state[weight] = {"step": torch.zeros(()), "momentum": torch.zeros_like(weight)}
        for projections in self.batches.values():
            self._update(projections, group["lr"], group["weight_decay"])
        for weight in group["params"]:
            weight.grad = None
        super().step()

    def _update(self, projections: list[_Projection], lr: float, weight_decay: float) -> None:
        grads = torch.stack([one.of(one.weight.grad) for one in projections])  # type: ignore[arg-type]  # all are used
        is_skipped = (torch.zeros((), device=grads.device) if self.found_inf is None else self.found_inf) > 0
        momenta = [one.of(self.state[one.weight]["momentum"]) for one in projections]
        old = torch.stack(momenta)
        new = torch.where(is_skipped, old, grads.add(old, alpha=MOMENTUM))
        torch._foreach_copy_(momenta, list(new.unbind()))
        updates = torch.where(is_skipped, 0.0, orthogonalize(grads.add_(new, alpha=MOMENTUM), self.dtype))
        weights = [one.of(one.weight.detach()) for one in projections]
        if weight_decay:
            torch._foreach_mul_(weights, torch.where(is_skipped, 1.0, 1 - lr * weight_decay))
        torch._foreach_add_(weights, list(updates.unbind()), alpha=-lr * UPDATE_RMS * grads.size(2) ** 0.5)


def orthogonalize(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Return matrices with the same singular vectors and singular values near 1 (0.7 to 1.2), in float32.

    The shape is (number of matrices, height, width), with height <= width; `dtype` is that of the products.
    """
    first, third, fifth = POLYNOMIAL
    x = (matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(ITERATIONS):
        squares = x @ x.mT
        factors = torch.baddbmm(squares, squares, squares, beta=third, alpha=fifth)
        x = torch.baddbmm(x, factors, x, beta=first)
    return x.float()

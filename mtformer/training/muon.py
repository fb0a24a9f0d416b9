"""Muon, an optimizer for the matrices of linear layers.

Each process of a run orthogonalizes a share of the matrices; then all processes exchange the results and apply all of
them. Weights and momenta are the same on all processes, so a checkpoint does not depend on their number.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mtformer.training.ranks import ALONE, Ranks

MOMENTUM = 0.95
"""Share of the momentum that remains after each step."""
ITERATIONS = 5
"""Number of iterations of `orthogonalize`."""
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x^3 and x^5 in each iteration, which takes singular values between 0 and 1 towards 1."""
UPDATE_RMS = 0.2
"""Root mean square of the elements of an update at a learning rate of 1, about that of Adam's updates."""


class Size(NamedTuple):
    """Height and width of a matrix that is not taller than wide."""

    height: int
    width: int

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return self.height * self.width

    @property
    def cost(self) -> int:
        """Number of multiplications in an iteration of `orthogonalize`."""
        return self.height * self.height * (2 * self.width + self.height)


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


@dataclass(frozen=True)
class _Batch:
    """All projections of the same size, after transposition, and the processes that orthogonalize them."""

    size: Size
    projections: Sequence[_Projection]
    owners: Sequence[int]
    """Rank of the process of each projection."""

    def num_elements_of(self, rank: int) -> int:
        """Return the number of elements of the matrices that a process orthogonalizes."""
        return self.owners.count(rank) * self.size.num_elements


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
        ranks: processes with the same weights and gradients, which share the products.
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
        ranks: Ranks = ALONE,
        **adam: Any,
    ) -> None:
        self.dtype = dtype
        self.ranks = ranks
        projections: dict[Size, list[_Projection]] = {}
        for weight, heights in matrices:
            start = 0
            for num_rows in heights:
                projection = _Projection(weight, start, start + num_rows)
                size = Size(*projection.of(weight).shape)
                projections.setdefault(size, []).append(projection)
                start += num_rows

        counts = {size: len(of_size) for size, of_size in projections.items()}
        owners = share_out(counts, ranks.size)
        self.batches = [_Batch(size, of_size, owners[size]) for size, of_size in projections.items()]

        weights = [weight for weight, _ in matrices]
        matrix_group = {"params": weights, "weight_decay": weight_decay}
        other_group = {"params": list(other_parameters), "weight_decay": 0.0}
        super().__init__([matrix_group, other_group], fused=True, **adam)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closures
        """Update all parameters; afterwards, the matrices have no gradients."""
        weights = self.param_groups[0]["params"]
        for weight in weights:
            if not self.state[weight]:  # AdamW requires a step number in loaded states
                self.state[weight] = {"step": torch.zeros(()), "momentum": torch.zeros_like(weight)}

        if self.ranks.size == 1:
            for batch in self.batches:
                directions = orthogonalize(self._accumulate(batch), self.dtype)
                self._apply(batch, directions)
        else:
            own_directions = [self._own_directions(batch) for batch in self.batches]
            self._apply_all(self._exchange(own_directions))

        # Without gradients, AdamW ignores the matrices.
        for weight in weights:
            weight.grad = None
        super().step()

    def _own_directions(self, batch: _Batch) -> Tensor:
        """Add the gradients to the momenta, and return the elements of the directions of this process, in a row."""
        matrices = self._accumulate(batch).unbind()
        own = [matrix for matrix, owner in zip(matrices, batch.owners, strict=True) if owner == self.ranks.rank]
        if not own:
            return matrices[0].new_empty(0, dtype=self.dtype)
        directions = orthogonalize(torch.stack(own), self.dtype)
        return directions.to(self.dtype).flatten()

    def _exchange(self, own_directions: Sequence[Tensor]) -> Tensor:
        """Return the directions of all processes, padded to rows of equal length, by rank."""
        own_row = torch.cat(list(own_directions))
        row_lengths = []
        for rank in range(self.ranks.size):
            row_lengths.append(sum(batch.num_elements_of(rank) for batch in self.batches))
        num_missing = max(row_lengths) - len(own_row)
        return self.ranks.gather_rows(F.pad(own_row, (0, num_missing)))

    def _apply_all(self, rows: Tensor) -> None:
        """Update all matrices by the rows of directions that `_exchange` returned."""
        ends = [0] * self.ranks.size
        for batch in self.batches:
            directions = []
            for owner in batch.owners:
                start = ends[owner]
                ends[owner] += batch.size.num_elements
                elements = rows[owner, start : ends[owner]]
                directions.append(elements.view(batch.size))
            self._apply(batch, torch.stack(directions).float())

    def _is_skipped(self, device: torch.device) -> Tensor:
        """Return whether the step is to be skipped, on the device."""
        found_inf = torch.zeros((), device=device) if self.found_inf is None else self.found_inf
        return found_inf > 0

    def _accumulate(self, batch: _Batch) -> Tensor:
        """Add the gradients G to the momenta M, and return G + momentum M: (number of projections, height, width)."""
        gradients = []
        momenta = []
        for projection in batch.projections:
            gradient = projection.weight.grad
            assert gradient is not None, "all matrices are used"
            gradients.append(projection.of(gradient))
            momentum = self.state[projection.weight]["momentum"]
            momenta.append(projection.of(momentum))

        G = torch.stack(gradients)
        old_M = torch.stack(momenta)
        M = torch.where(self._is_skipped(G.device), old_M, G.add(old_M, alpha=MOMENTUM))
        torch._foreach_copy_(momenta, list(M.unbind()))
        return G.add_(M, alpha=MOMENTUM)

    def _apply(self, batch: _Batch, directions: Tensor) -> None:
        """Update projections of the same size in their directions."""
        group = self.param_groups[0]
        lr = group["lr"]
        weight_decay = group["weight_decay"]
        weights = [projection.of(projection.weight.detach()) for projection in batch.projections]

        is_skipped = self._is_skipped(directions.device)
        updates = torch.where(is_skipped, 0.0, directions)
        if weight_decay:
            factor = torch.where(is_skipped, 1.0, 1 - lr * weight_decay)
            torch._foreach_mul_(weights, factor)
        scale = lr * UPDATE_RMS * batch.size.width**0.5  # the larger side
        torch._foreach_add_(weights, list(updates.unbind()), alpha=-scale)


def share_out(counts: Mapping[Size, int], num_processes: int) -> dict[Size, list[int]]:
    """Return the rank of the process that orthogonalizes each matrix, so that all processes have about the same work.

    Matrices are assigned by decreasing cost, each to the process with the least work so far (Graham 1969), so no
    process has more than the mean and one matrix.

    Args:
        counts: number of matrices of each size.
        num_processes: number of processes.
    """
    work = [0] * num_processes
    owners: dict[Size, list[int]] = {}
    for size in sorted(counts, key=lambda size: size.cost, reverse=True):
        owners[size] = []
        for _ in range(counts[size]):
            rank = work.index(min(work))
            work[rank] += size.cost
            owners[size].append(rank)
    return owners


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

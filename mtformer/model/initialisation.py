"""How weights begin.

Matrices: Xavier uniform (Glorot and Bengio 2010), each projection by its own fan-in and fan-out also where several
lie fused in one matrix, so that fusing changes nothing. Biases: zero. Embeddings: normal with deviation D^-0.5;
scaled by sqrt(D) on the way in they have unit variance, as the sinusoid nearly has, and the tied output projection
of a normalised state starts with logits of unit variance: an almost uniform distribution.
"""

import torch
from torch import Tensor, nn


def init_embedding(weight_VD: Tensor) -> None:
    """Normal, deviation D^-0.5."""
    nn.init.normal_(weight_VD, std=weight_VD.size(1) ** -0.5)


@torch.no_grad()
def init_projections(weight: Tensor, out_widths: list[int]) -> None:
    """Xavier uniform on each block of rows of a fused projection (out_widths sum to the rows)."""
    for block in weight.split(out_widths):
        nn.init.xavier_uniform_(block)

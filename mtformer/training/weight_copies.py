"""Copies of the weights of a model in the dtype of its activations.

Weights are float32, and are cast where they are used (see `model.ops`). On a GPU, each cast launches a kernel. In
training, that would be one per matrix, bias and micro-batch; `WeightCopies` are cast for the whole model in one launch
per step. In validation, it would be one per matrix, bias and norm at each decoding step; `search_model` casts them once
per validation.
"""

import torch
from torch import Tensor, nn

from mtformer.model.ops import NORMS, Linear
from mtformer.model.positions import RotaryPositions
from mtformer.model.transformer import Transformer
from mtformer.training.ranks import unshard

CAST_AT_USE = (Linear, RotaryPositions, *NORMS.values())
"""Modules that cast their weights or tables to the dtype of the activations at each use."""


class WeightCopies:
    """Copies of all weights and biases of the `Linear` modules of a model, which use them in training mode.

    Args:
        model: model with float32 weights on its device.
        dtype: dtype of its activations.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.parameters: list[Tensor] = []
        self.copies: list[Tensor] = []
        for module in model.modules():
            if isinstance(module, Linear):
                weight_copy = self._copy(module.weight, dtype)
                bias_copy = self._copy(module.bias, dtype)
                module.use_copies(weight_copy, bias_copy)

    def _copy(self, parameter: Tensor, dtype: torch.dtype) -> Tensor:
        copy = parameter.detach().to(dtype)
        self.parameters.append(parameter.detach())
        self.copies.append(copy)
        return copy

    def refresh(self) -> None:
        """Copy the current weights; call this after they have changed."""
        torch._foreach_copy_(self.copies, self.parameters)


@torch.no_grad()
def search_model(model: Transformer, dtype: torch.dtype) -> Transformer:
    """Return a model for search with the current weights of a model in training, unsharded; all processes call this.

    Layers and the output projection have weights of this dtype. Embeddings and positions, which are used in float32,
    are shared with the model in training unless they are sharded.
    """
    src_vocab = len(model.src_embedding)
    tgt_vocab = len(model.output)
    with torch.device("meta"):  # needs neither memory nor random numbers
        copy = Transformer(model.config, src_vocab, tgt_vocab, compute_dtype=dtype)

    weights = {parameter: unshard(parameter.detach()) for parameter in model.parameters()}
    for module, module_copy in zip(model.modules(), copy.modules(), strict=True):
        is_cast = isinstance(module, CAST_AT_USE)
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            weight = weights[parameter]
            weight_copy = nn.Parameter(weight.to(dtype) if is_cast else weight, requires_grad=False)
            setattr(module_copy, name, weight_copy)
        for name, table in module.named_buffers(recurse=False):
            setattr(module_copy, name, table.to(dtype) if is_cast else table)

    # The embeddings may be the same parameter.
    copy.output = nn.Parameter(copy.output.to(dtype), requires_grad=False)
    if copy.output_bias is not None:
        copy.output_bias = nn.Parameter(copy.output_bias.to(dtype), requires_grad=False)
    return copy

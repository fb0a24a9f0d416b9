"""Copies of the weights of linear layers in the dtype of the activations, for training on a GPU.

Weights are float32, and are cast where they are used (see `model.ops`). On a GPU, each cast launches a kernel, and a
step has one per matrix, bias and micro-batch. Copies are cast for the whole model in one launch per step.
"""

import torch
from torch import Tensor, nn

from mtformer.model.ops import Linear


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

"""The model together with its loss: the one module that is compiled, replicated or sharded.

PyTorch's data-parallel wrappers act around a module's `forward`, so every use of a weight, the output projection's
within the loss too, has to lie inside of it.
"""

import torch
from torch import Tensor, nn

from mtformer.model.transformer import Transformer
from mtformer.training.loss import linear_cross_entropy


class Objective(nn.Module):
    """Label-smoothed cross-entropy of a model's predictions.

    Args:
        model: the Transformer.
        label_smoothing: share of the target probability given to all other pieces.
        compile: run the model through `torch.compile`.
    """

    def __init__(self, model: Transformer, label_smoothing: float, compile: bool) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.states = torch.compile(model, dynamic=True) if compile else model

    def forward(
        self, src_BS: Tensor, src_lengths_B: Tensor, tgt_in_BT: Tensor, tgt_out_BT: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sums over the target tokens: smoothed loss, and plain negative log-likelihood without gradient; in nats."""
        hidden_BTD = self.states(src_BS, src_lengths_B, tgt_in_BT)
        return linear_cross_entropy(
            hidden_BTD.flatten(0, 1),
            self.model.output,
            tgt_out_BT.flatten(),
            self.label_smoothing,
            self.model.output_bias,
        )

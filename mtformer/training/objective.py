"""The training objective: model, loss and consistency regularization in one module.

Consistency regularization adds the divergence between two passes over the same batch. Let p and q be the distributions
of a token in the first and the second pass.

- R-Drop (Liang et al. 2021, arXiv 2106.14448): the mean of the losses of both passes + weight x the mean of KL(p || q)
  and KL(q || p). The paper adds the losses of both passes, so its alpha is twice the weight.
- SimCut (Gao et al. 2022, arXiv 2206.02368): the loss of the first pass + weight x KL(p || q). In the second pass,
  random embeddings are zero. The gradient flows through both passes, which the paper found to be essential.

B batch, S source length, T target length, D width, N tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental import _config as shapes

from mtformer.config.schema import TrainingConfig
from mtformer.model.transformer import Transformer
from mtformer.text.tokenizer import EOS
from mtformer.training.loss import linear_cross_entropy


class Objective(nn.Module):
    """Model and loss in one module, which is replicated or sharded in distributed training.

    PyTorch's data-parallel wrappers hook into `forward`, so each use of a weight, including the output projection in
    the loss, must be inside it.

    Args:
        model: the Transformer.
        config: the `training` section.
    """

    def __init__(self, model: Transformer, config: TrainingConfig) -> None:
        super().__init__()
        self.model = model
        self.config = config
        self._compiled: nn.Module | None = None

    @property
    def is_compiled(self) -> bool:
        """True after `compile_model` was called."""
        return self._compiled is not None

    def compile_model(self) -> None:
        """Compile the model in the next training step; in validation, it is not used, because that compiles again."""
        # Otherwise sizes that are equal in the first batch must be equal in all, or the model is compiled again.
        shapes.use_duck_shape = False
        compiled: Any = torch.compile(self.model, dynamic=True)  # a module, typed as a function
        self._compiled = compiled

    def discard_compiled_model(self) -> None:
        """Train without the compiled model from now on."""
        self._compiled = None

    def forward(
        self,
        src_BS: Tensor,
        src_lengths_B: Tensor,
        tgt_in_BT: Tensor,
        tgt_out_BT: Tensor,
        has_consistency: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return objective, label-smoothed loss and negative log-likelihood in nats, summed over target tokens.

        Only the objective has a gradient. With consistency regularization, it includes the divergence, and the others
        are those of the first pass (SimCut) or the mean of both passes (R-Drop).

        Args:
            src_BS: source ids, which end with eos and are padded on the right.
            src_lengths_B: number of source tokens, including eos.
            tgt_in_BT: target ids after bos, as input of the decoder.
            tgt_out_BT: target ids before eos, as its output; pad is not counted.
            has_consistency: False in the steps before `consistency_start`.
        """
        config = self.config
        can_regularize = self.training and has_consistency
        is_rdrop = can_regularize and config.consistency == "rdrop"
        is_simcut = can_regularize and config.consistency == "simcut" and config.consistency_weight > 0
        if not is_rdrop and not is_simcut:
            hidden_BTD = self._hidden_states(src_BS, src_lengths_B, tgt_in_BT, cutoff=0.0)
            return self._loss(hidden_BTD.flatten(0, 1), tgt_out_BT.flatten(), kl_weights=None)

        # The passes are the two halves of one batch.
        src_BS = torch.cat([src_BS, src_BS])
        src_lengths_B = torch.cat([src_lengths_B, src_lengths_B])
        tgt_in_BT = torch.cat([tgt_in_BT, tgt_in_BT])
        cutoff = config.cutoff if is_simcut else 0.0
        hidden_BTD = self._hidden_states(src_BS, src_lengths_B, tgt_in_BT, cutoff)
        hidden_2BTD = hidden_BTD.unflatten(0, (2, -1))
        hidden_ND = hidden_2BTD.permute(1, 2, 0, 3).flatten(0, 2)  # both passes over a token in adjacent rows

        second_tgt_BT = tgt_out_BT if is_rdrop else torch.zeros_like(tgt_out_BT)  # only pad: no loss of its own
        target_N = torch.stack([tgt_out_BT, second_tgt_BT], dim=2).flatten()
        if is_simcut:
            return self._loss(hidden_ND, target_N, kl_weights=(config.consistency_weight, 0.0))

        weights = (config.consistency_weight, config.consistency_weight)
        objective, loss, nll = self._loss(hidden_ND, target_N, kl_weights=weights)
        return objective / 2, loss / 2, nll / 2

    def _hidden_states(self, src_BS: Tensor, src_lengths_B: Tensor, tgt_in_BT: Tensor, cutoff: float) -> Tensor:
        """Return the hidden states (B, T, D); in training, from the compiled model and with masked tokens."""
        if not self.training:
            return self.model(src_BS, src_lengths_B, tgt_in_BT)

        model = self.model if self._compiled is None else self._compiled
        masks = self._token_masks(src_BS, tgt_in_BT, cutoff)
        return model(src_BS, src_lengths_B, tgt_in_BT, *masks)

    def _loss(
        self, hidden_ND: Tensor, target_N: Tensor, kl_weights: tuple[float, float] | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        smoothing = self.config.label_smoothing
        return linear_cross_entropy(
            hidden_ND, self.model.output, target_N, smoothing, self.model.output_bias, kl_weights
        )

    def _token_masks(self, src_BS: Tensor, tgt_in_BT: Tensor, cutoff: float) -> tuple[Tensor, ...]:
        """Return masks of the tokens that keep their embeddings; no masks if all do.

        As in SimCut's code, eos in the source and the first target token are kept.
        """
        token_dropout = self.config.token_dropout
        if token_dropout == cutoff == 0.0:
            return ()
        src_mask_BS = _draw_mask(src_BS, token_dropout, cutoff)
        tgt_mask_BT = _draw_mask(tgt_in_BT, token_dropout, cutoff)
        tgt_mask_BT[:, 0] = True
        return src_mask_BS | (src_BS == EOS), tgt_mask_BT


def _draw_mask(ids_BT: Tensor, p: float, cutoff: float) -> Tensor:
    """Return a mask that is False with probability p, and in the second half of the batch also with that of cutoff."""
    B = ids_BT.size(0)
    p_B1 = torch.full((B, 1), p, device=ids_BT.device)
    p_B1[B // 2 :] += (1 - p) * cutoff
    return torch.rand(ids_BT.shape, device=ids_BT.device) >= p_B1

"""One optimizer step: micro-batches in, weights moved, sums out."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from mtformer.config.schema import TrainingConfig
from mtformer.data.batches import Batch
from mtformer.model.hardware import DTYPES
from mtformer.model.transformer import Transformer
from mtformer.training.loss import linear_cross_entropy
from mtformer.training.optimizer import learning_rate, make_optimizer


class StepResult(NamedTuple):
    """Sums over the step's target tokens, still on the device."""

    loss: torch.Tensor
    """Smoothed, nats."""
    nll: torch.Tensor
    """Plain negative log-likelihood, nats."""
    grad_norm: torch.Tensor
    """Before clipping."""
    is_finite: bool
    """False: the gradient was not finite and the weights did not move."""
    learning_rate: float


class TrainingStep:
    """The model, its optimizer and, for fp16, the gradient scaler.

    Args:
        model: on its device, weights in float32.
        config: the `training` section.
        precision: `fp32`, `bf16` or `fp16`, already picked.
    """

    def __init__(self, model: Transformer, config: TrainingConfig, precision: str) -> None:
        self.model = model
        self.config = config
        self.precision = precision
        self.device = model.output.device
        model.compute_dtype = DTYPES[precision]
        if self.device.type == "cuda":
            # With explicit masks cuDNN's attention has given NaN gradients at some lengths (pytorch#196678).
            torch.backends.cuda.enable_cudnn_sdp(False)
        self.forward = torch.compile(model, dynamic=True) if config.compile else model
        self.optimizer = make_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")

    def run(self, batches: Sequence[Batch], step: int) -> StepResult:
        """Step number `step` (the first is 1): the mean over all target tokens of all micro-batches is minimised."""
        rate = learning_rate(step, self.config, self.model.config.d_model)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        num_tokens = sum(batch.num_tgt_tokens for batch in batches)
        loss, nll = (torch.zeros((), device=self.device) for _ in range(2))
        for batch in batches:
            batch_loss, batch_nll = self.loss(batch)
            self.scaler.scale(batch_loss / num_tokens).backward()
            loss += batch_loss.detach()
            nll += batch_nll
        self.scaler.unscale_(self.optimizer)
        limit = self.config.clip_norm or float("inf")
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        is_finite = bool(torch.isfinite(grad_norm))
        if is_finite or self.scaler.is_enabled():  # the scaler skips by itself, and must see the overflow
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(loss, nll, grad_norm, is_finite, rate)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Smoothed loss and plain negative log-likelihood of a batch, summed over its target tokens."""
        batch = batch.to(self.device)
        hidden_BTD = self.forward(batch.src_BS, batch.src_lengths_B, batch.tgt_in_BT)
        target_N = batch.tgt_out_BT.flatten()
        return linear_cross_entropy(hidden_BTD.flatten(0, 1), self.model.output, target_N, self.config.label_smoothing)

"""One optimizer step: micro-batches in, weights moved, sums out.

Nothing here waits for the device: what the host wants to know stays in tensors until a log line asks for it.
"""

import contextlib
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mtformer.config.schema import TrainingConfig
from mtformer.data.batching.batches import Batch
from mtformer.errors import DeviceError
from mtformer.model.hardware import DTYPES, disable_cudnn_attention
from mtformer.model.transformer import Transformer
from mtformer.training.ema import Ema
from mtformer.training.objective import Objective
from mtformer.training.optimizer import learning_rate, make_optimizer
from mtformer.training.ranks import ALONE, Ranks, share_like, spread, synchronised, whole
from mtformer.weights import load_weights

MAX_SKIPPED_IN_A_ROW = 20


class StepResult(NamedTuple):
    """Sums over this process's target tokens of the step, on the device."""

    loss: Tensor
    """Smoothed, nats."""
    nll: Tensor
    """Plain negative log-likelihood, nats."""
    grad_norm: Tensor
    """Before clipping."""
    is_finite: Tensor
    """False: the gradient was not finite and the weights did not move."""
    learning_rate: float
    num_splits: int
    """Micro-batches cut in two because memory ran out."""


class TrainingStep:
    """The model, its optimizer and, for fp16, the gradient scaler.

    Args:
        model: on its device, weights in float32.
        config: the `training` section.
        precision: `fp32`, `bf16` or `fp16`, already picked.
        ranks: the processes that share the training.
    """

    def __init__(self, model: Transformer, config: TrainingConfig, precision: str, ranks: Ranks = ALONE) -> None:
        self.model = model
        self.config = config
        self.precision = precision
        self.ranks = ranks
        self.device = model.output.device
        model.compute_dtype = DTYPES[precision]
        disable_cudnn_attention(self.device)
        objective = Objective(model, config.label_smoothing, config.compile)
        self.objective = spread(objective, [*model.encoder, *model.decoder], ranks, config.sharded)
        self.optimizer = make_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.ema = Ema(model, config.ema_decay) if config.ema_decay else None
        self.skipped_in_a_row = torch.zeros((), dtype=torch.int64, device=self.device)
        """Steps in a row without a finite gradient; once it is `MAX_SKIPPED_IN_A_ROW` it only grows."""
        self.max_cells: int | None = None
        """Cells (pairs x longest side) of a micro-batch that memory allows; None: no limit was met yet."""

    def run(self, batches: Sequence[Batch], step: int) -> StepResult:
        """Step number `step` (the first is 1): the mean over all target tokens of all micro-batches is minimised.

        Raises:
            DeviceError: when a single pair does not fit the memory.
        """
        rate = learning_rate(step, self.config, self.model.config.d_model)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.model.train()
        num_tokens = self.ranks.sum([sum(batch.num_tgt_tokens for batch in batches)])[0]
        # PyTorch's data parallelism takes the mean over the processes, and the sum is wanted.
        (loss, nll), num_splits = self._sums(batches, self.ranks.size / num_tokens)
        self.scaler.unscale_(self.optimizer)
        limit = self.config.clip_norm or float("inf")
        grad_norm = whole(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        is_finite = grad_norm.isfinite()
        if self.scaler.is_enabled():  # it skips by itself, and lowers its scale
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self._move(~is_finite)
        if self.ema is not None:
            self.ema.update(step)
        self.optimizer.zero_grad(set_to_none=True)
        may_recover = is_finite & (self.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW)
        self.skipped_in_a_row = torch.where(may_recover, 0, self.skipped_in_a_row + 1)
        return StepResult(loss, nll, grad_norm, is_finite, rate, num_splits)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Smoothed loss and plain negative log-likelihood of a batch, summed over its target tokens."""
        batch = batch.to(self.device)
        loss, nll = self.objective(batch.src_BS, batch.src_lengths_B, batch.tgt_in_BT, batch.tgt_out_BT)
        return loss, nll

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, float]:
        """`loss` without dropout and gradient, as numbers; cut in two when memory runs out."""
        self.model.eval()
        (loss, nll), _ = self._sums([batch], None, is_alone=True)
        return loss.item(), nll.item()

    def rehearse(self, batch: Batch) -> float:
        """Tries a micro-batch with all the memory that a step takes, and changes nothing; returns its seconds.

        It is cut in two as often as memory demands, and from then on so is every micro-batch that is as large.

        Raises:
            DeviceError: when a single pair does not fit the memory.
        """
        start = time.perf_counter()
        self.model.train()
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            self._sums([batch], 1.0, is_alone=True)
            # The moments take their memory, and the step is skipped.
            self._move(torch.ones((), dtype=torch.bool, device=self.device))
        self.optimizer.zero_grad(set_to_none=True)
        if devices:
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def smoothed(self) -> AbstractContextManager[None]:
        """Inside, the model has the weights that it is judged by and kept with: with `ema_decay` their averages."""
        return contextlib.nullcontext() if self.ema is None else self.ema.in_place()

    def whole_model(self) -> Transformer:
        """The model with all of its weights: itself, or when they are sharded a copy of it that has them."""
        if not self.config.sharded:
            return self.model
        with torch.device(self.device):
            copy = Transformer(self.model.config, len(self.model.src_embedding), len(self.model.output))
        copy.compute_dtype = self.model.compute_dtype
        with torch.no_grad():
            for (_, own), (_, sharded) in zip(copy.named_parameters(), self.model.named_parameters(), strict=True):
                own.copy_(whole(sharded))
        return copy

    def weights(self) -> dict[str, Tensor]:
        """Copies of all parameters by name, tied ones once, whole, on the host."""
        named = self.model.named_parameters()
        return {name: whole(parameter.detach()).to("cpu", copy=True).contiguous() for name, parameter in named}

    def load_weights(self, path: Path) -> None:
        """Takes up a file's weights, as averages too; raises CheckpointError when they do not fit the model."""
        load_weights(self.model, path, place=share_like)
        if self.ema is not None:
            self.ema.begin_anew()

    @torch.no_grad()
    def load_unsmoothed(self, weights: dict[str, Tensor]) -> None:
        """Takes up what `weights` gave outside of `smoothed`; the averages stay as they are."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(share_like(weights[name], parameter))

    def optimizer_state(self) -> dict[str, Any]:
        """What `optimizer.state_dict()` gives, with sharded moments put together."""
        state = self.optimizer.state_dict()
        moments = {number: {name: whole(x) for name, x in own.items()} for number, own in state["state"].items()}
        return {**state, "state": moments}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Takes up what `optimizer_state` gave, however many processes it was then."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        moments = {
            number: {name: share_like(x, parameters[number]) for name, x in own.items()}
            for number, own in state["state"].items()
        }
        self.optimizer.load_state_dict({**state, "state": moments})

    def _move(self, is_skipped: Tensor) -> None:
        """An optimizer step, or none; the fused kernels read that on the device, as they do for a gradient scaler."""
        self.optimizer.found_inf = is_skipped.float()  # type: ignore[attr-defined]  # as GradScaler does
        self.optimizer.step()

    def _sums(
        self, batches: Sequence[Batch], scale: float | None, is_alone: bool = False
    ) -> tuple[tuple[Tensor, Tensor], int]:
        """Sums (loss, nll), and how often memory asked for a split; puts the gradients of `scale` x loss in place.

        Args:
            scale: None: no gradients.
            is_alone: this process's gradients are not those of a step, and need not meet those of others.
        """
        num_splits = 0
        while True:
            pieces = [piece for batch in batches for piece in batch.split(self.max_cells)]
            # Sharded gradients that do not meet are kept where zero_grad does not reach them.
            meets_with = len(pieces) - 1 if self.config.sharded or not is_alone else None
            outcome = self._accumulate(pieces, scale, meets_with)
            if isinstance(outcome, Tensor):
                loss, nll = outcome
                return (loss, nll), num_splits
            self._make_room(outcome, may_retry=self.ranks.size == 1 or (is_alone and not self.config.sharded))
            num_splits += 1

    def _accumulate(self, pieces: Sequence[Batch], scale: float | None, meets_with: int | None) -> Tensor | Batch:
        """Sums (loss, nll); or the piece for which memory ran out. Gradients meet with the piece of that number."""
        sums = torch.zeros(2, device=self.device)
        for number, piece in enumerate(pieces):
            try:
                with synchronised(self.objective, number == meets_with):
                    loss, nll = self.loss(piece)
                    if scale is not None:
                        self.scaler.scale(loss * scale).backward()
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                return piece
            sums += torch.stack([loss.detach(), nll])
        return sums

    def _make_room(self, batch: Batch, may_retry: bool) -> None:
        """Forgets the step so far, and remembers to cut what is as large as this."""
        if not may_retry:
            size = batch.num_padded_tokens
            raise DeviceError(  # the others wait for this process's gradients of the attempt
                f"memory of {self.device} ran out on a micro-batch of {size} tokens, padding counted; "
                "lower training.batch_tokens, raise training.accumulation_steps, and go on from the last checkpoint"
            )
        if batch.num_pairs <= 1:
            raise DeviceError(
                f"a pair of {batch.src_BS.size(1)} and {batch.tgt_in_BT.size(1)} tokens does not fit the memory of "
                f"{self.device}; leave out such lines (data.filters.max_tokens for training), or take a smaller model"
            )
        self.max_cells = batch.num_padded_tokens // 2
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _is_out_of_memory(error: RuntimeError) -> bool:
    """CUDA has an error of its own for it; the allocator of the CPU only has words."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)

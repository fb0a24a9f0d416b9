"""One optimizer step over micro-batches.

Steps do not wait for the device: results stay there until a log line needs them.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.fx.experimental import _config as shapes

from mtformer.config.schema import CPU_BATCH_TOKENS, TrainingConfig
from mtformer.data.batching.batches import Batch
from mtformer.device import DTYPES, is_out_of_memory, peak_bytes, set_up_kernels
from mtformer.errors import DeviceError
from mtformer.model.ops import LinearCopies
from mtformer.model.transformer import Transformer
from mtformer.training.loss import Objective
from mtformer.training.optimizer import Ema, learning_rate, make_optimizer
from mtformer.training.ranks import ALONE, Ranks, gradient_sync, parallelize, shard_like, unshard
from mtformer.weights import load_weights

MAX_SKIPPED_IN_A_ROW = 20
CUDA_BATCH_TOKENS, MEMORY_SHARE = 32_768, 0.8
"""Maximum size of the micro-batches that `batch_tokens: auto` chooses on CUDA (larger ones are hardly faster), and
the share of the memory that they may fill; lengths differ between batches, and memory is fragmented."""


class StepResult(NamedTuple):
    """Results of a step, summed over the target tokens of this process, on the device."""

    loss: Tensor
    """Label-smoothed loss in nats, without the divergence of `training.consistency`."""
    nll: Tensor
    """Negative log-likelihood in nats."""
    grad_norm: Tensor
    """Gradient norm before clipping."""
    is_finite: Tensor
    """False if the gradient was not finite and the step was skipped."""
    learning_rate: float
    num_splits: int
    """Number of times that a micro-batch was halved to fit in memory."""


class TrainingStep:
    """Model (on its device, with float32 weights), optimizer and, for fp16, gradient scaler."""

    def __init__(self, model: Transformer, config: TrainingConfig, precision: str, ranks: Ranks = ALONE) -> None:
        self.model = model
        self.config = config
        self.precision = precision
        self.ranks = ranks
        self.device = model.output.device
        model.compute_dtype = dtype = DTYPES[precision]
        set_up_kernels(self.device)
        uses_copies = self.device.type != "cpu" and precision != "fp32" and not config.sharded
        self.copies = LinearCopies(model, dtype) if uses_copies else None
        self._local_objective = Objective(model, config)
        if config.compile == "always":
            self.compile()
        layers = [*model.encoder, *model.decoder]
        self.objective = parallelize(self._local_objective, layers, ranks, config.sharded, dtype)
        self.optimizer = make_optimizer(model, config)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")
        self.ema = Ema(model, config.ema_decay) if config.ema_decay else None
        self.skipped_in_a_row = torch.zeros((), dtype=torch.int64, device=self.device)
        """Number of consecutive steps with a non-finite gradient; not reset after reaching `MAX_SKIPPED_IN_A_ROW`."""
        self.max_padded_tokens: int | None = None
        """Maximum number of padded tokens (pairs x longest side) in a micro-batch; None: memory has not run out. With
        sharded weights, it is the same on all processes (`share_memory_limit`)."""

    @property
    def is_compiled(self) -> bool:
        """True after `compile` was called."""
        return self._local_objective.compiled is not None

    def compile(self, enabled: bool = True) -> None:
        """Use `torch.compile` from now on, or no longer; the model is compiled in the next steps."""
        # Otherwise sizes that are equal in the first batch must be equal in all, or the model is compiled again.
        shapes.use_duck_shape = False
        compiled: Any = torch.compile(self.model, dynamic=True) if enabled else None  # a module, typed as a function
        self._local_objective.compiled = compiled

    def run(self, batches: Sequence[Batch], step: int) -> StepResult:
        """Run optimizer step `step` (the first is 1) on the mean loss over the target tokens of all micro-batches.

        Raise DeviceError if a single pair does not fit in memory.
        """
        rate = learning_rate(step, self.config, self.model.config.d_model)
        self._set_learning_rate(rate)
        self.objective.train()
        self._local_objective.has_consistency = step > self.config.consistency_start
        if self.copies is not None:
            self.copies.refresh()
        num_tokens = self.ranks.sum([sum(batch.num_tgt_tokens for batch in batches)])[0]
        # PyTorch averages gradients over the processes; multiplying by their number gives the sum.
        (loss, nll), num_splits = self._sums(batches, self.ranks.size / num_tokens)
        self.scaler.unscale_(self.optimizer)
        grad_norm = unshard(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm or float("inf")))
        is_finite = grad_norm.isfinite()
        if self.scaler.is_enabled():  # skips the step itself and lowers the scale
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self._update(~is_finite)
        if self.ema is not None:
            self.ema.update(step)
        self.optimizer.zero_grad(set_to_none=True)
        may_recover = is_finite & (self.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW)
        self.skipped_in_a_row = torch.where(may_recover, 0, self.skipped_in_a_row + 1)
        return StepResult(loss, nll, grad_norm, is_finite, rate, num_splits)

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return objective, label-smoothed loss and negative log-likelihood of a batch, summed over target tokens."""
        batch = batch.to(self.device)
        return self.objective(batch.src_BS, batch.src_lengths_B, batch.tgt_in_BT, batch.tgt_out_BT)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, float]:
        """Return `loss` as numbers, without dropout and without gradients; halve the batch if memory runs out."""
        self.objective.eval()
        (loss, nll), _ = self._sums([batch], None, is_alone=True)
        if isinstance(self.objective, FSDPModule):  # otherwise its own weights stay gathered, whatever `ema` changes
            self.objective.reshard()
        return loss.item(), nll.item()

    def try_batch(self, batch: Batch) -> float:
        """Run a micro-batch with the memory usage of a real step, without changing weights; return the seconds taken.

        If memory runs out, it and later ones of its size are halved. Raise DeviceError if a single pair does not fit.
        """
        start = time.perf_counter()
        self._try(batch, is_alone=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def order_gradients(self, batch: Batch) -> None:
        """Let DDP choose the order of the gradients in its buffers, which it does after the first pass.

        Sums over more than two processes depend on this order, so it must not change after the first step: a resumed
        run would differ from an uninterrupted one. All processes must call this together.
        """
        if self.ranks.size > 1:
            self._try(batch, is_alone=False)

    def _try(self, batch: Batch, is_alone: bool) -> None:
        """Run a micro-batch without changing weights or the state of the random number generators."""
        self.objective.train()
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            self._sums([batch], 1.0, is_alone)
            # Even a skipped step allocates the optimizer moments.
            self._update(torch.ones((), dtype=torch.bool, device=self.device))
        self.optimizer.zero_grad(set_to_none=True)

    def max_batch_tokens(self, batch: Batch) -> int:
        """Return the size of the largest micro-batch, in padded tokens, that suits the device.

        On CUDA, the memory per token is measured with `batch` and a half of it. All processes must call this together.
        """
        if self.device.type == "cpu":
            return CPU_BATCH_TOKENS
        pieces = [batch.split(batch.num_padded_tokens // 2)[0], batch]
        self.try_batch(pieces[0])  # allocates the optimizer's moments, which belong to both peaks
        peaks = []
        for piece in pieces:
            torch.cuda.reset_peak_memory_stats(self.device)
            self.try_batch(piece)
            peaks.append(peak_bytes(self.device))
        if self.max_padded_tokens is not None:  # `batch` does not fit
            return self.max_padded_tokens
        free = torch.cuda.mem_get_info(self.device)[0] + torch.cuda.memory_reserved(self.device)
        return fitting_tokens([piece.num_padded_tokens for piece in pieces], peaks, free)

    def share_memory_limit(self) -> None:
        """Use the lowest `max_padded_tokens` of all processes; all of them must call this together."""
        limits = [limit for limit in self.ranks.gather(self.max_padded_tokens) if limit is not None]
        self.max_padded_tokens = min(limits, default=None)

    def ema_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights for validation (with `ema_decay`, the averages)."""
        return nullcontext() if self.ema is None else self.ema.applied()

    def full_model(self) -> Transformer:
        """Return the model, or an unsharded copy if its weights are sharded."""
        if not self.config.sharded:
            return self.model
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.device(self.device), torch.random.fork_rng(devices):  # resuming must not change later dropout masks
            copy = Transformer(self.model.config, len(self.model.src_embedding), len(self.model.output))
        copy.compute_dtype = self.model.compute_dtype
        with torch.no_grad():
            for (_, own), (_, sharded) in zip(copy.named_parameters(), self.model.named_parameters(), strict=True):
                own.copy_(unshard(sharded))
        return copy

    def weights(self) -> dict[str, Tensor]:
        """Return unsharded copies of all parameters by name, on the CPU; tied parameters once."""
        named = self.model.named_parameters()
        return {name: unshard(parameter.detach()).to("cpu", copy=True).contiguous() for name, parameter in named}

    def load_weights(self, path: Path) -> None:
        """Load weights from a file and reset the EMA weights; raise CheckpointError if they do not fit the model."""
        load_weights(self.model, path, place=shard_like)
        if self.ema is not None:
            self.ema = Ema(self.model, self.ema.decay)

    @torch.no_grad()
    def load_training_weights(self, weights: dict[str, Tensor]) -> None:
        """Load weights that `weights` returned outside `ema_weights`; the averages do not change."""
        for name, parameter in self.model.named_parameters():
            parameter.copy_(shard_like(weights[name], parameter))

    def state_dict(self) -> dict[str, Any]:
        """Return the entries of optimizer, scaler and training in a checkpoint, besides the weights for validation."""
        return {
            "optimizer": self.optimizer_state(),
            "scaler": self.scaler.state_dict(),  # empty without fp16
            "skipped_in_a_row": int(self.skipped_in_a_row),
            "max_padded_tokens": self.max_padded_tokens,
            "training_weights": self.weights() if self.ema is not None else {},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the entries that `state_dict` returned; if they are invalid, any exception may be raised."""
        if state["training_weights"]:
            self.load_training_weights(state["training_weights"])
        self.load_optimizer_state(state["optimizer"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.skipped_in_a_row.fill_(state["skipped_in_a_row"])
        self.max_padded_tokens = TypeAdapter(int | None).validate_python(state["max_padded_tokens"])

    def optimizer_state(self) -> dict[str, Any]:
        """Return `optimizer.state_dict()` with unsharded moments."""
        state = self.optimizer.state_dict()
        moments = {number: {name: unshard(x) for name, x in own.items()} for number, own in state["state"].items()}
        return {**state, "state": moments}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Load moments and learning rate from the result of `optimizer_state`; the number of processes may differ."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        moments: dict[int, dict[str, Tensor]] = {}
        for number, own in state["state"].items():
            moments[number] = {name: shard_like(x, parameters[number]) for name, x in own.items()}
            sizes = {x.shape for name, x in own.items() if name != "step"}
            if own["step"].ndim or sizes != {parameters[number].shape}:
                raise ValueError("the shapes of moments and parameter differ")
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        self._set_learning_rate(float(state["param_groups"][0]["lr"]))

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _update(self, is_skipped: Tensor) -> None:
        """Update the weights unless `is_skipped`; fused kernels read the flag on the device, as with GradScaler."""
        self.optimizer.found_inf = is_skipped.float()  # type: ignore[attr-defined]  # as GradScaler does
        self.optimizer.step()

    def _sums(self, batches: Sequence[Batch], scale: float | None, is_alone: bool = False) -> tuple[Tensor, int]:
        """Accumulate gradients of `scale` x objective; return the sums (loss, nll) and the number of halvings.

        If `scale` is None, no gradients are computed. `is_alone`: gradients are not synchronized, outside of steps.
        """
        while True:
            pieces, num_splits = self._pieces(batches)
            # zero_grad does not clear sharded gradients that were not synchronized.
            synced = len(pieces) - 1 if self.config.sharded or not is_alone else None
            outcome = self._accumulate(pieces, scale, synced)
            if isinstance(outcome, Tensor):
                return outcome, num_splits
            self._reduce_batch_size(outcome, may_retry=self.ranks.size == 1 or (is_alone and not self.config.sharded))

    def _pieces(self, batches: Sequence[Batch]) -> tuple[list[Batch], int]:
        """Split the micro-batches that do not fit in memory; return all pieces, and the number of splits.

        With sharded weights, each pass of the model waits for the other processes, so all of them need the same number
        of passes, although their batches have different shapes. Processes with fewer pieces get pieces without targets,
        which change neither sums nor gradients.
        """
        pieces: list[Batch] = []
        for batch in batches:
            pieces += batch.split(self.max_padded_tokens)
        num_splits = len(pieces) - len(batches)

        # The limit is the same on all processes, so either all of them exchange their numbers or none does.
        if self.config.sharded and self.max_padded_tokens is not None:
            num_passes = max(self.ranks.gather(len(pieces)))
            smallest = min(pieces, key=lambda piece: piece.num_padded_tokens)
            pieces += [smallest.without_targets()] * (num_passes - len(pieces))
        return pieces, num_splits

    def _accumulate(self, pieces: Sequence[Batch], scale: float | None, synced: int | None) -> Tensor | Batch:
        """Return the sums (loss, nll), or the piece of a batch that did not fit in memory.

        Gradients are synchronized at the piece with index `synced`.
        """
        sums = torch.zeros(2, device=self.device)
        for number, piece in enumerate(pieces):
            try:
                with gradient_sync(self.objective, number == synced):
                    objective, loss, nll = self.loss(piece)
                    if scale is not None:
                        self.scaler.scale(objective * scale).backward()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                return piece
            sums += torch.stack([loss, nll])
        return sums

    def _reduce_batch_size(self, batch: Batch, may_retry: bool) -> None:
        """Discard the gradients of the step, and halve micro-batches of this size from now on."""
        if not may_retry:
            raise DeviceError(  # the other processes wait for the gradients of this attempt
                f"out of memory on {self.device} with a micro-batch of {batch.num_padded_tokens} tokens, including "
                "padding; lower training.batch_tokens, raise training.accumulation_steps, and resume from the last "
                "checkpoint"
            )
        if batch.num_pairs <= 1:
            raise DeviceError(
                f"a pair of {batch.src_BS.size(1)} and {batch.tgt_in_BT.size(1)} tokens does not fit in the memory of "
                f"{self.device}; remove such lines (data.filters.max_tokens for training), or use a smaller model"
            )
        self.max_padded_tokens = batch.num_padded_tokens // 2
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def fitting_tokens(tokens: Sequence[int], peaks: Sequence[int], free_bytes: int) -> int:
    """Return the number of tokens of a micro-batch that fits in memory with a margin, up to `CUDA_BATCH_TOKENS`.

    `peaks` is the peak memory in bytes, including weights and optimizer, with a small and a large batch, which have
    `tokens` padded tokens; `free_bytes` of memory are available to this process.
    """
    bytes_per_token = max(1.0, (peaks[1] - peaks[0]) / max(1, tokens[1] - tokens[0]))
    fitting = tokens[1] + (free_bytes * MEMORY_SHARE - peaks[1]) / bytes_per_token
    return int(min(max(fitting, tokens[0]), CUDA_BATCH_TOKENS))

"""One optimizer step over micro-batches.

Steps do not wait for the device: results stay there until a log line needs them.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from mtformer.config.schema import CPU_BATCH_TOKENS, TrainingConfig
from mtformer.data.batching.batches import Batch
from mtformer.device import PRECISIONS, peak_bytes, set_up_kernels
from mtformer.errors import DeviceError, is_out_of_memory, log
from mtformer.model.transformer import Transformer
from mtformer.training.objective import Objective
from mtformer.training.optimizer import Ema, learning_rate, make_optimizer, names_of_moments
from mtformer.training.ranks import ALONE, Ranks, gradient_sync, parallelize, shard_like, unshard
from mtformer.training.weight_copies import WeightCopies, search_model
from mtformer.weights import load_weights

MAX_RATE_JUMP = 0.05
"""Largest relative change of the learning rate by a changed schedule that is not reported."""
MAX_SKIPPED_IN_A_ROW = 20
"""Number of consecutive skipped steps after which training ends."""
CUDA_BATCH_TOKENS = 32_768
"""Maximum size of the micro-batches that `batch_tokens: auto` chooses on CUDA; larger ones are hardly faster."""
MEMORY_SHARE = 0.8
"""Share of the memory of a CUDA device that such micro-batches may fill: lengths differ between batches, and memory is
fragmented."""

MEMORY_REMEDY = (
    "lower training.batch_tokens, raise training.accumulation_steps, and resume from the last checkpoint; if that does "
    "not help, use a smaller model"
)
"""Remedy in the message if memory runs out where a batch cannot be split."""


class StepFlags(NamedTuple):
    """Requests of a process, which travel with the number of tokens of a step to all processes."""

    is_stopping: bool = False
    """True if the process is to stop."""
    is_planning: bool = False
    """True if the number of steps is to be planned after the step."""


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
    flags: StepFlags
    """Requests of any process when the step began."""


NO_FLAGS = StepFlags()
"""No requests."""


@dataclass(frozen=True)
class _Passes:
    """Options of the forward and backward passes over micro-batches."""

    scale: float | None = None
    """Factor of the objective in the gradients; None: compute no gradients."""
    is_alone: bool = False
    """True outside of training steps, where gradients are not synchronized between processes."""
    has_consistency: bool = True
    """False in the steps before `consistency_start`."""


class TrainingStep:
    """Model, optimizer and, for fp16, gradient scaler.

    Args:
        model: the model on its device, with float32 weights; its activations determine the precision.
        config: the `training` section.
        ranks: the processes of the run.
    """

    def __init__(self, model: Transformer, config: TrainingConfig, ranks: Ranks = ALONE) -> None:
        self.model = model
        self.config = config
        self.ranks = ranks
        self.device = model.output.device
        set_up_kernels(self.device)
        dtype = model.compute_dtype or model.output.dtype
        is_narrow = dtype in (torch.bfloat16, torch.float16)
        uses_copies = self.device.type != "cpu" and is_narrow and not config.sharded
        self.copies = WeightCopies(model, dtype) if uses_copies else None

        self._local_objective = Objective(model, config)
        if config.compile == "always":
            self.compile()
        layers = [*model.encoder, *model.decoder]
        self.objective = parallelize(self._local_objective, layers, ranks, config.sharded, dtype)

        self.optimizer = make_optimizer(model, config, ranks)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dtype == torch.float16)
        self.ema = Ema(model, config.ema_decay) if config.ema_decay else None
        self.skipped_in_a_row = torch.zeros((), dtype=torch.int64, device=self.device)
        """Number of consecutive steps with a non-finite gradient; not reset after reaching `MAX_SKIPPED_IN_A_ROW`."""
        self.max_padded_tokens: int | None = None
        """Maximum number of padded tokens (pairs x longest side) in a micro-batch; None: memory has not run out. With
        sharded weights, it is the same on all processes (`share_memory_limit`)."""

    @property
    def precision(self) -> str:
        """Name of the dtype of the activations: `fp32`, `bf16` or `fp16`."""
        return PRECISIONS[self.model.compute_dtype or self.model.output.dtype]

    @property
    def is_compiled(self) -> bool:
        """True after `compile` was called."""
        return self._local_objective.is_compiled

    def compile(self) -> None:
        """Use `torch.compile` from now on; the model is compiled in the next steps."""
        self._local_objective.compile_model()

    def stop_compiling(self) -> None:
        """Do not use `torch.compile` any longer."""
        self._local_objective.discard_compiled_model()

    def run(
        self,
        batches: Sequence[Batch],
        step: int,
        *,
        schedule_step: float | None = None,
        flags: StepFlags = NO_FLAGS,
    ) -> StepResult:
        """Run an optimizer step on the mean loss over the target tokens of all micro-batches.

        Args:
            batches: micro-batches of this process.
            step: number of the step; the first is 1.
            schedule_step: step of the learning rate schedule; None: that of the run.
            flags: requests of this process.

        Raises:
            DeviceError: If a single pair does not fit in memory.
        """
        rate = learning_rate(schedule_step or step, self.config, self.model.config.d_model)
        self._set_learning_rate(rate)
        self.objective.train()
        if self.copies is not None:
            self.copies.refresh()

        num_tokens_of_process = sum(batch.num_tgt_tokens for batch in batches)
        num_tokens, num_stopping, num_planning = self.ranks.sum([num_tokens_of_process, *flags])
        flags = StepFlags(num_stopping > 0, num_planning > 0)
        # PyTorch averages gradients over the processes; multiplying by their number gives the sum.
        scale = self.ranks.size / num_tokens
        passes = _Passes(scale, has_consistency=step > self.config.consistency_start)
        (loss, nll), num_splits = self._sums(batches, passes)

        with self._explain_memory("in the update of the weights"):
            grad_norm = self._clip_gradients()
            is_finite = grad_norm.isfinite()
            if self.scaler.is_enabled():
                self.scaler.step(self.optimizer)  # skips non-finite gradients itself
                self.scaler.update()  # and lowers the scale then
            else:
                self._update(is_skipped=~is_finite)
            if self.ema is not None:
                self.ema.update(step)
        self.optimizer.zero_grad(set_to_none=True)

        may_recover = is_finite & (self.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW)
        self.skipped_in_a_row = torch.where(may_recover, 0, self.skipped_in_a_row + 1)
        return StepResult(loss, nll, grad_norm, is_finite, rate, num_splits, flags)

    def _clip_gradients(self) -> Tensor:
        """Clip the gradients, after dividing them by the scale of fp16, and return their norm before."""
        self.scaler.unscale_(self.optimizer)
        max_norm = self.config.clip_norm or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        return unshard(norm)

    def loss(self, batch: Batch, has_consistency: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return objective, label-smoothed loss and negative log-likelihood of a batch, summed over target tokens."""
        batch = batch.to(self.device)
        inputs = batch.src_BS, batch.src_lengths_B, batch.tgt_in_BT
        return self.objective(*inputs, batch.tgt_out_BT, has_consistency=has_consistency)

    @torch.no_grad()
    def evaluate(self, batch: Batch) -> tuple[float, float]:
        """Return `loss` as numbers, without dropout and without gradients; halve the batch if memory runs out."""
        self.objective.eval()
        (loss, nll), _ = self._sums([batch], _Passes(is_alone=True))
        if isinstance(self.objective, FSDPModule):
            # Otherwise the weights outside of the layers stay gathered, and changes by `ema_weights` have no effect.
            self.objective.reshard()
        return loss.item(), nll.item()

    def try_batch(self, batch: Batch) -> float:
        """Run a micro-batch with the memory usage of a real step, without changing weights; return the seconds taken.

        If it does not fit in memory, it is halved until it does; later micro-batches of that size are halved too. Raise
        DeviceError if a single pair does not fit in memory.
        """
        start = time.perf_counter()
        self._try(batch, _Passes(scale=1.0, is_alone=True))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def order_gradients(self, batch: Batch) -> None:
        """Let DDP choose the order of the gradients in its buffers, which it does after the first pass.

        Sums over more than two processes depend on this order, so it must not change after the first step: a resumed
        run would differ from an uninterrupted one. All processes must call this together.
        """
        if self.ranks.size > 1:
            self._try(batch, _Passes(scale=1.0))

    def _try(self, batch: Batch, passes: _Passes) -> None:
        """Run a micro-batch without changing weights or the state of the random number generators."""
        self.objective.train()
        with torch.random.fork_rng(self._cuda_devices()):
            self._sums([batch], passes)
            with self._explain_memory("in the update of the weights"):
                # Even a skipped step allocates the optimizer moments.
                self._update(is_skipped=torch.ones((), dtype=torch.bool, device=self.device))
        self.optimizer.zero_grad(set_to_none=True)

    def max_batch_tokens(self, batch: Batch) -> int:
        """Return the size of the largest micro-batch, in padded tokens, that suits the device.

        On CUDA, the memory is measured with a half of `batch` and with larger batches of the same pairs; see
        `largest_fitting_tokens`. All processes must call this together.
        """
        if self.device.type == "cpu":
            return CPU_BATCH_TOKENS

        half, *_ = batch.split(batch.num_padded_tokens // 2)
        self.try_batch(half)  # allocates the optimizer's moments, which belong to all peaks
        free_on_device, _ = torch.cuda.mem_get_info(self.device)
        own_free_bytes = free_on_device + torch.cuda.memory_reserved(self.device)
        free_bytes = min(self.ranks.gather(own_free_bytes))
        fitting_tokens = largest_fitting_tokens(half, self._peak_bytes, free_bytes)
        return self.max_padded_tokens or fitting_tokens

    def _peak_bytes(self, batch: Batch) -> int | None:
        """Return the highest peak memory of all processes with a micro-batch; None if it does not fit on one of them.

        All processes must call this together, and get the same result, because with sharded weights they must all try
        the same batches.
        """
        torch.cuda.reset_peak_memory_stats(self.device)
        self.try_batch(batch)
        fits = self.max_padded_tokens is None
        peaks = self.ranks.gather(peak_bytes(self.device) if fits else None)
        return None if None in peaks else max(peaks)

    def share_memory_limit(self) -> None:
        """Use the lowest `max_padded_tokens` of all processes; all of them must call this together."""
        limits = [limit for limit in self.ranks.gather(self.max_padded_tokens) if limit is not None]
        self.max_padded_tokens = min(limits, default=None)

    @contextmanager
    def ema_weights(self) -> Iterator[None]:
        """Give the model the weights for validation inside the context: with `ema_decay`, the averages.

        Raise DeviceError if memory runs out inside it.
        """
        averages = nullcontext() if self.ema is None else self.ema.applied()
        with self._explain_memory("in validation"), averages:
            yield

    def search_model(self) -> Transformer:
        """Return a model for search with the current weights; all processes must call this together."""
        dtype = self.model.compute_dtype or self.model.output.dtype
        if dtype == torch.float32 and not self.config.sharded:
            return self.model
        return search_model(self.model, dtype)

    def weights(self) -> dict[str, Tensor]:
        """Return unsharded copies of all parameters by name, on the CPU; tied parameters once."""
        weights = {}
        for name, parameter in self.model.named_parameters():
            weight = unshard(parameter.detach())
            weights[name] = weight.to("cpu", copy=True).contiguous()
        return weights

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
        full_moments = {}
        for index, moments in state["state"].items():
            full_moments[index] = {name: unshard(tensor) for name, tensor in moments.items()}
        return {**state, "state": full_moments}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Load moments and learning rate from the result of `optimizer_state`; the number of processes may differ."""
        parameters: list[Tensor] = []
        for group in self.optimizer.param_groups:
            parameters += group["params"]
        moment_names = names_of_moments(self.optimizer)

        sharded_moments: dict[int, dict[str, Tensor]] = {}
        for index, moments in state["state"].items():
            parameter = parameters[index]
            if moments.keys() != moment_names[index]:
                raise ValueError("the moments of a parameter are not those of the optimizer")
            shapes = {tensor.shape for name, tensor in moments.items() if name != "step"}
            if moments["step"].ndim or shapes != {parameter.shape}:
                raise ValueError("the shapes of moments and parameter differ")
            sharded_moments[index] = {name: shard_like(tensor, parameter) for name, tensor in moments.items()}

        current_state = self.optimizer.state_dict()
        self.optimizer.load_state_dict({**current_state, "state": sharded_moments})
        rate = state["param_groups"][0]["lr"]
        self._set_learning_rate(float(rate))

    def log_rate_jump(self, step: int, schedule_step: float, cause: str) -> dict[str, list[float]]:
        """Log the change of the learning rate of a step by a changed schedule, if it is large.

        Args:
            step: The last step, which used the rate before the change; 0: there is none.
            schedule_step: Its step of the changed schedule.
            cause: Reason for the change, for the log.

        Returns:
            The old and the new rate for metrics.jsonl, with their key; empty if the change is small.
        """
        if step == 0:
            return {}
        old_rate = self.optimizer.param_groups[0]["lr"]
        new_rate = learning_rate(schedule_step, self.config, self.model.config.d_model)
        if abs(new_rate - old_rate) <= MAX_RATE_JUMP * max(new_rate, old_rate):
            return {}

        log.warning("step %d: the learning rate jumps from %.2e to %.2e, because %s", step, old_rate, new_rate, cause)
        rounded = [float(f"{rate:.3g}") for rate in (old_rate, new_rate)]
        return {"training.current_learning_rate": rounded}

    def _set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _update(self, is_skipped: Tensor) -> None:
        """Update the weights unless `is_skipped`; fused kernels read the flag on the device, as with GradScaler."""
        self.optimizer.found_inf = is_skipped.float()  # type: ignore[attr-defined]  # as GradScaler does
        self.optimizer.step()

    @contextmanager
    def _explain_memory(self, where: str) -> Iterator[None]:
        """Raise DeviceError if memory runs out inside the context, in which nothing can be split or repeated."""
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise DeviceError(f"out of memory on {self.device} {where}; {MEMORY_REMEDY}") from error

    def _cuda_devices(self) -> list[torch.device]:
        """Return the device as a list, if it has a random number generator other than that of the CPU."""
        return [self.device] if self.device.type == "cuda" else []

    def _sums(self, batches: Sequence[Batch], passes: _Passes) -> tuple[Tensor, int]:
        """Accumulate the gradients of micro-batches; return the sums (loss, nll) and the number of halvings.

        If memory runs out, all micro-batches run again, in smaller pieces.
        """
        # zero_grad does not clear sharded gradients that were not synchronized.
        is_synced = self.config.sharded or not passes.is_alone
        # A process that runs its micro-batches again while the others wait for its gradients would cause a deadlock.
        may_retry = self.ranks.size == 1 or not is_synced
        while True:
            pieces, num_splits = self._pieces(batches)
            synced_piece = len(pieces) - 1 if is_synced else None
            outcome = self._accumulate(pieces, passes, synced_piece)
            if isinstance(outcome, Tensor):
                return outcome, num_splits
            self._reduce_batch_size(outcome, may_retry)

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
            num_missing = num_passes - len(pieces)
            smallest = min(pieces, key=lambda piece: piece.num_padded_tokens)
            pieces += num_missing * [smallest.without_targets()]
        return pieces, num_splits

    def _accumulate(self, pieces: Sequence[Batch], passes: _Passes, synced_piece: int | None) -> Tensor | Batch:
        """Return the sums (loss, nll), or the piece of a batch that did not fit in memory.

        Gradients are synchronized at the piece with index `synced_piece`; None: at no piece.
        """
        sums = torch.zeros(2, device=self.device)
        for index, piece in enumerate(pieces):
            try:
                with gradient_sync(self.objective, is_last=index == synced_piece):
                    objective, loss, nll = self.loss(piece, passes.has_consistency)
                    if passes.scale is not None:
                        self.scaler.scale(objective * passes.scale).backward()
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
                f"padding; {MEMORY_REMEDY}"
            )
        if batch.num_pairs <= 1:
            src_length = batch.src_BS.size(1)
            tgt_length = batch.tgt_in_BT.size(1)
            raise DeviceError(
                f"a pair of {src_length} and {tgt_length} tokens does not fit in the memory of {self.device}; remove "
                "such lines (data.filters.max_tokens for training), or use a smaller model"
            )
        self.max_padded_tokens = batch.num_padded_tokens // 2
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def largest_fitting_tokens(batch: Batch, peak_bytes_with: Callable[[Batch], int | None], free_bytes: int) -> int:
    """Return the number of tokens of a micro-batch that fits in memory with a margin, up to `CUDA_BATCH_TOKENS`.

    A small batch is tried, then one that is twice as large, and so on as long as the next one should fit. Large batches
    need less memory per token, because the buffers of the loss have a limited size (`loss.CHUNK_LOGITS`). Therefore the
    last two batches decide how much larger a batch may be.

    Args:
        batch: the small batch.
        peak_bytes_with: function that tries a batch and returns the peak memory in bytes, including weights and
            optimizer; None: it does not fit.
        free_bytes: memory available to this process in bytes.
    """
    tokens: list[int] = []
    peaks: list[int] = []
    result = batch.num_padded_tokens
    while batch.num_padded_tokens <= CUDA_BATCH_TOKENS:
        is_expected_to_fit = len(peaks) < 2 or batch.num_padded_tokens <= result
        peak = peak_bytes_with(batch) if is_expected_to_fit else None
        if peak is None:
            break
        tokens.append(batch.num_padded_tokens)
        peaks.append(peak)
        if len(peaks) > 1:
            result = fitting_tokens(tokens[-2:], peaks[-2:], free_bytes)
        batch = batch.doubled()
    return result


def fitting_tokens(tokens: Sequence[int], peaks: Sequence[int], free_bytes: int) -> int:
    """Return the number of tokens that fit in memory with a margin, up to `CUDA_BATCH_TOKENS`, from two measurements.

    Args:
        tokens: numbers of padded tokens of a small and a large batch.
        peaks: peak memory with these batches in bytes, including weights and optimizer.
        free_bytes: memory available to this process in bytes.
    """
    small_tokens, large_tokens = tokens
    small_peak, large_peak = peaks
    bytes_per_token = max(1.0, (large_peak - small_peak) / (large_tokens - small_tokens))
    rest_bytes = free_bytes * MEMORY_SHARE - large_peak
    num_tokens = large_tokens + rest_bytes / bytes_per_token
    return int(min(max(num_tokens, small_tokens), CUDA_BATCH_TOKENS))

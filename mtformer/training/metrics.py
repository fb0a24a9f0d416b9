"""Log metrics of a run to metrics.jsonl and TensorBoard."""

import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch

from mtformer.config.schema import Config
from mtformer.data.batching.batches import Batch
from mtformer.device import peak_bytes
from mtformer.errors import log
from mtformer.run_dir import RunDir
from mtformer.training.history import append_record
from mtformer.training.ranks import ALONE, Ranks
from mtformer.training.step import StepResult


class Metrics(ExitStack):
    """Context manager that logs to metrics.jsonl (one JSON object per line), and to TensorBoard if enabled.

    In processes other than the main one, nothing is written. Raise ConfigError if TensorBoard is not installed.
    """

    def __init__(self, run: RunDir, config: Config, is_main: bool) -> None:
        super().__init__()
        self.path = run.metrics
        self.is_main = is_main
        self.tensorboard: Any = None
        if is_main and config.training.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.tensorboard = self.enter_context(SummaryWriter(str(run.tensorboard)))

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a record of kind train, dev, plan or resume; raise CheckpointError if it cannot be written."""
        if not self.is_main:
            return
        append_record(self.path, kind, step, **values)
        if self.tensorboard is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.tensorboard.add_scalar(f"{kind}/{name}", value, step)


TENSORS = ("sums", "grad_norm")
WATCH_SECONDS, MIN_CORE_SHARE = 10.0, 0.8
"""Seconds per measurement, and the share of them in which the main thread runs at least if its core is not shared."""


class Window:
    """Sums over the steps since the last log line; they stay on the device, so steps do not wait for it."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.waiting = 0.0
        self.paused = 0.0
        self.sums = torch.zeros(4, dtype=torch.float64)
        """Smoothed loss, nll, target tokens and number of steps, excluding skipped steps."""
        self.grad_norm = torch.zeros(())
        self.tokens = self.cells = self.steps = self.splits = 0
        self.untimed_tokens = self.untimed_steps = 0
        """Tokens and steps from before the run was resumed, which are excluded from speeds."""
        self.learning_rate = 0.0
        self.pairs_of: Counter[str] = Counter()
        """Number of pairs by corpus, if there are several."""

    def add(self, batches: Sequence[Batch], result: StepResult) -> None:
        """Add the result of a step."""
        self.steps += 1
        self.splits += result.num_splits
        self.learning_rate = result.learning_rate
        self.grad_norm = result.grad_norm
        self.tokens += sum(batch.num_src_tokens + batch.num_tgt_tokens for batch in batches)
        self.cells += sum(batch.src_BS.numel() + batch.tgt_in_BT.numel() for batch in batches)
        for batch in batches:
            self.pairs_of.update(batch.pairs_of)
        tgt_tokens = sum(batch.num_tgt_tokens for batch in batches)
        # Counts are filled on the device, because copying them to it would block the host.
        counts = [torch.full_like(result.loss, tgt_tokens), torch.ones_like(result.loss)]
        sums = torch.stack([result.loss, result.nll, *counts]).double()
        self.sums = self.sums.to(sums.device) + sums.where(result.is_finite, 0.0)

    def figures(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Return the values of a log line, aggregated over the window and all processes; shares are between 0 and 1.

        If all steps were skipped, the loss is nan. `memory_gb` is the highest memory usage of a process so far.
        """
        seconds = time.perf_counter() - self.start - self.paused
        loss, nll, tgt_tokens, steps, tokens, timed_tokens, cells, splits = ranks.sum(
            [*self.sums.tolist(), self.tokens, self.tokens - self.untimed_tokens, self.cells, self.splits]
        )
        pairs_of = sum(ranks.gather(self.pairs_of), Counter[str]())
        return {
            "loss": loss / tgt_tokens if tgt_tokens else math.nan,
            "nll": nll / tgt_tokens if tgt_tokens else math.nan,
            "learning_rate": self.learning_rate,
            "grad_norm": float(self.grad_norm),
            "tokens_per_second": timed_tokens / seconds,
            "padding": 1 - tokens / cells,
            "waiting_for_data": self.waiting / seconds,
            "skipped_steps": self.steps - steps / ranks.size,
            "split_batches": splits,
            "seconds_per_step": seconds / (self.steps - self.untimed_steps),
            "memory_gb": max(ranks.gather(peak_bytes(self.sums.device))) / 1e9,
            **{f"pairs {name}": count for name, count in sorted(pairs_of.items())},
        }

    def state(self) -> dict[str, Any]:
        """Return the sums, without times, for a checkpoint, so that a resumed run writes the same log line."""
        counts = {name: getattr(self, name) for name in ("tokens", "cells", "steps", "splits", "learning_rate")}
        sums = {"sums": self.sums.tolist(), "grad_norm": float(self.grad_norm)}
        return {**counts, **sums, "pairs_of": dict(self.pairs_of)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Window":
        """Restore a window from `state`; its clock starts now, and earlier steps are not timed."""
        window = cls()
        for name, own in window.state().items():
            value = type(own)(state[name])  # raises an error for a value of another type
            if name in TENSORS:
                value = torch.tensor(value, dtype=torch.float64).reshape(getattr(window, name).shape)
            setattr(window, name, value)
        window.pairs_of = Counter(window.pairs_of)
        window.untimed_tokens, window.untimed_steps = window.tokens, window.steps
        return window


class CoreWatch:
    """Logs a warning once if other processes use the cores of a training run on a CPU.

    The main thread hardly sleeps during a step, so its CPU time is close to the wall time (93 to 99 percent with the
    spin that mtformer sets, on two idle cores), unless its core is shared. With OMP_WAIT_POLICY=PASSIVE, threads sleep
    while waiting, so sharing is not detected, but is also less harmful.
    """

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self.wall = self.processor = 0.0
        is_alone_on_cpu = device.type == "cpu" and ranks.size == 1
        self.is_over = not is_alone_on_cpu or os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure the step that runs inside the context."""
        wall, processor = time.perf_counter(), time.thread_time()
        yield
        self.wall += time.perf_counter() - wall
        self.processor += time.thread_time() - processor
        if self.wall < WATCH_SECONDS or self.is_over:
            return
        share, self.wall, self.processor = self.processor / self.wall, 0.0, 0.0
        if share < MIN_CORE_SHARE:
            self.is_over = True
            log.warning(
                "other processes use the cores of this run, so that its main thread runs only %.0f%% of the time and "
                "training slows down even more: run fewer processes, set OMP_NUM_THREADS (now %d) to the number of "
                "free cores, or set OMP_WAIT_POLICY=PASSIVE", 100 * share, torch.get_num_threads(),
            )  # fmt: skip


class Progress(Protocol):
    """Progress display of a training run."""

    def prepared(self, num_pairs: int, share: float) -> None:
        """Show the number of tokenized pairs of a corpus, and their share of the corpus (0: unknown)."""

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        """Show a completed step of `num_steps`; `figures` are given with each log line."""

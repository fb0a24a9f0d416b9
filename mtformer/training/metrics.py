"""The figures of a run as they come: metrics.jsonl (append only) and, when asked for, TensorBoard."""

import json
import time
from pathlib import Path
from typing import Any, Protocol

import torch

from mtformer.data.batches import Batch
from mtformer.errors import MtformerError
from mtformer.training.step import StepResult


class MetricsFile:
    """One JSON object a line. After a resume steps may stand twice; the later line counts."""

    def __init__(self, path: Path, tensorboard: bool) -> None:
        self.path = path
        self.writer = _tensorboard_writer(path.parent / "tensorboard") if tensorboard else None

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Appends a record; `kind` is train, dev or resume."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "step": step, **values}, ensure_ascii=False) + "\n")
        if self.writer is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(f"{kind}/{name}", value, step)


class Window:
    """Sums between two log lines. They stay on the device until the line is written, so that no step waits for it."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.waiting = 0.0
        self.paused = 0.0
        self.loss = self.nll = self.grad_norm = torch.zeros(())
        self.src_tokens = self.tgt_tokens = self.cells = self.steps = self.skipped = 0
        self.learning_rate = 0.0

    def add(self, batches: list[Batch], result: StepResult) -> None:
        """Counts a step."""
        self.steps += 1
        self.learning_rate = result.learning_rate
        self.tgt_tokens += sum(batch.num_tgt_tokens for batch in batches)
        self.src_tokens += sum(batch.num_src_tokens for batch in batches)
        self.cells += sum(batch.src_BS.numel() + batch.tgt_in_BT.numel() for batch in batches)
        self.grad_norm = result.grad_norm
        if not result.is_finite:
            self.skipped += 1
            return
        self.loss = self.loss.to(result.loss) + result.loss
        self.nll = self.nll.to(result.nll) + result.nll

    def figures(self) -> dict[str, float]:
        """Means over the window: per target token, per second, and shares of 1."""
        seconds = time.perf_counter() - self.start - self.paused
        real = self.src_tokens + self.tgt_tokens
        return {
            "loss": self.loss.item() / self.tgt_tokens,
            "nll": self.nll.item() / self.tgt_tokens,
            "learning_rate": self.learning_rate,
            "grad_norm": float(self.grad_norm),
            "tokens_per_second": real / seconds,
            "padding": 1 - real / self.cells,
            "waiting_for_data": self.waiting / seconds,
            "skipped_steps": self.skipped,
            "seconds_per_step": seconds / self.steps,
        }


class Progress(Protocol):
    """Where the loop shows how far it is; the command line has a bar and plain lines."""

    def advance(self, step: int, epoch: int, figures: dict[str, float] | None) -> None:
        """A step is done; `figures` come with every log line."""


class _Writer(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...


def _tensorboard_writer(folder: Path) -> _Writer:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MtformerError(
            "training.tensorboard: TensorBoard is not installed; pip install 'mtformer[tensorboard]'"
        ) from error
    writer: _Writer = SummaryWriter(str(folder))
    return writer

"""The figures of a run as they come: metrics.jsonl (append only) and, when asked for, TensorBoard."""

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from mtformer.data.batches import Batch
from mtformer.errors import CheckpointError, MtformerError
from mtformer.training.ranks import ALONE, Ranks
from mtformer.training.step import StepResult


class MetricsFile:
    """One JSON object a line; see `history` for what a resumed run takes back of it."""

    def __init__(self, path: Path, tensorboard: bool) -> None:
        self.path = path
        self.writer = _tensorboard_writer(path.parent / "tensorboard") if tensorboard else None

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Appends a record; `kind` is train, dev or resume. Raises CheckpointError when the disk refuses."""
        finite = {name: None if value != value else value for name, value in values.items()}  # JSON has no NaN
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"kind": kind, "step": step, **finite}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: cannot be written ({error.strerror}); the checkpoints are kept. Free some space, or "
                "mend what else it may be, and go on with --resume"
            ) from error
        if self.writer is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(f"{kind}/{name}", value, step)


TENSORS = ("sums", "grad_norm")


class Window:
    """Sums between two log lines. They stay on the device until the line is written, so that no step waits for it."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.waiting = 0.0
        self.paused = 0.0
        self.sums = torch.zeros(4, dtype=torch.float64)
        """Of the steps that were not skipped: smoothed loss, nll, target tokens, steps."""
        self.grad_norm = torch.zeros(())
        self.tokens = self.cells = self.steps = self.splits = 0
        self.learning_rate = 0.0
        self.pairs_of: Counter[str] = Counter()
        """Pairs by corpus, where there are several."""

    def add(self, batches: Sequence[Batch], result: StepResult) -> None:
        """Counts a step."""
        self.steps += 1
        self.splits += result.num_splits
        self.learning_rate = result.learning_rate
        self.grad_norm = result.grad_norm
        self.tokens += sum(batch.num_src_tokens + batch.num_tgt_tokens for batch in batches)
        self.cells += sum(batch.src_BS.numel() + batch.tgt_in_BT.numel() for batch in batches)
        for batch in batches:
            self.pairs_of.update(batch.pairs_of)
        tgt_tokens = sum(batch.num_tgt_tokens for batch in batches)
        # Counts are filled in on the device: copied to it, they would make the host wait.
        counts = [torch.full_like(result.loss, tgt_tokens), torch.ones_like(result.loss)]
        sums = torch.stack([result.loss, result.nll, *counts]).double()
        self.sums = self.sums.to(sums.device) + sums.where(result.is_finite, 0.0)

    def figures(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Means over the window and all processes: per target token, per second, and shares of 1.

        A window of nothing but skipped steps has no loss: nan.
        """
        seconds = time.perf_counter() - self.start - self.paused
        loss, nll, tgt_tokens, steps, tokens, cells, splits = ranks.sum(
            [*self.sums.tolist(), self.tokens, self.cells, self.splits]
        )
        pairs_of = sum(ranks.gather(self.pairs_of), Counter[str]())
        return {
            "loss": loss / tgt_tokens if tgt_tokens else math.nan,
            "nll": nll / tgt_tokens if tgt_tokens else math.nan,
            "learning_rate": self.learning_rate,
            "grad_norm": float(self.grad_norm),
            "tokens_per_second": tokens / seconds,
            "padding": 1 - tokens / cells,
            "waiting_for_data": self.waiting / seconds,
            "skipped_steps": self.steps - steps / ranks.size,
            "split_batches": splits,
            "seconds_per_step": seconds / self.steps,
            **{f"pairs {name}": count for name, count in sorted(pairs_of.items())},
        }

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, so that a run that stops inside a window writes the same line: no times."""
        counts = {name: getattr(self, name) for name in ("tokens", "cells", "steps", "splits", "learning_rate")}
        sums = {"sums": self.sums.tolist(), "grad_norm": float(self.grad_norm)}
        return {**counts, **sums, "pairs_of": dict(self.pairs_of)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Window":
        """The window that `state` was taken of; its clock starts now."""
        window = cls()
        for name, value in state.items():
            setattr(window, name, torch.tensor(value, dtype=torch.float64) if name in TENSORS else value)
        window.pairs_of = Counter(window.pairs_of)
        return window


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

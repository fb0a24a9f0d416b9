"""Values of the steps between two log lines."""

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mtformer.data.batching.batches import Batch
from mtformer.device import peak_bytes
from mtformer.training.ranks import ALONE, Ranks
from mtformer.training.step import StepResult

NUM_SUMS = 4
"""Number of values that are summed on the device, see `TrainWindow.sums`."""


class TrainWindow:
    """Sums over the steps since the last log line; they stay on the device, so steps do not wait for it."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.waiting = 0.0
        """Seconds of waiting for batches."""
        self.paused = 0.0
        """Seconds of validations, which are excluded from speeds."""
        self.sums = torch.zeros(NUM_SUMS, dtype=torch.float64)
        """Smoothed loss, nll, target tokens and number of steps, excluding skipped steps."""
        self.grad_norm = torch.zeros(())
        self.learning_rate = 0.0
        self.tokens = 0
        """Number of source and target tokens without padding."""
        self.padded_tokens = 0
        """Number of source and target tokens including padding."""
        self.steps = 0
        self.splits = 0
        """Number of times that a micro-batch was halved to fit in memory."""
        self.pairs_of: Counter[str] = Counter()
        """Number of pairs by corpus, if there are several."""
        self.untimed_tokens = 0
        """Tokens from before the run was resumed, which are excluded from speeds."""
        self.untimed_steps = 0
        """Steps from before the run was resumed, which are excluded from speeds."""

    def add(self, batches: Sequence[Batch], result: StepResult) -> None:
        """Add the result of a step on these micro-batches."""
        self.steps += 1
        self.splits += result.num_splits
        self.learning_rate = result.learning_rate
        self.grad_norm = result.grad_norm

        num_tgt_tokens = 0
        for batch in batches:
            num_tgt_tokens += batch.num_tgt_tokens
            self.tokens += batch.num_src_tokens + batch.num_tgt_tokens
            self.padded_tokens += batch.src_BS.numel() + batch.tgt_in_BT.numel()
            self.pairs_of.update(batch.pairs_of)

        # Counts are filled on the device, because copying them to it would block the host.
        tgt_tokens = torch.full_like(result.loss, num_tgt_tokens)
        num_steps = torch.ones_like(result.loss)
        step_sums = torch.stack([result.loss, result.nll, tgt_tokens, num_steps]).double()
        finite_sums = step_sums.where(result.is_finite, 0.0)
        self.sums = self.sums.to(finite_sums.device) + finite_sums

    def figures(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Return the values of a log line, aggregated over the window and all processes; shares are between 0 and 1.

        If all steps were skipped, the loss is nan. `memory_gb` is the highest memory usage of a process so far.
        """
        seconds = time.perf_counter() - self.start - self.paused
        timed_tokens_of_process = self.tokens - self.untimed_tokens
        timed_steps = self.steps - self.untimed_steps

        # Sum over the processes.
        counts = [self.tokens, timed_tokens_of_process, self.padded_tokens, self.splits]
        totals = ranks.sum([*self.sums.tolist(), *counts])
        loss, nll, tgt_tokens, finite_steps = totals[:NUM_SUMS]
        tokens, timed_tokens, padded_tokens, splits = totals[NUM_SUMS:]
        memory_bytes = max(ranks.gather(peak_bytes(self.sums.device)))
        pairs_of = Counter[str]()
        for pairs_of_process in ranks.gather(self.pairs_of):
            pairs_of += pairs_of_process

        figures = {}
        figures["loss"] = loss / tgt_tokens if tgt_tokens else math.nan
        figures["nll"] = nll / tgt_tokens if tgt_tokens else math.nan
        figures["learning_rate"] = self.learning_rate
        figures["grad_norm"] = float(self.grad_norm)
        figures["tokens_per_second"] = timed_tokens / seconds
        figures["padding"] = 1 - tokens / padded_tokens
        figures["waiting_for_data"] = self.waiting / seconds
        figures["skipped_steps"] = self.steps - finite_steps / ranks.size
        figures["split_batches"] = splits
        figures["seconds_per_step"] = seconds / timed_steps
        figures["memory_gb"] = memory_bytes / 1e9
        for name, num_pairs in sorted(pairs_of.items()):
            figures[f"pairs {name}"] = num_pairs
        return figures

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, without times, so that a resumed run writes the same log line."""
        return {
            "tokens": self.tokens,
            "cells": self.padded_tokens,  # the name in the checkpoints of all versions
            "steps": self.steps,
            "splits": self.splits,
            "learning_rate": self.learning_rate,
            "sums": self.sums.tolist(),
            "grad_norm": float(self.grad_norm),
            "pairs_of": dict(self.pairs_of),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the sums; the clock starts now, and earlier steps are not timed."""
        self.start = time.perf_counter()
        self.tokens = int(state["tokens"])
        self.padded_tokens = int(state["cells"])
        self.steps = int(state["steps"])
        self.splits = int(state["splits"])
        self.learning_rate = float(state["learning_rate"])
        sums = torch.tensor(list(state["sums"]), dtype=torch.float64)
        self.sums = sums.reshape(NUM_SUMS)
        self.grad_norm = torch.tensor(float(state["grad_norm"]), dtype=torch.float64)
        self.pairs_of = Counter(dict(state["pairs_of"]))

        self.untimed_tokens = self.tokens
        self.untimed_steps = self.steps

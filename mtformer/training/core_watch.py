"""Detect that other processes use the cores of a training run on a CPU."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mtformer.errors import log
from mtformer.training.ranks import Ranks

WATCH_SECONDS = 10.0
"""Time in seconds of the steps that one measurement covers."""
MIN_CORE_SHARE = 0.8
"""Share of the time in which the main thread runs at least if its core is not shared."""


class CoreWatch:
    """Logs a warning once if other processes use the cores of a training run on a CPU.

    The main thread hardly sleeps during a step, so its CPU time is close to the wall time (93 to 99 percent with the
    spin that mtformer sets, on two idle cores), unless its core is shared. With OMP_WAIT_POLICY=PASSIVE, threads sleep
    while waiting, so sharing is not detected, but is also less harmful.
    """

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self.wall_seconds = 0.0
        self.cpu_seconds = 0.0
        is_alone_on_cpu = device.type == "cpu" and ranks.size == 1
        is_passive = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"
        self.is_over = not is_alone_on_cpu or is_passive

    @contextmanager
    def step(self) -> Iterator[None]:
        """Measure the step that runs inside the context."""
        wall_start = time.perf_counter()
        cpu_start = time.thread_time()
        yield
        self.wall_seconds += time.perf_counter() - wall_start
        self.cpu_seconds += time.thread_time() - cpu_start
        if self.wall_seconds < WATCH_SECONDS or self.is_over:
            return

        share = self.cpu_seconds / self.wall_seconds
        self.wall_seconds = 0.0
        self.cpu_seconds = 0.0
        if share < MIN_CORE_SHARE:
            self.is_over = True
            log.warning(
                "other processes use the cores of this run, so that its main thread runs only %.0f%% of the time and "
                "training slows down even more: run fewer processes, set OMP_NUM_THREADS (now %d) to the number of "
                "free cores, or set OMP_WAIT_POLICY=PASSIVE", 100 * share, torch.get_num_threads(),
            )  # fmt: skip

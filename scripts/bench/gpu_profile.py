"""Where the time of a training step goes on a GPU, by kernel, by operation, and by class of kernel."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity

NUM_ROWS = 15
CLASSES = {  # the first that fits the kernel's name
    "compiled by Triton": r"^triton_",
    "attention": r"flash|fmha|attention|sdpa",
    "optimizer and clipping": r"multi_tensor|adam|foreach",
    "norms": r"layer_?norm|rms_?norm|gamma_?beta",
    "matrix products": r"gemm|nvjet|cutlass|xmma|cublas|splitk|mm\b",
    "softmax and loss": r"softmax|gather|scatter",
    "dropout": r"dropout|masked_scale|philox",
    "embedding": r"embedding|index",
    "copies and casts": r"copy|memcpy|memset|cat(array|_)|fillfunctor",
    "sums": r"reduce",
    "other element-wise": r"elementwise|vectorized",
}


def profile(step: Callable[[Any], object], batches: Sequence[Any], device: str) -> dict[str, Any]:
    """Profiles one step on each batch.

    Returns:
        Seconds per step with the profiler on, seconds of a step in which a kernel ran, and rows [name, seconds per
        step, calls per step] by kernel, by operation and by class, longest first. On a CPU operations stand for
        kernels.
    """
    on_cuda = device == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]
    begin = time.perf_counter()
    with torch.profiler.profile(activities=activities) as profiler:
        for batch in batches:
            step(batch)
        if on_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    kernels: dict[str, tuple[float, int]] = {}
    operations: dict[str, tuple[float, int]] = {}
    for event in profiler.key_averages():
        # Spans that PyTorch itself marks hold kernels that are counted by their own names.
        if getattr(event, "is_user_annotation", False) or event.key.startswith(("Optimizer.", "ProfilerStep")):
            continue
        of_device = event.device_type.name == "CUDA"
        microseconds = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if microseconds > 0:
            (kernels if of_device else operations)[event.key] = (microseconds / 1e6, event.count)
    if not on_cuda:
        kernels = operations
    classes: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for name, (spent, count) in kernels.items():
        kind = class_of(name)
        classes[kind] = (classes[kind][0] + spent, classes[kind][1] + count)
    return {
        "seconds_per_step": seconds / len(batches),
        "busy_seconds_per_step": sum(spent for spent, _ in kernels.values()) / len(batches),
        "classes": _rows(classes, len(batches), len(classes)),
        "kernels": _rows(kernels, len(batches), NUM_ROWS),
        "operations": _rows(operations, len(batches), NUM_ROWS),
    }


def class_of(kernel: str) -> str:
    """The class of a kernel, by its name."""
    for name, pattern in CLASSES.items():
        if re.search(pattern, kernel, re.IGNORECASE):
            return name
    return "other"


def _rows(spent: dict[str, tuple[float, int]], steps: int, most: int) -> list[list[Any]]:
    longest = sorted(spent.items(), key=lambda item: item[1][0], reverse=True)[:most]
    return [[name, seconds / steps, count / steps] for name, (seconds, count) in longest]

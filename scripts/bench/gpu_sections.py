"""Sections of gpu.py, each of which runs in a process of its own."""

import functools
import gc
import json
import math
import random
import re
import statistics
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import decode_speed
import numpy as np
import torch
from peers import Size
from torch import Tensor
from torch.profiler import ProfilerActivity
from train_speed import STEPS, Setup, Step, model_flops, num_tokens, padding

from mtformer.data.batching.batches import Batch, make_batch

LENGTHS = Path(__file__).with_name("kftt_lengths.json")
LENGTHS_BATCH_TOKENS = 32_768
SYNTHETIC_LENGTH = 64
BEAMS = {"greedy": 1, "beam 5": 5}
SYSTEMS = {"mtformer": "mtformer", "torch": "torch.nn.Transformer", "marian": "Hugging Face Marian"}
FIRST_WORD = 4  # ids below are special

Figure = dict[str, Any]
"""Keys of values are their labels, with the unit."""
Measurements = Generator[tuple[Figure, Callable[[], Figure]], Figure, None]
"""Yields the description of each figure with the function that measures it, and receives the figure."""


@dataclass(frozen=True)
class Scale:
    """Sizes of models, batches and other work: as in the paper, or tiny to try the script."""

    sizes: dict[str, tuple[Size, float]]
    """Model and dropout by name."""
    batch_tokens: tuple[int, ...]
    slice_tokens: int
    """Padded tokens of the batches of one slice."""
    product: int
    """Side of a large matrix product; others have the shapes of the models."""
    copied_bytes: int
    sentences: tuple[int, ...]
    """Sentences of a batch in decoding."""
    target_tokens: int


SCALES = {
    "full": Scale(
        sizes={"base": (Size(512, 2048, 8, 6, 32_000), 0.1), "big": (Size(1024, 4096, 16, 6, 32_000), 0.3)},
        batch_tokens=(32_768, 16_384, 8_192),
        slice_tokens=8 * 32_768,
        product=8192,
        copied_bytes=4 << 30,
        sentences=(64, 256),
        target_tokens=32,
    ),
    "tiny": Scale(
        sizes={"base": (Size(32, 64, 2, 1, 500), 0.1), "big": (Size(64, 128, 4, 1, 500), 0.3)},
        batch_tokens=(256,),
        slice_tokens=512,
        product=64,
        copied_bytes=1 << 20,
        sentences=(2,),
        target_tokens=5,
    ),
}


class Bench:
    """Device to measure, and sizes of its work."""

    def __init__(self, device: Literal["cpu", "cuda"], scale: Scale) -> None:
        self.device = device
        self.scale = scale

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object]) -> float:
        """Return the time of one run, from an idle device to an idle device."""
        self.synchronize()
        begin = time.perf_counter()
        run()
        self.synchronize()
        return time.perf_counter() - begin

    def slices(self, run: Callable[[], object], warm_up: int, most_seconds: float = 1.5) -> list[float]:
        """Return the times of single runs after `warm_up` runs: at least three, and more within `most_seconds`."""
        for _ in range(warm_up):
            self.seconds(run)
        found: list[float] = []
        while len(found) < 3 or (sum(found) < most_seconds and len(found) < 15):
            found.append(self.seconds(run))
        return found


# ---- limits of the machine ------------------------------------------------------------------------------------------


def limits(bench: Bench) -> Measurements:
    """Rates of matrix products, a large one and those of the models, and of a copy."""
    shapes = [(bench.scale.product,) * 3]
    for size, _ in bench.scale.sizes.values():
        shapes += [(bench.scale.batch_tokens[0], size.d_model, N) for N in (size.d_model, size.d_ff, size.vocab_size)]
    for (M, K, N), dtype in [*((shape, torch.bfloat16) for shape in shapes), (shapes[0], torch.float32)]:
        name = f"{str(dtype).removeprefix('torch.')} {M} x {K} by {K} x {N}"
        yield {"kind": "limit", "name": name}, functools.partial(measure_product, bench, M, K, N, dtype)
    yield {"kind": "limit", "name": "copy"}, functools.partial(measure_copy, bench)


def measure_product(bench: Bench, M: int, K: int, N: int, dtype: torch.dtype) -> Figure:
    """Multiply random matrices, (M, K) by (K, N); zeros would be faster."""
    left, right = torch.randn(M, K, device=bench.device).to(dtype), torch.randn(K, N, device=bench.device).to(dtype)
    out = left @ right
    repeats = max(4, int(2e13 / (2 * M * K * N))) if bench.device == "cuda" else 1

    def run() -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=out)

    seconds = bench.slices(run, warm_up=2, most_seconds=0.5)
    return {"TFLOP/s": 2e-12 * M * K * N * repeats / statistics.median(seconds)}


def measure_copy(bench: Bench) -> Figure:
    """Copy bytes from one place of the device's memory to another."""
    source = torch.randint(0, 255, (bench.scale.copied_bytes,), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = bench.slices(lambda: target.copy_(source), warm_up=2, most_seconds=0.5)
    return {"TB/s read and written": 2e-12 * bench.scale.copied_bytes / statistics.median(seconds)}


# ---- batches --------------------------------------------------------------------------------------------------------


def kftt_batches(scale: Scale, size: Size, batch_tokens: int) -> list[Batch]:
    """Return a slice of batches with the lengths of real ones (kftt_lengths.json) and random ids."""
    parts = []
    for runs in json.loads(LENGTHS.read_text(encoding="utf-8"))["batches"]:
        pairs = [(src, tgt) for src, tgt, count in runs for _ in range(count)]
        # Neighbors are alike in length, so a smaller budget cuts the same pairs at more places.
        parts += [part.tolist() for part in np.array_split(pairs, LENGTHS_BATCH_TOKENS // batch_tokens)]
    numbers = np.linspace(0, len(parts) - 1, scale.slice_tokens // batch_tokens).round().astype(int)
    chosen = [parts[number] for number in numbers]
    random.Random(1).shuffle(chosen)
    return [random_batch(pairs, size) for pairs in chosen]


def synthetic_batches(scale: Scale, size: Size, batch_tokens: int) -> list[Batch]:
    """Return batches of one length without padding, for half a slice of the others."""
    pairs = [(SYNTHETIC_LENGTH - 1, SYNTHETIC_LENGTH - 1)] * (batch_tokens // SYNTHETIC_LENGTH)
    return [random_batch(pairs, size) for _ in range(scale.slice_tokens // batch_tokens // 2)]


def random_batch(lengths: Sequence[tuple[int, int]], size: Size) -> Batch:
    """Return a batch of random ids in pairs of these lengths, eos not counted."""
    generator = np.random.default_rng(len(lengths))
    return make_batch(
        [tuple(generator.integers(FIRST_WORD, size.vocab_size, n).tolist() for n in pair) for pair in lengths]
    )


REAL = "KFTT lengths"
BATCHES = {REAL: kftt_batches, f"{SYNTHETIC_LENGTH} x {SYNTHETIC_LENGTH}": synthetic_batches}


# ---- training -------------------------------------------------------------------------------------------------------


def training(bench: Bench, size_name: str, compile: bool) -> Measurements:
    """Tokens per second of all systems, and where the time of mtformer goes. Compiled: of mtformer alone."""
    size, dropout = bench.scale.sizes[size_name]
    setup = Setup(size, "bf16", dropout, device=bench.device, compile=compile)
    # All of a kind first: a graph compiled for equal lengths must be compiled again for others.
    cells = [(kind, number) for kind in BATCHES for number in bench.scale.batch_tokens]
    batches = {(kind, number): BATCHES[kind](bench.scale, size, number) for kind, number in cells}
    cudnn, rates = torch.backends.cuda.cudnn_sdp_enabled(), {}
    for family in ["mtformer"] if compile else SYSTEMS:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)  # mtformer turns it off, and users of peers have it on
        step = functools.cache(functools.partial(STEPS[family], setup))
        about = {"size": size_name, "system": SYSTEMS[family] + (", compiled" if compile else "")}
        for kind, number in cells:
            figure = yield (
                {"kind": "training", **about, "batches": kind, "batch tokens": number},
                functools.partial(measure_training, bench, size, step, batches[kind, number], 2 if compile else 1),
            )
            if family == "mtformer" and kind == REAL and "error" not in figure:
                rates[number] = statistics.median(figure["tokens/s"])
    if rates:  # a closer look at the best batch size
        best = max(rates, key=rates.__getitem__)
        if not compile:  # built a second time, because the peers come before: a profiler slows down what follows it
            step = functools.cache(functools.partial(STEPS["mtformer"], setup))
            about["system"] = "mtformer"
        about |= {"batches": REAL, "batch tokens": best}
        yield {"kind": "profile", **about}, functools.partial(measure_profile, bench, step, batches[REAL, best][:3])


def measure_training(
    bench: Bench, size: Size, step: Callable[[], Step], batches: Sequence[Batch], warm_up: int
) -> Figure:
    """Train one system on one set of batches."""
    gc.collect()  # frees the previous system
    begin = time.perf_counter()
    train, moved = step(), [batch.to(bench.device) for batch in batches]
    losses: list[Tensor] = []
    if bench.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def run() -> None:
        losses[:] = [train(batch) for batch in moved]

    seconds = bench.slices(run, warm_up)
    total = time.perf_counter() - begin
    if not all(math.isfinite(float(loss)) for loss in losses):
        raise FloatingPointError("the loss is not finite")
    median, flops = statistics.median(seconds), sum(model_flops(size, batch) for batch in batches)
    figure = {
        "tokens/s": [sum(map(num_tokens, batches)) / s for s in seconds],
        "TFLOP/s": flops / median / 1e12,
        "ms a step": 1000 * median / len(batches),
        "% padding": 100 * padding(batches),
        "s to build and warm up": total - sum(seconds),
    }
    if bench.device == "cuda":
        figure["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return figure


KERNELS = {  # the first pattern that the kernel's name matches
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
    "other": r"",
}


def measure_profile(bench: Bench, step: Callable[[], Step], batches: Sequence[Batch]) -> Figure:
    """Profile one step on each batch; a CPU's operations take the place of kernels.

    Returns:
        rows of the step as a whole (with the profiler on), of all kernels, of each class and of the longest kernels.
    """
    train, moved, on_cuda = step(), [batch.to(bench.device) for batch in batches], bench.device == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        seconds = bench.seconds(lambda: [train(batch) for batch in moved])
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in profiler.key_averages():
        # Spans that PyTorch itself marks hold kernels that are counted by their own names.
        is_span = getattr(event, "is_user_annotation", False) or event.key.startswith(("Optimizer.", "ProfilerStep"))
        microseconds = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if is_span or (event.device_type.name == "CUDA") != on_cuda or microseconds == 0:
            continue
        kind = next(name for name, pattern in KERNELS.items() if re.search(pattern, event.key, re.IGNORECASE))
        for name in ("all kernels", f"class: {kind}", event.key):
            spent[name][0] += microseconds / 1e3 / len(batches)
            spent[name][1] += event.count / len(batches)
    rows = [
        {"name": name, "ms a step": ms, "%": 100 * ms / spent["all kernels"][0], "calls a step": calls}
        for name, (ms, calls) in sorted(spent.items(), key=lambda item: item[1][0], reverse=True)
    ]
    classes = [row for row in rows if row["name"].startswith(("all kernels", "class: "))]
    kernels = [row for row in rows if row not in classes][:15]
    step_row = {"name": "step, with the profiler on", "ms a step": 1000 * seconds / len(batches)}
    return {"rows": [step_row, *classes, *kernels]}


# ---- decoding -------------------------------------------------------------------------------------------------------


def decoding(bench: Bench) -> Measurements:
    """Sentences per second of the base model with random weights."""
    size, _ = bench.scale.sizes["base"]
    systems = {"mtformer": decode_speed.mtformer_system, "Hugging Face generate": decode_speed.marian_system}
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    for search, num_beams in BEAMS.items():
        for system, make in systems.items():
            torch.backends.cuda.enable_cudnn_sdp(cudnn)  # as in `training`
            for num_sentences in bench.scale.sentences:
                yield (
                    {"kind": "decoding", "search": search, "system": system, "sentences": num_sentences},
                    functools.partial(measure_decoding, bench, make, size, num_beams, num_sentences),
                )


def measure_decoding(
    bench: Bench, make: Callable[..., decode_speed.Decode], size: Size, num_beams: int, num_sentences: int
) -> Figure:
    """Translate one batch into a fixed number of tokens."""
    decode = make(size, "bf16", num_beams, bench.scale.target_tokens, bench.device)
    batch = kftt_batches(bench.scale, size, bench.scale.batch_tokens[0])[0]
    rows = torch.arange(num_sentences) % len(batch.src_BS)
    src_BS, lengths_B = batch.src_BS[rows].to(bench.device), batch.src_lengths_B[rows].to(bench.device)

    def run() -> None:
        with torch.inference_mode():
            decode(src_BS, lengths_B)

    return {"sentences/s": [num_sentences / s for s in bench.slices(run, warm_up=2)]}


# ---- sections -------------------------------------------------------------------------------------------------------


SECTIONS: dict[str, tuple[float, Callable[[Bench], Measurements]]] = {
    "limits": (2, limits),
    "base": (12, lambda bench: training(bench, "base", compile=False)),
    "big": (15, lambda bench: training(bench, "big", compile=False)),
    "decoding": (8, decoding),
    "base, compiled": (15, lambda bench: training(bench, "base", compile=True)),
    "big, compiled": (16, lambda bench: training(bench, "big", compile=True)),
}
"""Share of the time of each section, relative to the others, and its measurements."""


def build(name: str, device: Literal["cpu", "cuda"], scale_name: str) -> Callable[[bool], Figure | None]:
    """Return the function that measures the next figure of a section: None after the last one.

    Called without time left (False), it does not measure. A figure that cannot be measured has the key "error".
    """
    measurements = SECTIONS[name][1](Bench(device, SCALES[scale_name]))
    figure: Figure | None = None

    def measure_next(has_time: bool) -> Figure | None:
        nonlocal figure
        try:
            figure, measure = measurements.send(figure)
        except StopIteration:
            return None
        if not has_time:
            figure["error"] = "not measured, the time of the section was used up"
            return figure
        try:
            figure |= measure()
        except Exception as error:
            traceback.print_exc()
            figure["error"] = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        return figure

    return measure_next

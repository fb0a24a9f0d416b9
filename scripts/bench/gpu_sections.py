"""Sections of gpu.py that measure speed and memory, and what all sections share (sizes, batches, timing)."""

import functools
import gc
import importlib.util
import json
import math
import random
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import decode_speed
import numpy as np
import torch
from decode_speed import BEAMS
from peers import Size
from torch import Tensor
from torch.profiler import ProfilerActivity
from train_speed import STEPS, Setup, Step, model_flops, num_tokens, padding

from mtformer.data.batching.batches import Batch, make_batch

LENGTHS = Path(__file__).with_name("kftt_lengths.json")
LENGTHS_BATCH_TOKENS = 32_768
SYNTHETIC_LENGTH = 64
SYSTEMS = {
    "mtformer": "mtformer", "torch": "torch.nn.Transformer", "marian": "Hugging Face Marian", "eole": "Eole"
}  # fmt: skip
PACKAGES = {"marian": "transformers", "eole": "eole", "CTranslate2": "ctranslate2"}
"""Packages that a system needs and that may not be installed."""
FIRST_WORD = 4  # lower ids are special

Figure = dict[str, Any]
"""A result by label; labels include the unit."""
Measurements = Generator[tuple[Figure, Callable[[], Figure]], Figure, None]
"""Generator that yields the description of each result and the function that measures it, and receives the result."""


@dataclass(frozen=True)
class Scale:
    """Sizes of models, batches and other workloads: those of the paper, or tiny ones to try the script."""

    sizes: dict[str, tuple[Size, float]]
    """Model size and dropout by name."""
    batch_tokens: tuple[int, ...]
    slice_tokens: int
    """Number of padded tokens in the batches of a slice."""
    product: int
    """Side of the large matrix product; the others have the shapes of the models."""
    copied_bytes: int
    sentences: tuple[int, ...]
    """Number of sentences per batch in decoding."""
    target_tokens: int
    corpus_lines: dict[str, int]
    """Maximum number of lines of each part of KFTT to use."""
    corpus_settings: str
    """Changes to configs/kftt_ja_en.yaml."""


SCALES = {
    "full": Scale(
        sizes={"base": (Size(512, 2048, 8, 6, 32_000), 0.1), "big": (Size(1024, 4096, 16, 6, 32_000), 0.3)},
        batch_tokens=(32_768, 16_384, 8_192),
        slice_tokens=8 * 32_768,
        product=8192,
        copied_bytes=4 << 30,
        sentences=(64, 256),
        target_tokens=32,
        corpus_lines={"train": 1_000_000, "dev": 300},
        corpus_settings="training.max_steps=1000 training.warmup_steps=400 training.log_every=100 "
        "tokenizer.train_sentences=30000",
    ),
    "tiny": Scale(
        sizes={"base": (Size(32, 64, 2, 1, 500), 0.1), "big": (Size(64, 128, 4, 1, 500), 0.3)},
        batch_tokens=(256, 128),
        slice_tokens=512,
        product=64,
        copied_bytes=1 << 20,
        sentences=(2,),
        target_tokens=5,
        corpus_lines={"train": 600, "dev": 10},
        corpus_settings="training.max_steps=20 training.batch_tokens=512 training.step_tokens=1024 "
        "training.warmup_steps=5 training.log_every=4 training.learning_rate=0.01 tokenizer.vocab_size=1500 "
        "tokenizer.character_coverage=0.99 decoding.max_length=9",
    ),
}


class Bench:
    """Device and scale of the measurements, and the folder of the KFTT corpus."""

    def __init__(self, device: str, scale: Scale, corpus: Path) -> None:
        self.device, self.scale, self.corpus = device, scale, corpus
        self.precisions = ("fp32", "bf16", "fp16") if device == "cuda" else ("fp32", "bf16")
        self.deadline = math.inf
        """Time at which the section ends."""

    def peak_gib(self) -> float:
        """Return the peak memory of all tensors since `forget_peak`; NaN on a CPU."""
        return torch.cuda.max_memory_allocated() / 2**30 if self.device == "cuda" else math.nan

    def forget_peak(self) -> None:
        """Release unused memory, and measure the peak memory from now on."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def seconds(self, run: Callable[[], object]) -> float:
        """Return the time of one run, from idle device to idle device."""
        synchronize = torch.cuda.synchronize if self.device == "cuda" else torch.cpu.synchronize
        synchronize()
        begin = time.perf_counter()
        run()
        synchronize()
        return time.perf_counter() - begin

    def slices(self, run: Callable[[], object], warm_up: int, most_seconds: float = 1.5) -> list[float]:
        """Return the times of single runs after `warm_up` runs: at least three, and more within `most_seconds`."""
        for _ in range(warm_up):
            self.seconds(run)
        found: list[float] = []
        while len(found) < 3 or (sum(found) < most_seconds and len(found) < 15):
            found.append(self.seconds(run))
        return found


# ---- machine limits -------------------------------------------------------------------------------------------------


def limits(bench: Bench) -> Measurements:
    """Measure the rates of a large matrix product, of the models' matrix products, and of a copy."""
    shapes = [(bench.scale.product,) * 3]
    for size, _ in bench.scale.sizes.values():
        shapes += [(bench.scale.batch_tokens[0], size.d_model, N) for N in (size.d_model, size.d_ff, size.vocab_size)]
    for (M, K, N), dtype in [*((shape, torch.bfloat16) for shape in shapes), (shapes[0], torch.float32)]:
        name = f"{str(dtype).removeprefix('torch.')} {M} x {K} by {K} x {N}"
        yield {"kind": "limit", "name": name}, functools.partial(measure_product, bench, M, K, N, dtype)
    yield {"kind": "limit", "name": "copy"}, functools.partial(measure_copy, bench)


def measure_product(bench: Bench, M: int, K: int, N: int, dtype: torch.dtype) -> Figure:
    """Measure a product of random matrices, (M, K) by (K, N); zeros would be faster."""
    left, right = torch.randn(M, K, device=bench.device).to(dtype), torch.randn(K, N, device=bench.device).to(dtype)
    out = left @ right
    repeats = max(4, int(2e13 / (2 * M * K * N))) if bench.device == "cuda" else 1

    def run() -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=out)

    seconds = bench.slices(run, warm_up=2, most_seconds=0.5)
    return {"TFLOP/s": 2e-12 * M * K * N * repeats / statistics.median(seconds)}


def measure_copy(bench: Bench) -> Figure:
    """Measure a copy within device memory."""
    source = torch.randint(0, 255, (bench.scale.copied_bytes,), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = bench.slices(lambda: target.copy_(source), warm_up=2, most_seconds=0.5)
    return {"TB/s read and written": 2e-12 * bench.scale.copied_bytes / statistics.median(seconds)}


# ---- batches --------------------------------------------------------------------------------------------------------


def kftt_batches(scale: Scale, size: Size, batch_tokens: int) -> list[Batch]:
    """Return a slice of batches with random ids and the lengths of real batches (kftt_lengths.json)."""
    parts = []
    for runs in json.loads(LENGTHS.read_text(encoding="utf-8"))["batches"]:
        pairs = [(src, tgt) for src, tgt, count in runs for _ in range(count)]
        # Adjacent pairs have similar lengths, so smaller batches are smaller parts of the same list of pairs.
        parts += [part.tolist() for part in np.array_split(pairs, LENGTHS_BATCH_TOKENS // batch_tokens)]
    numbers = np.linspace(0, len(parts) - 1, scale.slice_tokens // batch_tokens).round().astype(int)
    chosen = [parts[number] for number in numbers]
    random.Random(1).shuffle(chosen)
    return [random_batch(pairs, size) for pairs in chosen]


def synthetic_batches(scale: Scale, size: Size, batch_tokens: int) -> list[Batch]:
    """Return batches of equal lengths without padding, half as many as in other slices."""
    pairs = [(SYNTHETIC_LENGTH - 1, SYNTHETIC_LENGTH - 1)] * (batch_tokens // SYNTHETIC_LENGTH)
    return [random_batch(pairs, size) for _ in range(scale.slice_tokens // batch_tokens // 2)]


def random_batch(lengths: Sequence[tuple[int, int]], size: Size) -> Batch:
    """Return a batch of pairs of random ids with these lengths, without eos."""
    generator = np.random.default_rng(len(lengths))
    return make_batch(
        [tuple(generator.integers(FIRST_WORD, size.vocab_size, n).tolist() for n in pair) for pair in lengths]
    )


REAL = "KFTT lengths"
BATCHES = {REAL: kftt_batches, f"{SYNTHETIC_LENGTH} x {SYNTHETIC_LENGTH}": synthetic_batches}


# ---- training -------------------------------------------------------------------------------------------------------


def training(bench: Bench, size_name: str, compile: bool) -> Measurements:
    """Measure tokens per second of all systems, and memory per token and a profile of mtformer.

    If `compile` is True, only the systems that can be compiled are measured.
    """
    size, dropout = bench.scale.sizes[size_name]
    setup = Setup(size, "bf16", dropout, device=bench.device, compile=compile)
    # Batches of the same kind are consecutive: a graph compiled for equal lengths must be recompiled for others.
    cells = [(kind, number) for kind in BATCHES for number in bench.scale.batch_tokens]
    batches = {(kind, number): BATCHES[kind](bench.scale, size, number) for kind, number in cells}
    cudnn, rates, peaks = torch.backends.cuda.cudnn_sdp_enabled(), {}, {}
    for family in ("mtformer", "torch") if compile else SYSTEMS:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)  # disabled by mtformer, but enabled by default for peers
        step = functools.cache(functools.partial(STEPS[family], setup))
        about = {"size": size_name, "system": SYSTEMS[family] + (", compiled" if compile else "")}
        # Peers and compiled systems are measured with the largest batches only.
        sizes = bench.scale.batch_tokens if family == "mtformer" and not compile else bench.scale.batch_tokens[:1]
        for kind, number in [cell for cell in cells if cell[1] in sizes]:
            figure = yield (
                {"kind": "training", **about, "batches": kind, "batch tokens": number},
                if_installed(family, measure_training, bench, size, step, batches[kind, number], 2 if compile else 1),
            )
            if family == "mtformer" and "error" not in figure:
                (rates if kind == REAL else peaks)[number] = figure
        if family == "mtformer" and len(peaks) > 1:
            yield {"kind": "memory", **about}, functools.partial(memory_per_token, peaks)
    if rates:  # profile the best batch size
        best = max(rates, key=lambda number: statistics.median(rates[number]["tokens/s"]))
        # Rebuilt here, because profiling before the peers are measured would slow them down.
        step = functools.cache(functools.partial(STEPS["mtformer"], setup))
        about |= {"system": "mtformer" + (", compiled" if compile else ""), "batches": REAL, "batch tokens": best}
        yield {"kind": "profile", **about}, functools.partial(measure_profile, bench, step, batches[REAL, best][:3])


def if_installed(system: str, measure: Callable[..., Figure], *arguments: object) -> Callable[[], Figure]:
    """Return the measurement with its arguments, or a function that says that the system is not installed."""
    if importlib.util.find_spec(PACKAGES.get(system, "torch")) is None:
        return lambda: {"note": "not installed"}
    return functools.partial(measure, *arguments)


def measure_training(
    bench: Bench, size: Size, step: Callable[[], Step], batches: Sequence[Batch], warm_up: int
) -> Figure:
    """Measure the training speed of a system on these batches."""
    gc.collect()  # frees the memory of the previous system
    train, moved = step(), [batch.to(bench.device) for batch in batches]
    bench.forget_peak()
    first = bench.seconds(lambda: train(moved[0]))
    losses: list[Tensor] = []

    def run() -> None:
        losses[:] = [train(batch) for batch in moved]

    seconds = bench.slices(run, warm_up)
    if not all(math.isfinite(float(loss)) for loss in losses):
        raise FloatingPointError("the loss is not finite")
    median, flops = statistics.median(seconds), sum(model_flops(size, batch) for batch in batches)
    return {
        "tokens/s": [sum(map(num_tokens, batches)) / s for s in seconds],
        "TFLOP/s": flops / median / 1e12,
        "ms per step": 1000 * median / len(batches),
        "s for the first step": first,
        "% padding": 100 * padding(batches),
        "peak GiB": bench.peak_gib(),
    }


def memory_per_token(figures: dict[int, Figure]) -> Figure:
    """Divide the peak memory of batches without padding into a part per batch token and a constant part."""
    large, small = max(figures), min(figures)
    slope = (figures[large]["peak GiB"] - figures[small]["peak GiB"]) / (large - small)
    return {
        **{f"peak GiB, {number:,} batch tokens": figures[number]["peak GiB"] for number in (large, small)},
        "bytes per batch token": slope * 2**30,
        "GiB without batch": figures[small]["peak GiB"] - slope * small,
    }


KERNELS = {  # the first pattern that matches the name of a kernel determines its class
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
    """Profile one step on each batch; on a CPU, operations are used instead of kernels.

    Returns:
        Rows for the whole step (while profiling), all kernels, each class of kernels, and the slowest kernels.
    """
    train, moved, on_cuda = step(), [batch.to(bench.device) for batch in batches], bench.device == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_cuda else [ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profiler:
        seconds = bench.seconds(lambda: [train(batch) for batch in moved])
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in profiler.key_averages():
        # Spans marked by PyTorch contain kernels, which are counted under their own names.
        is_span = getattr(event, "is_user_annotation", False) or event.key.startswith(("Optimizer.", "ProfilerStep"))
        microseconds = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if is_span or (event.device_type.name == "CUDA") != on_cuda or microseconds == 0:
            continue
        kind = next(name for name, pattern in KERNELS.items() if re.search(pattern, event.key, re.IGNORECASE))
        for name in ("all kernels", f"class: {kind}", event.key):
            spent[name][0] += microseconds / 1e3 / len(batches)
            spent[name][1] += event.count / len(batches)
    rows = [
        {"name": name, "ms per step": ms, "%": 100 * ms / spent["all kernels"][0], "calls per step": calls}
        for name, (ms, calls) in sorted(spent.items(), key=lambda item: item[1][0], reverse=True)
    ]
    classes = [row for row in rows if row["name"].startswith(("all kernels", "class: "))]
    kernels = [row for row in rows if row not in classes][:15]
    step_row = {"name": "step, while profiling", "ms per step": 1000 * seconds / len(batches)}
    return {"rows": [step_row, *classes, *kernels]}


# ---- decoding -------------------------------------------------------------------------------------------------------


def decoding(bench: Bench) -> Measurements:
    """Measure sentences per second of the base model with random weights."""
    size, _ = bench.scale.sizes["base"]
    half = bench.precisions[-1]
    systems = [
        ("mtformer", half, decode_speed.mtformer_system),
        ("CTranslate2", "fp16" if bench.device == "cuda" else "fp32", decode_speed.ctranslate2_system),
        ("Hugging Face generate", half, decode_speed.marian_system),
        *(("mtformer", precision, decode_speed.mtformer_system) for precision in bench.precisions[:-1]),
    ]
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    for search, num_beams in BEAMS.items():
        for system, precision, make in systems:
            torch.backends.cuda.enable_cudnn_sdp(cudnn)  # see `training`
            for num_sentences in bench.scale.sentences:
                about = {"search": search, "system": system, "precision": precision, "sentences": num_sentences}
                build = functools.partial(make, size, precision, num_beams, bench.scale.target_tokens, bench.device)
                measure = if_installed(system, measure_decoding, bench, build, size, num_sentences)
                yield {"kind": "decoding", **about}, measure


def measure_decoding(bench: Bench, build: Callable[[], decode_speed.Decode], size: Size, num_sentences: int) -> Figure:
    """Measure the translation of a batch into a fixed number of tokens."""
    decode = build()
    batch = kftt_batches(bench.scale, size, bench.scale.batch_tokens[0])[0]
    rows = torch.arange(num_sentences) % len(batch.src_BS)
    src_BS, lengths_B = batch.src_BS[rows].to(bench.device), batch.src_lengths_B[rows].to(bench.device)

    def run() -> None:
        with torch.inference_mode():
            decode(src_BS, lengths_B)

    return {"sentences/s": [num_sentences / s for s in bench.slices(run, warm_up=1)]}

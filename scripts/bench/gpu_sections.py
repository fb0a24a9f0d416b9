"""What gpu.py measures, section by section, each in a process of its own; see there.

Every figure is a dict that is kept as soon as it is there, so that what was measured outlives what fails later.
"""

import gc
import json
import math
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import decode_speed
import numpy as np
import torch
import train_speed
from gpu_profile import profile
from peers import Size
from torch import Tensor
from train_speed import Step, model_flops, num_tokens

from mtformer.data.batching.batches import Batch, make_batch

LENGTHS = Path(__file__).with_name("kftt_lengths.json")
LENGTHS_BATCH_TOKENS = 32_768
SYNTHETIC_LENGTH = 64
BEAMS = {"greedy": 1, "beam 5": 5}
FIRST_WORD = 4  # ids below are special


@dataclass(frozen=True)
class Scale:
    """How large everything is: as in the paper, or tiny to try the script."""

    sizes: dict[str, tuple[Size, float]]
    """Model and dropout by name."""
    batch_tokens: tuple[int, ...]
    pass_tokens: int
    """Padded tokens of the batches of one slice."""
    products: tuple[tuple[int, int, int], ...]
    """Rows, inner width and columns of matrix products."""
    copied_bytes: int
    sentences: tuple[int, ...]
    """Sentences of a batch in decoding."""
    target_tokens: int


FULL = Scale(
    sizes={"base": (Size(512, 2048, 8, 6, 32_000), 0.1), "big": (Size(1024, 4096, 16, 6, 32_000), 0.3)},
    batch_tokens=(32_768, 16_384, 8_192),
    pass_tokens=8 * 32_768,
    products=(
        (8192, 8192, 8192),
        (32_768, 512, 512),
        (32_768, 512, 2048),
        (32_768, 512, 32_000),
        (32_768, 1024, 1024),
        (32_768, 1024, 4096),
        (32_768, 1024, 32_000),
    ),
    copied_bytes=4 << 30,
    sentences=(64, 256),
    target_tokens=32,
)
TINY = Scale(
    sizes={"base": (Size(32, 64, 2, 1, 500), 0.1), "big": (Size(64, 128, 4, 1, 500), 0.3)},
    batch_tokens=(256,),
    pass_tokens=512,
    products=((64, 64, 64), (128, 32, 64)),
    copied_bytes=1 << 20,
    sentences=(2,),
    target_tokens=5,
)
SCALES = {"full": FULL, "tiny": TINY}


class Section:
    """Keeps figures on disk, and knows how much time is left."""

    def __init__(
        self, name: str, keep: Callable[[list[dict[str, Any]]], None], device: str, scale: Scale, deadline: float
    ) -> None:
        self.name = name
        self.keep = keep
        """Writes the section's figures to disk."""
        self.device: Literal["cpu", "cuda"] = "cuda" if device == "cuda" else "cpu"
        self.scale = scale
        self.deadline = deadline
        """Seconds since the epoch, as `time.time()` counts: it was set by another process."""
        self.figures: list[dict[str, Any]] = []

    def measure(self, about: dict[str, Any], what: Callable[..., dict[str, Any]], *arguments: Any) -> bool:
        """Keeps what `what(*arguments)` gives together with `about`, or why it gave nothing; whether it did."""
        figure = {"section": self.name, **about}
        try:
            if time.time() > self.deadline:
                raise TimeoutError("not measured, the time of the section was spent")
            figure |= what(*arguments)
        except Exception as error:
            traceback.print_exc()
            figure["error"] = f"{type(error).__name__}: {str(error).strip() or 'without words'}".splitlines()[0]
        self.figures.append(figure)
        self.keep(self.figures)
        print(str(figure)[:300], file=sys.stderr, flush=True)
        return "error" not in figure

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def seconds(self, run: Callable[[], object]) -> float:
        """Of one run, from an idle device to an idle device."""
        self.synchronize()
        begin = time.perf_counter()
        run()
        self.synchronize()
        return time.perf_counter() - begin

    def slices(self, run: Callable[[], object], warm_up: int, most_seconds: float = 1.5) -> list[float]:
        """Seconds of single runs after `warm_up` runs: at least three, and more while these seconds last."""
        for _ in range(warm_up):
            self.seconds(run)
        found: list[float] = []
        while len(found) < 3 or (sum(found) < most_seconds and len(found) < 15):
            found.append(self.seconds(run))
        return found


# ---- limits of the machine ------------------------------------------------------------------------------------------


def limits(section: Section) -> None:
    """Rates of matrix products and of a copy."""
    for dtype, shapes in ((torch.bfloat16, section.scale.products), (torch.float32, section.scale.products[:1])):
        for M, K, N in shapes:
            name = f"{str(dtype).removeprefix('torch.')} {M} x {K} by {K} x {N}"
            section.measure({"kind": "product", "name": name}, _product, section, M, K, N, dtype)
    section.measure({"kind": "copy", "name": "copy"}, _copy, section)


def _product(section: Section, M: int, K: int, N: int, dtype: torch.dtype) -> dict[str, Any]:
    """On random data: zeros are multiplied faster."""
    left, right = (torch.randn(shape, device=section.device).to(dtype) for shape in ((M, K), (K, N)))
    out = left @ right
    repeats = max(4, int(2e13 / (2 * M * K * N))) if section.device == "cuda" else 1

    def run() -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=out)

    seconds = section.slices(run, warm_up=2, most_seconds=0.5)
    return {"flops_per_second": 2 * M * K * N * repeats / statistics.median(seconds)}


def _copy(section: Section) -> dict[str, Any]:
    source = torch.randint(0, 255, (section.scale.copied_bytes,), dtype=torch.uint8, device=section.device)
    target = torch.empty_like(source)
    seconds = section.slices(lambda: target.copy_(source), warm_up=2, most_seconds=0.5)
    return {"bytes_per_second": 2 * section.scale.copied_bytes / statistics.median(seconds)}


# ---- batches --------------------------------------------------------------------------------------------------------


def kftt_batches(scale: Scale, size: Size, batch_tokens: int) -> list[Batch]:
    """Batches with the lengths of real ones (kftt_lengths.json) and random ids, as many as make a slice."""
    parts = []
    for runs in json.loads(LENGTHS.read_text(encoding="utf-8"))["batches"]:
        pairs = [(src, tgt) for src, tgt, count in runs for _ in range(count)]
        # Neighbours are alike in length, so a smaller budget cuts the same pairs at more places.
        parts += [part.tolist() for part in np.array_split(pairs, LENGTHS_BATCH_TOKENS // batch_tokens)]
    places = np.linspace(0, len(parts) - 1, scale.pass_tokens // batch_tokens).round().astype(int)
    chosen = [parts[place] for place in places]
    random.Random(1).shuffle(chosen)
    return [random_batch(pairs, size) for pairs in chosen]


def synthetic_batches(scale: Scale, size: Size, batch_tokens: int) -> list[Batch]:
    """Batches of one length without padding, half as many as make a slice of the others."""
    pairs = [(SYNTHETIC_LENGTH - 1, SYNTHETIC_LENGTH - 1)] * (batch_tokens // SYNTHETIC_LENGTH)
    return [random_batch(pairs, size) for _ in range(scale.pass_tokens // batch_tokens // 2)]


def random_batch(lengths: Sequence[tuple[int, int]], size: Size) -> Batch:
    """Random ids in pairs of these lengths, eos not counted."""
    generator = np.random.default_rng(len(lengths))
    return make_batch(
        [tuple(generator.integers(FIRST_WORD, size.vocab_size, n).tolist() for n in pair) for pair in lengths]
    )


KINDS = {"KFTT lengths": kftt_batches, f"{SYNTHETIC_LENGTH} x {SYNTHETIC_LENGTH}": synthetic_batches}


# ---- training -------------------------------------------------------------------------------------------------------


def training(section: Section, size_name: str, compile: bool) -> None:
    """Tokens per second of all systems; of mtformer also where its time goes. Compiled: of mtformer alone."""
    size, dropout = section.scale.sizes[size_name]
    systems: dict[str, Callable[[], Step]] = {
        "mtformer": lambda: train_speed.mtformer_system(size, "bf16", dropout, section.device, compile),
        # Attention dropout 0, as mtformer has it: their fused kernels are faster without.
        "torch.nn.Transformer": lambda: train_speed.torch_system(size, "bf16", 0.0, dropout, section.device),
        "Hugging Face Marian": lambda: train_speed.marian_system(size, "bf16", 0.0, dropout, section.device),
    }
    if compile:
        systems = {"mtformer, compiled": systems["mtformer"]}
    # All of a kind first: a graph compiled for equal lengths would have to be compiled again for others.
    cells = [(kind, batch_tokens) for kind in KINDS for batch_tokens in section.scale.batch_tokens]
    batches = {(kind, number): KINDS[kind](section.scale, size, number) for kind, number in cells}
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()

    def measure_all(about: dict[str, Any], step: Step) -> None:
        for kind, number in cells:
            cell = {"kind": "training", **about, "batches": kind, "batch_tokens": number}
            section.measure(cell, _train, section, size, step, batches[kind, number], 2 if compile else 1)
        if compile:
            look_closer(section, about, step, batches)

    for system, make in systems.items():
        torch.backends.cuda.enable_cudnn_sdp(cudnn)  # mtformer switches it off, and it is on as users of peers run them
        use(section, {"size": size_name, "system": system}, make, measure_all)
    if not compile:  # last, since a profiler may slow down what comes after it
        about = {"size": size_name, "system": "mtformer"}
        use(section, about, systems["mtformer"], lambda about, step: look_closer(section, about, step, batches))


def use(
    section: Section, about: dict[str, Any], make: Callable[[], Step], work: Callable[[dict[str, Any], Step], None]
) -> None:
    """Builds a system, works with it, and gives its memory back."""
    torch.manual_seed(1)
    built: list[Step] = []
    if section.measure({"kind": "build", **about}, _build, make, built):
        work(about, built[0])
    built.clear()
    gc.collect()
    if section.device == "cuda":
        torch.cuda.empty_cache()


def _build(make: Callable[[], Step], built: list[Step]) -> dict[str, Any]:
    built.append(make())
    return {}


def _train(section: Section, size: Size, step: Step, batches: Sequence[Batch], warm_up: int) -> dict[str, Any]:
    """One system on one set of batches, which lie on the device."""
    tokens, flops = sum(map(num_tokens, batches)), sum(model_flops(size, batch) for batch in batches)
    cells = sum(batch.src_BS.numel() + batch.tgt_out_BT.numel() for batch in batches)
    there = [batch.to(section.device) for batch in batches]
    losses: list[Tensor] = []
    if section.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def run() -> None:
        losses[:] = [step(batch) for batch in there]

    begin = time.perf_counter()
    seconds = section.slices(run, warm_up)
    total = time.perf_counter() - begin
    if not all(math.isfinite(float(loss)) for loss in losses):
        raise FloatingPointError("the loss is not finite")
    return {
        "tokens_per_second": [tokens / s for s in seconds],
        "flops_per_second": flops / statistics.median(seconds),
        "seconds_per_step": statistics.median(seconds) / len(batches),
        "padding": 1 - tokens / cells,
        "warm_up_seconds": total - sum(seconds),
        "peak_bytes": torch.cuda.max_memory_allocated() if section.device == "cuda" else None,
    }


def look_closer(
    section: Section, about: dict[str, Any], step: Step, batches: dict[tuple[str, int], list[Batch]]
) -> None:
    """Where the time of a step goes, at the batch size that was best on the lengths of real text."""
    of_kind = [f for f in section.figures if f["kind"] == "training" and f["batches"] == next(iter(KINDS))]
    measured = [f for f in of_kind if f["system"] == about["system"] and "error" not in f]
    if not measured:
        return
    best = max(measured, key=lambda figure: statistics.median(figure["tokens_per_second"]))
    there = [batch.to(section.device) for batch in batches[best["batches"], best["batch_tokens"]]]
    about = {**about, "batches": best["batches"], "batch_tokens": best["batch_tokens"]}
    section.measure({"kind": "waiting", **about}, _waiting, section, step, there)
    section.measure({"kind": "profile", **about}, profile, step, there[:3], section.device)


def _waiting(section: Section, step: Step, batches: Sequence[Batch]) -> dict[str, Any]:
    """Seconds of a step freely, with a wait after each step, and of the host alone: the device has two short pairs."""
    little = [random_batch([(1, 1)] * 2, Size(1, 1, 1, 1, FIRST_WORD + 1)).to(section.device)] * len(batches)

    def freely(batches: Sequence[Batch]) -> None:
        for batch in batches:
            step(batch)

    def one_by_one() -> None:
        for batch in batches:
            step(batch)
            section.synchronize()

    runs = {"freely": lambda: freely(batches), "one by one": one_by_one, "host alone": lambda: freely(little)}
    return {name: statistics.median(section.slices(run, 1, 1.0)) / len(batches) for name, run in runs.items()}


# ---- decoding -------------------------------------------------------------------------------------------------------


def decoding(section: Section) -> None:
    """Sentences per second of the base model with random weights."""
    size, _ = section.scale.sizes["base"]
    systems = {"mtformer": decode_speed.mtformer_system, "Hugging Face generate": decode_speed.marian_system}
    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    for search, num_beams in BEAMS.items():
        for system, make in systems.items():
            torch.backends.cuda.enable_cudnn_sdp(cudnn)  # as in `training`
            for num_sentences in section.scale.sentences:
                about = {"kind": "decoding", "search": search, "system": system, "sentences": num_sentences}
                section.measure(about, _decode, section, make, size, num_beams, num_sentences)


def _decode(
    section: Section, make: Callable[..., decode_speed.Decode], size: Size, num_beams: int, num_sentences: int
) -> dict[str, Any]:
    decode = make(size, "bf16", num_beams, section.scale.target_tokens, section.device)
    batch = kftt_batches(section.scale, size, section.scale.batch_tokens[0])[0]
    rows = torch.arange(num_sentences) % len(batch.src_BS)
    src_BS, lengths_B = batch.src_BS[rows].to(section.device), batch.src_lengths_B[rows].to(section.device)

    def run() -> None:
        with torch.inference_mode():
            decode(src_BS, lengths_B)

    seconds = section.slices(run, warm_up=2, most_seconds=1.5)
    return {"sentences_per_second": [num_sentences / s for s in seconds]}


SECTIONS: dict[str, Callable[[Section], None]] = {
    "limits": limits,
    "base": lambda section: training(section, "base", compile=False),
    "big": lambda section: training(section, "big", compile=False),
    "decoding": decoding,
    "base, compiled": lambda section: training(section, "base", compile=True),
    "big, compiled": lambda section: training(section, "big", compile=True),
}

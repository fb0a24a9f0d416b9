"""Training speed, side by side: mtformer, `torch.nn.Transformer` and Hugging Face Marian, in tokens per second.

    python scripts/bench/train_speed.py --sizes tiny --json train_speed.json

The same sizes of model and the same batches (cut by mtformer's data room, n x longest side <= 4096) go to all. Source
and target tokens are counted, padding is not. Peers train in a minimal loop with label smoothing, Adam (fused) and
clipping, in fp32 and in bf16 (`torch.autocast`). Systems named `+allocator` run with glibc told to keep freed memory,
which mtformer does for itself. Every system first goes once through all batches, so that the kernels of each shape are
there as after a first epoch; then they take turns in short slices. Needs the extra `bench`, and a machine with nothing
else running. JoeyNMT takes part when `--joeynmt` names an interpreter that has it, see joeynmt_peer.py.

Systems in bf16 are left out on a processor without fast bf16. If a system fails, the others are measured nevertheless,
and the exit code is 1.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import peers
import torch
import torch.nn.functional as F
from joeynmt_peer import JoeyNMT
from peers import ALLOCATOR, PAD, SIZES, Size, Worker
from torch import Tensor, nn

from mtformer.config.schema import TrainingConfig
from mtformer.data.batching.batches import Batch, make_batch, plan_window
from mtformer.model.hardware import set_up_memory
from mtformer.training.step import TrainingStep

JOEYNMT = ("joeynmt-fp32", "joeynmt-fp32+allocator")
PEERS = ("torch-fp32", "torch-bf16", "marian-fp32", "marian-bf16", "joeynmt-fp32")
PEERS_WITH_ALLOCATOR = tuple(f"{name}+allocator" for name in PEERS)
SYSTEMS = ("mtformer-fp32", "mtformer-bf16", *PEERS, *PEERS_WITH_ALLOCATOR)
DROPOUT, LABEL_SMOOTHING, LEARNING_RATE, CLIP_NORM = 0.1, 0.1, 5e-4, 1.0
LIMITS, LIMIT_SIDE = "matrix products", 2048

Step = Callable[[Batch], Tensor]
"""An optimizer step on a batch; gives its loss, on the device."""


# ---- the systems, each built in its worker --------------------------------------------------------------------------


def mtformer_system(
    size: Size, precision: str, dropout: float = DROPOUT, device: Literal["cpu", "cuda"] = "cpu", compile: bool = False
) -> Step:
    """One optimizer step of mtformer's own training."""
    set_up_memory()
    config = TrainingConfig(
        device=device,
        compile=compile,
        learning_rate=LEARNING_RATE,
        schedule="constant",
        warmup_steps=0,
        clip_norm=CLIP_NORM,
        label_smoothing=LABEL_SMOOTHING,
    )
    training = TrainingStep(peers.transformer(size, dropout).to(device), config, precision)
    return lambda batch: training.run([batch], step=1).loss


def torch_system(
    size: Size, precision: str, attention_dropout: float, dropout: float = DROPOUT, device: str = "cpu"
) -> Step:
    """One optimizer step of `torch.nn.Transformer`."""
    model = peers.TorchTransformer(size, dropout, attention_dropout).to(device)
    return minimal_loop(model, model, precision)


def marian_system(
    size: Size, precision: str, attention_dropout: float, dropout: float = DROPOUT, device: str = "cpu"
) -> Step:
    """One optimizer step of Hugging Face Marian."""
    model: nn.Module = peers.marian(size, dropout, attention_dropout)
    model.to(device)

    def logits(src_BS: Tensor, tgt_BT: Tensor) -> Tensor:
        output = model(input_ids=src_BS, attention_mask=src_BS != PAD, decoder_input_ids=tgt_BT, use_cache=False)
        logits_BTV: Tensor = output.logits
        return logits_BTV

    return minimal_loop(model, logits, precision)


def minimal_loop(model: nn.Module, logits: Callable[[Tensor, Tensor], Tensor], precision: str) -> Step:
    """The training step of the peers, on the device of the model and its batches; it returns the loss."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), fused=True)

    def step(batch: Batch) -> Tensor:
        with torch.autocast(batch.src_BS.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            logits_BTV = logits(batch.src_BS, batch.tgt_in_BT)
            loss = F.cross_entropy(
                logits_BTV.flatten(0, 1),
                batch.tgt_out_BT.flatten(),
                ignore_index=PAD,
                label_smoothing=LABEL_SMOOTHING,
            )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        return loss.detach()

    return step


def joeynmt_worker(
    system: str, size: Size, batches_file: Path, options: argparse.Namespace, versions: set[str]
) -> JoeyNMT:
    """JoeyNMT's own training, in its own environment; adds its versions to `versions`."""
    settings = {
        **vars(size),
        "dropout": DROPOUT,
        "attention_dropout": options.attention_dropout,
        "label_smoothing": LABEL_SMOOTHING,
        "learning_rate": LEARNING_RATE,
        "clip_norm": CLIP_NORM,
        "batches": str(batches_file),
        "threads": options.threads,
    }
    worker = JoeyNMT(options.joeynmt, ALLOCATOR if system.endswith("+allocator") else {}, settings)
    versions.add(worker.versions)
    return worker


def build(system: str, size: Size, attention_dropout: float, batches_file: Path) -> Callable[[int, int], float]:
    """In the worker: what trains on a slice of the batches and returns its seconds."""
    batches = load_batches(batches_file)
    family, precision = system.removesuffix("+allocator").split("-")
    if family == "mtformer":
        step = mtformer_system(size, precision)
    elif family == "torch":
        step = torch_system(size, precision, attention_dropout)
    else:
        step = marian_system(size, precision, attention_dropout)

    def run(first: int, steps: int) -> float:
        begin = time.perf_counter()
        for number in range(first, first + steps):
            step(batches[number % len(batches)])
        return time.perf_counter() - begin

    run(0, len(batches))
    return run


def build_matrix_products(side: int, has_bf16: bool, repeats: int = 4) -> Callable[..., dict[str, float]]:
    """In a worker: what measures the rate of large matrix products, in FLOP/s (the arguments are ignored)."""
    kinds = {"fp32": (torch.float32, "highest"), "fp32 through oneDNN": (torch.float32, "medium")}
    if has_bf16:
        kinds["bf16"] = (torch.bfloat16, "highest")

    def rate(dtype: torch.dtype, route: str) -> float:
        torch.set_float32_matmul_precision(route)
        left, right = torch.randn(2, side, side).to(dtype)
        out = left @ right
        begin = time.perf_counter()
        for _ in range(repeats):
            torch.mm(left, right, out=out)
        return 2 * side**3 * repeats / (time.perf_counter() - begin)

    def measure(*_: object) -> dict[str, float]:
        return {name: rate(*kind) for name, kind in kinds.items()}

    measure()
    return measure


# ---- batches, and what they cost ------------------------------------------------------------------------------------


def cut_batches(src: Path, tgt: Path, vocab_size: int, batch_tokens: int, num_batches: int) -> list[Batch]:
    """The first batches of a shuffled epoch over two parallel files."""
    tokenizer = peers.train_tokenizer([src, tgt], vocab_size)
    src_ids, tgt_ids = (tokenizer.encode(peers.read_lines(file)) for file in (src, tgt))
    if len(src_ids) != len(tgt_ids):
        raise SystemExit(f"{src} has {len(src_ids)} lines, {tgt} {len(tgt_ids)}")
    src_lengths, tgt_lengths = (np.array([len(ids) for ids in side], dtype=np.int32) for side in (src_ids, tgt_ids))
    plan = plan_window(src_lengths, tgt_lengths, batch_tokens, np.random.default_rng(1))[:num_batches]
    return [make_batch([(src_ids[i], tgt_ids[i]) for i in pairs]) for pairs in plan]


def save_batches(batches: Sequence[Batch], file: Path) -> None:
    """Write the tensors and counts of batches, and nothing that `torch.load(weights_only=True)` refuses."""
    fields = [{name: x for name, x in vars(batch).items() if isinstance(x, (Tensor, int))} for batch in batches]
    torch.save(fields, file)


def load_batches(file: Path) -> list[Batch]:
    """Return what `save_batches` wrote."""
    return [Batch(**fields) for fields in torch.load(file, weights_only=True)]


def num_tokens(batch: Batch) -> int:
    """Source and target tokens, eos counted, padding not."""
    return batch.num_src_tokens + batch.num_tgt_tokens


def model_flops(size: Size, batch: Batch) -> float:
    """FLOPs that the model asks for, forward and backward: 6 per weight and token, and attention; no padding."""
    D, L = size.d_model, size.num_layers
    src_B = batch.src_lengths_B.double()
    tgt_B = (batch.tgt_out_BT != PAD).sum(1).double()
    feed_forward = 2 * D * size.d_ff
    # The decoder's keys and values over the source are made from source tokens, all else of it from target tokens.
    on_src = L * (4 * D * D + feed_forward + 2 * D * D)
    on_tgt = L * (6 * D * D + feed_forward) + D * size.vocab_size
    attention = 12 * D * L * (src_B * src_B + tgt_B * tgt_B + src_B * tgt_B).sum()
    return float(6 * (on_src * src_B.sum() + on_tgt * tgt_B.sum()) + attention)


# ---- measuring ------------------------------------------------------------------------------------------------------


def measure(
    size_name: str, batches: Sequence[Batch], batches_file: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Run all systems of one size in turns; the figures of a system that fails later are those of its first rounds."""
    size = replace(SIZES[size_name], vocab_size=options.vocab_size)
    side, has_bf16 = min(LIMIT_SIDE, 16 * size.d_model), any("bf16" in system for system in options.systems)
    systems: dict[str, Callable[[], peers.Asked]] = {
        LIMITS: partial(Worker, build_matrix_products, side, has_bf16, threads=options.threads)
    }
    versions: set[str] = set()
    for system in options.systems:
        if system in JOEYNMT:
            systems[system] = partial(joeynmt_worker, system, size, batches_file, options, versions)
            continue
        systems[system] = partial(
            Worker,
            partial(build, system, size, options.attention_dropout, batches_file),
            threads=options.threads,
            allocator=system.endswith("+allocator"),
        )
    slices = [(number * options.steps, options.steps) for number in range(options.rounds)]
    answers, failed = peers.take_turns(systems, slices)

    of_limits = answers.pop(LIMITS)
    names = of_limits[0] if of_limits else {}
    limits = {name: statistics.median(answer[name] for answer in of_limits) for name in names}
    in_slices = [[batches[n % len(batches)] for n in range(first, first + steps)] for first, steps in slices]
    rates, shares = {}, {}
    for system, seconds in answers.items():
        if not seconds:
            continue
        rates[system] = [sum(map(num_tokens, part)) / s for part, s in zip(in_slices, seconds, strict=False)]
        if limits:
            flops = [sum(model_flops(size, b) for b in part) / s for part, s in zip(in_slices, seconds, strict=False)]
            limit = limits["bf16"] if "bf16" in system else max(limits["fp32"], limits["fp32 through oneDNN"])
            shares[system] = statistics.median(flops) / limit
    return {
        "limit_side": side,
        "limits_flops_per_second": limits,
        "tokens_per_second": rates,
        "share_of_limit": shares,
        "beside": ["JoeyNMT: not measured, no --joeynmt"] if options.joeynmt is None else sorted(versions),
        "failed": failed,
    }


def report(size_name: str, figures: dict[str, Any]) -> str:
    """The markdown section of one size; adds the ratios to the figures."""
    rates, shares, failed = figures["tokens_per_second"], figures["share_of_limit"], figures["failed"]
    rows = []
    for system, r in rates.items():
        share = f"{100 * shares[system]:.1f} %" if system in shares else ""
        rows.append([system, f"{statistics.median(r):,.0f}", f"{min(r):,.0f}", f"{max(r):,.0f}", share])
    lines = [
        f"## {peers.describe(size_name, SIZES[size_name])}",
        "",
        peers.markdown_table(["system", "tokens/s, median", "lowest", "highest", "model FLOPs of limit"], rows),
        "",
    ]
    figures["ratios"] = []
    for kind, names in (("as users run them", PEERS), ("with our allocator settings", PEERS_WITH_ALLOCATOR)):
        for ratio in peers.ratios_to_fastest({name: r for name, r in rates.items() if name not in failed}, names):
            figures["ratios"].append({"peers": kind, **vars(ratio)})
            lines.append(f"- {ratio} the fastest peer, {kind}")
    limits = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in figures["limits_flops_per_second"].items())
    products = "matrix products of {0} x {0}, GFLOP/s".format(figures["limit_side"])
    lines.append(f"- limit ({products}): {limits or 'unknown'}; fp32 shares are of the faster route")
    lines += [f"- {line}" for line in figures["beside"]]
    lines += [f"- failed: {system}: {error}" for system, error in failed.items()]
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.add_options(parser, SYSTEMS, default_sizes=["tiny"], default_rounds=15)
    parser.add_argument("--joeynmt", type=Path, metavar="PYTHON", help="an interpreter that has JoeyNMT")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps in a slice")
    parser.add_argument("--batches", type=int, default=30, help="batches of a shuffled epoch that are used in turn")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--attention-dropout", type=float, default=DROPOUT,
                        help="of the peers; 0 lets them use PyTorch's fused attention (mtformer: 0)")  # fmt: skip
    options = parser.parse_args()
    if options.joeynmt is not None and not options.joeynmt.is_file():
        parser.error(f"--joeynmt {options.joeynmt}: no such file")
    if options.joeynmt is None:
        options.systems = [system for system in options.systems if system not in JOEYNMT]
    return options


def main() -> None:
    options = parse_options()
    if any(system.startswith("marian") for system in options.systems):
        peers.require_transformers()
    surroundings = peers.surroundings(options.threads)
    print("# Training speed, source + target tokens per second (padding not counted)\n", flush=True)
    for name, value in surroundings.items():
        print(f"- {name}: {value}")
    options.systems = peers.without_bf16(options.systems)
    failed = {}
    with tempfile.TemporaryDirectory() as folder:
        batches = cut_batches(options.src, options.tgt, options.vocab_size, options.batch_tokens, options.batches)
        batches_file = Path(folder) / "batches.pt"
        save_batches(batches, batches_file)
        padding = 1 - sum(map(num_tokens, batches)) / sum(b.src_BS.numel() + b.tgt_out_BT.numel() for b in batches)
        settings = (
            f"{len(batches)} batches of n x longest side <= {options.batch_tokens}, {100 * padding:.1f} % padding; "
            f"{options.rounds} rounds of {options.steps} steps; vocabulary {options.vocab_size}; dropout {DROPOUT}, "
            f"attention dropout of the peers {options.attention_dropout}, of mtformer 0"
        )
        print(f"- settings: {settings}\n", flush=True)
        sizes = {}
        for size_name in options.sizes:
            sizes[size_name] = measure(size_name, batches, batches_file, options)
            print(report(size_name, sizes[size_name]) + "\n", flush=True)
            failed |= {f"{size_name}, {system}": error for system, error in sizes[size_name]["failed"].items()}
            if options.json:
                result = {**surroundings, "settings": settings, "sizes": sizes}
                options.json.write_text(json.dumps(result, indent=2) + "\n")
    peers.exit_on_failures(failed)


if __name__ == "__main__":
    main()

"""Compare the training speed of mtformer, `torch.nn.Transformer` and Hugging Face Marian, in tokens per second.

    python scripts/bench/train_speed.py --sizes tiny --json train_speed.json

All systems use the same model sizes and the same batches (as mtformer makes them: pairs x longest side <= 4096). Source
and target tokens are counted, but not padding. Peers train in a minimal loop with label smoothing, Adam (fused) and
clipping, in fp32 and in bf16 (`torch.autocast`). No system has attention dropout, so all can use fused attention.
Systems with `+allocator` in their names run with glibc settings that keep freed memory, which mtformer sets itself.
Each system first trains on all batches once, so that the kernels for each shape are compiled or cached as after a first
epoch; then the systems take turns in short slices. Requires the `bench` extra and an otherwise idle machine. JoeyNMT is
included if `--joeynmt` is an interpreter that can import it (see joeynmt_peer.py).

mtformer in fp32 is compared with the peers in fp32, and mtformer in bf16 with the peers in either precision. Systems in
bf16 are skipped on processors without fast bf16. If a system fails, the others are still measured, and the
exit code is 1.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import joeynmt_peer
import numpy as np
import peers
import torch
import torch.nn.functional as F
import turns
from peers import PAD, SIZES, Size
from torch import Tensor, nn

from mtformer.config.schema import TrainingConfig
from mtformer.data.batching.batches import Batch, make_batch, plan_window
from mtformer.device import DTYPES, set_up_memory
from mtformer.training.step import TrainingStep

PEERS = ("torch-fp32", "torch-bf16", "marian-fp32", "marian-bf16", "joeynmt-fp32")
PEERS_WITH_ALLOCATOR = tuple(f"{name}+allocator" for name in PEERS)
SYSTEMS = ("mtformer-fp32", "mtformer-bf16", *PEERS, *PEERS_WITH_ALLOCATOR)
DROPOUT = 0.1
TRAINING = {"learning_rate": 5e-4, "label_smoothing": 0.1, "clip_norm": 1.0}

Step = Callable[[Batch], Tensor]
"""Optimizer step on a batch; returns its loss on the device."""
Pairs = list[tuple[list[int], list[int]]]
"""Source and target ids of a batch, without bos and eos."""


# ---- systems --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """A model and its training settings."""

    size: Size
    precision: str
    dropout: float = DROPOUT
    device: Literal["cpu", "cuda"] = "cpu"
    compile: bool = False
    """Use `torch.compile`; supported by mtformer and `torch.nn.Transformer` only."""


def mtformer_step(setup: Setup) -> Step:
    """Return the optimizer step of mtformer's own training."""
    set_up_memory()
    compiled = "always" if setup.compile else "never"
    config = TrainingConfig(device=setup.device, compile=compiled, schedule="constant", warmup_steps=0, **TRAINING)
    model = peers.transformer(setup.size, setup.dropout, DTYPES[setup.precision]).to(setup.device)
    training = TrainingStep(model, config)
    return lambda batch: training.run([batch], step=1).loss


def torch_step(setup: Setup) -> Step:
    """Return an optimizer step of `torch.nn.Transformer`."""
    model = peers.TorchTransformer(setup.size, setup.dropout)
    return minimal_loop(model, torch.compile(model, dynamic=True) if setup.compile else model, setup)


def marian_step(setup: Setup) -> Step:
    """Return an optimizer step of Hugging Face Marian."""
    model = peers.marian(setup.size, setup.dropout)

    def logits(src_BS: Tensor, tgt_BT: Tensor) -> Tensor:
        output = model(input_ids=src_BS, attention_mask=src_BS != PAD, decoder_input_ids=tgt_BT, use_cache=False)
        return output.logits

    return minimal_loop(model, logits, setup)


def eole_step(setup: Setup) -> Step:
    """Return an optimizer step of Eole."""
    model = peers.eole(setup.size, setup.dropout)

    def logits(src_BS: Tensor, tgt_BT: Tensor) -> Tensor:
        # Eole removes the last target token, and takes the source lengths from the padding.
        return model.generator(model(src_BS, F.pad(tgt_BT, (0, 1)), None).dec_out)

    return minimal_loop(model, logits, setup)


def minimal_loop(model: nn.Module, logits: Callable[[Tensor, Tensor], Tensor], setup: Setup) -> Step:
    """Return an optimizer step of a peer whose `logits` have shape (B, T, V)."""
    model.to(setup.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=TRAINING["learning_rate"], betas=(0.9, 0.98), fused=True)

    def step(batch: Batch) -> Tensor:
        with torch.autocast(setup.device, dtype=torch.bfloat16, enabled=setup.precision == "bf16"):
            logits_BTV = logits(batch.src_BS, batch.tgt_in_BT)
            loss = F.cross_entropy(
                logits_BTV.flatten(0, 1),
                batch.tgt_out_BT.flatten(),
                ignore_index=PAD,
                label_smoothing=TRAINING["label_smoothing"],
            )
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), TRAINING["clip_norm"])
        optimizer.step()
        return loss.detach()

    return step


def product_side(size: Size) -> int:
    """Return the side length of the large square matrices whose product measures the maximum rate."""
    return min(2048, 16 * size.d_model)


def product_step(setup: Setup) -> Callable[[Batch], Tensor]:
    """Return a large matrix product; in fp32 it uses oneDNN, which is at least as fast as PyTorch's default.

    On processors with AMX, oneDNN would then compute fp32 products in bf16, so PyTorch's default is used.
    """
    if not torch.cpu._is_amx_tile_supported():
        torch.set_float32_matmul_precision("medium")
    side, dtype = product_side(setup.size), torch.bfloat16 if setup.precision == "bf16" else torch.float32
    left, right = torch.randn(2, side, side).to(dtype)
    out = left @ right
    return lambda batch: torch.mm(left, right, out=out)


STEPS: dict[str, Callable[[Setup], Step]] = {
    "mtformer": mtformer_step, "torch": torch_step, "marian": marian_step, "eole": eole_step, "product": product_step
}  # fmt: skip


def build(family: str, setup: Setup, batches: Sequence[Pairs], joeynmt: Path | None) -> Callable[[int, int], float]:
    """Build a system in its worker, and return a function that trains on a slice of batches and returns the seconds."""
    if family == "joeynmt":
        run = joeynmt_peer.start(
            joeynmt,
            {
                **vars(setup.size),
                "dropout": setup.dropout,
                **TRAINING,
                "batches": batches,
                "threads": torch.get_num_threads(),
            },
        )
    else:
        step, padded = STEPS[family](setup), [make_batch(pairs) for pairs in batches]

        def run(first: int, steps: int) -> float:
            if family == "product":  # the first one of a turn is up to ten times as slow as later ones
                for _ in range(3):
                    step(padded[0])
            begin = time.perf_counter()
            for number in range(first, first + steps):
                step(padded[number % len(padded)])
            return time.perf_counter() - begin

    run(0, len(batches))
    return run


# ---- batches and their cost -----------------------------------------------------------------------------------------


def cut_batches(src: Path, tgt: Path, vocab_size: int, batch_tokens: int, num_batches: int) -> list[Pairs]:
    """Return the first batches of a shuffled epoch over two parallel files."""
    tokenizer = peers.train_tokenizer([src, tgt], vocab_size)
    src_ids, tgt_ids = (tokenizer.encode(peers.read_lines(file)) for file in (src, tgt))
    if len(src_ids) != len(tgt_ids):
        raise SystemExit(f"{src} has {len(src_ids)} lines, {tgt} {len(tgt_ids)}")
    src_lengths, tgt_lengths = (np.array([len(ids) for ids in side], dtype=np.int32) for side in (src_ids, tgt_ids))
    plan = plan_window(src_lengths, tgt_lengths, batch_tokens, np.random.default_rng(1))[:num_batches]
    return [[(src_ids[i], tgt_ids[i]) for i in pairs] for pairs in plan]


def num_tokens(batch: Batch) -> int:
    """Return the number of source and target tokens, including eos and without padding."""
    return batch.num_src_tokens + batch.num_tgt_tokens


def padding(batches: Sequence[Batch]) -> float:
    """Return the share of padding in both sides of the batches."""
    return 1 - sum(map(num_tokens, batches)) / sum(b.src_BS.numel() + b.tgt_out_BT.numel() for b in batches)


def model_flops(size: Size, batch: Batch) -> float:
    """Return the FLOPs of the forward and backward pass: 6 per weight and token, plus attention."""
    D, L = size.d_model, size.num_layers
    src_B = batch.src_lengths_B.double()
    tgt_B = (batch.tgt_out_BT != PAD).sum(1).double()
    feed_forward = 2 * D * size.d_ff
    # In the decoder, keys and values of the source are computed per source token, everything else per target token.
    on_src = L * (4 * D * D + feed_forward + 2 * D * D)
    on_tgt = L * (6 * D * D + feed_forward) + D * size.vocab_size
    attention = 12 * D * L * (src_B * src_B + tgt_B * tgt_B + src_B * tgt_B).sum()
    return float(6 * (on_src * src_B.sum() + on_tgt * tgt_B.sum()) + attention)


# ---- measurement ----------------------------------------------------------------------------------------------------


def measure(size: Size, batches: Sequence[Pairs], options: argparse.Namespace) -> dict[str, Any]:
    """Run all systems of one size in alternating rounds; a failed system keeps the results of its earlier rounds."""
    precisions = {system.removesuffix("+allocator").split("-")[1] for system in options.systems}
    products = [f"product-{precision}" for precision in sorted(precisions)]
    systems = {}
    for system in [*products, *options.systems]:
        family, precision = system.removesuffix("+allocator").split("-")
        systems[system] = partial(
            turns.Worker,
            build,
            *(family, Setup(size, precision), batches, options.joeynmt),
            threads=options.threads,
            allocator=system.endswith("+allocator"),
        )
    slices = [(number * options.steps, options.steps) for number in range(options.rounds)]
    answers, failed = turns.take_turns(systems, slices)

    limits = {}
    for product in products:
        if seconds := answers.pop(product):
            flops = 2 * product_side(size) ** 3 * options.steps
            limits[product.removeprefix("product-")] = flops / statistics.median(seconds)
    padded = [make_batch(pairs) for pairs in batches]
    in_slices = [[padded[n % len(padded)] for n in range(first, first + steps)] for first, steps in slices]
    rates, shares = {}, {}
    for system, seconds in answers.items():
        if not seconds:
            continue
        rates[system] = [sum(map(num_tokens, part)) / s for part, s in zip(in_slices, seconds, strict=False)]
        flops = [sum(model_flops(size, b) for b in part) / s for part, s in zip(in_slices, seconds, strict=False)]
        for precision in limits:
            if precision in system:
                shares[system] = statistics.median(flops) / limits[precision]
    return {
        "limits_flops_per_second": limits,
        "tokens_per_second": rates,
        "share_of_limit": shares,
        "failed": failed,
    }


def report(size_name: str, figures: dict[str, Any]) -> str:
    """Return the Markdown section of one size, and add the ratios to the results."""
    rates, shares, failed = figures["tokens_per_second"], figures["share_of_limit"], figures["failed"]
    rows = [[name, turns.format_range(rates[name]), f"{shares.get(name, math.nan):.1%}"] for name in rates]
    limits = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in figures["limits_flops_per_second"].items())
    lines = [
        f"## {size_name} ({SIZES[size_name]})",
        "",
        turns.markdown_table(["system", "tokens/s, median (range)", "model FLOPs / limit"], rows),
        "",
        f"- limit (large matrix products, GFLOP/s): {limits or 'unknown'}",
    ]
    figures["ratios"], complete = [], {name: r for name, r in rates.items() if name not in failed}
    for kind, names in (("with default settings", PEERS), ("with our allocator settings", PEERS_WITH_ALLOCATOR)):
        for ours in (name for name in complete if name.startswith("mtformer")):
            peers = [name for name in names if ours.endswith("bf16") or "fp32" in name]
            compared = {name: complete[name] for name in (ours, *peers) if name in complete}
            for ratios in turns.ratios_to_fastest(compared, peers).values():
                figures["ratios"].append({"ours": ours, "peers": kind, "rounds": ratios})
                lines.append(f"- {ours}: {turns.format_range(ratios, 2)} times the fastest peer of the round, {kind}")
    lines += [f"- failed: {system}: {error}" for system, error in failed.items()]
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peers.add_options(parser, SYSTEMS, default_sizes=["tiny"], default_rounds=15)
    parser.add_argument("--joeynmt", type=Path, metavar="PYTHON", help="an interpreter that can import JoeyNMT")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps per slice")
    parser.add_argument("--batches", type=int, default=30, help="number of batches of a shuffled epoch to use in turn")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    options = parser.parse_args()
    if options.joeynmt is not None and not options.joeynmt.is_file():
        parser.error(f"--joeynmt {options.joeynmt}: no such file")
    if options.joeynmt is None:
        options.systems = [system for system in options.systems if not system.startswith("joeynmt")]
    return options


def main() -> None:
    options = parse_options()
    environment = turns.describe_environment(options.threads)
    environment["JoeyNMT"] = joeynmt_peer.version(options.joeynmt) if options.joeynmt else "not measured (no --joeynmt)"
    batches = cut_batches(options.src, options.tgt, options.vocab_size, options.batch_tokens, options.batches)
    environment["settings"] = (
        f"{len(batches)} batches of pairs x longest side <= {options.batch_tokens}, "
        f"{100 * padding([make_batch(pairs) for pairs in batches]):.1f} % padding; "
        f"{options.rounds} rounds of {options.steps} steps; vocabulary {options.vocab_size}; dropout {DROPOUT}, "
        "attention dropout 0"
    )
    print("# Training speed, source + target tokens per second (without padding)\n")
    print("\n".join(f"- {name}: {value}" for name, value in environment.items()))
    options.systems = turns.without_bf16(options.systems)
    print(flush=True)
    sizes, failed = {}, {}
    for size_name in options.sizes:
        size = replace(SIZES[size_name], vocab_size=options.vocab_size)
        sizes[size_name] = measure(size, batches, options)
        print(report(size_name, sizes[size_name]) + "\n", flush=True)
        failed |= {f"{size_name}, {system}": error for system, error in sizes[size_name]["failed"].items()}
        if options.json:
            options.json.write_text(json.dumps({**environment, "sizes": sizes}, indent=2) + "\n")
    turns.exit_on_failures(failed)


if __name__ == "__main__":
    main()

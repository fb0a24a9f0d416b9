"""Compare the training speed of two processes (DDP, FSDP2) with that of one process, on a CPU with gloo.

    python scripts/bench/ranks_speed.py --json ranks_speed.json

Each process computes with one thread, on its own batches of 4,096 tokens, so that ideal scaling is a ratio of 2. The
configurations alternate; each run is a separate `torchrun`, which trains on a few batches before it is timed. Requires
two idle cores.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import peers
import torch
import turns
from peers import SIZES

from mtformer.config.schema import TrainingConfig
from mtformer.data.batching.batches import make_batch
from mtformer.device import DTYPES, set_up_memory
from mtformer.training.ranks import join_ranks
from mtformer.training.step import TrainingStep

KINDS = {"one process": (1, "copied"), "DDP": (2, "copied"), "FSDP2": (2, "sharded")}
"""Number of processes, and whether the weights are copied or sharded, by configuration."""
WARM_UP = 3


def train(size_name: str, precision: str, sharded: bool, steps: int, length: int) -> None:
    """Train in this process of a `torchrun`; process 0 prints the tokens per second of all processes."""
    set_up_memory()
    with join_ranks(torch.device("cpu")) as ranks:
        torch.manual_seed(1)
        config = TrainingConfig(sharded=sharded, schedule="constant", warmup_steps=0)
        size = SIZES[size_name]
        step = TrainingStep(peers.transformer(size, 0.1, DTYPES[precision]), config, ranks)
        generator = torch.Generator().manual_seed(ranks.rank)
        ids = torch.randint(4, size.vocab_size, (4096 // length, length - 1), generator=generator).tolist()
        batch = make_batch([(one, one) for one in ids])
        for number in range(1, WARM_UP + steps + 1):
            if number == WARM_UP + 1:
                ranks.gather(None)
                start = time.perf_counter()
            step.run([batch], number)
        ranks.gather(None)
        seconds = time.perf_counter() - start
        if ranks.is_main:
            print(ranks.size * steps * (batch.num_src_tokens + batch.num_tgt_tokens) / seconds)


def measure(kind: str, options: argparse.Namespace) -> float:
    """Train once with this number of processes and kind of sharding, and return the tokens per second."""
    processes, weights = KINDS[kind]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(processes),
        __file__,
    ]
    command += ["--worker", weights, "--size", options.size, "--precision", options.precision]
    command += ["--steps", str(options.steps), "--length", str(options.length)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{kind} failed:\n{done.stderr[-2000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps per run")
    parser.add_argument("--length", type=int, default=32, help="tokens of each sentence")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--worker", choices=["copied", "sharded"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        train(options.size, options.precision, options.worker == "sharded", options.steps, options.length)
        return
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            rates[kind].append(measure(kind, options))
    ratios = {kind: [a / b for a, b in zip(rates[kind], rates["one process"], strict=True)] for kind in KINDS}
    about = f"{options.size}, {options.precision}, one thread each, torch {torch.__version__}"
    print(f"# Two processes against one, {about}\n")
    rows = [[kind, turns.format_range(rates[kind]), turns.format_range(ratios[kind], 2)] for kind in KINDS]
    print(turns.markdown_table(["kind", "tokens/s, median (range)", "ratio to one process"], rows))
    if options.json:
        options.json.write_text(json.dumps({"tokens_per_second": rates, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    main()

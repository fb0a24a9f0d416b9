"""Prepare, check and translate large corpora in processes and on two nodes of a Ray cluster on this machine.

    python scripts/bench/scale.py SRC TGT FOLDER corpus --pairs 2000000     # write a corpus made from real pairs
    python scripts/bench/scale.py SRC TGT FOLDER nodes --run RUN            # processes against nodes: speed, SHA-256
    python scripts/bench/scale.py SRC TGT FOLDER memory --pairs 400000 20000000

`nodes` compares the stores of two local processes, of two nodes, and of two nodes of which one is killed in the middle,
and translations of the first lines by RUN, in two local processes of one thread each and on two nodes. `memory`
prepares, checks and trains 200 steps, and prints the time and the largest memory of a process (Linux). Results are
printed as JSON lines.
"""

import argparse
import gzip
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

NUM_LINES = 20_000
"""Number of lines to translate."""
NUM_TRANSLATIONS = 3
MTFORMER = [sys.executable, "-m", "mtformer"]
SETTINGS = (
    "{{data: {{src_lang: en, tgt_lang: de, cache_dir: {folder}/cache, num_workers: 2, "
    "train: [{{src: {folder}/{num_pairs}.src, tgt: {folder}/{num_pairs}.tgt}}]}}, "
    "tokenizer: {{vocab_size: 8000, train_sentences: 100_000}}, "
    "model: {{d_model: 64, num_heads: 2, d_ff: 128, num_encoder_layers: 1, num_decoder_layers: 1}}, "
    "training: {{max_steps: 200, batch_tokens: 2048, average_last: 0}}}}\n"
)


def lines_of(path: Path) -> list[str]:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()


def write_corpus(src: Path, tgt: Path, folder: Path, num_pairs: int) -> None:
    """Write pairs: the real ones, then pairs with a random number added to both sides, a tenth of them repeated."""
    draw, pairs = random.Random(0), list(zip(lines_of(src), lines_of(tgt), strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{num_pairs}.src").open("w") as source, (folder / f"{num_pairs}.tgt").open("w") as target:
        for number in range(num_pairs):
            one, other = pairs[number % len(pairs)]
            end = f" {draw.randrange(10**9)}" if number >= len(pairs) and draw.random() < 0.9 else ""
            source.write(f"{one}{end}\n")
            target.write(f"{other}{end}\n")
    (folder / f"{num_pairs}.yaml").write_text(SETTINGS.format(folder=folder, num_pairs=num_pairs))


def sha256(folder: Path) -> str:
    """Return one checksum of all files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def report(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def run(*commands: Sequence[object], num_threads: int | None = None) -> float:
    """Run commands at the same time and return the time in seconds until all have ended."""
    threads = {} if num_threads is None else {"OMP_NUM_THREADS": str(num_threads)}
    start = time.monotonic()
    started = [
        subprocess.Popen([*MTFORMER, *map(str, command)], stdout=subprocess.DEVNULL, env={**os.environ, **threads})
        for command in commands
    ]
    if sum(process.wait() for process in started):
        sys.exit("a command failed")
    return time.monotonic() - start


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start a Ray cluster of two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "object_store_memory": 500_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(**node)
    os.environ["RAY_ADDRESS"] = cluster.address
    try:
        yield cluster
    finally:
        cluster.shutdown()


def compare_nodes(folder: Path, num_pairs: int, model: Path | None) -> None:
    """Print the speed in two processes and on two nodes, and a checksum of the results."""
    config, cache = folder / f"{num_pairs}.yaml", folder / "cache"
    seconds = run(["data", "prepare", config])  # trains the tokenizer, which stays in the cache
    with two_nodes() as cluster:
        for name, options in (("processes", ()), ("nodes", ("--on", "ray")), ("killed node", ("--on", "ray"))):
            for path in cache.glob("*/store.json"):
                shutil.rmtree(path.parent)
            if name == "killed node":
                threading.Timer(seconds / 2, kill, [cluster]).start()
            seconds = run(["data", "prepare", config, *options])
            (store,) = cache.glob("*/store.json")
            report(what="prepare", on=name, pairs_per_second=round(num_pairs / seconds), sha256=sha256(store.parent))
    if model is None:
        return
    with (folder / f"{num_pairs}.src").open() as source:
        lines = list(islice(source, NUM_LINES))
    parts = {"half 1": lines[: NUM_LINES // 2], "half 2": lines[NUM_LINES // 2 :], "all": lines}
    commands = {}
    for name, part in parts.items():
        (folder / name).write_text("".join(part))
        files = ["--input", folder / name, "--output", folder / f"{name}.out"]
        commands[name] = ["translate", model, *files, "--device", "cpu"]
    with two_nodes():
        for _ in range(NUM_TRANSLATIONS):
            seconds = run(commands["half 1"], commands["half 2"], num_threads=1)
            report_translation("processes", seconds, [folder / "half 1.out", folder / "half 2.out"])
            seconds = run([*commands["all"], "--on", "ray"])
            report_translation("nodes", seconds, [folder / "all.out"])


def report_translation(where: str, seconds: float, outputs: list[Path]) -> None:
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in outputs)).hexdigest()
    report(what="translate", on=where, lines_per_second=round(NUM_LINES / seconds), sha256=digest)


def kill(cluster: Any) -> None:
    """Kill the node without the driver."""
    (node,) = cluster.worker_nodes
    cluster.remove_node(node, allow_graceful=False)


def largest_memory(process: "subprocess.Popen[bytes]", found: dict[int, int]) -> None:
    """Record the peak memory (VmHWM, in KB) of a process and its descendants until the process ends."""
    while process.poll() is None:
        waiting = [process.pid]
        while waiting:
            pid = waiting.pop()
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                found[pid] = max(found.get(pid, 0), int(status.split("VmHWM:")[1].split()[0]))
                waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            except (OSError, IndexError):
                continue
        time.sleep(0.2)


def measure_memory(folder: Path, num_pairs: int) -> None:
    """Print time and peak memory of preparing, checking and training."""
    config, out = folder / f"{num_pairs}.yaml", folder / f"run-{num_pairs}"
    for path in (folder / "cache", out):
        shutil.rmtree(path, ignore_errors=True)
    commands = {
        "prepare": ["data", "prepare", config],
        "check": ["data", "check", config],
        "train": ["train", config, "--run-dir", out],
    }
    for what, command in commands.items():
        found: dict[int, int] = {}
        start = time.monotonic()
        process = subprocess.Popen([*MTFORMER, *map(str, command)], stdout=subprocess.DEVNULL)
        largest_memory(process, found)
        main = found.pop(process.pid)
        report(
            what=what, pairs=num_pairs, seconds=round(time.monotonic() - start, 1), exit_code=process.returncode,
            main_mb=main // 1024, largest_worker_mb=max(found.values(), default=0) // 1024,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", type=Path)
    parser.add_argument("tgt", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=["corpus", "nodes", "memory"])
    parser.add_argument("--pairs", type=int, nargs="+", default=[2_000_000])
    parser.add_argument("--run", type=Path)
    options = parser.parse_args()
    for num_pairs in options.pairs:
        if not (options.folder / f"{num_pairs}.yaml").exists():
            write_corpus(options.src, options.tgt, options.folder, num_pairs)
        if options.what == "nodes":
            compare_nodes(options.folder, num_pairs, options.run)
        elif options.what == "memory":
            measure_memory(options.folder, num_pairs)


if __name__ == "__main__":
    main()

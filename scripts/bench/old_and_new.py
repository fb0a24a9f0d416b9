"""Compare the speed of two versions of mtformer: training, decoding, and preparing data.

    python scripts/bench/old_and_new.py OLD NEW RUN TEXT CONFIG FOLDER --rounds 5

OLD and NEW are checkouts, RUN is a trained run that both can load, TEXT is the file to translate, CONFIG the config to
train and to prepare, and FOLDER receives runs and caches. Both versions run through the command line and the public
Python interface, with the Python that runs this script and its packages.

The versions take turns: old and new in one round, new and old in the next, so that changes of the machine's speed
affect both. The figure of a measurement is the median over the rounds of new speed / old speed, with the lowest and the
highest ratio. The machine must be otherwise idle.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

FIRST_STEP = 50
"""Step of training after which the speed counts."""
TRANSLATE = """
import gzip, sys, time
from pathlib import Path
from mtformer import Translator

run, text, beam_size = sys.argv[1:]
contents = Path(text).read_bytes()
lines = (gzip.decompress(contents) if text.endswith(".gz") else contents).decode().splitlines()
translator = Translator.load(run, device="cpu")
seconds = []
for _ in range(3):
    start = time.perf_counter()
    translator.translate(lines, beam_size=int(beam_size))
    seconds.append(time.perf_counter() - start)
print(len(lines) / min(seconds))
"""
"""Program that prints the number of lines per second of the fastest of three translations."""


def environment_of(checkout: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a process that uses the package of a checkout."""
    return {**os.environ, "PYTHONPATH": str(checkout.resolve()), "MTFORMER_CACHE": str(folder.resolve() / "cache")}


def train(options: argparse.Namespace, checkout: Path) -> float:
    """Return the median tokens/s of a training run after its first steps."""
    run = options.folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "mtformer", "train", str(options.config), "--run-dir", str(run)),
        *(f"training.max_steps={options.steps}", f"training.validate_every={options.steps}", "training.log_every=10"),
        *("training.average_last=0", "data.test={}", "data.dev=[]", *options.overrides),
    ]
    environment = environment_of(checkout, options.folder)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = []
    for record in records:
        if record["kind"] == "train" and record["step"] > FIRST_STEP:
            rates.append(record["tokens_per_second"])
    return statistics.median(rates)


def translate(options: argparse.Namespace, checkout: Path, beam_size: int) -> float:
    """Return the number of lines per second of a translation from text to text."""
    command = [sys.executable, "-c", TRANSLATE, str(options.run), str(options.text), str(beam_size)]
    environment = environment_of(checkout, options.folder)
    return float(subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout)


def prepare(options: argparse.Namespace, checkout: Path) -> float:
    """Return how often per minute the corpora of the config could be prepared, including the tokenizer."""
    cache = options.folder / "new_cache"
    shutil.rmtree(cache, ignore_errors=True)
    environment = {**environment_of(checkout, options.folder), "MTFORMER_CACHE": str(cache)}
    command = [sys.executable, "-m", "mtformer", "data", "prepare", str(options.config), *options.overrides]
    start = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return 60 / (time.perf_counter() - start)


Measure = Callable[[argparse.Namespace, Path], float]
MEASUREMENTS: dict[str, tuple[str, Measure]] = {
    "train": ("tokens/s of training", train),
    "greedy": ("lines/s with greedy search", partial(translate, beam_size=1)),
    "beam": ("lines/s with beam 5", partial(translate, beam_size=5)),
    "data": ("preparations per minute", prepare),
}
"""Description and function of each measurement; the function returns a speed."""


def compare(options: argparse.Namespace, name: str) -> None:
    """Print the speeds of both versions in each round, and the median of their ratio."""
    description, measure = MEASUREMENTS[name]
    measure(options, options.old)  # fills caches
    ratios = []
    for round_number in range(options.rounds):
        speed_of: dict[Path, float] = {}
        checkouts = [options.old, options.new]
        for checkout in checkouts if round_number % 2 == 0 else reversed(checkouts):
            speed_of[checkout] = measure(options, checkout)
        old_speed = speed_of[options.old]
        new_speed = speed_of[options.new]
        ratios.append(new_speed / old_speed)
        print(f"{description}, round {round_number + 1}: old {old_speed:,.1f}, new {new_speed:,.1f}", flush=True)
    median = statistics.median(ratios)
    print(f"{description}: new / old {median:.3f} ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="checkout of the old version")
    parser.add_argument("new", type=Path, help="checkout of the new version")
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("text", type=Path, help="file to translate, plain or .gz")
    parser.add_argument("config", type=Path, help="config to train and to prepare")
    parser.add_argument("folder", type=Path, help="folder for runs and caches")
    parser.add_argument("overrides", nargs="*", help="as for mtformer train")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--only", nargs="+", choices=[*MEASUREMENTS], default=[*MEASUREMENTS])
    options = parser.parse_intermixed_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        compare(options, name)


if __name__ == "__main__":
    main()

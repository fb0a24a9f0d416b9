"""Training speed with different waiting of OpenMP's threads, on idle cores and beside a busy process.

python scripts/bench/spin.py CONFIG FOLDER --rounds 3 --steps 150 [OVERRIDES...]

Each figure is the median tokens/s over the log lines of one run of `mtformer train` after its first 50 steps. The
settings take turns in each round, so that changes of the machine's speed affect all of them. The busy process starts
when the run has reached its 20th step, as work that begins while a run is training does.

mtformer sets `GOMP_SPINCOUNT=3000` unless one of these variables is set; the other settings are there for comparison.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SETTINGS = {
    "spin 10,000,000": {"GOMP_SPINCOUNT": "10000000"},
    "spin 3,000": {"GOMP_SPINCOUNT": "3000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
"""Environment variables of each setting."""
FIRST_STEP = 50
"""Step after which the speed counts."""
BUSY_FROM_STEP = 20
"""Step at which the busy process starts."""
BUSY = "while True: pass"
"""Program of the busy process, which occupies one core."""


def train_lines(metrics: Path) -> list[dict[str, float]]:
    """Return the training lines that a run has written so far."""
    if not metrics.is_file():
        return []
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [line for line in lines if "tokens_per_second" in line]


def measure(arguments: argparse.Namespace, name: str, is_busy: bool) -> float:
    """Train for `arguments.steps` steps and return the median speed in tokens/s."""
    run = arguments.folder / "spin"
    command = [
        *(sys.executable, "-m", "mtformer", "train", arguments.config, "--run-dir", str(run), "--overwrite"),
        *(f"training.max_steps={arguments.steps}", f"training.validate_every={arguments.steps}"),
        *("training.log_every=10", "training.average_last=0", "data.test={}", *arguments.overrides),
    ]
    environment = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    metrics = run / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    training = subprocess.Popen(command, env=environment | SETTINGS[name], stderr=subprocess.DEVNULL)
    busy = None
    while training.poll() is None:
        if is_busy and busy is None and any(line["step"] >= BUSY_FROM_STEP for line in train_lines(metrics)):
            busy = subprocess.Popen([sys.executable, "-c", BUSY])
        lines = train_lines(metrics)
        if lines and lines[-1]["step"] >= arguments.steps:
            break
        time.sleep(0.5)
    training.kill()
    training.wait()
    if busy is not None:
        busy.kill()
        busy.wait()
    rates = [line["tokens_per_second"] for line in train_lines(metrics) if line["step"] > FIRST_STEP]
    if not rates:
        raise SystemExit(f"{' '.join(command)}: no speed was logged; run it to see why")
    return statistics.median(rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("folder", type=Path, help="folder for the run")
    parser.add_argument("overrides", nargs="*", help="as for mtformer train")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--only", choices=["idle", "busy"])
    arguments = parser.parse_intermixed_args()

    for condition in ("idle", "busy"):
        if arguments.only not in (None, condition):
            continue
        rates: dict[str, list[float]] = {name: [] for name in SETTINGS}
        for round_number in range(arguments.rounds):
            for name in SETTINGS:
                rates[name].append(measure(arguments, name, condition == "busy"))
                print(f"{condition}, round {round_number + 1}, {name}: {rates[name][-1]:,.0f} tokens/s", flush=True)
        for name, values in rates.items():
            median = statistics.median(values)
            print(f"{condition}: {name}: median {median:,.0f}, {min(values):,.0f} to {max(values):,.0f}")


if __name__ == "__main__":
    main()

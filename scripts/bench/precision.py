"""Whether bf16 trains as fp32 does: the loss over some hundred steps, beside what another seed changes.

    python scripts/bench/precision.py configs/multi30k_en_de.yaml data.train.0.src=... --steps 500

Trains the same config in fp32, in bf16, and in fp32 with another seed, one after the other through `mtformer train`,
and prints a markdown table of the loss (nats a token, mean over each log window) of each, with the differences.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LEGS = {
    "fp32": ("training.precision=fp32",),
    "bf16": ("training.precision=bf16",),
    "fp32, other seed": ("training.precision=fp32", "training.seed=1001"),
}


def train(options: argparse.Namespace, leg: tuple[str, ...], run: Path) -> dict[int, float]:
    """The loss at each log line."""
    common = (f"training.max_steps={options.steps}", f"training.validate_every={options.steps}", "data.test=")
    command = [sys.executable, "-m", "mtformer", "train", options.config, *options.overrides, *common, *leg]
    subprocess.run([*command, f"training.log_every={options.window}", "--run-dir", str(run)], check=True)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row["step"]: row["nll"] for row in rows if row["kind"] == "train"}


def report(losses: dict[str, dict[int, float]]) -> str:
    """A table, and how large the differences are on average."""
    fp32, bf16, other = losses.values()
    lines = ["| step | fp32 | bf16 | bf16 - fp32 | fp32, other seed - fp32 |", "|---:|---:|---:|---:|---:|"]
    for step in fp32:
        differences = f"{bf16[step] - fp32[step]:+.3f} | {other[step] - fp32[step]:+.3f}"
        lines.append(f"| {step} | {fp32[step]:.3f} | {bf16[step]:.3f} | {differences} |")
    by_precision = statistics.mean(abs(bf16[step] - fp32[step]) for step in fp32)
    by_seed = statistics.mean(abs(other[step] - fp32[step]) for step in fp32)
    return "\n".join([*lines, "", f"mean absolute difference: {by_precision:.4f} by bf16, {by_seed:.4f} by the seed"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--window", type=int, default=50, help="steps of a log window")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        losses = {
            name: train(options, leg, Path(folder) / str(number)) for number, (name, leg) in enumerate(LEGS.items())
        }
    print(report(losses))


if __name__ == "__main__":
    main()

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
    """The loss at each log line; raises CalledProcessError if the training fails."""
    common = (f"training.max_steps={options.steps}", f"training.validate_every={options.steps}", "data.test=")
    command = [sys.executable, "-m", "mtformer", "train", options.config, *options.overrides, *common, *leg]
    subprocess.run([*command, f"training.log_every={options.window}", "--run-dir", str(run)], check=True)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row["step"]: row["nll"] for row in rows if row["kind"] == "train"}


def report(losses: dict[str, dict[int, float]]) -> str:
    """A table of the runs that did not fail, and their mean absolute differences from the first."""
    first, *others = losses
    header = [*losses, *(f"{name} - {first}" for name in others)]
    lines = [f"| step | {' | '.join(header)} |", "|---:" * (1 + len(header)) + "|"]
    for step, loss in losses[first].items():
        numbers = [f"{of_run[step]:.3f}" for of_run in losses.values()]
        numbers += [f"{losses[name][step] - loss:+.3f}" for name in others]
        lines.append(f"| {step} | {' | '.join(numbers)} |")
    lines.append("")
    for name in others:
        mean = statistics.mean(abs(losses[name][step] - loss) for step, loss in losses[first].items())
        lines.append(f"mean absolute difference, {name} - {first}: {mean:.4f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--window", type=int, default=50, help="steps of a log window")
    options = parser.parse_args()
    losses, failed = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, leg) in enumerate(LEGS.items()):
            try:
                losses[name] = train(options, leg, Path(folder) / str(number))
            except subprocess.CalledProcessError as error:
                failed.append(f"error: {name} failed: mtformer train ended with exit code {error.returncode}")
    if losses:
        print(report(losses))
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()

"""Speed on a GPU, in one run: the machine's limits, training against two peers, decoding, and where the time goes.

    python scripts/bench/gpu.py --out gpu

Rewrites gpu.json and gpu.md after each figure, and prints gpu.md at the end. The models are the paper's base and
big with a joint, tied vocabulary of 32k, in bf16 with fused Adam; dropout 0.1 and 0.3, attention dropout 0 everywhere.
Peers train in the minimal loop of train_speed.py. Batches lie on the device and hold random ids: of the lengths of real
training batches (KFTT ja-en, kftt_lengths.json), or all of one length without padding. Each system runs alone, in
bursts after a warm-up, of which the median counts; source and target tokens are counted, padding is not. Each section
is a process of its own: one that fails takes nothing with it but its own figures, and the exit status says so.

To try the script without a GPU: `--device cpu --scale tiny`.
"""

import argparse
import datetime
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpu_report
import torch
from gpu_sections import SCALES, SECTIONS, Section

SHARES = {"limits": 2, "base": 12, "big": 15, "decoding": 8, "base, compiled": 15, "big, compiled": 16}
"""How the time is divided among the sections."""
assert SHARES.keys() == SECTIONS.keys()


GRACE_SECONDS = 20
"""At the end of the time, for a section to finish its last figure."""


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.md and gpu.json")
    parser.add_argument("--seconds", type=float, default=320, help="for all sections; what does not fit is left out")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION",
                        help=f"of {', '.join(SECTIONS)}")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)  # in a section's own process
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device; to try the script on a CPU: --device cpu --scale tiny")
    return options


def work(options: argparse.Namespace) -> None:
    """Measure one section, in its own process, and add its figures to the report."""
    name = options.sections[0]
    result = gpu_report.read(options.out)
    earlier = result["figures"]

    def keep(figures: list[dict[str, Any]]) -> None:
        gpu_report.write({**result, "figures": earlier + figures}, options.out)

    SECTIONS[name](Section(name, keep, options.device, SCALES[options.scale], options.deadline))


def run_section(name: str, options: argparse.Namespace, seconds: float, end: float) -> None:
    """Run a section in its own process for about `seconds`; it never runs past `end`."""
    begin = time.time()
    command = [sys.executable, __file__, "--out", str(options.out), "--sections", name, "--device", options.device,
               "--scale", options.scale, "--deadline", str(begin + seconds)]  # fmt: skip
    problem = None
    try:
        status = subprocess.run(command, timeout=min(1.25 * seconds + 15, end - begin), check=False).returncode
        if status != 0:
            problem = f"its process ended with status {status}, see the log"
    except subprocess.TimeoutExpired:
        problem = f"it was ended after {time.time() - begin:.0f} seconds"
    result = gpu_report.read(options.out)
    if problem is not None:
        result["figures"].append({"section": name, "kind": "section", "error": problem})
    result["figures"].append({"section": name, "kind": "time", "seconds": time.time() - begin})
    gpu_report.write(result, options.out)


def main() -> None:
    options = parse_options()
    if options.deadline is not None:
        work(options)
        return
    end = time.time() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "surroundings": gpu_report.surroundings(options.device),
        "scale": options.scale,
    }
    gpu_report.write({**about, "figures": []}, options.out)
    for number, name in enumerate(options.sections):
        share = SHARES[name] / sum(SHARES[later] for later in options.sections[number:])
        run_section(name, options, max(1.0, end - GRACE_SECONDS - time.time()) * share, end)
    result = gpu_report.read(options.out)
    print(gpu_report.report(result), flush=True)
    if any("error" in figure for figure in result["figures"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

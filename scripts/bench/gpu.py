"""Speed on a GPU, in one run: the machine's limits, training against two peers, decoding, and where the time goes.

    python scripts/bench/gpu.py --out gpu

Writes gpu.json, section by section, and at the end gpu.md, which is printed too. The models are the paper's base and
big with a joint, tied vocabulary of 32k, in bf16 with fused Adam; dropout 0.1 and 0.3, attention dropout 0 everywhere.
Peers train in the minimal loop of train_speed.py. Batches lie on the device and hold random ids: of the lengths of real
training batches (KFTT ja-en, kftt_lengths.json), or all of one length without padding. Each system runs alone, in
bursts after a warm-up, of which the median counts; source and target tokens are counted, padding is not. Each section
is a process of its own: one that fails takes nothing with it but its own figures, and the exit status says so.

To try the script without a GPU: `--device cpu --scale tiny`.
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gpu_report
from gpu_sections import SCALES, SECTIONS, Section

SHARES = {"limits": 2, "base": 12, "big": 15, "decoding": 8, "base, compiled": 15, "big, compiled": 16}
"""How the time is divided among the sections."""
assert SHARES.keys() == SECTIONS.keys()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.md and gpu.json")
    parser.add_argument("--seconds", type=float, default=370, help="for all sections; what does not fit is left out")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION",
                        help=f"of {', '.join(SECTIONS)}")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)  # in a section's own process
    return parser.parse_args()


def run_section(name: str, options: argparse.Namespace, seconds: float, end: float) -> list[dict[str, Any]]:
    """Figures of a section, from a process of its own that gets so many seconds, and some more to finish a figure."""
    file = options.out / f".{name}.json"
    file.unlink(missing_ok=True)
    begin = time.time()
    command = [sys.executable, __file__, "--out", str(file), "--sections", name, "--device", options.device,
               "--scale", options.scale, "--deadline", str(begin + seconds)]  # fmt: skip
    limit = max(10.0, min(1.25 * seconds + 15, end + 20 - begin))
    problem = None
    try:
        status = subprocess.run(command, timeout=limit, check=False).returncode
        if status != 0:
            problem = f"its process ended with status {status}, see the log"
    except subprocess.TimeoutExpired:
        problem = f"it was ended after {time.time() - begin:.0f} seconds"
    figures: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    file.unlink(missing_ok=True)
    if problem is not None:
        figures.append({"section": name, "kind": "section", "error": problem})
    figures.append({"section": name, "kind": "time", "seconds": time.time() - begin})
    return figures


def main() -> None:
    options = parse_options()
    if options.deadline is not None:
        name = options.sections[0]
        SECTIONS[name](Section(name, options.out, options.device, SCALES[options.scale], options.deadline))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    end = time.time() + options.seconds
    result: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "surroundings": gpu_report.surroundings(options.device),
        "scale": options.scale,
        "figures": [],
    }
    for number, name in enumerate(options.sections):
        share = SHARES[name] / sum(SHARES[later] for later in options.sections[number:])
        result["figures"] += run_section(name, options, max(1.0, end - time.time()) * share, end)
        (options.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    report = gpu_report.report(result)
    (options.out / "gpu.md").write_text(report, encoding="utf-8")
    print(report, flush=True)
    if any("error" in figure for figure in result["figures"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

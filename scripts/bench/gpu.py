"""Measure speed on a GPU in a single run: machine limits, training compared to two peers, decoding, and profiles.

    python scripts/bench/gpu.py --out gpu

Writes gpu.json and gpu.md after each result, and prints gpu.md at the end. The models are base and big from the paper,
with a joint, tied vocabulary of 32k, in bf16 with fused Adam; dropout is 0.1 and 0.3, attention dropout is 0. Peers
train in the minimal loop of train_speed.py. Batches are on the device and contain random ids, either with the lengths
of real training batches (KFTT ja-en, kftt_lengths.json) or all with the same length and no padding. Each system runs
alone, in bursts after a warm-up, and the median is reported. Source and target tokens are counted, but not padding.
Each section runs in a separate process: if one fails, only its own results are missing, and the exit code is 1.

To try the script without a GPU: `--device cpu --scale tiny`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from gpu_sections import SCALES, SECTIONS, build
from turns import Worker, describe_environment, format_range, markdown_table

from mtformer.files import write_text

SHUTDOWN_SECONDS = 20
"""Time reserved at the end for the last result of a section."""
DATASHEET = {"NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H200": 989.4}
"""Dense bf16 TFLOP/s by device name, according to the data sheets; utilization is relative to these."""

Figures = list[dict[str, Any]]


# ---- the report -----------------------------------------------------------------------------------------------------


TABLES = {
    "limit": ("Limits of the machine (random data)", ()),
    "training": ("Training", ("size", "batches")),
    "profile": ("Profile of 3 steps", ("size", "system", "batches", "batch tokens")),
    "decoding": ("Decoding: base, random weights, bf16, a fixed number of target tokens", ("search",)),
}
"""Title of each kind of result, and the keys that all results in a table share."""


def report(result: dict[str, Any]) -> str:
    """Return tables of all results, and a list of failures, as Markdown."""
    lines = ["# On a GPU", ""]
    lines += [f"- {name}: {value}" for name, value in result["environment"].items()]
    sizes = SCALES[result["scale"]].sizes
    lines += [f"- {name}: {size}, vocabulary {size.vocab_size}, dropout {p}" for name, (size, p) in sizes.items()]
    lines += [f"- seconds per section: {', '.join(f'{name} {s:.0f}' for name, s in result['seconds'].items())}", ""]
    failed = [figure for figure in result["figures"] if "error" in figure]
    if failed:
        lines += [f"## {len(failed)} results are missing", ""]
        lines += [f"- {', '.join(map(str, figure.values()))}" for figure in failed] + [""]
    figures = [figure for figure in result["figures"] if "error" not in figure]
    add_ratios(figures, DATASHEET.get(result["environment"].get("device", "")))
    for kind, (title, keys) in TABLES.items():
        groups: dict[tuple[str, ...], Figures] = {}
        for figure in figures:
            if figure["kind"] == kind:
                groups.setdefault(tuple(str(figure[key]) for key in keys), []).append(figure)
        for group, members in groups.items():
            rows = [{**figure, **row} for figure in members for row in figure.get("rows", [{}])]
            hidden = {"section", "kind", "rows", *keys}
            columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in hidden]
            cells = [[format_value(row.get(key, "")) for key in columns] for row in rows]
            lines += [f"## {', '.join((title, *group))}", "", markdown_table(columns, cells), ""]
    return "\n".join(lines).rstrip() + "\n"


def format_value(value: str | float | list[float]) -> str:
    """Format a name, a number with three significant digits, or rates of several slices."""
    if isinstance(value, list):
        return format_range(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return str(value).replace("|", "/")[:110]


def add_ratios(figures: Figures, datasheet: float | None) -> None:
    """Add values derived from other results: utilization, and the ratio to the fastest peer."""
    product = max(
        (figure["TFLOP/s"] for figure in figures if figure["kind"] == "limit" and "TFLOP/s" in figure), default=None
    )
    for rate, group in (("tokens/s", ("size", "batches")), ("sentences/s", ("search", "sentences"))):
        measured = [figure for figure in figures if rate in figure]
        for figure in measured:
            alike = [other for other in measured if all(other[key] == figure[key] for key in group)]
            peers = [statistics.median(f[rate]) for f in alike if not f["system"].startswith("mtformer")]
            if peers:
                figure["times the fastest peer"] = statistics.median(figure[rate]) / max(peers)
            for limit, name in ((datasheet, "datasheet"), (product, "fastest product")):
                if limit and "TFLOP/s" in figure:
                    figure[f"% of the {name}"] = 100 * figure["TFLOP/s"] / limit


# ---- the run --------------------------------------------------------------------------------------------------------


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.md and gpu.json")
    parser.add_argument("--seconds", type=float, default=320, help="time limit; later measurements are skipped")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION",
                        help=f"sections to run: {', '.join(SECTIONS)}")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", choices=SCALES, default="full")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device; to try the script on a CPU: --device cpu --scale tiny")
    return options


def run_section(name: str, options: argparse.Namespace, deadline: float, end: float) -> Iterator[dict[str, Any]]:
    """Yield the results of a section; nothing is measured after `deadline`, and its process is killed at `end`."""
    try:
        worker = Worker(build, name, options.device, options.scale, timeout=end - time.time())
        while figure := worker.ask(time.time() < deadline, timeout=max(0.0, end - time.time())):
            yield figure
        worker.close()
    except (OSError, RuntimeError) as error:
        yield {"kind": "section", "error": str(error)}


def main() -> None:
    options = parse_options()
    end = time.time() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    environment = describe_environment(torch.get_num_threads(), options.device)
    result: dict[str, Any] = {"environment": environment, "scale": options.scale, "seconds": {}, "figures": []}
    for number, name in enumerate(options.sections):
        begin = time.time()
        share = SECTIONS[name][0] / sum(SECTIONS[later][0] for later in options.sections[number:])
        seconds = max(1.0, end - SHUTDOWN_SECONDS - begin) * share
        for figure in run_section(name, options, begin + seconds, min(begin + 1.25 * seconds + 15, end)):
            print(str(figure)[:300], file=sys.stderr, flush=True)
            result["figures"].append({"section": name, **figure})
            result["seconds"][name] = time.time() - begin
            write_text(options.out / "gpu.md", report(result))
            write_text(options.out / "gpu.json", json.dumps(result, indent=1) + "\n")
    print(report(result), flush=True)
    if any("error" in figure for figure in result["figures"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""Check and measure mtformer on a GPU: correctness, training and decoding speed compared to peers, memory, profiles.

    python scripts/bench/gpu.py --out gpu

Writes gpu.json and gpu.md after each result, and prints gpu.md at the end. Each section runs in a separate process: if
one fails, only its own results are missing. The exit code is 1 if a result is missing or a check failed.

Checks: loss, gradients and search compared to fp32 on the CPU; a killed and resumed run compared to an uninterrupted
one; training on KFTT (Japanese-English) in bf16 and fp16, and BLEU of the bf16 model with search in each precision.

Speed: the models are base and big from the paper, with a joint, tied vocabulary of 32k, in bf16 with fused Adam;
dropout is 0.1 and 0.3, attention dropout is 0. Peers train in the minimal loop of train_speed.py. Batches are on the
device and contain random ids, either with the lengths of real training batches (KFTT, kftt_lengths.json) or all with
the same length and no padding. Each system runs alone, in bursts after a warm-up, and the median is reported. Source
and target tokens are counted, but not padding.

To try the script without a GPU: `--device cpu --scale tiny`.
"""

import argparse
import json
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu_checks
import gpu_sections
import torch
from gpu_sections import SCALES, Bench, Measurements
from peers import DEFAULT_DATA
from turns import Worker, describe_environment, format_range, markdown_table

from mtformer.files import write_text

SHUTDOWN_SECONDS = 20
"""Time reserved at the end for the last result of a section."""
DATASHEET = {"NVIDIA H100 80GB HBM3": 989.4, "NVIDIA H200": 989.4}
"""Dense bf16 TFLOP/s by device name, according to the data sheets; utilization is relative to these."""

Figures = list[dict[str, Any]]


# ---- the report -----------------------------------------------------------------------------------------------------


TABLES = {
    "equality": ("Equality with fp32 on the CPU: base, random weights", ()),
    "resuming": ("Training killed with SIGKILL, resumed, and compared to an uninterrupted run: base, demo corpus", ()),
    "kftt": ("Training on KFTT; loss in nats per target token, label-smoothed, mean since the last log line", ()),
    "kftt search": ("BLEU on KFTT dev with the first of these models", ("search",)),
    "limit": ("Limits of the machine (random data)", ()),
    "training": ("Training in bf16", ("size", "batches")),
    "memory": ("Memory of training in bf16, from the peaks with two sizes of batches without padding", ()),
    "profile": ("Profile of 3 steps", ("size", "system", "batches", "batch tokens")),
    "decoding": ("Decoding: base, random weights, a fixed number of target tokens", ("search",)),
}
"""Title of each kind of result, and the keys that all results in a table share."""


def report(result: dict[str, Any]) -> str:
    """Return tables of all results, and a list of failures, as Markdown."""
    lines = ["# On a GPU", ""]
    lines += [f"- {name}: {value}" for name, value in result["environment"].items()]
    sizes = SCALES[result["scale"]].sizes
    lines += [f"- {name}: {size}, vocabulary {size.vocab_size}, dropout {p}" for name, (size, p) in sizes.items()]
    lines += [
        "- tokens/s and sentences/s: median (lowest to highest); source and target tokens, without padding",
        "- batch tokens: pairs x length of the longer side, including padding",
        "- s for the first step: including compilation; MFU: model FLOP/s relative to this rate of matrix products",
    ]
    lines += [f"- seconds per section: {'; '.join(f'{name} {s:.0f}' for name, s in result['seconds'].items())}", ""]
    faulty = [figure for figure in result["figures"] if is_faulty(figure)]
    if faulty:
        lines += [f"## {len(faulty)} results are missing or wrong", ""]
        lines += [f"- {', '.join(map(format_value, figure.values()))}" for figure in faulty] + [""]
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


def is_faulty(figure: dict[str, Any]) -> bool:
    """Return True for a missing result and for a failed check."""
    return "error" in figure or figure.get("check") == gpu_checks.CHECK[False]


def format_value(value: str | float | list[float]) -> str:
    """Format a name, a number with three significant digits, or rates of several slices."""
    if isinstance(value, list):
        return format_range(value)
    if isinstance(value, float):
        number = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return number if math.isfinite(value) else "not measured"
    return (f"{value:,}" if isinstance(value, int) else str(value)).replace("|", "/")[:110]


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
            for limit, name in ((datasheet, "data sheet"), (product, "fastest product")):
                if limit and "TFLOP/s" in figure:
                    figure[f"MFU, % of the {name}"] = 100 * figure["TFLOP/s"] / limit


# ---- sections -------------------------------------------------------------------------------------------------------


SECTIONS: dict[str, tuple[float, Callable[[Bench], Measurements]]] = {
    "equality": (12, gpu_checks.equality),
    "resuming": (50, gpu_checks.resuming),
    "KFTT": (140, gpu_checks.kftt),
    "limits": (6, gpu_sections.limits),
    "base": (33, lambda bench: gpu_sections.training(bench, "base", compile=False)),
    "big": (42, lambda bench: gpu_sections.training(bench, "big", compile=False)),
    "decoding": (38, gpu_sections.decoding),
    "base, compiled": (65, lambda bench: gpu_sections.training(bench, "base", compile=True)),
    "big, compiled": (76, lambda bench: gpu_sections.training(bench, "big", compile=True)),
}
"""Relative share of the time, and the function that yields the measurements, of each section."""
CHECKS = ("equality", "resuming", "KFTT")
"""Sections that do not need an otherwise idle machine."""


def build(name: str, device: str, scale_name: str, corpus: Path) -> Callable[[float], dict[str, Any] | None]:
    """Return a function that measures and returns the next result of a section; after the last one it returns None.

    Its argument is the remaining time of the section in seconds; if there is none, it does not measure. A result that
    cannot be measured has the key "error".
    """
    bench = Bench(device, SCALES[scale_name], corpus)
    measurements = SECTIONS[name][1](bench)
    figure: dict[str, Any] | None = None

    def measure_next(seconds: float) -> dict[str, Any] | None:
        nonlocal figure
        bench.deadline = time.time() + seconds
        try:
            figure, measure = measurements.send(figure)
        except StopIteration:
            return None
        if seconds <= 0:
            figure["error"] = "skipped, because the time limit of the section was reached"
            return figure
        try:
            figure |= measure()
        except Exception as error:
            traceback.print_exc()
            figure["error"] = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        return figure

    return measure_next


# ---- the run --------------------------------------------------------------------------------------------------------


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.md and gpu.json")
    parser.add_argument("--seconds", type=float, default=430, help="time limit; later measurements are skipped")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION",
                        help=f"sections to run: {', '.join(SECTIONS)}")  # fmt: skip
    parser.add_argument("--after", type=Path, metavar="FILE", help="start to measure speed when this file exists")
    parser.add_argument("--kftt", type=Path, default=DEFAULT_DATA.with_name("kftt_ja_en"), metavar="FOLDER",
                        help="corpus: train.ja.gz, train.en.gz, dev.ja.gz and dev.en.gz")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--scale", choices=SCALES, default="full")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no CUDA device; to try the script on a CPU: --device cpu --scale tiny")
    return options


def run_section(name: str, options: argparse.Namespace, deadline: float, end: float) -> Iterator[dict[str, Any]]:
    """Yield the results of a section; nothing is measured after `deadline`, and its process is killed at `end`."""
    try:
        about = name, options.device, options.scale, options.kftt
        worker = Worker(build, *about, starts_processes=True, timeout=end - time.time())
        while figure := worker.ask(deadline - time.time(), timeout=max(0.0, end - time.time())):
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
        while options.after and name not in CHECKS and not options.after.exists() and time.time() < end:
            time.sleep(0.1)
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
    if any(map(is_faulty, result["figures"])):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

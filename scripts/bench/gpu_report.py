"""The report of gpu.py as markdown.

    python scripts/bench/gpu_report.py gpu.json

prints it once more, also of a run that was cut short.
"""

import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import peers
import torch
from gpu_sections import KINDS, SCALES, Scale

import mtformer
from mtformer.rundir import write_text

DATASHEET = {"NVIDIA H100 80GB HBM3": 989.4e12, "NVIDIA H200": 989.4e12}
"""Dense bf16 FLOP/s by the device's name, as the vendor states them: what utilisation is usually given of."""

Figures = list[dict[str, Any]]


def surroundings(device: str) -> dict[str, str]:
    """Device, driver and versions."""
    versions = {"Python": platform.python_version(), "mtformer": mtformer.__version__, "torch": torch.__version__}
    for name in ("transformers", "triton"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    if device == "cpu":
        return {"device": "CPU, to try the script: the figures mean nothing", "versions": _listed(versions)}
    versions |= {"CUDA": str(torch.version.cuda), "cuDNN": str(torch.backends.cudnn.version())}
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader"]
        about = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        about = f"nvidia-smi: {error}"
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "PyTorch sees no CUDA device"
    return {"device": name, "driver and memory": about, "versions": _listed(versions)}


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def read(folder: Path) -> dict[str, Any]:
    """Return what gpu.json holds."""
    result: dict[str, Any] = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))
    return result


def write(result: dict[str, Any], folder: Path) -> None:
    """Write gpu.json and gpu.md; a process that is killed meanwhile leaves the earlier ones."""
    write_text(folder / "gpu.json", json.dumps(result, indent=1) + "\n")
    write_text(folder / "gpu.md", report(result))


def report(result: dict[str, Any]) -> str:
    """All tables that there are figures for, and what failed; of what gpu.json holds."""
    figures: Figures = result["figures"]
    scale = SCALES[result["scale"]]
    lines = ["# On a GPU", "", f"- date: {result['date']}"]
    lines += [f"- {name}: {value}" for name, value in result["surroundings"].items()]
    seconds = ", ".join(f"{f['section']} {f['seconds']:.0f}" for f in _of(figures, "time"))
    lines += [f"- seconds of the sections: {seconds}", "- ids are random everywhere; see scripts/bench/gpu.py", ""]
    failed = [f for f in figures if "error" in f]
    if failed:
        lines += [f"## {len(failed)} figures are missing", ""]
        lines += [f"- {_name(f)}: {f['error']}" for f in failed] + [""]
    lines += _limits(figures)
    rates = _rates(figures, result["surroundings"]["device"])
    for size_name, (size, dropout) in scale.sizes.items():
        of_size = [f for f in figures if f.get("size") == size_name and "error" not in f]
        if of_size:
            title = f"{peers.describe(size_name, size)}, vocabulary {size.vocab_size}, dropout {dropout}"
            lines += [f"## {title}", "", *_training(of_size, rates), *_closer(of_size)]
    lines += _decoding(figures, scale)
    return "\n".join(lines).rstrip() + "\n"


def _of(figures: Figures, kind: str) -> Figures:
    return [f for f in figures if f["kind"] == kind and "error" not in f]


def _name(figure: dict[str, Any]) -> str:
    return ", ".join(str(value) for name, value in figure.items() if name != "error")


def _limits(figures: Figures) -> list[str]:
    rows = [[f["name"], f"{f['flops_per_second'] / 1e12:,.1f} TFLOP/s"] for f in _of(figures, "product")]
    rows += [["copy, read and written", f"{f['bytes_per_second'] / 1e12:.2f} TB/s"] for f in _of(figures, "copy")]
    table = peers.markdown_table(["matrix product, random data", "rate"], rows)
    return ["## Limits of the machine", "", table, ""] if rows else []


def _rates(figures: Figures, device: str) -> dict[str, float]:
    """What utilisation is given of: FLOP/s by name."""
    rates = {"the datasheet": DATASHEET[device]} if device in DATASHEET else {}
    measured = [f["flops_per_second"] for f in _of(figures, "product") if f["name"].startswith("bfloat16")]
    return {**rates, "a product": measured[0]} if measured else rates


def _training(figures: Figures, rates: dict[str, float]) -> list[str]:
    """The best batch size of each system, then all that was measured."""
    cells = _of(figures, "training")
    header = ["system", "batch tokens", "tokens/s, median", "lowest", "highest", "ms a step", "peak GiB"]
    header += [f"of {name}" for name in rates]
    lines = []
    for kind in KINDS:
        of_kind = [f for f in cells if f["batches"] == kind]
        if not of_kind:
            continue
        best = {f["system"]: f for f in sorted(of_kind, key=_speed)}  # the last of a system is its fastest
        padding = ", ".join(f"{100 * p:.1f} %" for p in sorted({f["padding"] for f in of_kind}))
        theirs = [_speed(f) for name, f in best.items() if not name.startswith("mtformer")]
        rows = [_row(f, f is best[f["system"]], rates.values()) for f in of_kind]
        lines += [f"### Training, {kind} (padding {padding}); each system's fastest in bold", ""]
        lines += [peers.markdown_table(header, rows), ""]
        if theirs:
            ours = {name: _speed(f) / max(theirs) for name, f in best.items() if name.startswith("mtformer")}
            lines += [f"- {name}: {ratio:.2f} times the faster peer" for name, ratio in ours.items()] + [""]
    return lines


def _speed(figure: dict[str, Any]) -> float:
    return statistics.median(figure["tokens_per_second"])


def _row(f: dict[str, Any], is_best: bool, limits: Iterable[float]) -> list[str]:
    rates, peak = f["tokens_per_second"], f["peak_bytes"]
    numbers = [f"{rate:,.0f}" for rate in (statistics.median(rates), min(rates), max(rates))]
    if is_best:
        numbers[0] = f"**{numbers[0]}**"
    memory = "" if peak is None else f"{peak / 2**30:.1f}"
    shares = [f"{100 * f['flops_per_second'] / limit:.1f} %" for limit in limits]
    return [f["system"], f"{f['batch_tokens']:,}", *numbers, f"{1000 * f['seconds_per_step']:.1f}", memory, *shares]


def _closer(figures: Figures) -> list[str]:
    lines = []
    for f in _of(figures, "waiting"):
        free, host = f["freely"], f["host alone"]
        lines += [
            f"- {_where(f)}: {1000 * free:.1f} ms a step, {1000 * f['one by one']:.1f} with a wait after each; the "
            f"host alone needs {1000 * host:.1f}, so it waits {100 * max(0.0, 1 - host / free):.0f} % of the time",
        ]
    compiled = [f["warm_up_seconds"] for f in _of(figures, "training") if "compiled" in f["system"]]
    if compiled:
        lines += [f"- compiled: the longest warm-up, compiling included, took {max(compiled):.0f} seconds"]
    lines += [""]
    for f in _of(figures, "profile"):
        busy, total = f["busy_seconds_per_step"], f["seconds_per_step"]
        lines += [
            f"### Profile of 3 steps: {_where(f)}",
            "",
            f"{1000 * total:.1f} ms a step with the profiler on, kernels ran for {1000 * busy:.1f} of them.",
            "",
        ]
        for what in ("classes", "kernels", "operations"):
            lines += [_shares(what, f[what], busy), ""]
    return lines


def _where(figure: dict[str, Any]) -> str:
    return f"{figure['system']}, {figure['batches']}, {figure['batch_tokens']:,} tokens"


def _shares(what: str, rows: Sequence[Sequence[Any]], busy: float) -> str:
    cells = [
        [str(name).replace("|", "/")[:110], f"{1000 * seconds:.2f}", f"{100 * seconds / busy:.1f} %", f"{count:.0f}"]
        for name, seconds, count in rows
    ]
    return peers.markdown_table([what, "ms a step", "share", "calls a step"], cells)


def _decoding(figures: Figures, scale: Scale) -> list[str]:
    cells = _of(figures, "decoding")
    if not cells:
        return []
    rows = []
    for f in cells:
        rates = f["sentences_per_second"]
        theirs = [
            statistics.median(other["sentences_per_second"])
            for other in cells
            if (other["search"], other["sentences"]) == (f["search"], f["sentences"])
            and not other["system"].startswith("mtformer")
        ]
        ratio = f"{statistics.median(rates) / theirs[0]:.2f}" if theirs else ""
        numbers = [f"{rate:,.0f}" for rate in (statistics.median(rates), min(rates), max(rates))]
        rows.append([f"{f['search']}, {f['system']}", str(f["sentences"]), *numbers, ratio])
    header = ["search and system", "batch", "sentences/s, median", "lowest", "highest", "times Hugging Face"]
    title = f"## Decoding: base, random weights, bf16, {scale.target_tokens} target tokens forced (eos counted)"
    return [title, "", peers.markdown_table(header, rows), ""]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/bench/gpu_report.py gpu.json")
    print(report(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))

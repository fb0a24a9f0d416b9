"""Tests of the GPU scripts on a CPU: gpu.sh without packages that the machine may lack, and sections of gpu.py."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH = REPOSITORY / "scripts" / "bench"
INSTALLED = {"torch", "numpy", "pytest", "sentencepiece", "pydantic", "safetensors", "pyarrow", "pyyaml", "filelock"}
"""Packages that the tests marked gpu may import, including their dependencies; gpu.py may also import transformers."""
NOT_INSTALLED = {"playwright", "datasets", "matplotlib", "ctranslate2", "fastapi", "tensorboard", "xdist"}
EXPECTED = {
    "equality": [r"\| fp32 \| 6\.\d+ \| 0 \| 0 \| 0.001 \| 100 \| 100 \| passed \|"],
    "resuming": [
        rf"\| {weights} \| bf16 \| 25 \| 20 \| 40 \| 40,704 \| none \| passed \|"
        for weights in ("without process group", r"replicated \(DDP\)", r"sharded \(FSDP2\)")
    ],
    "KFTT": [
        r"\| bf16 \| 20 \| at the end \| (\d\.\d+ \| ){5}yes \| yes \| 0 \|.* passed \|",
        r"BLEU on KFTT dev.*, beam 5\n\n(.*\n){2}\| fp32 \| 10 \| \d+\.\d+ \| \+0\.00 \| 100 \|",
    ],
    "base": [
        r"## Profile of 3 steps, base, mtformer, KFTT lengths, (256|128)\n",
        r"\| base \| mtformer \| not measured \|",
        r"\| Eole \| 256 \|",
    ],
    "base, compiled": [r"## 4 results are missing or wrong\n"],
    "decoding": [r"\| Hugging Face generate \| bf16 \| 2 \|", r"\| CTranslate2 \| fp32 \| 2 \|"],
}
"""Parts of the report of a section of gpu.py."""
BLOCK_IMPORTS = """
import importlib.abc, os, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named '{name}' (blocked)", name=name)

blocked = set(os.environ["BLOCKED"].split())
if "pytest" in sys.orig_argv:
    blocked.add("transformers")
sys.meta_path.insert(0, Block())
"""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def with_dependencies(names: set[str]) -> set[str]:
    """Return the names of these distributions and of all their dependencies."""
    found: set[str] = set()
    while names:
        found |= names
        needed = [Requirement(line) for name in names for line in metadata.requires(name) or []]
        names = {canonical(one.name) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
        names -= found
    return found


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an interpreter without CUDA that can import only `INSTALLED` and transformers."""
    allowed = with_dependencies({*INSTALLED, "transformers"}) | {"mtformer"}
    owners = metadata.packages_distributions()
    blocked = {module for module, names in owners.items() if not {canonical(name) for name in names} & allowed}
    assert NOT_INSTALLED & set(owners) <= blocked
    monkeypatch.setenv("BLOCKED", " ".join(blocked))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BLOCK_IMPORTS)
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/site:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path


def test_gpu_sh(python: Path, tmp_path: Path) -> None:
    """All CUDA tests are collected and skipped, and the benchmarks run."""
    limits = {"SECONDS_FOR_TESTS": "900", "SECONDS_IN_ALL": "1800"}  # for a machine that is busy with other work
    speed = "--device cpu --scale tiny --sections limits"
    done = subprocess.run(
        ["bash", "scripts/bench/gpu.sh"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHON": str(python), "OUT": str(tmp_path / "out"), "SPEED_OPTIONS": speed, **limits},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tests = (tmp_path / "out" / "tests.log").read_text()
    assert int(re.search(r"^=+ (\d+) skipped, \d+ deselected in", tests, re.MULTILINE)[1]) >= 96
    for name in ("test_cuda_attention", "test_cuda_cache", "test_cuda", "test_cuda_decoding", "test_one_rank"):
        assert f"{name}.py::" in tests
    assert "| copy |" in (tmp_path / "out" / "gpu.md").read_text()


@pytest.mark.parametrize("name", EXPECTED)
def test_gpu_py_section(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in this process to avoid repeated imports. Compilation is slow, so the section for it gets no time."""
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu

    cudnn, has_time = torch.backends.cuda.cudnn_sdp_enabled(), "compiled" not in name
    measure_next = gpu.build(name, "cpu", "tiny", write_corpus(tmp_path))
    figures = list(iter(lambda: measure_next(600.0 if has_time else 0.0), None))
    report = gpu.report({"environment": {}, "scale": "tiny", "seconds": {name: 1.0}, "figures": figures})
    for expected in EXPECTED[name]:
        assert re.search(expected, report), report
    assert all(gpu.is_faulty(figure) != has_time for figure in figures)
    assert torch.backends.cuda.cudnn_sdp_enabled() == cudnn


def write_corpus(folder: Path) -> Path:
    """Write a corpus with the file names of KFTT: random Japanese words, and their readings as English words."""
    chance = random.Random(1)
    readings = {chr(0x3042 + number): f"{'kstnhmyrw'[number % 9]}{'aiueo'[number // 9]}" for number in range(45)}
    words = ["".join(chance.choices(list(readings), k=4)) for _ in range(1000)]
    for part, size in (("train", 600), ("dev", 10)):
        lines = [chance.choices(words, k=chance.randint(5, 9)) for _ in range(size)]
        english = [" ".join("".join(map(readings.__getitem__, word)) for word in line) for line in lines]
        for language, text in (("ja", ["".join(line) for line in lines]), ("en", english)):
            with gzip.open(folder / f"{part}.{language}.gz", "wt", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in text))
    return folder


def test_gpu_py_without_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu

    first = gpu.build("KFTT", "cpu", "tiny", tmp_path)(60.0)
    assert first["error"] == f"FileNotFoundError: [Errno 2] No such file or directory: '{tmp_path}/train.ja.gz'"


def test_gpu_py_stops_training_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit ends training with a checkpoint; without losses that fall, the check has failed."""
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu

    figure = gpu.build("KFTT", "cpu", "tiny", write_corpus(tmp_path))(0.1)
    assert (figure["steps"], figure["stopped"]) == (1, "by the time limit")
    assert gpu.is_faulty(figure)


def test_a_crashed_section_loses_only_its_own_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu

    monkeypatch.setattr(gpu, "Worker", FakeWorker)
    arguments = ["--out", str(tmp_path), "--device", "cpu", "--scale", "tiny", "--sections", "base", "limits"]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 1
    report = (tmp_path / "gpu.md").read_text()
    assert "## 1 results are missing or wrong\n\n- base, section, its process ended with exit code 9\n" in report
    assert "| copy | 1 |" in report
    assert capsys.readouterr().out == report + "\n"
    assert len(json.loads((tmp_path / "gpu.json").read_text())["figures"]) == 2


class FakeWorker:
    """Fake worker that measures a copy, or crashes in the section `base`."""

    def __init__(self, build: object, name: str, *arguments: object, **options: object) -> None:
        self.answers = iter([{"kind": "limit", "name": "copy", "TB/s": 1.0}, None])
        self.name = name

    def ask(self, *arguments: object, **options: object) -> dict[str, Any] | None:
        if self.name == "base":
            raise RuntimeError("its process ended with exit code 9")
        return next(self.answers)

    def close(self) -> None: ...


def test_gpu_py_requires_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    message = "PyTorch finds no CUDA device; to try the script on a CPU: --device cpu --scale tiny"
    assert capsys.readouterr().err.endswith(f"error: {message}\n")

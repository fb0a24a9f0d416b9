"""Tests of the GPU scripts on a CPU: gpu.sh without packages that the machine may lack, and sections of gpu.py."""

import json
import os
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
NOT_INSTALLED = {"playwright", "datasets", "matplotlib", "ctranslate2", "fastapi", "tensorboard", "wandb", "xdist"}
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
    assert int(re.search(r"^=+ (\d+) skipped in", tests, re.MULTILINE)[1]) >= 82
    for name in ("test_cuda_attention", "test_cuda_cache", "test_cuda", "test_cuda_decoding"):
        assert f"{name}.py::" in tests
    assert "| copy |" in (tmp_path / "out" / "gpu.md").read_text()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base", "## Profile of 3 steps, base, mtformer, KFTT lengths, 256\n"),
        ("base, compiled", "## 2 results are missing\n"),
        ("decoding", "| Hugging Face generate | 2 |"),
    ],
)
def test_gpu_py_section(name: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in this process to avoid repeated imports. Compilation is slow, so the section for it gets no time."""
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu
    import gpu_sections

    cudnn, has_time = torch.backends.cuda.cudnn_sdp_enabled(), "compiled" not in name
    measure_next = gpu_sections.build(name, "cpu", "tiny")
    figures = list(iter(lambda: measure_next(has_time), None))
    result = {"environment": {}, "scale": "tiny", "seconds": {name: 1.0}, "figures": figures}
    assert expected in gpu.report(result)
    assert all(("error" in figure) != has_time for figure in figures)
    assert torch.backends.cuda.cudnn_sdp_enabled() == cudnn


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
    assert "## 1 results are missing\n\n- base, section, its process ended with exit code 9\n" in report
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

"""The scripts for a GPU, on a CPU: gpu.sh without the packages that its machine may lack, and sections of gpu.py."""

import importlib
import os
import re
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
BENCH = REPOSITORY / "scripts" / "bench"
INSTALLED = {"torch", "numpy", "pytest", "sentencepiece", "pydantic", "safetensors", "pyarrow", "pyyaml", "filelock"}
"""With what these depend on, all that the tests marked gpu may import; gpu.py may import transformers too."""
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
    """Return the distributions that these install, themselves included."""
    found: set[str] = set()
    while names:
        found |= names
        needed = [Requirement(line) for name in names for line in metadata.requires(name) or []]
        names = {canonical(one.name) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})}
        names -= found
    return found


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter without CUDA that finds `INSTALLED` and transformers only."""
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
    """All CUDA tests are collected, and skipped; the measurements are made."""
    limits = {"SECONDS_FOR_TESTS": "900", "SECONDS_IN_ALL": "1800"}  # for a machine with other work on it
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
    assert "| copy, read and written |" in (tmp_path / "out" / "gpu.md").read_text()


@pytest.mark.parametrize("name", ["base", "decoding"])
def test_a_section_of_gpu_py(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which spares the imports; gpu_profile.py is part of base. gpu_report.py prints the file."""
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu_report
    import gpu_sections

    cudnn = torch.backends.cuda.cudnn_sdp_enabled()
    result: dict[str, Any] = {"date": "today", "surroundings": gpu_report.surroundings("cpu"), "scale": "tiny"}
    reports = []

    def keep(figures: list[dict[str, Any]]) -> None:
        gpu_report.write({**result, "figures": figures}, tmp_path)
        reports.append((tmp_path / "gpu.md").read_text())

    section = gpu_sections.Section(name, keep, "cpu", gpu_sections.TINY, time.time() + 600)
    gpu_sections.SECTIONS[name](section)
    assert [figure for figure in section.figures if "error" in figure] == []
    assert len(reports) == len(section.figures)
    assert torch.backends.cuda.cudnn_sdp_enabled() == cudnn
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", str(tmp_path / "gpu.json")])
    importlib.import_module("runpy").run_path(str(BENCH / "gpu_report.py"), run_name="__main__")
    assert capsys.readouterr().out == reports[-1] + "\n"
    assert ("### Profile of 3 steps: mtformer" if name == "base" else "| beam 5, mtformer | 2 |") in reports[-1]


def test_gpu_py_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    import gpu

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == 2
    message = "PyTorch sees no CUDA device; to try the script on a CPU: --device cpu --scale tiny"
    assert capsys.readouterr().err.endswith(f"error: {message}\n")

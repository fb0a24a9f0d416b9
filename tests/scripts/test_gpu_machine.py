"""The CUDA tests and the GPU benchmarks import only packages that a machine for them has: see scripts/bench/gpu.sh."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[2]
FOR_TESTS = {"torch", "numpy", "pytest", "sentencepiece", "pydantic", "safetensors", "pyarrow", "pyyaml", "filelock"}
FOR_BENCHMARKS = FOR_TESTS | {"transformers"}
BLOCK_IMPORTS = """
import importlib.abc, sys

class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named '{name}' (blocked)", name=name)

blocked = set(sys.argv.pop(1).split())
sys.meta_path.insert(0, Block())
"""


def with_dependencies(names: set[str]) -> set[str]:
    """Return the distributions that these install, themselves included."""
    found: set[str] = set()
    while names:
        found |= names
        requirements = [Requirement(line) for name in names for line in metadata.requires(name) or []]
        names = {
            re.sub(r"[-_.]+", "-", requirement.name).lower()
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        } - found
    return found


def run_with_only(packages: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where every installed package but these and their dependencies is missing."""
    allowed = with_dependencies(packages) | {"mtformer"}
    blocked = [
        module
        for module, distributions in metadata.packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", name).lower() for name in distributions} & allowed
    ]
    assert {"playwright", "datasets", "lingua", "matplotlib", "ctranslate2", "fastapi"} & set(metadata.packages_distributions()) <= set(blocked)
    paths = [str(REPOSITORY), str(REPOSITORY / "scripts" / "bench")]
    return subprocess.run(
        [sys.executable, "-c", BLOCK_IMPORTS + code, " ".join(blocked)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


def test_every_cuda_test_is_collected() -> None:
    """With the command line of gpu.sh, but for the time limit."""
    files = [path for path in sorted((REPOSITORY / "tests").rglob("test_*.py")) if re.search(r"pytest\.mark\.gpu", path.read_text())]
    assert len(files) >= 4
    arguments = ["-m", "gpu", "--collect-only", "-q", "-p", "no:cacheprovider", *map(str, files)]
    done = run_with_only(FOR_TESTS, f"import pytest; sys.exit(pytest.main({arguments}))")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"^(\d+) tests collected", done.stdout, re.MULTILINE)[1]) >= 82


@pytest.mark.parametrize("program", ["gpu", "gpu_report", "gpu_profile"])
def test_gpu_benchmarks_import(program: str) -> None:
    done = run_with_only(FOR_BENCHMARKS, f"import {program}")
    assert done.returncode == 0, done.stderr

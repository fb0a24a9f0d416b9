"""The sdist and the wheel are complete: a wheel in an environment outside the repository trains the demo."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = "import setuptools.build_meta as backend, sys; getattr(backend, sys.argv[1])(sys.argv[2])"
"""Program that `python -m build --no-isolation` calls."""
INPUTS = ("mtformer", "configs", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "constraints.txt",
          "LICENSE", "LICENSE-Unicode.txt", "CHANGELOG.md", "CITATION.cff")  # fmt: skip
QUICK = ("training.max_steps=2", "training.validate_every=2", "training.warmup_steps=1", "training.device=cpu",
         "decoding.max_length_ratio=0.1")  # fmt: skip


def build(kind: str, source: Path, target: Path) -> None:
    subprocess.run([sys.executable, "-c", BUILD, kind, str(target)], cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An sdist of the repository, and a wheel that is built from it."""
    folder = tmp_path_factory.mktemp("build")
    (folder / "source").mkdir()
    for name in INPUTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / "source" / name)  # type: ignore[operator]
    build("build_sdist", folder / "source", folder)
    [sdist] = folder.glob("mtformer-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    build("build_wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)
    [wheel] = folder.glob("mtformer-*.whl")
    return {"sdist": sdist, "wheel": wheel}


@pytest.fixture(scope="module")
def environment(archives: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel, which finds its dependencies in the environment of the tests."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, with_pip=True, symlinks=os.name != "nt")
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet", archives["wheel"]]
    subprocess.run(install, check=True, env=variables())
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True, env=variables()).stdout
    # Other .pth files are not read there, so an editable installation of mtformer has no effect.
    Path(packages.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def variables() -> dict[str, str]:
    """Return the environment variables without those that would find the repository."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def installed(environment: Path, folder: Path, *words: str, stdin: str = "") -> str:
    """Run the installed program in a folder outside the repository, and return its output."""
    done = subprocess.run(
        [environment / "bin" / "mtformer", *words],
        cwd=folder, input=stdin, capture_output=True, text=True, env=variables(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_the_wheel_has_all_files_and_nothing_else(archives: dict[str, Path]) -> None:
    with zipfile.ZipFile(archives["wheel"]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        info = [name for name in wheel.namelist() if ".dist-info/" in name]
        metadata = wheel.read(next(name for name in info if name.endswith("/METADATA"))).decode()
    expected = {
        path.relative_to(folder).as_posix()
        for folder, part in ((ROOT, "mtformer"), (ROOT, "configs"))
        for path in (folder / part).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        name.removeprefix("mtformer/") if name.startswith("mtformer/configs/") else name for name in names
    } == expected
    assert {name.rpartition("/")[2] for name in info if "/licenses/" in name} == {"LICENSE", "LICENSE-Unicode.txt"}
    assert "License-Expression: Apache-2.0" in metadata
    assert "Description-Content-Type: text/markdown" in metadata


@pytest.mark.process
def test_the_installed_program_runs_the_quickstart_outside_the_repository(environment: Path, tmp_path: Path) -> None:
    where = subprocess.run(
        [environment / "bin" / "python", "-c", "import mtformer; print(mtformer.__file__)"],
        check=True, capture_output=True, text=True, cwd=tmp_path, env=variables(),
    ).stdout  # fmt: skip
    assert where.startswith(str(environment))

    installed(environment, tmp_path, "data", "demo", "demo")
    installed(environment, tmp_path, "train", "configs/demo.yaml", *QUICK)
    assert "BLEU" in installed(environment, tmp_path, "eval", "runs/demo", "--beam-size", "1", "--max-length", "3")
    line = installed(environment, tmp_path, "translate", "runs/demo", "--max-length", "3", stdin="The dog sleeps.\n")
    assert line.count("\n") == 1
    installed(environment, tmp_path, "report", "runs/demo")
    sets = ["--dev", "demo/dev.en", "demo/dev.de", "--test", "demo/test.en", "demo/test.de"]
    installed(environment, tmp_path, "init", "demo/train.en", "demo/train.de", *sets)
    assert "d_model: 128" in installed(environment, tmp_path, "config", "show", "en_de.yaml")
    for name in ("multi30k_en_de_best", "studies/base"):  # the first one extends another one
        assert "src_lang: en" in installed(environment, tmp_path, "config", "show", f"configs/{name}.yaml")
    assert not list(tmp_path.glob("configs"))

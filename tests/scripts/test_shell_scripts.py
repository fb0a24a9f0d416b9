"""Tests of the shell scripts: syntax, usage errors and the commands they call; no environment is installed."""

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mtformer.data.demo import write_demo
from mtformer.run_dir import RunDir

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((REPOSITORY / "scripts").rglob("*.sh"))
RECORD = '#!/bin/sh\nprintf "%s\\n" "$*" >>"$CALLS"\n[ -t 0 ] || cat\n'
"""Program that records its arguments and copies its input to its output."""


def bash(folder: Path, *arguments: object, **environment: object) -> subprocess.CompletedProcess[str]:
    """Run Bash in a folder, without a terminal."""
    variables = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    command = ["bash", *map(str, arguments)]
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a copy of the files that the scripts read."""
    folder = tmp_path / "repository"
    shutil.copytree(REPOSITORY / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(REPOSITORY / "configs", folder / "configs")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, folder / name)
    return folder


def prepare(repository: Path, environment: str, package: str, **programs: str) -> None:
    """Create an environment that `make_environment` accepts as its own and as up to date."""
    binaries = repository / environment / "bin"
    binaries.mkdir(parents=True)
    for name, text in programs.items():
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    checksum = bash(repository, "-c", "cat pyproject.toml constraints.txt | cksum").stdout.strip()
    stamp = repository / environment / "mtformer-environment"
    stamp.write_text(f"{package} {repository} {checksum}\n")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_have_valid_syntax(script: Path) -> None:
    done = bash(REPOSITORY, "-n", script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        ("scripts/multi30k.sh", 2, "usage: bash scripts/multi30k.sh FOLDER "),
        ("scripts/multi30k.sh nowhere", 2, "usage: bash scripts/multi30k.sh FOLDER "),
        ("scripts/multi30k_best.sh nowhere", 2, "usage: bash scripts/multi30k_best.sh FOLDER [OUTPUT]"),
        ("scripts/multi30k_tokenized.sh nowhere", 2, "usage: bash scripts/multi30k_tokenized.sh FOLDER [OUTPUT]"),
        ("scripts/studies.sh", 2, "usage: bash scripts/studies.sh FOLDER "),
        ("scripts/robustness.sh much", 2, "usage: bash scripts/robustness.sh [SHARE]"),
        ("scripts/studies.sh /", 1, "error: .venv exists but was not created by this script; move it away"),
        ("scripts/bench/gpu.sh nowhere", 2, "realpath: nowhere: No such file or directory"),
        ("source scripts/environment.sh; find_python", 1,
         "error: no Python from 3.10 to 3.13 with the venv module found (tried: /bin/false);"),
    ],
)  # fmt: skip
def test_usage_errors(command: str, status: int, error: str, repository: Path) -> None:
    (repository / ".venv").mkdir()
    done = bash(repository, *(("-c", command) if ";" in command else command.split()), PYTHON="/bin/false")
    assert done.returncode == status
    assert done.stderr.startswith(error)


def test_multi30k_sh_trains(repository: Path, tmp_path: Path) -> None:
    """Trains a toy model for two steps on plain and compressed files."""
    python = f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}" exec "{sys.executable}" '
    prepare(repository, ".venv", ".", python=f'{python}"$@"\n', mtformer=f'{python}-m mtformer "$@"\n')
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, path in write_demo(tmp_path / "demo").items():
        part, side = name.split(".")
        text = "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[: 300 if part == "train" else 5])
        if part == "train":
            (corpus / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (corpus / f"{ {'dev': 'val', 'test': 'test_2016_flickr'}[part] }.{side}").write_text(text, encoding="utf-8")
    toy = ["tokenizer.vocab_size=200", "model.d_model=16", "model.num_encoder_layers=1", "model.num_decoder_layers=1",
           "training.device=cpu", "training.batch_tokens=512", "training.max_steps=2", "training.validate_every=2",
           "decoding.max_length_ratio=0.1"]  # fmt: skip
    options = ["configs/multi30k_en_de_tiny.yaml", "--run-dir", tmp_path / "run", *toy]
    done = bash(repository, "scripts/multi30k.sh", corpus, *options)
    assert done.returncode == 0, done.stderr
    assert RunDir(tmp_path / "run").steps() == [2]
    assert "test_2016_flickr" in done.stdout


def test_multi30k_best_sh_distills_two_teachers(repository: Path, tmp_path: Path) -> None:
    prepare(repository, ".venv", ".", python="#!/bin/sh\n", mtformer=RECORD)
    done = bash(tmp_path, repository / "scripts" / "multi30k_best.sh", tmp_path, "best", CALLS=tmp_path / "calls")
    assert done.returncode == 0, done.stderr
    show, *calls = (tmp_path / "calls").read_text().splitlines()
    assert show.startswith("config show configs/multi30k_en_de_best.yaml data.train=[{src: ")
    out = tmp_path / "best"
    config = out / "multi30k_en_de_best.yaml"
    assert calls == [
        *(f"train {config} --run-dir {out}/teacher{n} --resume auto training.seed={n}" for n in (1, 2)),
        f"distill {out}/teacher1 {out}/teacher2 --config {config} --run-dir {out}/student",
    ]
    assert config.is_file()


def test_multi30k_tokenized_sh_trains_on_tokenized_files(repository: Path, tmp_path: Path) -> None:
    prepare(repository, ".venv", ".", python=RECORD, mtformer=RECORD)
    script = repository / "scripts" / "multi30k_tokenized.sh"
    done = bash(tmp_path, script, tmp_path, "out", "training.max_steps=2", CALLS=tmp_path / "calls")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    install, tokenize, train = [call for call in calls if call and not call.startswith("-c")]
    out = tmp_path / "out"
    assert install == "-m pip install --quiet sacremoses>=0.1.1"
    assert tokenize == f"scripts/moses_lowercase.py {tmp_path} {out}/corpus"
    assert train.startswith(f"train configs/multi30k_en_de_best.yaml data.train=[{{src: '{out}/corpus/train.en")
    assert train.endswith(
        f" --run-dir {out}/run --resume auto training.seed=1 evaluation.bleu_tokenizer=none training.max_steps=2"
    )


@pytest.mark.parametrize(("status", "share"), [(0, 1.0), (1, 0.5)])
def test_robustness_sh_runs_the_attacks_and_prints_the_results(
    status: int, share: float, repository: Path, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    attacks = f'printf "%s\\n" "$*" >>"{calls}"; echo "kills   {status} of 1 passed"; exit {status}'
    python = f'#!/bin/sh\n[ "$1" = -c ] && exec "{sys.executable}" "$@"\n{attacks}\n'
    prepare(repository, ".venv-test", ".[test]", python=python)
    (repository / "tests" / "robustness").mkdir(parents=True)
    done = bash(repository, "scripts/robustness.sh", *([share] if share != 1 else []))
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.endswith(f"Passed attacks:\nkills   {status} of 1 passed\n")
    *parts, rest = [call.split(" --attacks ")[1].split() for call in calls.read_text().splitlines()]
    assert [factor for factor, *_ in (*parts, rest)] == [str(factor * share) for factor in (8, 4, 10, 8, 166, 25)]
    assert rest[1] == "tests/robustness", "each file is attacked"
    assert sorted(rest[2:]) == sorted(f"--ignore={path}" for _, path in parts), "and none of them twice"


def test_quickstart_sh_starts_and_resumes(repository: Path, tmp_path: Path) -> None:
    prepare(repository, ".venv", ".", python="#!/bin/sh\n", mtformer=RECORD)
    calls = tmp_path / "calls"

    def called(*arguments: str) -> list[str]:
        calls.unlink(missing_ok=True)
        done = bash(repository, "scripts/quickstart.sh", *arguments, CALLS=calls)
        assert done.returncode == 0, done.stderr
        assert "Yesterday the old woman bought a beautiful lamp.\n    Yesterday the old woman" in done.stdout
        return calls.read_text().splitlines()

    train = "train configs/demo.yaml --run-dir runs/demo"
    assert called() == ["data demo demo", train, "eval runs/demo", "translate runs/demo"]
    (repository / "runs" / "demo").mkdir(parents=True)
    assert called()[1] == f"{train} --overwrite"
    (repository / "runs" / "demo" / "checkpoints" / "step-1").mkdir(parents=True)
    assert called()[1] == f"{train} --resume"
    assert called("training.max_steps=2")[1] == f"{train} training.max_steps=2"


def test_studies_sh(repository: Path, tmp_path: Path) -> None:
    prepare(repository, ".venv", ".", python="#!/bin/sh\n", mtformer=RECORD)
    for run in ("a", "b"):
        (repository / "runs" / "studies" / "norm" / run).mkdir(parents=True)
    done = bash(repository, "scripts/studies.sh", tmp_path, "norm", CALLS=tmp_path / "calls")
    assert done.returncode == 0, done.stderr
    sweep, compare, report = (tmp_path / "calls").read_text().splitlines()
    assert sweep.startswith("sweep configs/studies/norm.yaml --jobs 2 --resume data.train=[{src: ")
    assert compare == "compare runs/studies/norm/a/ runs/studies/norm/b/ --sentences 0"
    assert report == "report runs/studies/norm/a/ runs/studies/norm/b/ --out runs/studies/norm.html"
    assert (repository / "runs" / "studies" / "norm.txt").is_file()


def test_test_sh(repository: Path, tmp_path: Path) -> None:
    prepare(repository, ".venv-test", ".[test]", python='#!/bin/sh\n[ "$1" = -c ] || printf "%s\\n" "$*" >>"$CALLS"\n')
    done = bash(repository, "scripts/test.sh", "-k", "beam", CALLS=tmp_path / "calls")
    assert done.returncode == 0, done.stderr
    *lint, tests = (tmp_path / "calls").read_text().splitlines()
    folders = "mtformer tests scripts"
    assert lint == [f"-m ruff check {folders}", f"-m ruff format --check {folders}", "-m mypy"]
    assert tests.startswith("-m pytest --numprocesses auto ")
    assert tests.endswith(" -k beam")

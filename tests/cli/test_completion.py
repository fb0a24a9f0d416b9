"""Completion in bash: commands, options, config keys, and run directories."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from program import invoke

from mtformer.cli.options import complete_key, complete_run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with runs, and folders that are no runs."""
    for name in ("runs/demo", "runs/de_en", "runs/sweep/seed=1", "other", "[x]"):
        (tmp_path / name).mkdir(parents=True)
        if name != "other":
            (tmp_path / name / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complete(folder: Path, line: str) -> list[str]:
    """Return what bash offers after Tab at the end of a line, by the function that the program prints for bash."""
    (folder / "bin").mkdir()
    (folder / "bin" / "mtformer").write_text(f'#!/bin/sh\nexec {sys.executable} -m mtformer "$@"\n')
    (folder / "bin" / "mtformer").chmod(0o755)
    words = line.split(" ")
    code = (
        'source <(mtformer --show-completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_mtformer_completion mtformer; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path}
    command = ["bash", "-c", code, "bash", *words]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.process
@pytest.mark.parametrize(("line", "expected"), [
    ("mtformer tra", ["train", "translate", "track"]),
    ("mtformer data ch", ["check"]),
    ("mtformer init --src", ["--src-lang"]),
    ("mtformer translate runs/demo --beam-", ["--beam-size", "--beam-tokens"]),
    ("mtformer train x.yaml training.max_m", ["training.max_minutes="]),
    ("mtformer translate runs/de", ["runs/de_en", "runs/demo"]),
    ("mtformer compare runs/demo runs/sw", ["runs/sweep/seed=1"]),
])  # fmt: skip
def test_bash_completes(folder: Path, line: str, expected: list[str]) -> None:
    assert complete(folder, line) == expected


@pytest.mark.usefixtures("folder")
def test_runs_are_completed_by_their_path() -> None:
    assert complete_run("") == ["[x]", "runs/de_en", "runs/demo"]
    assert complete_run("runs/") == ["runs/de_en", "runs/demo", "runs/sweep/seed=1"]
    assert complete_run("[") == ["[x]"]
    assert complete_run("oth") == []


def test_keys_are_completed_as_overrides() -> None:
    assert complete_key("model.num_h") == ["model.num_heads="]
    assert complete_key("xyz") == []


def test_the_program_offers_to_install_it() -> None:
    shown = invoke("--help").stdout
    assert "--install-completion" in shown
    assert "--show-completion" in shown

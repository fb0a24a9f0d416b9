"""The notebook runs from the first to the last cell, and again, as after the machine of a notebook was taken away.

The cells run in this process, without Jupyter. Lines that start with `!` run in a shell, as in IPython, with the values
of expressions in braces. The cell with the tag `install` is not run, because it needs the internet, and the cell with
the tag `parameters` is followed by small values.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "mtformer.ipynb"
SMALL = (
    "model.d_model=32 model.num_heads=2 model.d_ff=64 model.num_encoder_layers=1 model.num_decoder_layers=1 "
    "model.max_positions=300 tokenizer.vocab_size=300 training.device=cpu training.max_steps=6 "
    "training.batch_tokens=1024 training.step_tokens=null training.warmup_steps=2 training.validate_every=3 "
    "training.log_every=3 decoding.beam_size=1"
)
"""Overrides for a training of seconds."""


def cells(kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    return [cell for cell in notebook["cells"] if cell["cell_type"] == kind]


def tags(cell: dict[str, Any]) -> list[str]:
    return list(cell["metadata"].get("tags", []))


def run_cells(values: dict[str, Any]) -> list[str]:
    """Run the cells in order and return the commands that they started."""
    commands: list[str] = []
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}

    def shell(line: str) -> None:
        command = re.sub(r"\{([^{}]+)\}", lambda match: str(eval(match[1], values)), line)
        # The program of this environment may be another version than the package that is tested.
        program = re.sub(r"^mtformer\b", f"'{sys.executable}' -m mtformer", command)
        done = subprocess.run(program, shell=True, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        commands.append(command)

    values["shell"] = shell
    for cell in cells("code"):
        if "install" in tags(cell):
            continue
        code = re.sub(r"^( *)!(.*)$", r"\1shell(r'''\2''')", "".join(cell["source"]), flags=re.MULTILINE)
        exec(compile(code, NOTEBOOK.name, "exec"), values)
        if "parameters" in tags(cell):
            values["OVERRIDES"] = SMALL
    return commands


@pytest.mark.process
def test_the_cells_run_and_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands = run_cells({})
    words = [command.split()[1] for command in commands]
    assert words == ["data", "config", "data", "train", "translate", "export"]
    folder = tmp_path / "mtformer"
    metrics = (folder / "run" / "metrics.jsonl").read_text()
    sizes = [len((folder / f"{part}.en").read_text().splitlines()) for part in ("train", "part", "dev", "test")]
    assert sizes[0] == sum(sizes[1:])
    assert len((folder / "out.txt").read_text().splitlines()) == 5
    with zipfile.ZipFile(folder / "bundle.zip") as archive:
        assert {"bundle/config.yaml", "bundle/model.safetensors", "bundle/checksums.json"} <= set(archive.namelist())

    assert [command.split()[1] for command in run_cells({})] == ["data", "train", "translate", "export"]
    again = (folder / "run" / "metrics.jsonl").read_text()
    assert again.startswith(metrics)
    assert [len((folder / f"{part}.en").read_text().splitlines()) for part in ("train", "part", "dev", "test")] == sizes


@pytest.mark.process
def test_own_files_in_other_languages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the line feed ends a line; Japanese text with a line separator (U+2028) stays one line."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mtformer"
    folder.mkdir()
    lines = [f"これは{number}番目の文です。" for number in range(120)]
    lines[0] += "\u2028続き"
    (folder / "train.ja").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "train.th").write_text("".join(f"ประโยคที่ {number}\n" for number in range(120)), encoding="utf-8")
    values: dict[str, Any] = {}
    [parameters] = [cell for cell in cells("code") if "parameters" in tags(cell)]
    source = "".join(parameters["source"]).replace('"en"', '"ja"').replace('"de"', '"th"')
    monkeypatch.setattr(sys.modules[__name__], "cells", _with_parameters(source))
    run_cells(values)
    assert (folder / "dev.ja").read_text(encoding="utf-8").split("\n")[:-1] == lines[114:117]
    assert (folder / "test.th").read_text(encoding="utf-8").split("\n")[0] == "ประโยคที่ 117"


def _with_parameters(source: str) -> Any:
    original = cells

    def changed(kind: str) -> list[dict[str, Any]]:
        return [{**cell, "source": [source]} if "parameters" in tags(cell) else cell for cell in original(kind)]

    return changed


def test_the_notebook_has_no_outputs_and_one_address_to_replace() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells("code"))
    texts = ["".join(cell["source"]) for kind in ("code", "markdown") for cell in cells(kind)]
    assert sum(text.count("URL-OF-THIS-REPOSITORY") for text in texts) == 1
    [install] = [cell for cell in cells("code") if "install" in tags(cell)]
    assert "URL-OF-THIS-REPOSITORY" in "".join(install["source"])
    for link in re.findall(r"\]\((\S+?)\)", "".join(texts)):
        assert (NOTEBOOK.parent / link).is_file(), link

"""`mtformer runs`: a table that fits, and the same as JSON and CSV."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from program import invoke

from mtformer.cli.runs import table
from mtformer.experiment.runs import RunRow, differing_keys, format_duration


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    """A finished run, the same with another dropout and no checkpoints left, and a half-made one."""
    other = Path(shutil.copytree(run, tmp_path / "runs" / "study" / "other"))
    shutil.rmtree(other / "checkpoints")
    text = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(text.replace("\n  dropout: 0.1", "\n  dropout: 0.3"))
    (tmp_path / "runs" / "half" / "checkpoints").mkdir(parents=True)
    run.rename(tmp_path / "runs" / "run")
    return tmp_path / "runs"


def test_the_table(folder: Path) -> None:
    result = invoke("runs", folder)
    assert result.exit_code == 0, result.stderr
    header, half, run, other = result.stdout.splitlines()
    assert header.split() == ["name", "state", "step", "best", "at", "weights", "tokens/s", "time", "dropout"]
    assert half.split() == ["half", "half-made", "0"]
    assert run.split()[:4] == ["run", "finished", "12/12", "bleu"]
    assert re.search(r" (average|best \(average) [+-]\d+\.\d\d", run)
    assert (run.split()[-1], other.split()[-1]) == ("0.1", "0.3")
    assert other.startswith("study/other")
    assert result.stderr == ""


def test_runs_is_the_folder_when_none_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert invoke("runs").stdout == invoke("runs", folder).stdout
    monkeypatch.chdir(folder / "study")
    missing = invoke("runs")
    assert (missing.exit_code, missing.stderr) == (2, "error: runs: no such folder; name the folder of the runs\n")


def test_json_and_csv_say_the_same(folder: Path) -> None:
    rows = json.loads(invoke("runs", folder, "--json", "--sort", "dropout").stdout)
    assert [row["name"] for row in rows] == ["run", "study/other", "half"]
    assert rows[0]["config"] == {"model.dropout": 0.1}
    assert rows[0]["best"] is not None
    assert rows[0]["path"] == str(folder / "run")
    lines = list(csv.DictReader(io.StringIO(invoke("runs", folder, "--csv", "--sort", "model.dropout").stdout)))
    assert [line["model.dropout"] for line in lines] == ["0.1", "0.3", ""]
    for row, line in zip(rows, lines, strict=True):
        assert line.keys() == {*row, "model.dropout"} - {"config"}
        assert all(line[key] == ("" if row[key] is None else str(row[key])) for key in row if key != "config")


def test_no_runs(tmp_path: Path) -> None:
    result = invoke("runs", tmp_path)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{tmp_path}: no runs here\n")
    assert json.loads(invoke("runs", tmp_path, "--json").stdout) == []
    assert invoke("runs", tmp_path, "--csv").stdout.startswith("name")


def test_mistakes(folder: Path) -> None:
    result = invoke("runs", folder, "--sort", "speed")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --sort speed: no such column; there are name, state,")
    assert invoke("runs", folder, "--json", "--csv").exit_code == 2


def test_what_is_wrong_with_a_run_is_reported_below_the_table(folder: Path) -> None:
    with (folder / "run" / "config.yaml").open("a") as file:
        file.write("gone: 1\n")
    result = invoke("runs", folder)
    assert result.exit_code == 0
    assert "finished, damaged config" in result.stdout
    assert result.stderr.startswith(f"run: {folder}/run/config.yaml:")
    assert "gone: unknown key" in result.stderr


def test_a_table_is_as_wide_as_the_terminal() -> None:
    rows = [
        RunRow(f"study/norm={norm},layers={layers},seed={seed}", Path(), "finished", step=seed, best=1.5, metric="bleu",
               config={"model.norm": norm, "model.d_ff": layers, "training.init_from": "x" * 60 + norm})
        for norm in ("pre", "post") for layers in (2, 6) for seed in (1, 2)
    ]  # fmt: skip
    keys = differing_keys(rows)
    whole, left_out = table(rows, keys, None)
    assert left_out == []
    assert whole[0].split()[-3:] == ["norm", "d_ff", "init_from"]
    assert whole[1].startswith("study/norm=pre,layers=2,seed=1 ")
    for width in range(120, 61, -1):
        lines, left_out = table(rows, keys, width)
        assert max(map(len, lines)) <= width
        assert "training.init_from" in left_out
    names = "".join(line.split()[0] for line in lines[1:])
    assert names == "".join(row.name for row in rows)  # wrapped


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (59.6, "0:01:00"), (3661, "1:01:01"), (90000, "25:00:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text

"""`mtformer runs`: a table that fits the terminal, and the same data as JSON and CSV."""

import csv
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from program import invoke

from mtformer.cli.output import table_lines
from mtformer.cli.runs import rows_of, table, with_narrow_names
from mtformer.experiment.runs import RunRow, differing_keys
from mtformer.formatting import format_duration


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    """Return a folder with a finished run, a copy with another dropout and no checkpoints, and an incomplete run."""
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
    headers = ["name", "state", "step", "best dev", "at", "test BLEU", "weights", "tokens seen", "time", "tokens/s"]
    headers.append("dropout")
    assert re.split("  +", header) == headers
    assert half.split() == ["half", "incomplete", "0"]
    assert run.split()[:4] == ["run", "finished", "12/12", "bleu"]
    scores = json.loads((folder / "run" / "eval" / "small" / "scores.json").read_text())["scores"]
    assert f" small {scores[0]['value']:.2f} " in run
    assert re.search(r" (average|best \(average) [+-]\d+\.\d\d", run)
    assert (run.split()[-1], other.split()[-1]) == ("0.1", "0.3")
    assert other.startswith("study/other")
    assert result.stderr == ""


def test_the_default_folder_is_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert invoke("runs").stdout == invoke("runs", folder).stdout
    monkeypatch.chdir(folder / "study")
    missing = invoke("runs")
    assert (missing.exit_code, missing.stderr) == (2, "error: runs: no such folder; give the folder of the runs\n")


def test_json_and_csv_have_the_same_values(folder: Path) -> None:
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
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"{tmp_path}: contains no runs\n")
    assert json.loads(invoke("runs", tmp_path, "--json").stdout) == []
    assert invoke("runs", tmp_path, "--csv").stdout.startswith("name")


def test_user_errors(folder: Path) -> None:
    result = invoke("runs", folder, "--sort", "speed")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --sort speed: no such column; the columns are name, state,")
    assert invoke("runs", folder, "--json", "--csv").exit_code == 2


def test_an_error_in_a_run_is_reported_below_the_table(folder: Path) -> None:
    with (folder / "run" / "config.yaml").open("a") as file:
        file.write("gone: 1\n")
    result = invoke("runs", folder)
    assert result.exit_code == 0
    assert "finished, damaged config" in result.stdout
    assert result.stderr.startswith(f"run: {folder}/run/config.yaml:")
    assert "gone: unknown key" in result.stderr


def test_a_table_fits_the_terminal() -> None:
    figures: dict[str, Any] = {
        "max_steps": 100_000, "best": 31.5, "best_step": 9, "metric": "bleu", "test_set": "flickr2016", "test": 33.25,
        "weights": "best", "tokens": 1.5e9, "tokens_per_second": 12345.0, "seconds": 45678.0,
    }  # fmt: skip
    rows = [
        RunRow(f"study/norm={norm},layers={layers},seed={seed}", Path(), "finished", step=90_000 + seed, **figures,
               config={"model.norm": norm, "model.d_ff": layers, "training.init_from": "x" * 60 + norm})
        for norm in ("pre", "post") for layers in (2, 6) for seed in (1, 2)
    ]  # fmt: skip
    keys = differing_keys(row.config for row in rows)
    whole, left_out = table(rows, keys, None)
    assert left_out == []
    assert whole[0].split()[-3:] == ["norm", "d_ff", "init_from"]
    assert whole[1].startswith("study/norm=pre,layers=2,seed=1 ")
    headers = ["name", "state", "step", "best dev", "test BLEU", "tokens seen", "time", "norm", "d_ff"]
    lines, left_out = table(rows, keys, 128)
    assert re.split("  +", lines[0]) == headers
    assert left_out == ["at", "weights", "tokens/s", "init_from"]
    lines, left_out = table(rows, keys, 120)
    assert left_out == ["at", "weights", "tokens seen", "init_from"]
    lines, left_out = table(rows, keys, 80)
    assert re.split("  +", lines[0]) == ["name", "state", "step", "best dev", "test BLEU", "norm", "d_ff"]
    for width in range(120, 79, -1):
        lines, left_out = table(rows, keys, width)
        assert max(map(len, lines)) <= width
        assert "init_from" in left_out
        words = [line.split(" ")[0] for line in lines[1:]]
        assert "".join(words) == "".join(row.name for row in rows)  # names are broken only between their parts
        assert all(word.endswith((",", "/")) or re.search(r"seed=\d$", word) for word in words)


@pytest.mark.parametrize("header", ["name", "run"])
def test_names_are_broken_between_their_parts(header: str) -> None:
    names = ["dropout=0.1,norm_position=post,seed=1", "study/dropout=0.1"]
    columns = {header: [header, *names], "time": ["time", "0:00:05", "0:00:06"]}
    lines = table_lines(rows_of(with_narrow_names(columns, 40)))
    first_name = [["dropout=0.1,norm_position=post,", "0:00:05"], ["seed=1"]]
    assert [line.split() for line in lines] == [[header, "time"], *first_name, ["study/dropout=0.1", "0:00:06"]]
    assert with_narrow_names(columns, 50) == columns


def test_unequal_training_is_named_below_the_table(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", folder / "equal")
    shutil.rmtree(folder / "study")
    pattern = "runs trained for"
    assert pattern not in invoke("runs", folder).stderr
    log = folder / "equal" / "metrics.jsonl"
    kept = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= 8]
    log.write_text("".join(f"{line}\n" for line in kept))
    shutil.rmtree(folder / "equal" / "checkpoints")
    assert re.search(
        r"runs trained for 8 to 12 steps, [\d,]+ to [\d,]+ tokens: differences in scores may come from that\n",
        invoke("runs", folder).stderr,
    )


def test_labels_of_settings_are_unique() -> None:
    configs = [{"data.corpora.a.weights": [1], "data.corpora.b.weights": [1]}, {"data.corpora.a.weights": [2]}]
    rows = [RunRow(f"run{n}", Path(), "new", weights="best", config=config) for n, config in enumerate(configs)]
    (header, *_), _ = table(rows, differing_keys(row.config for row in rows), None)
    assert header.split() == ["name", "state", "weights", "a.weights", "b.weights"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (59.6, "0:01:00"), (3661, "1:01:01"), (90000, "25:00:00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text

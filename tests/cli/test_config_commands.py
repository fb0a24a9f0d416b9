"""`mtformer config` and `mtformer data`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mtformer.cli.app import app
from mtformer.config.fields import section_keys
from mtformer.config.json_schema import json_schema
from mtformer.config.loading import load_config

CONFIG = "data: {src_lang: en, tgt_lang: de}\nmodel:\n  num_heads: 4\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a config and a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(CONFIG)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(CONFIG + "training: {seed: 7}\n")
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_show_prints_the_origin_of_each_value(folder: Path) -> None:
    result = invoke("config", "show", "a.yaml", "training.max_steps=5")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "num_heads: 4 # a.yaml:3" in lines
    assert "max_steps: 5 # override 'training.max_steps=5'" in lines
    assert "d_model: 512 # default" in lines
    assert "model:" in lines


def test_the_output_of_show_is_a_valid_config(folder: Path) -> None:
    result = invoke("config", "show", "a.yaml", "data.train=[{tsv: 'a #b'}]")
    (folder / "again.yaml").write_text(result.stdout)
    assert load_config("again.yaml").config == load_config("a.yaml", ["data.train=[{tsv: 'a #b'}]"]).config


def test_show_prints_the_documentation_above_each_key(folder: Path) -> None:
    lines = invoke("config", "show", "a.yaml").stdout.splitlines()
    above = lines[next(number for number, line in enumerate(lines) if line.startswith("  num_heads:")) - 1]
    assert above == "  # Number of attention heads; must divide `d_model`. (at least 1)"
    assert all(len(line) <= 120 for line in lines)


def test_show_prints_the_defaults_or_a_section(folder: Path) -> None:
    keys = {line.split(":")[0].strip() for line in invoke("config", "show").stdout.splitlines() if "#" not in line[:5]}
    assert {".".join(path).split(".")[-1] for path in section_keys()} <= keys
    assert "  src_lang: null                          # required" in invoke("config", "show").stdout
    part = invoke("config", "show", "a.yaml", "--section", "decoding").stdout.splitlines()
    assert (part[1], "  beam_size: 5                            # default" in part) == ("decoding:", True)
    assert not any("src_lang" in line for line in part)
    assert invoke("config", "show", "--section", "x").stderr == (
        "error: --section x: no such section; the sections are data, tokenizer, model, training, decoding, evaluation\n"
    )


def test_show_accepts_a_run(folder: Path) -> None:
    assert "seed: 7" in invoke("config", "show", "run").stdout


def test_a_folder_without_a_run(folder: Path) -> None:
    (folder / "empty").mkdir()
    result = invoke("config", "show", "empty")
    assert result.exit_code == 2
    assert result.stderr == "error: empty: not a run directory or bundle (it has no config.yaml); check the path\n"


def test_errors_in_a_config_are_lines_on_stderr(folder: Path) -> None:
    result = invoke("config", "show", "a.yaml", "model.num_head=2", "training.seed=-1")
    assert (result.exit_code, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first.startswith(
        "error: override 'model.num_head=2': model.num_head: unknown key; did you mean 'num_heads'?"
    )
    assert second == "error: override 'training.seed=-1': training.seed: must be at least 0, not -1"


def test_schema() -> None:
    result = invoke("config", "schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json_schema()


def test_data_demo(folder: Path) -> None:
    result = invoke("data", "demo", "demo")
    assert result.exit_code == 0
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert {path.name for path in paths} >= {"train.en", "train.de", "test.en", "test.de"}
    assert all(path.is_file() and path.parent == Path("demo") for path in paths)

"""The tables of a report."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from program import invoke
from small_run import begin_run, write_history

from mtformer.config.loading import load_config
from mtformer.experiment.run_state import RunState
from mtformer.experiment.runs import RunContents
from mtformer.model.transformer import Transformer
from mtformer.report import tables
from mtformer.templating import Table
from mtformer.text.tokenizer import TokenizerPair


def rows(table: Table | None) -> list[list[str]]:
    assert table is not None
    return [list(row) for row in ([table.head] if table.head else []) + list[Sequence[str]](table.rows)]


@pytest.fixture
def read(tmp_path: Path) -> RunContents:
    run = begin_run(tmp_path / "run", patience=7, max_steps=180)
    write_history(run)
    return RunContents(run.path, "run")


def test_changed_settings_are_listed_before_all_settings(read: RunContents) -> None:
    found = tables.config(read)
    changed, all_values = found["changed"], found["all"]
    assert ["training.patience", "7", "–"] in rows(changed)
    assert ["model.d_model", "16", "512"] in rows(changed)
    assert ["data.src_lang", "en", "–"] in rows(changed)
    assert not any(row[0] == "training.seed" for row in rows(changed))
    assert ["training.seed", "1", "1"] in rows(all_values)
    assert ["tokenizer.joint", "true", "true"] in rows(all_values)
    assert not [cell for row in rows(all_values) for cell in row if re.search(r"null|[][{}]", cell)]
    assert len(rows(all_values)) == 1 + len(load_config(read.run.config).origins)


def test_a_resumed_run_records_time_and_changes(run: Path, corpus: Path) -> None:
    changes = ("training.max_steps=14", "training.learning_rate=1.0e-3")
    result = invoke("train", corpus / "small.yaml", *changes, "--run-dir", run, "--resume")
    assert result.exit_code == 0, result.stderr
    started, resumed = rows(tables.starts(RunContents(run)))[1:]
    assert (started[2], resumed[2]) == ("0", "12")
    assert started[3] == resumed[3] != "–"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", resumed[1])
    assert started[1] <= resumed[1]
    assert resumed[4] == (
        "training.max_steps 12 → 14, training.learning_rate 0.003 → 0.001, "
        "training.current_learning_rate 0.00173 → 0.000577"
    )


@pytest.mark.parametrize(("value", "text"), [
    (None, "–"), ([], "–"), ({}, "–"), (True, "true"), (0.0, "0.0"), (1e-9, "1e-09"), ([1, "a"], "1, a"),
    ([{"file": "a", "lines": [1, 2]}, {"file": None}], "file: a, lines: 1, 2, file: –"),
])  # fmt: skip
def test_values_are_shown_without_json(value: object, text: str) -> None:
    assert tables.format_plain(value) == text


def test_training_time_and_time_left(read: RunContents) -> None:
    assert read.training_seconds == pytest.approx(30.0)  # 60 steps of half a second
    running = RunContents(read.run.path)
    running.state = RunState("running")
    table = dict(rows(tables.speed(running)))
    assert table["training time without validations"] == "0:00:30"
    assert table["time left"] == "about 0:01:00"
    assert table["tokens per second, source and target, median"] == "1,032"
    assert table["peak memory"] == "1.50 GB"
    assert table.keys() - dict(rows(tables.speed(read))).keys() == {"time left"}


def test_tied_parameters_are_counted_once(read: RunContents) -> None:
    assert read.config is not None
    tokenizers = TokenizerPair.load(read.run.tokenizer)
    size = tokenizers.src.vocab_size
    number = sum(each.numel() for each in Transformer(read.config.model, size, size).parameters())
    assert rows(tables.parameters(read)) == [["parameters", f"{number:,}"], ["MB in fp32", f"{4 * number / 1e6:.2f}"]]


def test_each_of_several_corpora_has_a_column(read: RunContents) -> None:
    one = {"read": 5, "kept": 4, "left_out": {"duplicate": 1}, "tokens": {"src": 8, "tgt": 12}}
    whole = {**one, "read": 10, "kept": 8, "corpora": {"a <b>": one, "c": {**one, "left_out": {}}}}
    read.data_report = whole
    found = rows(tables.data(read))
    assert read.unread == []
    assert found[0] == ["", "all", "a <b>", "c"]
    assert ["pairs read", "10", "5", "5"] in found
    assert ["left out: duplicate", "1", "1", "–"] in found
    assert ["target tokens per line", "1.5", "3.0", "3.0"] in found

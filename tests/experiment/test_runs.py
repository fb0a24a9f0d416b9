"""Tests of listing runs: one row per run, with all values that can be read."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from mtformer.config.loading import dump_config, load_config
from mtformer.errors import CheckpointError, ConfigError
from mtformer.experiment.run_state import lock_run, record_state
from mtformer.experiment.runs import (
    RunContents,
    RunRow,
    differing_keys,
    is_number,
    list_runs,
    natural,
    sort_runs,
    summarize,
)
from mtformer.run_dir import CT2_WEIGHTS, RunDir, run_names


def make_run(path: Path, *overrides: str, records: list[dict[str, Any]] | None = None) -> RunDir:
    """Create a run directory like that of a real run, but without checkpoints."""
    run = RunDir(path)
    path.mkdir(parents=True)
    base = path.parent / "base.yaml"
    base.write_text("data: {src_lang: en, tgt_lang: de, train: [{src: /here/a.en, tgt: /here/a.de}]}\n")
    run.config.write_text(dump_config(load_config(base, ["training.max_steps=40", *overrides]).config))
    base.unlink()
    if records is not None:
        run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
        run.state.write_text('{"state": "finished"}')
    return run


def train(step: int, speed: float, seconds: float) -> dict[str, Any]:
    return {"kind": "train", "step": step, "loss": 3.0, "tokens_per_second": speed, "seconds_per_step": seconds}


def dev(step: int, bleu: float | None, loss: float) -> dict[str, Any]:
    return {"kind": "dev", "step": step, "bleu": bleu, "loss": loss}


RECORDS = [
    train(10, 9.0, 2.0), dev(10, 5.0, 4.0), train(20, 100.0, 1.0), dev(20, 8.0, 3.0), {"kind": "resume", "step": 20},
    train(30, 300.0, 1.0), dev(30, 8.0, 2.0), dev(40, 7.0, 2.5),
]  # fmt: skip


def test_summary_of_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", records=RECORDS)
    with record_state(run):
        pass
    row = summarize(run.path)
    assert (row.name, row.state, row.step, row.max_steps) == ("a", "finished", 40, 40)
    assert (row.metric, row.best, row.best_step) == ("bleu", 8.0, 20)  # the first of several equal scores
    assert row.tokens_per_second == 100.0
    assert row.seconds == 50.0  # the steps after the last log line are as slow as those before it
    assert row.tokens == 10 * 18 + 10 * 100 + 20 * 300
    assert (row.note, row.problem) == (None, None)
    assert row.config["training.max_steps"] == 40


def test_the_best_loss_is_the_lowest(tmp_path: Path) -> None:
    row = summarize(make_run(tmp_path / "a", "training.best_metric=loss", records=RECORDS).path)
    assert (row.metric, row.best, row.best_step) == ("loss", 2.0, 30)
    changed = [*RECORDS[:-1], {"kind": "resume", "step": 30, "changes": {"dev data": ["a", "b"]}}, RECORDS[-1]]
    row = summarize(make_run(tmp_path / "b", "training.best_metric=loss", records=changed).path)
    assert (row.best, row.best_step) == (2.5, 40)
    discarded = [*changed[:-1], {"kind": "resume", "step": 30, "changes": {}}, RECORDS[-1]]
    row = summarize(make_run(tmp_path / "c", "training.best_metric=loss", records=discarded).path)
    assert (row.best, row.best_step) == (2.0, 30)


def test_speed_is_measured_over_the_last_records(tmp_path: Path) -> None:
    records = [train(step, 1000.0 if step <= 100 else 10.0, 1.0) for step in range(1, 121)]
    assert summarize(make_run(tmp_path / "a", records=records).path).tokens_per_second == 10.0


@pytest.mark.parametrize("records", [None, [], [dev(10, None, 1.0)], [{"kind": "train", "step": 5}]])
def test_a_run_with_few_or_no_records(tmp_path: Path, records: list[dict[str, Any]] | None) -> None:
    row = summarize(make_run(tmp_path / "a", records=records).path)
    assert (row.best, row.tokens_per_second, row.problem) == (None, None, None)


def test_states(tmp_path: Path) -> None:
    failed, killed, running = (make_run(tmp_path / name) for name in ("failed", "killed", "running"))
    with pytest.raises(ZeroDivisionError), record_state(failed):
        raise ZeroDivisionError("by\nzero")
    killed.state.write_text('{"state": "running"}')
    make_run(tmp_path / "new")
    make_run(tmp_path / "bundle").bundle_weights.write_bytes(b"")
    with lock_run(running):
        rows = {row.name: row for row in list_runs(tmp_path)}
    assert {name: row.state for name, row in rows.items()} == {
        "failed": "failed", "killed": "killed", "running": "running", "new": "new",
        "bundle": "bundle",
    }  # fmt: skip
    assert rows["failed"].problem == "by zero"
    assert rows["bundle"].step is None


def test_an_unknown_key_in_the_config(tmp_path: Path) -> None:
    run = make_run(tmp_path / "old", "model.dropout=0.3", records=RECORDS)
    text = run.config.read_text()
    run.config.write_text(text.replace("  dropout: 0.3", "  drop_rate: 0.3\n  dropout: 0.3"))
    row = summarize(run.path)
    assert (row.state, row.note, row.best, row.max_steps) == ("finished", "damaged config", None, None)
    assert row.problem is not None
    assert "drop_rate: unknown key" in row.problem


@pytest.mark.parametrize(
    ("name", "content", "state", "note", "is_reported"),
    [
        ("config.yaml", b"\xff\xfe\x00", "finished", "damaged config", True),
        ("config.yaml", b"{", "finished", "damaged config", True),
        ("config.yaml", b"- 1\n", "finished", "damaged config", True),
        ("config.yaml", b"training: 7\n", "finished", "damaged config", True),
        ("metrics.jsonl", b"\x00\xff{}\n[1]\n", "finished", None, False),
        ("metrics.jsonl", b'{"kind": "train", "step": "x", "tokens_per_second": []}\n', "finished", None, False),
        ("metrics.jsonl", b'{"kind": "dev", "step": 3, "bleu": "x"}\n', "finished", None, False),
        ("state.json", b"[]", "new", None, False),
        ("state.json", b"\xff", "new", None, False),
        ("state.json", b"{", "new", None, False),
        ("state.json", b'{"state": "asleep"}', "new", None, False),
    ],
)
def test_a_run_with_damaged_files_still_has_a_row(
    tmp_path: Path, name: str, content: bytes, state: str, note: str | None, is_reported: bool
) -> None:
    run = make_run(tmp_path / "a", records=RECORDS)
    with record_state(run):
        pass
    (run.path / name).write_bytes(content)
    (row,) = list_runs(tmp_path)
    assert (row.name, row.state, row.note, row.problem is not None) == ("a", state, note, is_reported)
    assert differing_keys([row.config, row.config]) == []
    assert sort_runs([row], "best", []) == [row]


def test_incomplete_runs_and_other_folders(tmp_path: Path) -> None:
    (tmp_path / "half" / "checkpoints").mkdir(parents=True)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "thesis.tex").write_text("")
    make_run(tmp_path / ".replaced" / "a")
    make_run(tmp_path / "deep" / "er" / "b")
    make_run(tmp_path / "deep" / "er" / "b" / "checkpoints" / "c")
    rows = list_runs(tmp_path)
    assert [(row.name, row.state) for row in rows] == [("deep/er/b", "new"), ("half", "incomplete")]
    assert [row.name for row in list_runs(tmp_path / "deep" / "er" / "b")] == ["b"]
    (tmp_path / "deep" / "config.yaml").write_text("")  # of an experiment that has not started
    assert [row.name for row in list_runs(tmp_path / "deep")] == ["deep", "er/b"]
    assert list_runs(tmp_path / "text") == []
    with pytest.raises(CheckpointError, match="no such folder"):
        list_runs(tmp_path / "none")


def test_a_folder_that_cannot_be_read_has_a_row_and_does_not_hide_other_runs(tmp_path: Path) -> None:
    """The path is too long for the system, which is an error for all users, unlike missing permissions."""
    make_run(tmp_path / "good")
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(18):
        os.mkdir("x" * 240, dir_fd=folder)
        inner = os.open("x" * 240, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    good, unreadable = list_runs(tmp_path)
    assert (good.name, good.state) == ("good", "new")
    assert (unreadable.state, unreadable.problem) == ("unreadable", f"{unreadable.path}: File name too long")
    assert unreadable.path.is_relative_to(tmp_path / ("x" * 240))


def test_a_folder_whose_files_cannot_be_opened_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system lists the names in a folder without execute permission, but does not open its files."""
    make_run(tmp_path / "good")
    make_run(tmp_path / "locked")
    make_run(tmp_path / "locked" / "inner")

    def is_bundle(run: RunDir) -> bool:
        if run.path == tmp_path / "locked":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(run.bundle_weights))
        return False

    monkeypatch.setattr(RunDir, "is_bundle", property(is_bundle))
    good, locked = list_runs(tmp_path)
    assert (good.name, good.state) == ("good", "new")
    assert (locked.name, locked.state) == ("locked", "unreadable")
    assert locked.problem == f"{tmp_path / 'locked'}: Permission denied"


def test_a_bundle_in_the_folder_of_its_run_has_no_row(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.checkpoints.mkdir()
    for folder in (run.path / "bundle", tmp_path / "bundle"):
        make_run(folder).bundle_weights.write_bytes(b"")
    (make_run(run.path / "ctranslate2").path / CT2_WEIGHTS).write_bytes(b"")
    assert [(row.name, row.state) for row in list_runs(tmp_path)] == [("bundle", "bundle"), ("run", "new")]
    assert [row.name for row in list_runs(run.path / "bundle")] == ["bundle"]


def test_runs_of_a_sweep_without_a_folder(tmp_path: Path) -> None:
    make_run(tmp_path / "study" / "seed=1", "training.seed=1", records=RECORDS)
    entries = [{"name": f"seed={seed}", "values": {"training.seed": seed}, "error": error}
               for seed, error in ((1, "not so"), (2, "no file"), (3, None))]  # fmt: skip
    (tmp_path / "study" / "sweep.json").write_text(json.dumps({"runs": entries}))
    rows = list_runs(tmp_path)
    assert [(row.name, row.state, row.problem) for row in rows] == [
        ("study/seed=1", "finished", None),
        ("study/seed=2", "failed", "no file"),
        ("study/seed=3", "waiting", None),
    ]


@pytest.mark.parametrize("content", ["{", "[]", '{"runs": [{}]}', '{"runs": 7}'])
def test_a_damaged_sweep_file_still_has_a_row(tmp_path: Path, content: str) -> None:
    make_run(tmp_path / "a")
    (tmp_path / "sweep.json").write_text(content)
    assert [(row.name, row.state) for row in list_runs(tmp_path)] == [("a", "new"), ("sweep.json", "unreadable")]


def test_differing_keys_are_those_with_an_effect(tmp_path: Path) -> None:
    make_run(tmp_path / "a", "model.dropout=0.2", "data.cache_dir=/x", "data.num_workers=2")
    make_run(tmp_path / "b", "data.train.0.src=/there/a.en", "data.train.0.tgt=/there/b.de")
    make_run(tmp_path / "c", "data.test={t: {src: a, tgt: b}}")
    configs = [row.config for row in list_runs(tmp_path)]
    assert differing_keys(configs) == ["model.dropout", "data.train.0.tgt", "data.test.t.src", "data.test.t.tgt"]
    assert differing_keys(configs[:1]) == []


def row(name: str, **values: Any) -> RunRow:
    return RunRow(name, Path(name), "new", **values)


def test_sorting(tmp_path: Path) -> None:
    rows = [
        row("a", step=5, best=1.0, metric="bleu", seconds=9.0, config={"model.d_ff": 10, "model.norm": "z"}),
        row("b", step=50, best=3.0, metric="bleu", seconds=1.0, config={"model.d_ff": 9, "model.norm": "y"}),
        row("c", config={"model.d_ff": None}),
    ]
    keys = ["model.d_ff", "model.norm"]

    def order(by: str) -> str:
        return "".join(one.name for one in sort_runs(rows, by, keys))

    assert [order(by) for by in ("step", "best", "time", "seconds", "d_ff", "model.d_ff", "norm", "name")] == [
        "bac", "bac", "bac", "bac", "bac", "bac", "bac", "abc",
    ]  # fmt: skip
    losses = [row("a", best=1.0, metric="loss"), row("b", best=3.0, metric="loss")]
    assert [one.name for one in sort_runs(losses[::-1], "best", [])] == ["a", "b"]
    with pytest.raises(ConfigError, match="--sort speed: no such column; the columns are name, state, step"):
        sort_runs(rows, "speed", keys)


def test_numbers_in_names_are_sorted_as_numbers() -> None:
    assert sorted(["seed=10", "seed=9", "d=0.5,seed=1", "a", "7"], key=natural) == [
        "7", "a", "d=0.5,seed=1", "seed=9", "seed=10",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/b", "a/c"], ["b", "c"]),
        (["a/run", "b/run", "b/other"], ["a/run", "b/run", "b/other"]),
        (["x/a/run", "y/a/run"], ["x/a/run", "y/a/run"]),
        (["a/run", "a/run"], ["run (1)", "run (2)"]),
    ],
)
def test_run_names_are_distinct(paths: list[str], names: list[str], tmp_path: Path) -> None:
    assert run_names([tmp_path / path for path in paths]) == names


def test_the_name_of_a_run_is_the_name_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_names([Path()]) == [tmp_path.name]


@pytest.mark.parametrize("value", [None, "1", True, float("nan"), float("inf"), 10**400, [1]])
def test_values_that_are_not_numbers(value: object) -> None:
    assert not is_number(value)


def test_the_contents_of_a_run(tmp_path: Path) -> None:
    odd = [{"kind": "train", "step": 64, "loss": float("nan"), "tokens_per_second": "text"}, dev(80, 8.0, 9.0)]
    run = make_run(tmp_path / "a", records=[*RECORDS, *odd])
    samples = [[["a", "b", "c"]], [["only", "two"]], "text"]
    run.samples.write_text("".join(json.dumps({"kind": "dev", "step": 1, "samples": one}) + "\n" for one in samples))
    contents = RunContents(run.path, "run")
    assert contents.points("dev", "bleu") == [(10, 5.0), (20, 8.0), (30, 8.0), (40, 7.0), (80, 8.0)]
    assert contents.points("train", "tokens_per_second") == [(10, 9.0), (20, 100.0), (30, 300.0)]
    assert contents.points("dev", "learning_rate") == []
    assert (contents.best("bleu"), contents.best("loss"), contents.best("ter")) == ((20, 8.0), (30, 2.0), None)
    assert [one["samples"] for one in contents.samples] == samples[:1]  # the others have invalid formats
    assert (contents.step, contents.max_steps, contents.made_with) == (80, 40, {})
    run.data_report.write_text("7")
    (run.evaluation("small")).mkdir(parents=True)
    (run.evaluation("small") / "scores.json").write_text("{")
    assert (contents.data_report, contents.scores, len(contents.unread)) == (None, {}, 2)

"""A run as far as it can be read."""

from pathlib import Path

import pytest
from small_run import begin_run, write_history

from mtformer.report.reading import ReadRun, is_number, read_run, run_names
from mtformer.training.history import append_record


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/b", "a/c"], ["b", "c"]),
        (["a/run", "b/run", "b/other"], ["a/run", "b/run", "b/other"]),
        (["x/a/run", "y/a/run"], ["x/a/run", "y/a/run"]),
        (["a/run", "a/run"], ["run (1)", "run (2)"]),
    ],
)
def test_names_tell_runs_apart(paths: list[str], names: list[str], tmp_path: Path) -> None:
    assert run_names([tmp_path / path for path in paths]) == names


def test_the_name_of_a_run_is_that_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_names([Path()]) == [tmp_path.name]


@pytest.mark.parametrize("value", [None, "1", True, float("nan"), float("inf"), [1]])
def test_what_is_no_number(value: object) -> None:
    assert not is_number(value)


@pytest.fixture
def read(tmp_path: Path) -> ReadRun:
    run = begin_run(tmp_path / "run")
    write_history(run)
    append_record(run.metrics, "train", 64, loss=float("nan"), nll="text")
    append_record(run.samples, "dev", 64, samples=[["only", "two"]])
    append_record(run.samples, "dev", 68, samples="text")
    return read_run(run.path, "run")


def test_points_are_the_finite_numbers_of_a_kind(read: ReadRun) -> None:
    assert read.points("dev", "bleu") == [(20, 20 / 3), (40, 40 / 3), (60, 20.0)]
    assert [step for step, _ in read.points("train", "loss")] == list(range(4, 61, 4))
    assert [step for step, _ in read.points("train", "nll")] == list(range(4, 61, 4))
    assert read.points("dev", "learning_rate") == []


def test_the_best_validation_is_the_highest_or_of_losses_the_lowest(read: ReadRun) -> None:
    assert read.best("bleu") == (60, 20.0)
    loss = read.best("loss")
    assert loss is not None
    assert loss[0] == 60
    append_record(read.run.metrics, "dev", 80, loss=9.0, bleu=20.0)
    again = read_run(read.run.path, "run")
    assert again.best("bleu") == (60, 20.0)  # the earlier one
    assert again.best("loss") == loss
    assert again.best("ter") is None


def test_samples_of_another_form_are_left_out(read: ReadRun) -> None:
    assert [record["step"] for record in read.samples] == [20, 40, 60]

"""Tests of reproducing a run: a repeated run has the same values to the last digit, and differences are reported."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_experiment import QUIET, make_config, train, write_corpus

from mtformer.config.schema import Config
from mtformer.errors import CheckpointError, ConfigError, InterruptedRunError, MtformerError
from mtformer.experiment import resume
from mtformer.experiment.verify import Difference, Reproduced, StopAt, reproduce, steps_to_reproduce
from mtformer.run_dir import RunDir
from mtformer.training.budget import Plan, StepPlan
from mtformer.training.figures import TIMINGS
from mtformer.training.history import read_records


@pytest.fixture(autouse=True)
def _no_temporary_files(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.glob("mtformer-*")) == []


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), train=300, dev=12)


def config(corpus: Path, **training: Any) -> Config:
    """Return a config in which the learning rate depends on max_steps, and the training text on a random state."""
    lengths = {"max_steps": 6, "validate_every": 3, "schedule": "cosine", "average_last": 2}
    return make_config(corpus, data={"noise": {"typos": 0.1}}, training={**lengths, **training})


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return a finished run trained with one thread, which tests must not modify."""
    run = RunDir(tmp_path_factory.mktemp("runs") / "run")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        train(config(corpus), run)
    return run


@pytest.fixture
def run(finished: RunDir, tmp_path: Path) -> RunDir:
    return RunDir(shutil.copytree(finished.path, tmp_path / "run"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_a_reproduced_run_has_the_same_metrics(finished: RunDir) -> None:
    torch.set_num_threads(2)
    found = reproduce(finished, 6, QUIET)
    assert torch.get_num_threads() == 2
    records = [record for record in read_records(finished.metrics) if record["kind"] != "resume"]
    assert [(one["step"], one["kind"]) for one in records] == [
        *((2, "train"), (3, "dev"), (4, "train"), (6, "train"), (6, "dev"))
    ]
    num_figures = sum(len(record.keys() - TIMINGS - {"kind", "step"}) for record in records)
    assert found == Reproduced(5, num_figures, None, [], True)
    assert all({"loss", "grad_norm", "learning_rate"} <= one.keys() for one in records if one["kind"] == "train")


def test_reproducing_some_steps_includes_the_last_validation(run: RunDir) -> None:
    shutil.rmtree(run.tokenizer)  # only the config is used
    found = reproduce(run, 3, QUIET)
    assert (found.num_records, found.first) == (2, None)
    bleu = read_records(run.metrics)[1]["bleu"]
    change(run.metrics, f'"bleu": {bleu}', '"bleu": 99.5')
    assert reproduce(run, 3, QUIET).first == Difference("step 3: dev bleu", 99.5, bleu)


def test_a_resumed_run_can_be_reproduced(corpus: Path, finished: RunDir, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    torch.set_num_threads(1)
    with pytest.raises(InterruptedRunError):
        train(config(corpus), run, progress=StopAt(5))
    train(config(corpus), run, resume=True)
    assert any(record["kind"] == "resume" for record in read_records(run.metrics))
    found = reproduce(run, 6, QUIET)
    assert (found.num_records, found.first, found.environment) == (5, None, [])


def test_a_run_that_was_resumed_with_other_threads_and_dev_sets_can_be_reproduced(corpus: Path, tmp_path: Path) -> None:
    """Only a checkpoint of the resumed part remains, which has the new environment."""

    def part(max_steps: int, *names: str) -> Config:
        dev = {name: {"src": f"{corpus}/dev.en", "tgt": f"{corpus}/{name}.de"} for name in names}
        training = {"max_steps": max_steps, "validate_every": 3, "schedule": "constant", "keep_last": 1, "keep_best": 1}
        return make_config(corpus, data={"dev": dev}, training={**training, "best_metric": "loss"})

    other = (corpus / "dev.de").read_text(encoding="utf-8").splitlines(keepends=True)
    (corpus / "other.de").write_text("".join(reversed(other)), encoding="utf-8")
    run = RunDir(tmp_path / "run")
    torch.set_num_threads(1)
    train(part(6, "dev", "other"), run)
    torch.set_num_threads(2)
    train(part(9, "dev"), run, resume=True)
    assert min(run.steps()) > 6
    assert (
        "1 threads" in next(one for one in read_records(run.metrics) if one["kind"] == "resume")["changes"]["device"][0]
    )
    found = reproduce(run, 6, QUIET)
    assert (found.num_records, found.first, found.environment) == (5, None, [])


def test_a_run_that_a_resume_gave_another_dev_set_is_refused(run: RunDir) -> None:
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write('{"kind": "resume", "step": 6, "changes": {"data.test.small.src": [null, "test.en"]}}\n')
    assert reproduce(run, 3, QUIET).first is None
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write('{"kind": "resume", "step": 6, "changes": {"data.dev.0.src": [null, "dev.en"]}}\n')
    with pytest.raises(ConfigError, match=r"because a resume after step 3 added data\.dev\.0\.src"):
        reproduce(run, 3, QUIET)


def test_a_resume_record_of_an_earlier_version_has_no_changes(run: RunDir) -> None:
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write('{"kind": "resume", "step": 6}\n')
    assert reproduce(run, 3, QUIET).first is None


def test_a_difference_in_the_last_digit_is_found(run: RunDir) -> None:
    rows = read_records(run.metrics)
    loss = rows[2]["loss"]
    text = repr(loss)[:-1] + str((int(repr(loss)[-1]) + 1) % 10)
    change(run.metrics, repr(loss), text)
    assert reproduce(run, 4, QUIET).first == Difference("step 4: train loss", float(text), loss)


def test_different_data_and_versions_are_reported(
    corpus: Path, run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = shutil.copytree(corpus, tmp_path / "other")
    change(other / "train.en", "a", "e")
    run.config.write_text(run.config.read_text().replace(str(corpus), str(other)))
    monkeypatch.setattr(resume, "__version__", "9.9")
    found = reproduce(run, 2, QUIET)
    assert found.environment is not None
    assert [what for what, _, _ in found.environment] == ["training data", "dev data", "tokenizer", "mtformer"]
    assert found.environment[-1][2] == "9.9"
    assert found.first is not None


def test_automatic_precision_is_that_of_the_run(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "run")
    monkeypatch.setattr("mtformer.device._has_bf16_instructions", lambda: False)
    monkeypatch.setattr("mtformer.device._cpu_product_seconds", lambda dtype: 1.0)
    train(config(corpus, max_steps=2, precision="auto"), run)
    monkeypatch.setattr("mtformer.device._has_bf16_instructions", lambda: True)
    found = reproduce(run, 2, QUIET)
    assert (found.first, found.environment) == (None, [])


def test_a_run_without_checkpoints_can_be_reproduced(run: RunDir) -> None:
    shutil.rmtree(run.checkpoints)
    change(run.metrics, '"grad_norm"', '"another_name"')
    torch.set_num_threads(1)  # as in training; only a checkpoint records it
    found = reproduce(run, 2, QUIET)
    assert (found.first, found.environment) == (None, None)


def test_a_run_with_a_time_limit_is_reproduced_with_its_plans(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, limited = RunDir(tmp_path / "run"), config(corpus, max_minutes=60, max_steps=9999, log_every=1)
    with monkeypatch.context() as patch:
        patch.setattr(StepPlan, "is_due", lambda self, step, seconds_spent: step == 2)  # step 3 is validated
        patch.setattr(StepPlan, "_fitting_plan", lambda self, step, seconds_spent: {2: Plan(6), 3: Plan(9)}.get(step))
        train(limited, run)
    records = read_records(run.metrics)
    assert [(one["step"], one["max_steps"]) for one in records if one["kind"] == "plan"] == [(2, 6), (3, 9)]
    found = reproduce(run, 8, QUIET)
    assert (found.first, found.num_records) == (None, 8 + 2 + 2)


def test_steps_to_reproduce(run: RunDir) -> None:
    assert [steps_to_reproduce(run, asked) for asked in (None, 2, 5, 1000)] == [6, 2, 5, 6]
    with pytest.raises(ConfigError, match=r"--steps 1: .* has no metrics before step 2; give at least 2"):
        steps_to_reproduce(run, 1)
    first = json.dumps({"kind": "train", "step": 70})
    run.metrics.write_text("".join(f"{first}\n{first.replace('70', '140')}\n"))
    assert steps_to_reproduce(run, None) == 70
    run.metrics.unlink()
    with pytest.raises(CheckpointError, match="nothing to compare"):
        steps_to_reproduce(run, None)


def no_common_metrics(run: RunDir) -> None:
    change(run.metrics, '"step": 2', '"step": 1')


def several_processes(run: RunDir) -> None:
    os.environ["TORCHELASTIC_RUN_ID"] = "7"


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (no_common_metrics, "no metrics at the steps of its config, .*; training.log_every was changed"),
        (several_processes, "without torchrun"),
        (lambda run: change(run.config, "train.en", "gone.en"), r"gone\.en"),
    ],
)
def test_user_errors(
    prepare: Callable[[RunDir], None], message: str, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    prepare(run)
    with pytest.raises(MtformerError, match=message):
        reproduce(run, 2, QUIET)


def test_a_signal_stops_reproduce(run: RunDir) -> None:
    with pytest.raises(InterruptedRunError) as stopped:
        reproduce(run, 6, StopAt(1))
    assert stopped.value.step == 1

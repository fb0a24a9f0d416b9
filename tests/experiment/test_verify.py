"""Tests of `--verify-resume`: it passes if resuming is exact, and otherwise reports the first difference."""

import json
import math
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_experiment import make_config, write_corpus

from mtformer.config.schema import Config
from mtformer.errors import ConfigError, DataError, MtformerError
from mtformer.experiment.verify import NUM_STEPS, STOP_AT, Compared, Part, compare_runs, train_part, verify_resume
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir
from mtformer.training.state import RandomState

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Return a config with noise, accumulation, and 9 steps per epoch, so the stop is in the second epoch."""
    return make_config(
        write_corpus(tmp_path_factory.mktemp("corpus"), train=600, dev=20),
        data={"test": {"there": {"src": "nowhere.en", "tgt": "nowhere.de"}}, "noise": {"typos": 0.1}},
        tokenizer={"vocab_size": 300, "model_type": "bpe"},
        training={"batch_tokens": 1024, "accumulation_steps": 2, "average_last": 3, "patience": 1, "max_minutes": 60},
    )


def first(part: Compared) -> str | None:
    return part.difference.name if part.difference is not None else None


def inexact_leg(config: Config, folder: Path, stop_at: int | None, keep: Path) -> None:
    """Train without restoring the random state, and keep a copy of the run directory."""
    pytest.MonkeyPatch().setattr(RandomState, "load_state_dict", lambda self, state: None)
    train_part(config, folder, stop_at, plans={})
    shutil.copytree(folder, keep / f"{folder.name}-{stop_at}")
    (keep / f"{folder.name}-{stop_at}.pid").write_text(str(os.getpid()))


@pytest.fixture(scope="module")
def inexact(config: Config, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Compared], Path]:
    """Return the comparison for a run resumed without its random state, and the run directories after each part."""
    keep = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        return verify_resume(config, partial(inexact_leg, keep=keep)), keep


def test_an_inexact_resume_is_detected(inexact: tuple[list[Compared], Path]) -> None:
    compared = {part.what: first(part) for part in inexact[0]}
    weights = load_file(RunDir(inexact[1] / "whole-None").checkpoint(NUM_STEPS) / WEIGHTS)
    assert compared["weights"] in weights
    assert compared["optimizer state"] is not None
    assert compared["random state"] == "0.0"
    assert compared["metrics"] == f"step {NUM_STEPS // 2 + 2}: train.loss"
    assert compared["checkpoints"] is None


def test_parts_are_separate_processes_with_validations_before_and_after_the_stop(
    inexact: tuple[list[Compared], Path],
) -> None:
    keep = inexact[1]
    assert len({(keep / f"{part}.pid").read_text() for part in ("whole-None", "halves-10", "halves-None")}) == 3
    assert RunDir(keep / "halves-10").steps() == [7, STOP_AT]
    rows = [json.loads(line) for line in RunDir(keep / "halves-None").metrics.read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "dev"] == [7, 14, 20]
    assert all("bleu" in row for row in rows if row["kind"] == "dev")
    assert [row["step"] for row in rows if row["kind"] == "resume"] == [STOP_AT]
    epochs = {row["epoch"] for row in rows if row["kind"] == "train"}
    assert len(epochs) > 1


def flip_a_weight(run: RunDir) -> None:
    path = run.checkpoint(NUM_STEPS) / WEIGHTS
    weights = load_file(path)
    weights["decoder_norm.bias"].view(torch.int32)[5] ^= 1
    save_file(weights, path)


def change_state(run: RunDir, change: Callable[[dict[str, Any]], None]) -> None:
    path = run.checkpoint(NUM_STEPS) / TRAINER_STATE
    state = torch.load(path, weights_only=True)
    change(state)
    torch.save(state, path)


def change_metrics(run: RunDir, old: str, new: str) -> None:
    text = run.metrics.read_text()
    assert old in text
    run.metrics.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("change", "what", "name"),
    [
        (flip_a_weight, "weights", "decoder_norm.bias"),
        (
            lambda run: change_state(run, lambda s: s["optimizer"]["state"][2]["exp_avg_sq"].neg_()),
            "optimizer state",
            "optimizer.state.2.exp_avg_sq",
        ),
        (lambda run: change_state(run, lambda s: s["rng"][0][0].add_(1)), "random state", "0.0"),
        (lambda run: change_state(run, lambda s: s["position"].update(pairs=1)), "position", "pairs"),
        (lambda run: change_state(run, lambda s: s["windows"][0].update(more=1)), "position", "windows.0.more"),
        (lambda run: change_metrics(run, '"step": 8', '"step": 9'), "metrics", "step 8: train.epoch"),
        (lambda run: shutil.copytree(run.checkpoint(20), run.checkpoint(3)), "checkpoints", "steps.0"),
    ],
)
def test_each_difference_is_reported(
    change: Callable[[RunDir], None], what: str, name: str, inexact: tuple[list[Compared], Path], tmp_path: Path
) -> None:
    whole = RunDir(inexact[1] / "whole-None")
    other = RunDir(shutil.copytree(whole.path, tmp_path / "other"))
    assert {first(part) for part in compare_runs(whole, other)} == {None}
    change(other)
    differences = {part.what: first(part) for part in compare_runs(whole, other) if first(part)}
    assert differences == {what: name}


def test_bits_are_compared_instead_of_values(inexact: tuple[list[Compared], Path], tmp_path: Path) -> None:
    runs = [RunDir(shutil.copytree(inexact[1] / "whole-None", tmp_path / name)) for name in ("one", "other")]
    for zeros, is_same in (((0.0, 0.0), True), ((0.0, -0.0), False)):
        for run, zero in zip(runs, zeros, strict=True):
            change_state(run, lambda state, zero=zero: state["optimizer"]["state"][2].update(x=torch.tensor([zero])))  # type: ignore[misc]
            change_state(run, lambda state: state["optimizer"]["state"][2].update(y=torch.tensor([math.nan])))
        differences = [first(part) for part in compare_runs(*runs) if first(part)]
        assert differences == ([] if is_same else ["optimizer.state.2.x"])


def test_timings_and_resume_records_are_ignored(inexact: tuple[list[Compared], Path], tmp_path: Path) -> None:
    whole = RunDir(inexact[1] / "whole-None")
    other = RunDir(shutil.copytree(whole.path, tmp_path / "other"))
    change_metrics(other, '"tokens_per_second": ', '"tokens_per_second": 1')
    change_metrics(other, "{", '{"kind": "resume", "step": 1}\n{')
    change_state(other, lambda state: state["position"].update(seconds=1e6))
    assert {first(part) for part in compare_runs(whole, other)} == {None}


def failing_leg(config: Config, folder: Path, stop_at: int | None) -> None:
    raise DataError("train.en: no such file")


def killed_leg(config: Config, folder: Path, stop_at: int | None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("part", "message"), [(failing_leg, "train.en: no such file"), (killed_leg, "the system killed the training")]
)
def test_an_error_in_a_part_is_reported(
    part: Part, message: str, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(MtformerError, match=message):
        verify_resume(config, part)
    assert list(tmp_path.iterdir()) == []


def test_torchrun_is_rejected(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    with pytest.raises(ConfigError, match="without torchrun"):
        verify_resume(config)

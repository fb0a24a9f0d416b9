"""Tests of selecting the weights of a run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mtformer.decoding.loading import from_data_report
from mtformer.decoding.weights import ADAPTED_METRIC, default_weights, find_weights, is_adapted
from mtformer.errors import CheckpointError
from mtformer.files import META, sealed, write_checksums, write_meta
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.weights import average_weights, read_weights


def add(folder: Path, **metrics: float) -> Path:
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(b"weights")
    write_meta(folder, step=0, metrics=metrics)
    return folder / WEIGHTS


def test_checkpoint_names(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    steps = {
        10: add(run.checkpoint(10), bleu=20.0, loss=3.0),
        20: add(run.checkpoint(20), bleu=30.0, loss=2.0),
        30: add(run.checkpoint(30), bleu=25.0, loss=1.0),
    }
    assert find_weights(run, None, "bleu") == [steps[20]]
    assert find_weights(run, "best", "bleu") == [steps[20]]
    assert find_weights(run, "best", "loss") == [steps[30]]
    assert find_weights(run, "last", "bleu") == [steps[30]]
    assert find_weights(run, "10", "bleu") == [steps[10]]
    assert find_weights(run, str(steps[10]), "bleu") == [steps[10]]
    assert find_weights(run, str(steps[10].parent), "bleu") == [steps[10]]
    averaged = add(run.averaged)
    assert find_weights(run, "averaged", "bleu") == [averaged]


OTHER: dict[str, dict[str, torch.Tensor]] = {
    "other shape": {"a": torch.zeros(2, 1), "b": torch.zeros(3)},
    "missing tensor": {"a": torch.zeros(2, 3)},
    "further tensor": {"a": torch.zeros(2, 3), "b": torch.zeros(3), "c": torch.zeros(1)},
}


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
def test_weights_of_different_models_are_not_averaged(other: dict[str, torch.Tensor], tmp_path: Path) -> None:
    """A tensor of another shape could be added by broadcasting."""
    paths = [tmp_path / "first.safetensors", tmp_path / "second.safetensors"]
    save_file({"a": torch.ones(2, 3), "b": torch.ones(3)}, paths[0])
    save_file(other, paths[1])
    with pytest.raises(CheckpointError, match=r"second.safetensors: its tensors are not those of .*first.safetensors"):
        average_weights(paths)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.bool, torch.complex64], ids=str)
def test_weights_that_are_no_floats_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a\n\x1b[2J": torch.ones(2, 3).to(dtype)}, path)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(CheckpointError, match=rf"a\\n\\x1b\[2J is {name}, but weights must be dense tensors of"):
        read_weights(path)


@pytest.mark.parametrize(
    ("metric", "checkpoint", "average", "is_average", "text"),
    [
        ("bleu", {"bleu": 24.26}, {"bleu": 21.71}, False, "best checkpoint (step 20, dev bleu 24.26); the averaged "
         "weights (dev bleu 21.71) differ by -2.55"),
        ("bleu", {"bleu": 24.26}, {"bleu": 24.5}, True, "averaged weights (dev bleu 24.5), +0.24 compared to the best "
         "checkpoint (step 20, dev bleu 24.26)"),
        ("bleu", {"bleu": 24.26}, {"bleu": 24.26}, True, "+0.00"),
        ("bleu", {"bleu": 24.26}, {"bleu": 24.02}, True, "-0.24"),
        ("bleu", {"bleu": 24.26}, {"bleu": 24.01}, False, "-0.25"),
        ("loss", {"loss": 2.0}, {"loss": 2.019}, True, "+0.02"),
        ("loss", {"loss": 2.0}, {"loss": 2.1}, False, "+0.10"),
        ("loss", {"loss": 2.0}, {"loss": 1.9}, True, "-0.10"),
        ("bleu", {"bleu": 24.26}, {}, False, "the averaged weights were not validated"),
        ("bleu", {}, {}, True, "averaged weights (not validated: there is no dev data)"),
    ],
)  # fmt: skip
def test_the_default_is_the_average_unless_the_best_checkpoint_is_clearly_better(
    tmp_path: Path, metric: str, checkpoint: dict[str, float], average: dict[str, float], is_average: bool, text: str
) -> None:
    run = RunDir(tmp_path)
    best, averaged = add(run.checkpoint(20), **checkpoint), add(run.averaged, **average)
    add(run.checkpoint(30), **{name: value + (1.0 if name == "loss" else -1.0) for name, value in checkpoint.items()})
    assert find_weights(run, None, metric) == [averaged if is_average else best]
    default = default_weights(run, metric)
    assert default is not None
    assert (default.folder == run.averaged) == is_average
    assert text in default.text


def test_the_last_checkpoint_is_the_default_without_dev_scores(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    add(run.checkpoint(10))
    last = add(run.checkpoint(20))
    assert find_weights(run, None, "bleu") == [last]


def test_a_bundle_has_a_single_set_of_weights(tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).touch()
    write_checksums(tmp_path)
    assert find_weights(RunDir(tmp_path), None, "bleu") == [tmp_path / WEIGHTS]
    with pytest.raises(CheckpointError, match="no checkpoint 'best'; a bundle has one set of weights"):
        find_weights(RunDir(tmp_path), "best", "bleu")


@pytest.mark.parametrize(
    ("recorded", "metric", "expected"),
    [
        ({"adapted": True}, "loss", True),
        ({"adapted": False}, ADAPTED_METRIC, False),  # a user may also call a dev set `new`
        ({}, ADAPTED_METRIC, True),  # version 0.3
        ({}, "bleu", False),
    ],
)
def test_weights_record_that_they_are_adapted(
    tmp_path: Path, recorded: dict[str, bool], metric: str, expected: bool
) -> None:
    run = RunDir(tmp_path / "run")
    weights = add(run.averaged)
    write_meta(run.averaged, step=0, metrics={}, **recorded)
    assert is_adapted(run, weights, metric) == expected
    bundle = RunDir(tmp_path)
    bundle.bundle_weights.touch()
    write_checksums(bundle.path, {}, **recorded)
    assert is_adapted(bundle, bundle.bundle_weights, metric) == expected


def test_a_missing_checkpoint_raises_an_error_that_lists_the_available_ones(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(CheckpointError, match="it has no checkpoint yet; train it first"):
        find_weights(run, None, "bleu")
    add(run.checkpoint(10), bleu=20.0)
    for choice in ("20", "averaged", "no/such/file"):
        with pytest.raises(CheckpointError, match=f"no checkpoint '{choice}'; available: best, last, last:N, 10"):
            find_weights(run, choice, "bleu")


@pytest.mark.parametrize("choice", [None, "averaged", "best", "last", "20", "folder", "file"])
def test_damaged_weights_are_detected_however_the_checkpoint_is_selected(tmp_path: Path, choice: str | None) -> None:
    run = RunDir(tmp_path)
    good = add(run.checkpoint(10), bleu=20.0)
    damaged = add(run.averaged, bleu=30.0) if choice in (None, "averaged") else add(run.checkpoint(20), bleu=30.0)
    damaged.write_bytes(b"weighus")
    choice = {"folder": str(damaged.parent), "file": str(damaged)}.get(choice or "", choice)
    with pytest.raises(CheckpointError) as error:
        find_weights(run, choice, "bleu")
    assert str(error.value) == (
        f"{damaged}: truncated or changed since it was saved; use another checkpoint, or move {damaged.parent} away"
    )
    damaged.parent.rename(tmp_path / "away")
    assert find_weights(run, None, "bleu") == [good]


def test_a_damaged_meta_is_an_error_only_if_it_is_needed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDir(tmp_path)
    good, damaged = add(run.checkpoint(10), bleu=20.0), add(run.checkpoint(20), bleu=30.0)
    (damaged.parent / META).write_text("{")
    assert find_weights(run, "best", "bleu") == find_weights(run, "last", "bleu") == [good]
    remedy = "restore the file from a copy, or delete the checkpoint"
    message = f"{damaged.parent / META} is damaged, so this checkpoint is not used; {remedy}"
    assert caplog.messages == [message] * 2
    for choice in ("20", str(damaged)):
        with pytest.raises(CheckpointError, match=r"step-00000020/meta\.json: not readable .*; use another checkpoint"):
            find_weights(run, choice, "bleu")
    (damaged.parent / META).unlink()
    with pytest.raises(CheckpointError, match=r"step-00000020/meta\.json: missing; use another checkpoint"):
        find_weights(run, "20", "bleu")
    good.parent.rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"step-00000020/meta\.json: missing"):
        find_weights(run, None, "bleu")


def test_weights_given_by_path_need_no_meta(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder" / WEIGHTS, tmp_path / "any.safetensors"):
        path.write_bytes(b"weights")
        assert find_weights(RunDir(tmp_path), str(path), "bleu") == [path]


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1, 10**400, "x", None, []], ids=lambda value: f"{value!r:.9}"
)
def test_a_data_report_with_an_impossible_number_is_damaged(
    value: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path)
    run.data_report.write_text(json.dumps(sealed({"read": value})))
    assert from_data_report(run, "read") is None
    assert f"{run.data_report}: damaged (" in caplog.text

"""Which weights a choice means."""

import json
from pathlib import Path

import pytest

from mtformer.decoding.weights import find_weights
from mtformer.errors import CheckpointError
from mtformer.rundir import META, WEIGHTS, RunDir


def add(folder: Path, **metrics: float) -> Path:
    folder.mkdir(parents=True)
    (folder / WEIGHTS).touch()
    (folder / META).write_text(json.dumps({"step": 0, "metrics": metrics}))
    return folder / WEIGHTS


def test_each_name(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    steps = {
        10: add(run.checkpoint(10), bleu=20.0, loss=3.0),
        20: add(run.checkpoint(20), bleu=30.0, loss=2.0),
        30: add(run.checkpoint(30), bleu=25.0, loss=1.0),
    }
    assert find_weights(run, None, "bleu") == steps[20]
    assert find_weights(run, "best", "bleu") == steps[20]
    assert find_weights(run, "best", "loss") == steps[30]
    assert find_weights(run, "last", "bleu") == steps[30]
    assert find_weights(run, "10", "bleu") == steps[10]
    assert find_weights(run, str(steps[10]), "bleu") == steps[10]
    assert find_weights(run, str(steps[10].parent), "bleu") == steps[10]
    averaged = add(run.averaged)
    assert find_weights(run, None, "bleu") == averaged
    assert find_weights(run, "averaged", "bleu") == averaged


def test_without_dev_the_last_is_taken(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    add(run.checkpoint(10))
    last = add(run.checkpoint(20))
    assert find_weights(run, None, "bleu") == last


def test_a_bundle_has_its_own(tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).touch()
    assert find_weights(RunDir(tmp_path), None, "bleu") == tmp_path / WEIGHTS
    with pytest.raises(CheckpointError, match="no checkpoint 'best'; a bundle has one set of weights"):
        find_weights(RunDir(tmp_path), "best", "bleu")


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(CheckpointError, match="it has no checkpoint yet; train it first"):
        find_weights(run, None, "bleu")
    add(run.checkpoint(10), bleu=20.0)
    for choice in ("20", "averaged", "no/such/file"):
        with pytest.raises(CheckpointError, match=f"no checkpoint '{choice}'; there are: best, last, 10"):
            find_weights(run, choice, "bleu")

"""`mtformer reproduce`: exit codes and messages."""

from pathlib import Path

import pytest
import torch
from program import invoke

from mtformer.run_dir import RunDir, write_config
from mtformer.training.history import read_records


@pytest.fixture(autouse=True)
def _one_thread(_few_threads: None) -> None:
    torch.set_num_threads(1)  # These models are too small for two threads.


def test_a_run_is_reproduced(run: Path) -> None:
    result = invoke("reproduce", run, "--steps", 5)
    assert result.exit_code == 0, result.stderr
    records = [record for record in read_records(run / "metrics.jsonl") if record["step"] == 4]
    assert [record["kind"] for record in records] == ["train", "dev"]
    assert result.stdout.startswith("steps 1 to 5: exactly equal (")
    assert result.stdout.endswith(" values in 2 records)\n")
    assert "step 4/5, epoch 1" in result.stderr
    assert "step 6/" not in result.stderr


def test_a_run_with_an_edited_config_is_not_reproduced(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    write_config(RunDir(run), text.replace("seed: 1\n", "seed: 2\n", 1))
    [then, *_] = [record["loss"] for record in read_records(run / "metrics.jsonl")]
    result = invoke("reproduce", run, "--steps", 4)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"step 4: train loss was {then} and is now ")
    *_, last = result.stderr.splitlines()
    assert last == (
        f"error: {run} was not reproduced: data, versions and device are the same; its config may have been edited, or "
        "changed by --resume"
    )


def test_settings_that_changed_later_do_not_matter(run: Path, corpus: Path) -> None:
    """A cosine schedule depends on `max_steps` from the first step."""
    added = f"data.test.added={{src: {corpus}/dev.en, tgt: {corpus}/dev.de}}"
    changes = ("training.max_steps=20", "training.log_every=2", added)
    assert invoke("train", run / "config.yaml", "--run-dir", run, *changes, "--resume").exit_code == 0
    assert invoke("reproduce", run, "--steps", 4).stdout.startswith("steps 1 to 4: exactly equal (")


def test_changes_since_the_run_are_reported(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtformer.experiment.resume.__version__", "9.9")
    result = invoke("reproduce", run, "--steps", 4)
    assert result.exit_code == 0
    assert "changed since: mtformer: " in result.stderr
    assert " -> 9.9\n" in result.stderr

"""Runs on drives that lack locks, renaming of folders, file modes and memory maps."""

import errno
import os
from pathlib import Path

import pytest
from limited_drive import limit
from program import invoke

from mtformer.experiment.run_state import read_state
from mtformer.files import move_folder, supports_locks, sync
from mtformer.run_dir import RunDir


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOSYS, errno.EINVAL])
def test_a_run_on_a_limited_drive_trains_resumes_and_translates(
    number: int, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    limit(drive, monkeypatch, number)
    run = drive / "run"
    words = ("train", corpus / "small.yaml", "--run-dir", run, "--resume", "auto")
    for max_steps in (8, 12, 12):
        result = invoke(*words, f"training.max_steps={max_steps}")
        assert result.exit_code == 0, result.stderr
    assert read_state(RunDir(run)).state == "finished"
    assert RunDir(run).steps() == [4, 8, 12]
    assert not [path.name for path in (*drive.iterdir(), *RunDir(run).checkpoints.iterdir()) if "@" in path.name]

    result = invoke("translate", run, stdin=b"The man walks.\n")
    assert (result.exit_code, result.stdout.count("\n")) == (0, 1)
    result = invoke(*words[:4], "--overwrite", "training.max_steps=4")
    assert result.exit_code == 0, result.stderr
    assert RunDir(run).steps() == [4]
    assert invoke("export", run, "--output", drive / "bundle").exit_code == 0
    assert invoke("translate", drive / "bundle", stdin=b"The man walks.\n").exit_code == 0


def test_what_the_drive_lacks_is_said_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drive = tmp_path / "drive"
    drive.mkdir()
    limit(drive, monkeypatch)
    result = invoke("train", corpus / "small.yaml", "--run-dir", drive / "run", "training.max_steps=8")
    assert result.exit_code == 0
    assert result.stderr.count("this drive has no locks; let only one process at a time write there") == 1
    num_copied = result.stderr.count("this drive cannot rename folders, so they are copied")
    assert num_copied == len({line for line in result.stderr.splitlines() if "cannot rename folders" in line})


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_real_errors_are_not_hidden(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(tmp_path, monkeypatch, number)
    (tmp_path / "folder").mkdir()
    for call in (
        lambda: supports_locks(tmp_path / "lock"),
        lambda: move_folder(tmp_path / "folder", tmp_path / "other"),
        lambda: sync(tmp_path),
    ):
        with pytest.raises(OSError, match=os.strerror(number)):
            call()

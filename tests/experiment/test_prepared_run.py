"""A start that fails leaves everything as it was."""

from pathlib import Path

import pytest

from mtformer.config.schema import Config, DataConfig
from mtformer.errors import CheckpointError, DataError
from mtformer.experiment.train import prepared_run
from mtformer.rundir import RunDir

CONFIG = Config(data=DataConfig(src_lang="en", tgt_lang="de"))


def test_a_failed_first_start_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError), prepared_run(RunDir(tmp_path / "run"), CONFIG, resume=False, overwrite=False):
        raise DataError("no such file")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_overwrite_brings_the_old_run_back(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with prepared_run(run, CONFIG, resume=False, overwrite=False):
        (run.path / "old").write_text("weights")
    with pytest.raises(DataError, match="no such file"), prepared_run(run, CONFIG, resume=False, overwrite=True):
        raise DataError("no such file" if not (run.path / "old").exists() else "the old run is still in the way")
    assert (run.path / "old").read_text() == "weights"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_good_overwrite_removes_the_old_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with prepared_run(run, CONFIG, resume=False, overwrite=False):
        (run.path / "old").write_text("weights")
    with prepared_run(run, CONFIG, resume=False, overwrite=True):
        pass
    assert [path.name for path in run.path.iterdir()] == ["config.yaml"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_empty_folder_is_free(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with prepared_run(RunDir(tmp_path / "run"), CONFIG, resume=False, overwrite=False):
        pass
    with (
        pytest.raises(CheckpointError, match="exists already"),
        prepared_run(RunDir(tmp_path / "run"), CONFIG, resume=False, overwrite=False),
    ):
        pass

"""Tests that after a failed or killed start, the next start can use the run directory."""

import itertools
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mtformer.config.data import DataConfig
from mtformer.config.loading import dump_config
from mtformer.config.schema import Config
from mtformer.errors import CheckpointError, DataError
from mtformer.experiment.open_run import Resume, open_run
from mtformer.files import CHECKSUMS, atomic_folder, read_meta
from mtformer.run_dir import RunDir

CONFIG = Config(data=DataConfig(src_lang="en", tgt_lang="de"))


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Return a started run with a file instead of checkpoints."""
    run = RunDir(tmp_path / "run")
    with open_run(run, CONFIG, resume=False, overwrite=False):
        run.tokenizer.mkdir()
        (run.path / "samples.jsonl").write_text("weights")
    return run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_a_failed_first_start_leaves_no_files(tmp_path: Path) -> None:
    for resume in (False, "auto"):
        with pytest.raises(DataError), open_run(RunDir(tmp_path / "run"), CONFIG, resume, overwrite=False):
            raise DataError("no such file")
        assert list(tmp_path.iterdir()) == []


def test_a_failed_overwrite_restores_the_old_run(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"), open_run(run, CONFIG, resume=False, overwrite=True):
        raise DataError("no such file" if not (run.path / "samples.jsonl").exists() else "the old run was not moved")
    assert (run.path / "samples.jsonl").read_text() == "weights"
    assert names(tmp_path) == ["run"]


def test_an_empty_folder_can_be_used_and_is_kept_if_the_start_fails(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    with pytest.raises(DataError), open_run(run, CONFIG, resume=False, overwrite=False):
        raise DataError("no such file")
    assert names(run.path) == []
    with open_run(run, CONFIG, resume=False, overwrite=False):
        pass
    with pytest.raises(CheckpointError, match="already exists"), open_run(run, CONFIG, False, overwrite=False):
        pass


def test_a_corpus_written_before_a_failed_start_is_kept(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.corpus.mkdir(parents=True)
    (run.corpus / "distilled.tsv").write_text("translations of a teacher")

    def fail() -> None:
        run.tokenizer.mkdir()
        raise DataError("vocab_size is too large")

    with pytest.raises(DataError), open_run(run, CONFIG, "auto", overwrite=False):
        fail()
    assert names(run.path) == ["corpus"]
    assert names(run.corpus) == ["distilled.tsv"]


def test_a_symbolic_link_to_a_run_is_kept(run: RunDir, tmp_path: Path) -> None:
    link = RunDir(tmp_path / "link")
    link.path.symlink_to(run.path)
    with pytest.raises(DataError), open_run(link, CONFIG, resume=False, overwrite=True):
        raise DataError("no such file")
    assert (run.path / "samples.jsonl").exists()
    with open_run(link, CONFIG, resume=False, overwrite=True):
        pass
    assert link.path.is_symlink()
    assert names(run.path) == ["checksums.json", "config.yaml"]


@pytest.mark.parametrize("resume", [True, False, "auto"])
@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("thesis.tex",), "is not a run"),
        (("config.yaml", "train.en", "train.de"), "is not a run"),  # the user's files, with --run-dir .
        (("config.yaml", "tokenizer/joint.model", "model.safetensors"), "is a bundle"),
    ],
)
def test_folders_that_are_not_runs_are_never_modified(
    files: tuple[str, ...], message: str, resume: Resume, overwrite: bool, tmp_path: Path
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("contents")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=message), open_run(RunDir(tmp_path), CONFIG, resume, overwrite):
        pass
    assert contents(tmp_path) == before


def test_overwriting_does_not_delete_files_of_the_user(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.path / "notes.txt").write_text("mine")
    (run.path / "bundle").mkdir()
    before = contents(run.path)
    with pytest.raises(CheckpointError, match=r"would delete notes\.txt"), open_run(run, CONFIG, False, overwrite=True):
        pass
    assert contents(run.path) == before
    (run.path / "notes.txt").unlink()
    monkeypatch.chdir(run.tokenizer)
    with pytest.raises(CheckpointError, match="current folder"), open_run(run, CONFIG, False, overwrite=True):
        pass
    monkeypatch.chdir(run.path.parent)
    with open_run(run, CONFIG, resume=False, overwrite=True):
        assert not (run.path / "bundle").exists()


# Tests of killed processes. Each is forked, so that it inherits the test's patches.


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(target: Callable[..., None], *arguments: object) -> None:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def start_and_die_inside(run: RunDir, overwrite: bool) -> None:
    with open_run(run, CONFIG, resume=False, overwrite=overwrite), atomic_folder(run.tokenizer):
        die()


def start_and_die_before(what: str, run: RunDir, overwrite: bool) -> None:
    pytest.MonkeyPatch().setattr(what, die)
    with open_run(run, CONFIG, resume=False, overwrite=overwrite):
        pass


start_and_die_before_mkdir = partial(start_and_die_before, "pathlib.Path.mkdir")
start_and_die_before_config = partial(start_and_die_before, "os.replace")


def die_before_write(run: RunDir, config: Config, number: int) -> None:
    """Start or resume with this config, and exit just before the n-th write."""
    writes = itertools.count()
    replace = os.replace
    pytest.MonkeyPatch().setattr(os, "replace", lambda *names: die() if next(writes) == number else replace(*names))
    with open_run(run, config, resume="auto", overwrite=False):
        run.tokenizer.mkdir(exist_ok=True)
        (run.tokenizer / "joint.model").write_text("tokenizer")


def overwrite_and_die_deleting(run: RunDir) -> None:
    def delete_half(path: Path, **_: object) -> None:
        (path / "samples.jsonl").unlink()
        die()

    pytest.MonkeyPatch().setattr(shutil, "rmtree", delete_half)
    with open_run(run, CONFIG, resume=False, overwrite=True):
        pass


@pytest.mark.process
@pytest.mark.parametrize("start", [start_and_die_before_mkdir, start_and_die_before_config])
@pytest.mark.parametrize("resume", [False, "auto"])
def test_a_process_killed_before_the_run_began_can_be_repeated(
    start: Callable[..., None], resume: Resume, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    killed(start, run, False)
    with open_run(run, CONFIG, resume, overwrite=False) as is_resumed:
        assert not is_resumed
        assert run.config.is_file()


@pytest.mark.process
@pytest.mark.parametrize("number", range(4))
def test_a_process_killed_between_any_two_writes_can_be_repeated(
    number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path / "run")
    killed(die_before_write, run, CONFIG, number)
    if run.config.exists():
        RunDir.open(run.path)
    with open_run(run, CONFIG, resume="auto", overwrite=False) as is_resumed:
        assert is_resumed == (number >= 2)
    assert read_meta(RunDir.open(run.path).path, CHECKSUMS)["sha256"].keys() <= {"config.yaml", "tokenizer/joint.model"}
    assert not caplog.messages


@pytest.mark.process
@pytest.mark.parametrize("number", range(2))
def test_a_resume_killed_between_any_two_writes_can_be_repeated(number: int, run: RunDir) -> None:
    other = CONFIG.model_copy(update={"training": CONFIG.training.model_copy(update={"keep_last": 7})})
    killed(die_before_write, run, other, number)
    RunDir.open(run.path)
    assert run.config.read_text() == dump_config(CONFIG)
    for _ in range(2):
        with open_run(run, other, resume=True, overwrite=False):
            RunDir.open(run.path)
        RunDir.open(run.path)
        assert run.config.read_text() == dump_config(other)
    run.config.write_text(dump_config(other)[:-20])
    with (
        pytest.raises(CheckpointError, match=r"config\.yaml: truncated or changed"),
        open_run(run, other, True, False),
    ):
        pass


@pytest.mark.process
def test_a_run_killed_during_preparation_is_resumed(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    killed(start_and_die_inside, run, False)
    with open_run(run, CONFIG, resume="auto", overwrite=False) as is_resumed:
        assert is_resumed
    with open_run(run, CONFIG, resume=False, overwrite=True) as is_resumed:
        assert not is_resumed


@pytest.mark.process
@pytest.mark.parametrize("start", [start_and_die_before_mkdir, start_and_die_before_config])
def test_an_overwrite_killed_before_the_new_run_began_is_undone(
    start: Callable[..., None], run: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed(start, run, True)
    assert not run.config.exists()
    with open_run(run, CONFIG, resume="auto", overwrite=False) as is_resumed:
        assert is_resumed
    assert (run.path / "samples.jsonl").read_text() == "weights"
    assert names(tmp_path) == ["run"]
    assert [message for message in caplog.messages if "restored" in message]


@pytest.mark.process
def test_an_overwrite_killed_during_preparation_keeps_the_old_run_and_reports_its_path(
    run: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed(start_and_die_inside, run, True)
    with open_run(run, CONFIG, resume="auto", overwrite=False) as is_resumed:
        assert is_resumed
    assert not (run.path / "samples.jsonl").exists()
    (left,) = (path for path in tmp_path.iterdir() if path.name != "run")
    assert (left / "samples.jsonl").read_text() == "weights"
    assert [message for message in caplog.messages if str(left) in message]


@pytest.mark.process
def test_an_overwrite_killed_while_deleting_the_old_run_is_completed(run: RunDir, tmp_path: Path) -> None:
    killed(overwrite_and_die_deleting, run)
    assert len(names(tmp_path)) == 2
    with open_run(run, CONFIG, resume="auto", overwrite=False) as is_resumed:
        assert is_resumed
    assert names(tmp_path) == ["run"]
    assert not (run.path / "samples.jsonl").exists()


@pytest.mark.process
def test_the_later_of_two_killed_overwrites_is_undone(run: RunDir, tmp_path: Path) -> None:
    killed(start_and_die_inside, run, True)
    run.checkpoints.mkdir()
    killed(start_and_die_before_mkdir, run, True)
    with open_run(run, CONFIG, resume="auto", overwrite=False):
        pass
    assert run.checkpoints.exists()
    assert len(names(tmp_path)) == 2

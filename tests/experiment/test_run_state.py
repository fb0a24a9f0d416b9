"""Tests of the state of a run: during training, at its end, and after a kill."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mtformer.errors import CheckpointError, InterruptedRunError, MtformerError
from mtformer.experiment import run_state
from mtformer.experiment.run_state import lock_run, read_state, record_state
from mtformer.run_dir import RunDir

TRAINS = """
import sys, time
from mtformer.experiment.run_state import lock_run, record_state
from mtformer.run_dir import RunDir
run = RunDir(sys.argv[1])
with lock_run(run), record_state(run):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    run.config.write_text("training: {max_steps: 7}\n")
    return run


def test_an_untrained_run_is_new(run: RunDir) -> None:
    assert read_state(run).state == "new"
    assert not run.lock.exists()  # reading the state creates no files


def test_a_run_that_ends_is_finished(run: RunDir) -> None:
    with lock_run(run), record_state(run):
        assert json.loads(run.state.read_text())["state"] == "running"
    state = read_state(run)
    assert (state.state, state.error) == ("finished", None)
    assert state.started is not None
    assert state.ended is not None
    assert state.started <= state.ended
    assert json.loads(run.state.read_text())["resumed"] is None


def test_the_start_time_of_a_resumed_run_is_kept(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for now in ("2026-01-01", "2026-01-02", "2026-01-03"):
        monkeypatch.setattr(run_state, "utc_now", lambda now=now: now)
        with pytest.raises(MtformerError), record_state(run):
            raise MtformerError("no disk")
    state = read_state(run)
    assert (state.started, state.ended) == ("2026-01-01", "2026-01-03")
    assert json.loads(run.state.read_text())["resumed"] == "2026-01-03"


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (MtformerError("no\n  disk"), "failed", "no disk"),
        (ValueError(), "failed", "ValueError"),
        (InterruptedRunError(3, 15), "interrupted", None),
        (KeyboardInterrupt(), "interrupted", None),
    ],
)
def test_the_reason_for_the_end_is_saved(run: RunDir, error: BaseException, state: str, message: str | None) -> None:
    with pytest.raises(type(error)), lock_run(run), record_state(run):
        raise error
    assert (read_state(run).state, read_state(run).error) == (state, message)


@pytest.mark.process
def test_a_second_process_is_rejected_and_a_kill_is_detected(run: RunDir) -> None:
    with subprocess.Popen([sys.executable, "-c", TRAINS, str(run.path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        assert read_state(run).state == "running"
        with pytest.raises(CheckpointError, match="another process is training here"), lock_run(run):
            pass
        process.kill()
    assert read_state(run).state == "killed"
    with lock_run(run), record_state(run):
        pass
    assert read_state(run).state == "finished"

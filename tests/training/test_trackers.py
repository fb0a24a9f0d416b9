"""Trackers get every value of metrics.jsonl once, whatever happens to the run, and never end a training."""

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_trackers import Server, fake
from test_metrics import figures
from toy_run import Killed, Quiet, given, resumed, trainer
from toy_training import toy_config

from mtformer.config.loading import dump_config, load_config
from mtformer.config.schema import Config
from mtformer.errors import ConfigError, DataError, InterruptedRunError, MtformerError
from mtformer.experiment.run_state import lock_run
from mtformer.experiment.track import track
from mtformer.run_dir import RunDir
from mtformer.training import follower
from mtformer.training.metrics import Metrics
from mtformer.training.trackers import require_tracker

NAMES = ("wandb", "trackio", "mlflow")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(name: str, monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setitem(sys.modules, name, fake(name, server))
    return server


def tracked(name: str, **settings: Any) -> Config:
    return toy_config(trackers=[name], **settings)


def saved(config: Config, folder: Path) -> RunDir:
    """Write the config of a run, which `track` reads."""
    run = RunDir(folder)
    run.config.write_text(dump_config(config))
    return run


def test_a_tracker_gets_every_value_once(name: str, server: Server, tmp_path: Path) -> None:
    trainer(tracked(name), tmp_path, decode=given([20.0, 30.5])).train()
    [run] = server.runs
    assert server.figures(run) == figures(RunDir(tmp_path))
    assert server.figures(run)["dev/bleu", 8] == 30.5
    assert [step for step, _ in server.runs[run]] == [2, 4, 6, 8]
    assert str(server.settings[run]["training.max_steps"]) == "8"
    assert server.ended == [run]


@pytest.mark.parametrize("kill_at", [3, 4, 5, 7])
def test_a_resumed_run_continues_where_the_tracker_is(name: str, server: Server, tmp_path: Path, kill_at: int) -> None:
    with pytest.raises(Killed):
        trainer(tracked(name), tmp_path, Quiet(kill_at=kill_at), decode=given([20.0, 30.5])).train()
    resumed(tracked(name), tmp_path, decode=given([20.0, 30.5][kill_at > 4 :])).train()
    [run] = server.runs  # `Server.log` refuses steps that come twice
    found, expected = server.figures(run), figures(RunDir(tmp_path))
    assert found.keys() == {(key, step) for key, step in expected if not key.startswith("resume/")}
    assert {step for step, _ in server.runs[run]} == {2, 4, 6, 8}
    assert [bool(found.get(("dev/bleu", step))) for step in (4, 8)] == [True, True]


def test_an_interrupted_run_does_not_send_an_incomplete_step(name: str, server: Server, tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError):
        trainer(tracked(name), tmp_path, Quiet(signal_at=6), decode=given([20.0])).train()
    [run] = server.runs
    assert [step for step, _ in server.runs[run]] == [2, 4]
    resumed(tracked(name), tmp_path, decode=given([30.0])).train()
    assert [step for step, _ in server.runs[run]] == [2, 4, 6, 8]
    assert len(server.runs) == 1


def test_a_tracker_that_fails_is_reported_once_and_training_continues(
    name: str, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ConnectionError("no\nnetwork")

    server.on_log = fail
    assert trainer(tracked(name), tmp_path).train().step == 8
    [message] = [record.getMessage() for record in caplog.records if "tracker" in record.getMessage()]
    assert message.startswith(f"tracker {name}: ConnectionError: no network; training continues without it")
    assert f"mtformer track {tmp_path} --to {name}" in message

    run = saved(tracked(name), tmp_path)
    with pytest.raises(MtformerError, match=f"{name} failed after 0 steps .*no network.*repeat the command"):
        track(run, name)  # type: ignore[arg-type]
    server.on_log = lambda: None
    assert track(run, name) == 4  # type: ignore[arg-type]
    assert [len(steps) for steps in server.runs.values()] == [4]


def test_a_package_that_exits_does_not_end_the_training(
    name: str, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.on_log = lambda: sys.exit(1)
    assert trainer(tracked(name), tmp_path).train().step == 8
    assert f"tracker {name}: SystemExit: 1; training continues" in caplog.text


def test_a_slow_tracker_does_not_delay_the_training(
    name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(follower, "SECONDS_AT_END", 0.0)
    trained = threading.Event()
    server.on_log = trained.wait
    assert trainer(tracked(name), tmp_path).train().step == 8
    assert not any(server.runs.values())
    assert f"tracker {name}: does not answer; training continues" in caplog.text
    trained.set()


def test_a_run_is_sent_after_the_fact(name: str, server: Server, tmp_path: Path) -> None:
    trainer(toy_config(), tmp_path, decode=given([20.0, 30.5])).train()
    run = saved(toy_config(), tmp_path)
    assert (track(run, name), track(run, name)) == (4, 0)  # type: ignore[arg-type]
    [first] = server.runs
    assert server.figures(first) == figures(run)
    assert track(run, name, again=True) == 4  # type: ignore[arg-type]
    _, second = server.runs
    assert server.figures(second) == figures(run)
    assert track(run, name) == 0  # type: ignore[arg-type]
    assert len(server.runs) == 2


def test_a_run_in_training_is_left_to_its_process(name: str, server: Server, tmp_path: Path) -> None:
    trainer(toy_config(), tmp_path).train()
    run = saved(tracked(name), tmp_path)
    with lock_run(run), pytest.raises(ConfigError, match=f"is training, and sends its own steps to {name}; wait"):
        track(run, name)  # type: ignore[arg-type]
    run.metrics.unlink()
    with pytest.raises(DataError, match=r"has no metrics\.jsonl, so there is nothing to send"):
        track(run, name)  # type: ignore[arg-type]


def test_only_the_main_process_sends(name: str, server: Server, tmp_path: Path) -> None:
    with Metrics(RunDir(tmp_path), tracked(name), is_main=False) as metrics:
        metrics.write("train", 1, loss=2.0)
    assert not server.opened


def test_a_damaged_memory_is_reported(
    name: str, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path)
    run.trackers.mkdir()
    (run.trackers / f"{name}.json").write_text("[]")
    assert trainer(tracked(name), tmp_path).train().step == 8
    message = f"tracker {name}: {run.trackers / name}.json: damaged; send all steps to a new run with --again; training"
    assert message in caplog.text


@pytest.mark.parametrize("name", ["tensorboard", *NAMES])
def test_a_missing_package_is_refused(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"training\.trackers: {name} needs the package {name}: pip install "):
        require_tracker(name)  # type: ignore[arg-type]

    monkeypatch.delitem(sys.modules, name)
    (tmp_path / name).mkdir()  # wandb keeps its runs in a folder of this name, which Python could import
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=rf"needs the package {name}, and {tmp_path / name} is none: pip install "):
        require_tracker(name)  # type: ignore[arg-type]
    sys.modules.pop(name, None)


def test_tensorboard_has_each_step_once_after_a_kill(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tracked("tensorboard")
    with pytest.raises(Killed):
        trainer(config, tmp_path, Quiet(kill_at=7), decode=given([20.0])).train()
    resumed(config, tmp_path, decode=given([30.5])).train()
    events = EventAccumulator(str(RunDir(tmp_path).tensorboard))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6, 8]
    assert [(event.step, event.value) for event in events.Scalars("dev/bleu")] == [(4, 20.0), (8, 30.5)]


@pytest.mark.parametrize(("value", "expected"), [("true", ["tensorboard"]), ("false", [])])
def test_a_run_of_an_earlier_version_keeps_its_tracker(tmp_path: Path, value: str, expected: list[str]) -> None:
    run = saved(toy_config(), tmp_path)
    text = run.config.read_text()
    run.config.write_text(text.replace("  trackers: []\n", f"  tensorboard: {value}\n"))
    assert "trackers" not in run.config.read_text()
    assert load_config(run.config).config.training.trackers == expected

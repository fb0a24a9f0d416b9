"""metrics.jsonl, TensorBoard and Weights & Biases contain the same values; tests of memory usage and shared cores."""

import builtins
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_run import Quiet, given, resumed, trainer
from toy_training import toy_batch, toy_config, toy_step

from mtformer.device import peak_bytes
from mtformer.errors import InterruptedRunError, MtformerError
from mtformer.run_dir import RunDir
from mtformer.training import metrics
from mtformer.training.history import read_records
from mtformer.training.metrics import Window
from mtformer.training.ranks import ALONE


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def figures(run: RunDir) -> dict[tuple[str, int], float]:
    """Return the numbers in metrics.jsonl by name and step."""
    return {
        (f"{record['kind']}/{name}", record["step"]): value
        for record in read_records(run.metrics)
        for name, value in record.items()
        if name not in ("kind", "step") and isinstance(value, int | float)
    }


def test_tensorboard_contains_every_value(tmp_path: Path) -> None:
    trainer(toy_config(tensorboard=True), tmp_path, decode=given([20.0, 30.5])).train()
    run = RunDir(tmp_path)
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    found = {(tag, one.step): one.value for tag in events.Tags()["scalars"] for one in events.Scalars(tag)}
    assert found == pytest.approx(figures(run), rel=1e-6)  # events are float32
    assert found["dev/bleu", 8] == 30.5
    assert {step for name, step in found if name == "train/loss"} == {2, 4, 6, 8}


class Client:
    """W&B client that records calls."""

    offline, dir = True, "here"

    def __init__(self, **settings: Any) -> None:
        self.settings, self.figures, self.exits = settings, dict[tuple[str, int], float](), list[int]()

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        assert (name, step_metric) in (("step", None), ("*", "step"))

    def log(self, values: dict[str, float]) -> None:
        step = int(values.pop("step"))
        self.figures |= {(name, step): value for name, value in values.items()}

    def finish(self, exit_code: int) -> None:
        self.exits.append(exit_code)


def test_wandb_contains_every_value_and_a_resumed_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[Client] = []
    monkeypatch.setattr(wandb, "init", lambda **settings: clients.append(Client(**settings)) or clients[-1])
    config, run = toy_config(wandb="toy project"), RunDir(tmp_path / "first")
    with pytest.raises(InterruptedRunError):
        trainer(config, run.path, Quiet(signal_at=5), decode=given([20.0])).train()
    resumed(config, run.path, decode=given([30.5])).train()
    for client in clients:
        assert [client.settings[key] for key in ("id", "project", "name", "resume")] == [
            run.wandb_id.read_text(), "toy project", "first", "allow",
        ]  # fmt: skip
        assert client.settings["config"]["training"]["wandb"] == "toy project"
    first, second = clients
    assert {step for _, step in first.figures} == {2, 4}
    assert {**first.figures, **second.figures} == figures(run)
    assert [first.exits, second.exits] == [[1], [0]]


def test_a_new_run_is_a_new_wandb_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runs = [RunDir(tmp_path / name) for name in ("one", "other")]
    for run in runs:
        run.path.mkdir()
        with metrics.Metrics(run, toy_config(wandb="toy")):
            pass
        assert f"Weights & Biases: {run.path}/wandb/offline-run-" in caplog.text
    assert runs[0].wandb_id.read_text() != runs[1].wandb_id.read_text()


def test_missing_wandb_account_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**settings: object) -> None:
        raise wandb.errors.UsageError("No API key configured.\nUse `wandb login` to log in.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(MtformerError) as error:
        metrics.Metrics(RunDir(tmp_path), toy_config(wandb="toy"))
    assert str(error.value).startswith("training.wandb: No API key configured. Use `wandb login` to log in. (")
    assert "WANDB_MODE=offline" in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "module"), [("tensorboard", True, "torch.utils.tensorboard"), ("wandb", "toy", "wandb")]
)
def test_missing_packages_are_reported_at_the_start(
    key: str, value: object, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith(module):
            raise ImportError(name)
        return original(name, *rest, **named)

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MtformerError, match=rf"training\.{key}: .* pip install 'mtformer\[{key}\]'"):
        trainer(toy_config(**{key: value}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_log_lines_contain_memory_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(toy_config(), tmp_path).train()
    rows = [row for row in read_records(RunDir(tmp_path).metrics) if row["kind"] == "train"]
    assert len(rows) == 4
    peak = peak_bytes(torch.device("cpu")) / 1e9
    assert all(0 < row["memory_gb"] <= peak for row in rows)
    assert rows == sorted(rows, key=lambda row: row["memory_gb"])
    window = metrics.Window()
    window.steps = window.cells = 1
    monkeypatch.setattr(metrics, "peak_bytes", lambda device: 2_500_000_000)
    assert window.figures(ALONE)["memory_gb"] == 2.5


def test_peak_memory_equals_that_of_the_system() -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("requires /proc/self/status")
    line_of_peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    assert peak_bytes(torch.device("cpu")) == pytest.approx(int(line_of_peak.split()[1]) * 1024, rel=0.1)


def test_speed_after_resuming_excludes_earlier_steps() -> None:
    step, window = toy_step(toy_config()), Window()
    for number in (1, 2, 3):
        window.add([toy_batch(number)], step.run([toy_batch(number)], number))
    again = Window.from_state(window.state())
    assert again.state() == window.state()
    batch = toy_batch(4)
    again.add([batch], step.run([batch], 4))
    again.start -= 10.0  # seconds ago
    found = again.figures()
    assert found["seconds_per_step"] == pytest.approx(10.0, rel=0.2)
    assert found["tokens_per_second"] == pytest.approx((batch.num_src_tokens + batch.num_tgt_tokens) / 10, rel=0.2)


@pytest.mark.parametrize(("share", "expected"), [(0.95, 0), (0.5, 1)])
def test_shared_cores_are_reported_once(
    share: float, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")
    now = [0.0]
    clocks = SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: share * now[0])
    monkeypatch.setattr(metrics, "time", clocks)
    watch = metrics.CoreWatch()
    for _ in range(20):
        with watch.step():
            now[0] += 3.0
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert metrics.CoreWatch().is_over
    messages = [one.getMessage() for one in caplog.records if "other processes use the cores" in one.getMessage()]
    assert len(messages) == expected
    assert all("runs only 50% of the time" in one and "OMP_WAIT_POLICY=PASSIVE" in one for one in messages)

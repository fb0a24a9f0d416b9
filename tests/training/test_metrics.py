"""metrics.jsonl beside TensorBoard and Weights & Biases, which get every figure of it; the memory in use."""

import builtins
import json
import logging
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_run import Quiet, given, resumed, trainer
from toy_training import toy_batch, toy_config, toy_step
from wandb.proto import wandb_internal_pb2 as wandb_records

from mtformer.device import peak_bytes
from mtformer.errors import CheckpointError, InterruptedRunError, MtformerError
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
    """The numbers of metrics.jsonl by name and step."""
    return {
        (f"{record['kind']}/{name}", record["step"]): value
        for record in read_records(run.metrics)
        for name, value in record.items()
        if name not in ("kind", "step") and isinstance(value, int | float)
    }


def test_tensorboard_gets_every_figure(tmp_path: Path) -> None:
    trainer(toy_config(tensorboard=True), tmp_path, decode=given([20.0, 30.5])).train()
    run = RunDir(tmp_path)
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    found = {(tag, one.step): one.value for tag in events.Tags()["scalars"] for one in events.Scalars(tag)}
    assert found == pytest.approx(figures(run), rel=1e-6)  # events are float32
    assert found["dev/bleu", 8] == 30.5
    assert {step for name, step in found if name == "train/loss"} == {2, 4, 6, 8}


def test_wandb_gets_every_figure_and_a_resumed_run_goes_on_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config, run = toy_config(wandb="toy project"), RunDir(tmp_path / "first")
    with pytest.raises(InterruptedRunError):
        trainer(config, run.path, Quiet(signal_at=5), decode=given([20.0])).train()
    resumed(config, run.path, decode=given([30.5])).train()
    before, after = (whole_wandb_file(path) for path in sorted(run.path.glob("wandb/offline-run-*/*.wandb")))
    runs = [one.run for one in (*before, *after) if one.WhichOneof("record_type") == "run"]
    assert {(one.run_id, one.project, one.display_name) for one in runs} == {
        (run.wandb_id.read_text(), "toy project", "first")
    }
    sent = {update.key: json.loads(update.value_json) for update in runs[0].config.update}
    assert sent["training"]["wandb"] == "toy project"
    found = history(before)
    assert {step for _, step in found} == {2, 4}
    found |= history(after)
    assert found == figures(run)
    assert found["dev/bleu", 8] == 30.5
    exits = [one.exit.exit_code for one in (*before, *after) if one.WhichOneof("record_type") == "exit"]
    assert exits == [1, 0]
    told = "".join(capfd.readouterr()).splitlines()
    # Versions before 0.31 say that offline a resumed run is a file of its own, and cannot be kept from it.
    assert [line for line in told if line.startswith("wandb:") and "`resume` will be ignored" not in line] == []


def whole_wandb_file(path: Path) -> list[Any]:
    """The records of a run that has ended; W&B's own process may still be writing them."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        records = list(wandb_file(path))
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.05)
    pytest.fail(f"{path} does not come to an end")


def wandb_file(path: Path) -> Iterator[Any]:
    """The records of W&B's own file: 7 bytes, then blocks of 32 KiB of parts that begin with checksum, length, kind."""
    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + length > len(data):
            return
        record, place = record + data[place + 7 : place + 7 + length], place + 7 + length
        if kind in (1, 4):  # whole, or a last part
            yield wandb_records.Record.FromString(record)
            record = b""


def history(records: list[Any]) -> dict[tuple[str, int], float]:
    found = {}
    for one in records:
        if one.WhichOneof("record_type") == "history":
            values = {item.nested_key[0]: json.loads(item.value_json) for item in one.history.item}
            found |= {(name, values["step"]): value for name, value in values.items() if "/" in name}
    return found


def test_another_run_is_another_one_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runs = [RunDir(tmp_path / name) for name in ("one", "other")]
    for run in runs:
        run.path.mkdir()
        with metrics.Metrics(run, toy_config(wandb="toy")):
            pass
        assert f"Weights & Biases: {run.path}/wandb/offline-run-" in caplog.text
    assert runs[0].wandb_id.read_text() != runs[1].wandb_id.read_text()


def test_without_an_account_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_is_not_installed_is_told_at_once(
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


def test_a_record_is_a_line_and_nan_is_null(tmp_path: Path) -> None:
    with metrics.Metrics(RunDir(tmp_path), toy_config()) as written:
        written.write("dev", 7, bleu=30.5, loss=float("nan"), note="é")
    assert RunDir(tmp_path).metrics.read_text(encoding="utf-8") == (
        '{"kind": "dev", "step": 7, "bleu": 30.5, "loss": null, "note": "é"}\n'
    )
    with pytest.raises(CheckpointError, match="cannot be written"):
        metrics.Metrics(RunDir(tmp_path / "gone"), toy_config()).write("dev", 1)


def test_each_log_line_tells_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_peak_is_what_the_system_says() -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("only Linux tells the peak in a file")
    told = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    assert peak_bytes(torch.device("cpu")) == pytest.approx(int(told.split()[1]) * 1024, rel=0.1)


def test_the_speed_after_a_resume_counts_no_step_from_before() -> None:
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

"""metrics.jsonl and TensorBoard contain the same values; tests of memory usage and shared cores."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_run import Quiet, given, trainer
from toy_training import toy_batch, toy_config, toy_step

from mtformer.data.batching.batches import Batch
from mtformer.data.batching.mixture import SamplerState
from mtformer.device import peak_bytes
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import PAD
from mtformer.training import core_watch, train_window
from mtformer.training.core_watch import CoreWatch
from mtformer.training.history import read_records
from mtformer.training.ranks import ALONE, Ranks
from mtformer.training.step import StepResult
from mtformer.training.train_window import TrainWindow


def figures(run: RunDir) -> dict[tuple[str, int], float]:
    """Return the numbers in metrics.jsonl by name and step."""
    return {
        (f"{record['kind']}/{name}", record["step"]): value
        for record in read_records(run.metrics)
        for name, value in record.items()
        if name not in ("kind", "step") and isinstance(value, int | float)
    }


def test_tensorboard_contains_every_value(tmp_path: Path) -> None:
    trainer(toy_config(trackers=["tensorboard"]), tmp_path, decode=given([20.0, 30.5])).train()
    run = RunDir(tmp_path)
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    found = {(tag, one.step): one.value for tag in events.Tags()["scalars"] for one in events.Scalars(tag)}
    assert found == pytest.approx(figures(run), rel=1e-6)  # events are float32
    assert found["dev/bleu", 8] == 30.5
    assert {step for name, step in found if name == "train/loss"} == {2, 4, 6, 8}


def test_log_lines_contain_memory_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer(toy_config(), tmp_path).train()
    rows = [row for row in read_records(RunDir(tmp_path).metrics) if row["kind"] == "train"]
    assert len(rows) == 4
    peak = peak_bytes(torch.device("cpu")) / 1e9
    assert all(0 < row["memory_gb"] <= peak for row in rows)
    assert rows == sorted(rows, key=lambda row: row["memory_gb"])
    window = TrainWindow()
    window.steps = window.padded_tokens = 1
    monkeypatch.setattr(train_window, "peak_bytes", lambda device: 2_500_000_000)
    assert window.figures(ALONE)["memory_gb"] == 2.5


def test_memory_usage_is_that_of_the_process_with_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneOfTwo(Ranks):
        def gather(self, item: Any) -> list[Any]:
            return [item, item + item]

    window = TrainWindow()
    window.steps = window.padded_tokens = 1
    monkeypatch.setattr(train_window, "peak_bytes", lambda device: 1_500_000_000)
    assert window.figures(OneOfTwo())["memory_gb"] == 3.0


def test_peak_memory_equals_that_of_the_system() -> None:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("requires /proc/self/status")
    line_of_peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    assert peak_bytes(torch.device("cpu")) == pytest.approx(int(line_of_peak.split()[1]) * 1024, rel=0.1)


def test_speed_after_resuming_excludes_earlier_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(train_window, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    step, window = toy_step(toy_config()), TrainWindow()
    for number in (1, 2, 3):
        window.add([toy_batch(number)], step.run([toy_batch(number)], number))
    again = TrainWindow()
    again.load_state_dict(window.state_dict())
    assert again.state_dict() == window.state_dict()
    batch = toy_batch(4)
    again.add([batch], step.run([batch], 4))
    now[0] = 10.0
    found = again.figures()
    assert found["seconds_per_step"] == 10.0
    assert found["tokens_per_second"] == pytest.approx((batch.num_src_tokens + batch.num_tgt_tokens) / 10)


def test_padding_and_times_without_validations(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(train_window, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    step, window, batch = toy_step(toy_config()), TrainWindow(), toy_batch(1)
    window.add([batch], step.run([batch], 1))
    now[0], window.paused, window.waiting = 10.0, 6.0, 1.0
    found = window.figures()
    assert (found["seconds_per_step"], found["waiting_for_data"]) == (4.0, 0.25)
    num_pad = int((batch.src_BS == PAD).sum() + (batch.tgt_out_BT == PAD).sum())
    assert found["padding"] == pytest.approx(num_pad / (batch.src_BS.numel() + batch.tgt_out_BT.numel()))


@pytest.mark.parametrize(("share", "expected"), [(0.95, 0), (0.5, 1)])
def test_shared_cores_are_reported_once(
    share: float, expected: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")
    now = [0.0]
    clocks = SimpleNamespace(perf_counter=lambda: now[0], thread_time=lambda: share * now[0])
    monkeypatch.setattr(core_watch, "time", clocks)
    watch = CoreWatch(torch.device("cpu"), ALONE)
    for _ in range(20):
        with watch.step():
            now[0] += 3.0
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert CoreWatch(torch.device("cpu"), ALONE).is_over
    messages = [one.getMessage() for one in caplog.records if "other processes use the cores" in one.getMessage()]
    assert len(messages) == expected
    assert all("runs only 50% of the time" in one and "OMP_WAIT_POLICY=PASSIVE" in one for one in messages)


def test_a_log_line_has_the_sums_of_its_steps() -> None:
    step, window = toy_step(toy_config()), TrainWindow()
    results, num_tokens = list[StepResult](), 0
    for number in (1, 2):
        batches = [toy_batch(2 * number), replace(toy_batch(2 * number + 1), pairs_of={"a": 6})]
        results.append(step.run(batches, number)._replace(num_splits=number))
        window.add(batches, results[-1])
        num_tokens += sum(batch.num_tgt_tokens for batch in batches)
    found = window.figures()
    assert found["loss"] == pytest.approx(sum(float(one.loss) for one in results) / num_tokens)
    assert found["nll"] == pytest.approx(sum(float(one.nll) for one in results) / num_tokens)
    assert found["loss"] != found["nll"]
    assert found["grad_norm"] == float(results[-1].grad_norm)
    assert (found["split_batches"], found["pairs a"]) == (3, 12)
    again = TrainWindow()
    again.load_state_dict(window.state_dict())
    assert again.pairs_of == {"a": 12}


def test_the_first_log_line_has_no_time_before_training(tmp_path: Path) -> None:
    progress = Quiet()
    subject = trainer(toy_config(), tmp_path, progress)
    subject.window.start -= 1000.0  # the memory check
    subject.train()
    assert progress.figures[0]["seconds_per_step"] < 100


def test_waiting_for_data_is_counted(tmp_path: Path) -> None:
    progress = Quiet()
    subject = trainer(toy_config(), tmp_path, progress)
    batches_from = subject.batches_from

    def slow(place: SamplerState) -> Iterator[Batch]:
        for batch in batches_from(place):
            time.sleep(0.01)
            yield batch

    subject.batches_from = slow
    subject.train()
    for one in progress.figures:
        assert one["waiting_for_data"] * one["seconds_per_step"] > 0
        assert one["waiting_for_data"] * one["seconds_per_step"] >= 0.0099

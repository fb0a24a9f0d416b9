"""Tests of the memory check: it tries the largest batches without changing the run, and reports the requirements."""

import functools
import logging
import re
import shutil
from collections import namedtuple
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_experiment import make_config, train, write_corpus

from mtformer.config.schema import Config, TrainingConfig
from mtformer.data.batching.batches import Batch, make_batch
from mtformer.errors import DeviceError
from mtformer.experiment import preflight
from mtformer.experiment.preflight import (
    COMPILE_GAIN,
    LAUNCH_GAIN,
    MemoryCheck,
    _warn_of_schedule,
    check_memory,
    choose_batches,
    gain_of_compiling,
)
from mtformer.experiment.prepare import Prepared, prepare_experiment
from mtformer.formatting import format_duration
from mtformer.model.transformer import count_parameters
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.training import step as step_module
from mtformer.training.budget import num_last_validations
from mtformer.training.loss import CHUNK_LOGITS
from mtformer.training.ranks import Ranks
from mtformer.training.step import (
    CUDA_BATCH_TOKENS,
    MEMORY_SHARE,
    TrainingStep,
    fitting_tokens,
    largest_fitting_tokens,
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    corpus = write_corpus(tmp_path_factory.mktemp("corpus"), train=300, dev=20)
    return make_config(corpus, training={"batch_tokens": 512, "max_steps": 40, "validate_every": 10, "keep_last": 2})


@pytest.fixture
def prepared(config: Config, tmp_path: Path) -> Prepared:
    return prepare_experiment(config, tmp_path / "tokenizer")


def make_step(config: Config, prepared: Prepared) -> TrainingStep:
    return preflight.make_step(config, prepared, torch.device("cpu"), "fp32")


def weights_after(step: TrainingStep, prepared: Prepared) -> torch.Tensor:
    with closing(prepared.batches.start()) as batches:
        for number in (1, 2, 3):
            step.run([next(batches)], number)
    return torch.cat([parameter.detach().flatten() for parameter in step.model.parameters()])


def test_a_memory_check_does_not_change_a_run(config: Config, prepared: Prepared, tmp_path: Path) -> None:
    plain = weights_after(make_step(config, prepared), prepared)
    step = make_step(config, prepared)
    check_memory(config, prepared, step, RunDir(tmp_path / "run"))
    assert torch.equal(weights_after(step, prepared), plain)
    assert not (tmp_path / "run").exists()


def test_memory_check_reports_time_and_disk_space(
    config: Config, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make_step(config, prepared)
    monkeypatch.setattr(step, "try_batch", lambda batch: 0.1 + batch.num_padded_tokens * 1e-3)  # not proportional
    found = check_memory(config, prepared, step, RunDir(tmp_path / "run"))
    with closing(prepared.batches.start(max_epochs=1)) as batches:
        mean_seconds = np.mean([0.1 + batch.num_padded_tokens * 1e-3 for batch in batches])
    assert found.training_seconds == pytest.approx(mean_seconds * 40 * config.training.accumulation_steps, rel=0.1)
    assert found.validation_seconds > 0
    rest = check_memory(config, prepared, step, RunDir(tmp_path / "run"), done=30)
    assert rest.training_seconds == pytest.approx(found.training_seconds / 4)
    num_left = len(range(30, 40, config.training.validate_every)[1:]) + num_last_validations(config.training)
    assert rest.validation_seconds == pytest.approx(rest.pace.validation_seconds * num_left)
    # The last 2 checkpoints, the best one, and one being written. Each has weights, moments and some headers.
    assert found.disk_bytes == 4 * 12 * count_parameters(step.model)["total"]
    text = dict(found.lines())
    assert text.keys() >= {"largest batch", "peak memory", "slowest step", "estimated time", "disk"}
    assert re.fullmatch(r"0:00:\d\d of training, about 0:00:\d\d of validation", text["estimated time"])


@pytest.mark.parametrize(("seconds", "earlier", "expected"), [
    (1e-3, None, True), (1e9, None, False), (1e9, True, True), (1e-3, False, False),
])  # fmt: skip
def test_a_long_run_is_compiled_and_a_resumed_run_keeps_the_decision(
    config: Config,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
    earlier: bool | None,
    expected: bool,
) -> None:
    monkeypatch.setattr(preflight, "COMPILES_ON", "cpu")
    monkeypatch.setattr(preflight, "COMPILE_SECONDS", seconds)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(logging.getLogger("mtformer"), "propagate", True)
    step = make_step(config, prepared)
    with caplog.at_level(logging.INFO):
        check_memory(config, prepared, step, RunDir(tmp_path / "run"), earlier)
    assert step.is_compiled == expected
    assert ("torch.compile took" in caplog.text) == expected


@pytest.mark.parametrize(("time_ratio", "size_ratio", "expected"), [
    (0.5, 0.5, COMPILE_GAIN),  # the time is proportional to the size
    (0.25, 0.5, COMPILE_GAIN),
    (1.0, 0.5, LAUNCH_GAIN),  # the time does not depend on the size
    (1.2, 0.5, LAUNCH_GAIN),
    (0.75, 0.5, (COMPILE_GAIN + LAUNCH_GAIN) / 2),
    (0.7, 0.4, (COMPILE_GAIN + LAUNCH_GAIN) / 2),
])  # fmt: skip
def test_small_batches_gain_more_by_compiling(time_ratio: float, size_ratio: float, expected: float) -> None:
    assert gain_of_compiling(time_ratio, size_ratio) == pytest.approx(expected)


@pytest.mark.parametrize(("is_bound_by_launches", "num_graphs", "hours", "expected"), [
    (False, 1, 0.6, False),  # 40 minutes at a gain of 10 percent
    (False, 1, 0.7, True),
    (False, 11, 1.4, False),
    (False, 11, 1.6, True),
    (True, 1, 0.15, False),
    (True, 1, 0.2, True),
    (True, 11, 0.35, False),
    (True, 11, 0.4, True),
])  # fmt: skip
def test_the_gain_and_the_number_of_graphs_decide_about_compiling(
    config: Config,
    prepared: Prepared,
    is_bound_by_launches: bool,
    num_graphs: int,
    hours: float,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = make_step(config, prepared)
    largest = prepared.batches.sizes().largest

    def seconds(batch: Batch) -> float:
        return 0.02 if is_bound_by_launches else batch.num_padded_tokens * 1e-3

    def compile_model() -> None:
        raise CompiledError

    monkeypatch.setattr(step, "try_batch", seconds)
    monkeypatch.setattr(step, "compile", compile_model)
    monkeypatch.setattr(preflight, "num_graphs", lambda step: num_graphs)
    with pytest.raises(CompiledError) if expected else nullcontext():
        preflight._compile(step, largest, seconds(largest), 3600 * hours, None)


class CompiledError(Exception):
    """Raised instead of compiling."""


def test_a_failed_compilation_does_not_affect_the_run(
    config: Config,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(graph: object, inputs: object) -> None:
        raise ValueError("no compiler")

    plain = weights_after(make_step(config, prepared), prepared)
    monkeypatch.setattr(preflight, "COMPILES_ON", "cpu")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=fail))
    monkeypatch.setattr(logging.getLogger("mtformer"), "propagate", True)
    step = make_step(config, prepared)
    check_memory(config, prepared, step, RunDir(tmp_path / "run"), True)
    assert not step.is_compiled
    assert "torch.compile failed" in caplog.text
    assert torch.equal(weights_after(step, prepared), plain)


class OneOfTwo(Ranks):
    """Simulates a second process that has the same values, and on which an attempt to compile fails."""

    def sum(self, values: Sequence[float]) -> list[float]:
        return [2 * value for value in values]

    def gather(self, item: Any) -> list[Any]:
        return [item, item]

    def any(self, flag: bool) -> bool:
        return True


def test_no_process_compiles_if_one_of_them_cannot(
    config: Config,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(preflight, "COMPILES_ON", "cpu")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    monkeypatch.setattr(logging.getLogger("mtformer"), "propagate", True)
    step = make_step(config, prepared)
    step.ranks = OneOfTwo(size=2)
    check_memory(config, prepared, step, RunDir(tmp_path / "run"), True)
    assert not step.is_compiled
    assert "torch.compile failed (on another process); training continues without it" in caplog.text


def test_a_failed_compilation_ends_a_sharded_run(
    config: Config, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other processes may wait for the weights of this one, so continuing without it could wait forever."""

    def fail(graph: object, inputs: object) -> None:
        raise ValueError("no compiler")

    monkeypatch.setattr(preflight, "COMPILES_ON", "cpu")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=fail))
    training = config.training.model_copy(update={"sharded": True})
    sharded = config.model_copy(update={"training": training})
    step = make_step(sharded, prepared)
    step.ranks = OneOfTwo(rank=1, size=2)
    message = r"^torch\.compile failed on process 1 \(.*\); set training\.compile to never$"
    with pytest.raises(DeviceError, match=message):
        check_memory(sharded, prepared, step, RunDir(tmp_path / "run"), True)


def test_compiling_for_a_cpu_is_refused(config: Config, prepared: Prepared) -> None:
    training = config.training.model_copy(update={"compile": "always"})
    with pytest.raises(DeviceError, match=r"^training\.compile: on a CPU, .*use auto or never$"):
        make_step(config.model_copy(update={"training": training}), prepared)
    step = make_step(config, prepared)
    check_memory(config, prepared, step, RunDir("run"))
    assert not step.is_compiled


@pytest.mark.parametrize(("batch_tokens", "earlier", "processes", "expected"), [
    ("auto", None, 1, (3334, 3)),  # at most 4,096 on a CPU
    ("auto", None, 2, (2500, 2)),
    ("auto", 5000, 1, (5000, 2)),
    (2500, None, 2, (2500, 2)),
    (512, 9999, 1, (500, 20)),
])  # fmt: skip
def test_step_tokens_determine_the_micro_batches(
    config: Config,
    prepared: Prepared,
    batch_tokens: int | str,
    earlier: int | None,
    processes: int,
    expected: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = config.training.model_copy(update={"batch_tokens": batch_tokens, "step_tokens": 10_000})
    config = config.model_copy(update={"training": training})
    step = make_step(config, prepared)
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value] * self.size)  # no other process runs
    step.ranks = Ranks(size=processes)
    chosen, changed = choose_batches(config, prepared, step, earlier)
    assert (chosen.training.batch_tokens, chosen.training.accumulation_steps) == expected
    assert changed.batches.batch_tokens == expected[0]
    assert expected[0] * expected[1] * processes >= 10_000


def test_batches_do_not_change_without_step_tokens(config: Config, prepared: Prepared) -> None:
    assert choose_batches(config, prepared, make_step(config, prepared)) == (config, prepared)


@pytest.mark.parametrize(("free_bytes", "expected"), [
    (100_000_000, 8_000_000 // 1000),  # 80 MB less 72 MB for everything else
    (10**12, CUDA_BATCH_TOKENS),
    (80_000_000, 2000),  # never less than what was tried
])  # fmt: skip
def test_batches_fit_in_the_memory_of_the_device(free_bytes: int, expected: int) -> None:
    # 1,000 bytes per token
    assert fitting_tokens([2000, 4000], [74_000_000, 76_000_000], free_bytes) == expected


@pytest.mark.parametrize("num_pairs", [1, 2, 37], ids="{} pairs".format)
@pytest.mark.parametrize("vocab", [4_000, 8_000, 32_000, 64_000], ids="vocabulary {}".format)
@pytest.mark.parametrize("gigabytes", [6, 8, 12, 16, 24, 80])
def test_the_memory_of_large_batches_decides(num_pairs: int, vocab: int, gigabytes: int) -> None:
    """Simulate a big model: 3 GB, 350 KB per token, and buffers of the loss of 10 bytes per logit, up to a limit."""
    batch = make_batch([([5] * (2000 // num_pairs - 1), [5] * 20)] * num_pairs)
    usable_bytes = gigabytes * 10**9 * MEMORY_SHARE
    tried: list[int] = []

    def peak_bytes_with(batch: Batch) -> int:
        tried.append(batch.num_padded_tokens)
        return memory(batch.num_padded_tokens)

    def memory(num_tokens: int) -> int:
        num_logits = min(num_tokens * vocab, CHUNK_LOGITS["cuda"])
        return 3 * 10**9 + 350_000 * num_tokens + 10 * num_logits

    found = largest_fitting_tokens(batch, peak_bytes_with, gigabytes * 10**9)
    assert all(memory(num_tokens) <= usable_bytes for num_tokens in tried[2:])
    if found < CUDA_BATCH_TOKENS:
        assert memory(found) <= usable_bytes or found <= tried[0]
        assert memory(int(1.2 * found)) > usable_bytes
    else:
        assert memory(CUDA_BATCH_TOKENS) <= usable_bytes


def test_a_batch_that_does_not_fit_ends_the_search() -> None:
    batch = make_batch([([5] * 99, [5] * 99)])
    tried: list[int] = []

    def peak_bytes_with(batch: Batch) -> int | None:
        tried.append(batch.num_padded_tokens)
        return None if batch.num_padded_tokens > 400 else 10**9

    assert largest_fitting_tokens(batch, peak_bytes_with, 80 * 10**9) >= 400
    assert tried == [100, 200, 400, 800]


class WithALargerProcess(Ranks):
    """Simulates a second process that needs twice the memory, and has half of the free memory."""

    def gather(self, item: Any) -> list[Any]:
        return [item, item * 2 if item < 10**12 else item // 2]


@pytest.mark.parametrize(("ranks", "expected"), [(Ranks(), 16_000), (WithALargerProcess(size=2), 4_000)])
def test_all_processes_try_the_same_batches(
    config: Config, prepared: Prepared, ranks: Ranks, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a simulated device of 2 TB, a token needs 100 MB."""
    step = make_step(config, prepared)
    tried: list[int] = []
    monkeypatch.setattr(step, "ranks", ranks)
    monkeypatch.setattr(step, "device", torch.device("cuda"))
    monkeypatch.setattr(step, "try_batch", lambda batch: tried.append(batch.num_padded_tokens))
    monkeypatch.setattr(step_module, "peak_bytes", lambda device: tried[-1] * 10**8)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 10**12 - 10**9, 2 * 10**12))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10**9)
    assert step.max_batch_tokens(make_batch([([5] * 99, [5] * 99)] * 20)) == expected
    assert tried[:3] == [1000, 1000, 2000]
    assert max(tried) <= expected


def test_a_resumed_run_keeps_the_size_of_its_batches(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_to(max_steps: int) -> Config:
        changes = {"batch_tokens": "auto", "step_tokens": 1000, "max_steps": max_steps, "validate_every": 2}
        return config.model_copy(update={"training": config.training.model_copy(update=changes)})

    def state(run: RunDir) -> bytes:
        return (run.checkpoint(4) / WEIGHTS).read_bytes()

    runs = [RunDir(tmp_path / name) for name in ("whole", "parts", "other")]
    monkeypatch.setattr(step_module, "CPU_BATCH_TOKENS", 300)
    train(run_to(4), runs[0])
    train(run_to(2), runs[1])
    monkeypatch.setattr(step_module, "CPU_BATCH_TOKENS", 600)
    train(run_to(4), runs[1], resume=True)
    train(run_to(4), runs[2])
    assert state(runs[0]) == state(runs[1]) != state(runs[2])


def test_no_validation_time_without_dev_data(config: Config, tmp_path: Path) -> None:
    config = config.model_copy(update={"data": config.data.model_copy(update={"dev": []})})
    prepared = prepare_experiment(config, tmp_path / "tokenizer")
    found = check_memory(config, prepared, make_step(config, prepared), RunDir(tmp_path / "run"))
    assert found.validation_seconds == 0
    assert dict(found.lines())["estimated time"] == f"{format_duration(found.training_seconds)} of training"


def test_batches_that_do_not_fit_in_memory_are_split(
    config: Config, prepared: Prepared, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    step = make_step(config, prepared)

    def forward(module: object, arguments: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled() and arguments[0].numel() > 200:
            raise torch.OutOfMemoryError("CUDA out of memory")

    step.objective.register_forward_pre_hook(forward)
    with caplog.at_level(logging.WARNING, logger="mtformer"):
        check_memory(config, prepared, step, RunDir(tmp_path / "run"))
    assert step.max_padded_tokens is not None
    assert f"more than {step.max_padded_tokens} tokens, including padding, will be split in two" in caplog.text
    with closing(prepared.batches.start()) as batches:
        batch = next(batches)
        assert step.run([batch], 1).num_splits == len(batch.split(step.max_padded_tokens)) - 1 > 0


def test_a_full_disk_is_reported_before_the_first_step(
    config: Config,
    prepared: Prepared,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    step, run = make_step(config, prepared), RunDir(tmp_path / "run")
    one = 12 * count_parameters(step.model)["total"]
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10 * one, 9 * one, one))
    with pytest.raises(DeviceError, match=rf"^{tmp_path}: 0.11 MB free, but two checkpoints need 0.21 MB"):
        check_memory(config, prepared, step, run)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10 * one, 7 * one, 3 * one))
    assert isinstance(check_memory(config, prepared, step, run), MemoryCheck)
    assert "lower training.keep_last" in caplog.text
    caplog.clear()
    (run.checkpoint(3)).mkdir(parents=True)
    (run.checkpoint(3) / "model.safetensors").write_bytes(bytes(one))  # existing checkpoints count as free space
    check_memory(config, prepared, step, run)
    assert caplog.messages == []


def test_the_estimate_has_the_steps_of_max_epochs(config: Config, prepared: Prepared, tmp_path: Path) -> None:
    training = config.training.model_copy(update={"max_epochs": 2, "max_steps": 100_000, "accumulation_steps": 2})
    limited = config.model_copy(update={"training": training})
    found = check_memory(limited, prepared, make_step(limited, prepared), RunDir(tmp_path / "run"))
    num_batches = prepared.batches.sizes().num_batches
    assert num_batches - 1 <= found.num_steps <= num_batches


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_epochs": 1, "schedule": "linear"}, "before the learning rate has decayed; set training.max_steps"),
        ({"warmup_steps": 50}, "training ends in the warmup: training.warmup_steps 50"),
        ({"consistency": "rdrop", "consistency_start": 50}, "training ends before training.consistency_start 50"),
        ({"max_minutes": 1, "warmup_steps": 50}, ""),
        ({"max_minutes": 1, "consistency": "rdrop", "consistency_start": 45}, "before training.consistency_start 45"),
    ],
)
def test_a_schedule_that_training_does_not_reach_is_reported(
    changes: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    defaults = {"max_steps": 50, "warmup_steps": 2, "schedule": "cosine"}
    _warn_of_schedule(
        TrainingConfig(**{**defaults, **changes}), 40 if changes.keys() & {"max_epochs", "max_minutes"} else 50
    )
    assert message in caplog.text
    assert bool(caplog.text) == bool(message)

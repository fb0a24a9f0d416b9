"""Two processes give the same gradients, weights, moments and dev scores as one, with DDP and FSDP2."""

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from distributed_resume import LIMIT
from toy_run import trainer
from toy_training import REGULARIZED, dev_batches, regularize_without_chance, toy_batch, toy_config, toy_step

from mtformer.errors import DeviceError
from mtformer.run_dir import RunDir
from mtformer.training.checkpoint import load_trainer_state, newest_good
from mtformer.training.history import read_records
from mtformer.training.ranks import ALONE, Ranks, check_own_devices, join_ranks, own_device
from mtformer.training.validation import dev_loss

HERE = Path(__file__).parent


def torchrun(*arguments: object, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a script in several gloo processes on this machine."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    return subprocess.run(
        [*command, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def of_one_process(precision: str, **regularization: Any) -> dict[str, Any]:
    """Run the steps of `distributed_step.py` in this process."""
    config = toy_config(learning_rate=1e-2, eps=1e-3, clip_norm=0.1, ema_decay=0.5, **regularization)
    step = toy_step(config, precision, dropout=0.0)
    norms, losses = [], []
    for number in range(1, 4):
        batches = [
            toy_batch(4 * number + rank + 2 * second, num_pairs=(4 + 3 * rank if second else 3 + rank))
            for rank in (0, 1)
            for second in (0, 1)
            if (number, rank, second) != (3, 1, 1)
        ]
        result = step.run(batches, number)
        norms.append(float(result.grad_norm))
        losses.append(float(result.loss))
    return {
        "weights": {name: parameter.detach() for name, parameter in step.model.named_parameters()},
        "optimizer": step.optimizer_state(),
        "norms": norms,
        "losses": losses,
        "dev": dev_loss(step, dev_batches()),
    }


def test_sharded_layers_are_gathered_in_bf16(tmp_path: Path) -> None:
    """Gradients are summed in float32, so results differ from a single process by rounding only."""
    done = torchrun(HERE / "distributed_step.py", tmp_path / "outcome.pt", "sharded", "bf16")
    assert done.returncode == 0, done.stderr
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # like `torchrun`; sums of several threads are rounded differently
    two, one = torch.load(tmp_path / "outcome.pt", weights_only=True), of_one_process("bf16")
    torch.set_num_threads(num_threads)
    assert two["dtypes"] == ["torch.bfloat16"]
    for name in ("norms", "losses"):
        assert two[name] == pytest.approx(one[name], rel=2e-3)
    for name, weight in one["weights"].items():
        assert two["weights"][name].dtype == torch.float32
        assert (two["weights"][name] - weight).norm() < 1e-3 * weight.norm() + 1e-3


@pytest.mark.parametrize(
    ("kind", "regularization"), [("copied", {}), ("copied", REGULARIZED), ("sharded", REGULARIZED)]
)
def test_two_processes_with_half_the_batch_each_equal_one_process(
    tmp_path: Path, kind: str, regularization: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    how = ["regularized"] if regularization else []
    if regularization:
        regularize_without_chance(monkeypatch.setattr)
    done = torchrun(HERE / "distributed_step.py", tmp_path / "outcome.pt", kind, "fp32", *how)
    assert done.returncode == 0, done.stderr
    two, one = torch.load(tmp_path / "outcome.pt", weights_only=True), of_one_process("fp32", **regularization)
    assert two["dtypes"] == ["torch.float32"]
    for name in ("norms", "losses"):
        assert two[name] == pytest.approx(one[name], rel=1e-5)
    assert one["dev"].keys() == {f"{key}{name}" for key in ("loss", "perplexity") for name in ("", " a", " b")}
    assert two["dev"] == pytest.approx(one["dev"], rel=1e-4)
    assert two["weights"].keys() == one["weights"].keys()
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, rtol=1e-4, atol=1e-6)
        assert torch.equal(two["weights"][name], two["search_weights"][name])
    assert two["optimizer"]["param_groups"] == one["optimizer"]["param_groups"]
    for number, moments in one["optimizer"]["state"].items():
        for name, moment in moments.items():
            torch.testing.assert_close(two["optimizer"]["state"][number][name], moment, rtol=1e-3, atol=1e-7)
    assert two["same_state"]


@pytest.fixture(scope="module")
def ran_out_of_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a single process, of which memory allowed micro-batches of `LIMIT` tokens, with a checkpoint."""
    subject = trainer(toy_config(max_steps=4), tmp_path_factory.mktemp("runs") / "run")
    subject.step.max_padded_tokens = LIMIT
    subject.train()
    return subject.run.path


def resume_in_two_processes(run: Path, target: Path, kind: str, limits: str) -> RunDir:
    """Resume a copy of a run with batches of different shapes in each process; see distributed_resume.py."""
    shutil.copytree(run, target)
    done = torchrun(HERE / "distributed_resume.py", target, kind, limits)
    assert done.returncode == 0, done.stderr
    return RunDir(target)


def figures(run: RunDir, kind: str, name: str) -> list[float]:
    """Return the values of a figure in the records after the checkpoint of `ran_out_of_memory`."""
    records = read_records(run.metrics)
    return [record[name] for record in records if record["kind"] == kind and record["step"] > 4]


def saved_limit(run: RunDir) -> int | None:
    checkpoint = newest_good(run)
    assert checkpoint is not None
    return load_trainer_state(checkpoint)["max_padded_tokens"]


@pytest.fixture(scope="module")
def whole(ran_out_of_memory: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """The run resumed without a limit, so that no batch is split."""
    return resume_in_two_processes(ran_out_of_memory, tmp_path_factory.mktemp("runs") / "whole", "copied", "none")


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "limits"), [("copied", "restored"), ("sharded", "restored"), ("sharded", "restored by process 0")]
)
def test_processes_that_split_different_batches_do_not_wait_forever(
    ran_out_of_memory: Path, whole: RunDir, tmp_path: Path, kind: str, limits: str
) -> None:
    split = resume_in_two_processes(ran_out_of_memory, tmp_path / "split", kind, limits)
    for record, name in (("train", "loss"), ("train", "nll"), ("train", "grad_norm"), ("dev", "loss")):
        assert figures(split, record, name) == pytest.approx(figures(whole, record, name), rel=1e-4)
    assert figures(whole, "train", "split_batches") == [0, 0]
    assert min(figures(split, "train", "split_batches")) > 0
    assert (saved_limit(whole), saved_limit(split)) == (None, LIMIT)


@pytest.mark.process
def test_the_lowest_memory_limit_of_all_processes_is_saved(ran_out_of_memory: Path, tmp_path: Path) -> None:
    """With DDP, memory may run out in one process alone, during validation."""
    run = resume_in_two_processes(ran_out_of_memory, tmp_path / "run", "copied", "of process 1")
    assert saved_limit(run) == LIMIT


def test_without_torchrun_there_is_one_process() -> None:
    with join_ranks(torch.device("cpu")) as ranks:
        assert ranks == ALONE
        assert ranks.is_main
        assert ranks.sum([1.5, 2]) == [1.5, 2]
        assert ranks.gather("it") == ["it"]
        assert not ranks.any(False)
        with ranks.main_first():
            pass


@pytest.mark.parametrize(("num_devices", "local_rank", "index"), [(4, 0, 0), (4, 3, 3), (1, 0, 0), (1, 3, 0)], ids=str)
def test_the_device_of_a_process(
    num_devices: int, local_rank: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Slurm's --gpus-per-task=1, each of several processes sees one device."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_devices)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    assert own_device(torch.device("cuda")) == torch.device("cuda", index)
    assert chosen == [torch.device("cuda", index)]
    assert own_device(torch.device("cpu")) == torch.device("cpu")


def test_more_processes_than_devices_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(DeviceError, match=r"^process 2 has no CUDA device: this machine has 2; start 2 processes$"):
        own_device(torch.device("cuda"))


class ThreeRanks(Ranks):
    """Simulates processes whose devices have the UUIDs `others`."""

    others: tuple[str, ...] = ()

    def gather(self, item: Any) -> list[Any]:
        return [*self.others, item]


@pytest.mark.parametrize(("others", "is_shared"), [(("a", "b"), False), (("c", "b"), True), (("b", "b"), True)])
def test_processes_that_share_a_device_are_an_error(
    others: tuple[str, ...], is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="c"))
    monkeypatch.setattr(ThreeRanks, "others", others)
    ranks = ThreeRanks(rank=2, size=3)
    expected = pytest.raises(DeviceError, match=r"^processes 0 and [12] have the same CUDA device; .*--gpus-per-task=1")
    with expected if is_shared else nullcontext():
        check_own_devices(torch.device("cuda", 0), ranks)
    check_own_devices(torch.device("cpu"), ranks)


def test_dev_loss_of_each_set_equals_that_of_the_set_alone() -> None:
    step = toy_step(toy_config(), dropout=0.0)
    batches = dev_batches()
    found = dev_loss(step, batches)
    both, first, rest = (
        dev_loss(step, [replace(one, pairs_of={}) for one in some]) for some in (batches, batches[:1], batches[1:])
    )
    assert both.keys() == {"loss", "perplexity"}
    named = {f"{key} {name}": value for name, some in (("a", first), ("b", rest)) for key, value in some.items()}
    assert found == {**both, **named}
    assert first["loss"] != rest["loss"]

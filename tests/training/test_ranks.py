"""Two processes give the same gradients, weights, moments and dev scores as one, with DDP and FSDP2."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import REGULARIZED, dev_batches, regularize_without_chance, toy_batch, toy_config, toy_step

from mtformer.training.ranks import ALONE, join_ranks
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
        assert torch.equal(two["weights"][name], two["sharded_weights"][name])
    assert two["optimizer"]["param_groups"] == one["optimizer"]["param_groups"]
    for number, moments in one["optimizer"]["state"].items():
        for name, moment in moments.items():
            torch.testing.assert_close(two["optimizer"]["state"][number][name], moment, rtol=1e-3, atol=1e-7)
    assert two["same_state"]


def test_without_torchrun_there_is_one_process() -> None:
    with join_ranks(torch.device("cpu")) as ranks:
        assert ranks == ALONE
        assert ranks.is_main
        assert ranks.sum([1.5, 2]) == [1.5, 2]
        assert ranks.gather("it") == ["it"]
        assert not ranks.any(False)
        with ranks.main_first():
            pass


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

"""DDP, FSDP2, the gradient scaler with sharded gradients, and compilation under DDP, in a process group of one process.

One GPU is enough for these tests; on a CPU, they run with gloo.
"""

import functools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from one_rank import process_group
from torch import Tensor, fx
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from toy_training import MODEL, VOCAB, dev_batches, toy_batch, toy_config

from mtformer.device import DTYPES
from mtformer.experiment.preflight import num_graphs
from mtformer.model.transformer import Transformer
from mtformer.training.ranks import Ranks
from mtformer.training.step import TrainingStep
from mtformer.training.validation import dev_loss

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
WRAPPERS = {"copied": DistributedDataParallel, "sharded": FSDPModule}
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2, "fp16": 5e-3}
"""Relative tolerance; the matrices of sharded layers have gradients that are rounded once more."""
kinds = pytest.mark.parametrize(
    ("kind", "precision"),
    [("copied", "fp32"), ("copied", "bf16"), ("copied", "fp16"), ("sharded", "fp32"), ("sharded", "bf16"),
     ("sharded", "fp16")],
)  # fmt: skip


def make_step(device: str, precision: str, **training: Any) -> TrainingStep:
    torch.manual_seed(1)
    model = Transformer(MODEL.model_copy(update={"dropout": 0.0}), VOCAB, VOCAB, compute_dtype=DTYPES[precision])
    settings = {"learning_rate": 1e-2, "warmup_steps": 0, "schedule": "constant", "eps": 1e-3, "ema_decay": 0.5}
    return TrainingStep(model.to(device), toy_config(**{**settings, **training}).training)


@pytest.fixture
def group(device: str) -> Iterator[None]:
    with process_group(device):
        yield


def weights(step: TrainingStep) -> Tensor:
    return torch.cat([weight.flatten() for weight in step.weights().values()])


def train(step: TrainingStep) -> tuple[list[float], list[float]]:
    """Return the losses and the gradient norms of three steps of two micro-batches, and the dev loss."""
    losses = []
    norms = []
    for number in (1, 2, 3):
        result = step.run([toy_batch(number), toy_batch(number + 10)], number)
        losses.append(float(result.loss))
        norms.append(float(result.grad_norm))
    with step.ema_weights():
        losses.append(dev_loss(step, dev_batches())["loss"])
    return losses, norms


@devices
@kinds
def test_training_in_a_process_group_equals_training_without_one(device: str, kind: str, precision: str) -> None:
    plain = make_step(device, precision)
    before = weights(plain)
    expected_losses, expected_norms = train(plain)
    with process_group(device):
        step = make_step(device, precision, sharded=kind == "sharded")
        assert isinstance(step.objective, WRAPPERS[kind])
        losses, norms = train(step)
        found = weights(step)
        with step.ema_weights():
            search_weights = {name: weight.cpu().clone() for name, weight in step.search_model().named_parameters()}
            averages = step.weights()
        state = step.optimizer_state()["state"]

    tolerance = TOLERANCE[precision]
    assert losses == pytest.approx(expected_losses, rel=tolerance)
    assert norms == pytest.approx(expected_norms, rel=tolerance)
    expected = weights(plain)
    assert (found - expected).norm() < 3 * tolerance * (expected - before).norm()
    for name, average in averages.items():
        assert torch.equal(search_weights[name], average.to(search_weights[name].dtype)), name
    assert state.keys() == plain.optimizer_state()["state"].keys()
    for moments in state.values():
        assert all(type(moment) is Tensor for moment in moments.values()), "moments in checkpoints are not sharded"


@devices
@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.usefixtures("group")
def test_fp16_skips_steps_with_infinite_gradients(device: str, kind: str) -> None:
    """The scaler divides sharded gradients, and its flag is that of all shards."""
    step = make_step(device, "fp16", sharded=kind == "sharded")
    assert step.run([toy_batch(1)], 1).is_finite
    before = weights(step)
    scale = step.scaler.get_scale()
    handle = step.model.decoder_norm.register_forward_hook(lambda module, inputs, output: output * math.inf)
    for number in (2, 3):
        assert not step.run([toy_batch(number)], number).is_finite
    assert torch.equal(weights(step), before)
    assert step.scaler.get_scale() == scale / 4
    assert int(step.skipped_in_a_row) == 2
    handle.remove()
    assert step.run([toy_batch(4)], 4).is_finite
    assert not torch.equal(weights(step), before)


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("group")
def test_rows_are_gathered_on_the_device(device: str, dtype: torch.dtype) -> None:
    row = torch.randn(7, device=device).to(dtype)
    rows = Ranks().gather_rows(row)
    assert rows.device == row.device
    assert torch.equal(rows, row.unsqueeze(0))


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[fx.GraphModule]]:
    """Collect the graphs that `torch.compile` finds, and run them as they are."""
    found: list[fx.GraphModule] = []

    def collect(graph: fx.GraphModule, inputs: object) -> object:
        found.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=collect))
    yield found
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("kind", "layers", "width", "expected"), [("copied", 1, 16, 1), ("copied", 1, 512, 3), ("sharded", 2, 16, 5)]
)
def test_the_number_of_graphs_to_compile_is_known(
    kind: str, layers: int, width: int, expected: int, graphs: list[fx.GraphModule]
) -> None:
    options = {"dropout": 0.0, "num_encoder_layers": layers, "num_decoder_layers": layers}
    config = MODEL.model_copy(update={**options, "d_model": width, "d_ff": 4 * width})
    with process_group("cpu"):
        step = TrainingStep(Transformer(config, VOCAB, VOCAB), toy_config(sharded=kind == "sharded").training)
        step.compile()
        step.objective.train()
        step.loss(toy_batch(1))[0].backward()
        assert num_graphs(step) == expected
    assert len(graphs) == expected


def test_one_process_compiles_one_graph() -> None:
    assert num_graphs(make_step("cpu", "fp32")) == 1


def check_resuming(folder: Path, device: str, precision: str, kind: str) -> None:
    """Run resume_on_device.py in a separate process, because cuBLAS reads its setting once, on first use."""
    program = Path(__file__).with_name("resume_on_device.py")
    done = subprocess.run(
        [sys.executable, str(program), str(folder), device, precision, kind],
        env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["the same"]


@devices
@pytest.mark.process
@pytest.mark.parametrize(("precision", "kind"), [("bf16", "copied"), ("fp16", "sharded"), ("bf16", "compiled")])
def test_resuming_in_a_process_group(device: str, precision: str, kind: str, tmp_path: Path) -> None:
    """Runs are equal to the bit if the model is not compiled."""
    check_resuming(tmp_path, device, precision, kind)

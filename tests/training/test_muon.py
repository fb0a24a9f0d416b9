"""Muon against its formula in numpy, per projection; AdamW for the other parameters; sharing between processes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distributed_muon import take_steps
from numpy.typing import NDArray
from test_ranks import torchrun

from mtformer.config.schema import ModelConfig, TrainingConfig
from mtformer.model.ops import Linear
from mtformer.model.transformer import Transformer
from mtformer.training.muon import Size, orthogonalize, share_out
from mtformer.training.optimizer import make_optimizer

RATE, DECAY = 0.01, 0.1
SCRIPT = Path(__file__).with_name("distributed_muon.py")
Matrix = NDArray[np.float64]


def orthogonalized(G: Matrix) -> Matrix:
    """Return G with its singular values mapped by five iterations of Jordan's polynomial."""
    x = G / np.linalg.norm(G)
    if x.shape[0] > x.shape[1]:
        return orthogonalized(G.T).T
    for _ in range(5):
        A = x @ x.T
        x = 3.4445 * x + (-4.7750 * A + 2.0315 * A @ A) @ x
    return x


def model(**options: Any) -> Transformer:
    torch.manual_seed(1)
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 24, "num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(ModelConfig(**{**sizes, **options}), 20, 20)


@pytest.mark.parametrize("options", [{}, {"activation": "swiglu", "num_kv_heads": 1}], ids=str)
def test_projections_are_updated_separately_by_the_formula(options: dict[str, Any]) -> None:
    own, adam = model(**options), model(**options)
    settings = {"learning_rate": RATE, "weight_decay": DECAY}
    optimizer = make_optimizer(own, TrainingConfig(optimizer="muon", **settings))
    reference = make_optimizer(adam, TrainingConfig(optimizer="adamw", **settings))
    matrices = {f"{name}.weight": one.out_widths for name, one in own.named_modules() if isinstance(one, Linear)}
    expected = {name: own.get_parameter(name).detach().double().numpy() for name in matrices}
    momenta = {name: np.zeros_like(matrix) for name, matrix in expected.items()}
    for _ in range(3):
        for (name, parameter), twin in zip(own.named_parameters(), adam.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            twin.grad = parameter.grad.clone()
            if name not in matrices:
                continue
            G = parameter.grad.double().numpy()
            momenta[name] = 0.95 * momenta[name] + G
            pieces = np.split(np.arange(len(G)), np.cumsum(matrices[name])[:-1])
            for rows in pieces:
                factor = 0.2 * np.sqrt(max(len(rows), G.shape[1]))
                update = factor * orthogonalized(G[rows] + 0.95 * momenta[name][rows])
                expected[name][rows] = (1 - RATE * DECAY) * expected[name][rows] - RATE * update
        optimizer.step()
        reference.step()
    for (name, parameter), twin in zip(own.named_parameters(), adam.parameters(), strict=True):
        found = parameter.detach().double()
        wanted = torch.from_numpy(expected[name]) if name in matrices else twin.detach().double()
        torch.testing.assert_close(found, wanted, rtol=0, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_orthogonalized_matrices_have_singular_values_near_one(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(3, 16, 64), dtype))
    assert values.min() > 0.65
    assert values.max() < 1.25


def test_an_update_has_the_size_of_adams() -> None:
    own = model(d_model=64, d_ff=128)
    optimizer = make_optimizer(own, TrainingConfig(optimizer="muon", learning_rate=1.0))
    before = {name: parameter.detach().clone() for name, parameter in own.named_parameters()}
    for parameter in own.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    for name, parameter in own.named_parameters():
        if name.endswith(("projection.weight", "expand.weight", "contract.weight")):
            change = (parameter - before[name]).detach().square().mean().sqrt().item()
            assert change == pytest.approx(0.2, abs=0.05), name


# ---- several processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_processes", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize(
    "counts",
    [
        {Size(512, 512): 72, Size(512, 2048): 24},  # the base model of the paper
        {Size(512, 512): 36, Size(128, 512): 36, Size(512, 1408): 36},
        {Size(16, 16): 3},
    ],
    ids=str,
)
def test_each_matrix_has_one_owner_and_the_work_is_balanced(counts: dict[Size, int], num_processes: int) -> None:
    owners = share_out(counts, num_processes)
    assert {size: len(ranks) for size, ranks in owners.items()} == counts
    work = [sum(size.cost * ranks.count(rank) for size, ranks in owners.items()) for rank in range(num_processes)]
    largest = max(size.cost for size in counts)
    assert max(work) <= sum(work) / num_processes + largest
    assert max(work) - min(work) <= largest


def test_eight_processes_share_the_base_model_without_loss() -> None:
    owners = share_out({Size(512, 512): 72, Size(512, 2048): 24}, 8)
    for rank in range(8):
        assert [ranks.count(rank) for ranks in owners.values()] == [3, 9]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread, like `torchrun`, because sums of several threads are rounded differently."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.mark.process
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 1e-2)])
def test_processes_share_the_matrices_and_agree_with_a_single_process(
    precision: str, tolerance: float, tmp_path: Path
) -> None:
    """The script checks that weights and moments are the same bits on all processes; their number changes in a run."""
    file = tmp_path / "state.pt"
    whole = take_steps(tmp_path / "unused", range(1, 6), precision)
    total = whole["num_matrices"][0]
    for num_processes, first, last in [(2, 1, 2), (3, 3, 4)]:
        done = torchrun(SCRIPT, file, first, last, precision, processes=num_processes)
        assert done.returncode == 0, done.stderr
        num_matrices = torch.load(file, weights_only=True)["num_matrices"]
        assert sum(num_matrices) == total, "each matrix is orthogonalized once per step"
        assert max(num_matrices) <= total / num_processes + 1

    shared = take_steps(file, range(5, 6), precision)
    assert shared["weights"].keys() == whole["weights"].keys()
    for name, weight in whole["weights"].items():
        assert (shared["weights"][name] - weight).norm() < tolerance * weight.norm(), name
    states = shared["optimizer"]["state"]
    assert states.keys() == whole["optimizer"]["state"].keys()
    for index, moments in whole["optimizer"]["state"].items():
        assert states[index].keys() == moments.keys()
        for name, moment in moments.items():
            assert (states[index][name] - moment).norm() <= 10 * tolerance * moment.norm(), name

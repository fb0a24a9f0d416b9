"""Muon against its formula in numpy, per projection; AdamW for the other parameters."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mtformer.config.schema import ModelConfig, TrainingConfig
from mtformer.model.ops import Linear
from mtformer.model.transformer import Transformer
from mtformer.training.muon import orthogonalize
from mtformer.training.optimizer import make_optimizer

RATE, DECAY = 0.01, 0.1
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

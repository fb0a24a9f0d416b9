"""Learning rate schedules at selected steps, and parameters with weight decay."""

import math

import pytest
import torch

from mtformer.config.schema import ModelConfig, TrainingConfig
from mtformer.model.transformer import Transformer
from mtformer.training.muon import Muon
from mtformer.training.optimizer import learning_rate, make_optimizer


def rates(schedule: str, steps: list[int]) -> list[float]:
    config = TrainingConfig(schedule=schedule, learning_rate=2.0, warmup_steps=100, max_steps=1100)
    return [learning_rate(step, config, 512) for step in steps]


@pytest.mark.parametrize(
    ("schedule", "at_600", "at_end"),
    [
        ("inverse_sqrt", 2.0 * math.sqrt(100 / 600), 2.0 * math.sqrt(100 / 1100)),
        ("cosine", 1.0, 0.0),
        ("linear", 1.0, 0.0),
        ("warmup_stable_decay", 2.0, 0.0),
        ("constant", 2.0, 2.0),
    ],
)
def test_schedule_at_selected_steps(schedule: str, at_600: float, at_end: float) -> None:
    assert rates(schedule, [1, 50, 100, 600, 1100]) == pytest.approx([0.02, 1.0, 2.0, at_600, at_end])


def test_the_last_part_of_warmup_stable_decay_is_linear() -> None:
    assert rates("warmup_stable_decay", [100, 700, 800, 900, 1000]) == pytest.approx([2.0, 2.0, 1.5, 1.0, 0.5])


def test_noam_equals_equation_3() -> None:
    for step in (1, 100, 101, 5000):
        expected = 2.0 * 512**-0.5 * min(step**-0.5, step * 100**-1.5)
        assert rates("noam", [step]) == pytest.approx([expected])


@pytest.mark.parametrize("schedule", ["noam", "inverse_sqrt", "cosine", "linear", "warmup_stable_decay", "constant"])
def test_schedules_without_warmup_start_at_the_peak(schedule: str) -> None:
    config = TrainingConfig(schedule=schedule, learning_rate=1.0, warmup_steps=0, max_steps=1000)
    found = [learning_rate(step, config, 1) for step in range(1, 1001)]
    assert found[0] == pytest.approx(1.0, rel=1e-2)
    assert found == sorted(found, reverse=True)
    assert min(found) >= 0


@pytest.mark.parametrize("schedule", ["cosine", "linear", "warmup_stable_decay"])
def test_the_rate_stays_zero_after_the_last_step(schedule: str) -> None:
    assert rates(schedule, [1100, 1101, 1700, 2500]) == pytest.approx([0.0] * 4)  # if max_steps is lowered


def model() -> Transformer:
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return Transformer(ModelConfig(d_model=8, num_heads=2, d_ff=16, positions="learned", **layers), 20, 20)


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("muon", Muon)])
def test_the_optimizer_is_the_configured_one(name: str, kind: type[torch.optim.Optimizer]) -> None:
    assert type(make_optimizer(model(), TrainingConfig.model_validate({"optimizer": name}))) is kind


def test_weight_decay_applies_to_matrices_only() -> None:
    transformer = model()
    optimizer = make_optimizer(transformer, TrainingConfig(optimizer="adamw", weight_decay=0.5))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(list(transformer.parameters()))
    for name, parameter in transformer.named_parameters():
        is_projection = name.endswith(("projection.weight", "expand.weight", "contract.weight"))
        assert decay[id(parameter)] == (0.5 if is_projection else 0.0), name

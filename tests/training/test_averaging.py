"""Moving averages of the weights: formula, and which weights are used in training, validation and checkpoints."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from toy_run import Quiet, finished, resumed, state, trainer
from toy_training import toy_batch, toy_config, toy_step

from mtformer.errors import InterruptedRunError
from mtformer.run_dir import TRAINER_STATE, WEIGHTS, RunDir
from mtformer.training.optimizer import Ema
from mtformer.training.step import TrainingStep
from mtformer.weights import read_weights

DECAY = 0.9


def copies(step: TrainingStep) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in step.model.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_averages_equal_the_formula() -> None:
    step = toy_step(toy_config(ema_decay=DECAY, learning_rate=1e-2))
    expected = [weight.double() for weight in copies(step)]
    for number in range(1, 101):
        step.run([toy_batch(number)], number)
        decay = min(DECAY, (1 + number) / (10 + number))
        expected = [decay * old + (1 - decay) * new for old, new in zip(expected, copies(step), strict=True)]
    with step.ema_weights():
        for own, other in zip(copies(step), expected, strict=True):
            torch.testing.assert_close(own, other.float(), rtol=1e-4, atol=1e-6)


def test_averages_of_infinite_biases_are_not_nan() -> None:
    model = torch.nn.ParameterList([torch.tensor([1.0, -torch.inf])])
    ema = Ema(model, DECAY)
    ema.update(1)
    assert ema.averages[0].tolist() == [1.0, -torch.inf]


def test_training_continues_with_the_unaveraged_weights() -> None:
    plain, averaged = (toy_step(toy_config(ema_decay=decay), dropout=0.0) for decay in (0.0, DECAY))
    for number in range(1, 6):
        for step in (plain, averaged):
            step.run([toy_batch(number)], number)
        before = copies(averaged)
        with averaged.ema_weights():
            assert not equal(copies(averaged), before)
        assert equal(copies(averaged), before)
        assert equal(copies(plain), before)


def test_weights_are_restored_after_an_exception() -> None:
    step = toy_step(toy_config(ema_decay=DECAY))
    step.run([toy_batch(1)], 1)
    before = copies(step)
    with pytest.raises(KeyError), step.ema_weights():
        raise KeyError
    assert equal(copies(step), before)


def test_checkpoints_and_validation_use_the_averages(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", ema_decay=DECAY)
    step = toy_step(toy_config())
    step.load_weights(run.checkpoint(8) / WEIGHTS)
    loss, _ = step.evaluate(toy_batch(99))
    last = [line for line in run.metrics.read_text().splitlines() if '"dev"' in line][-1]
    assert f'"loss": {loss / toy_batch(99).num_tgt_tokens}' in last
    training = {name: value for name, value in state(run.checkpoint(8)).items() if name.startswith("training_weights.")}
    kept = read_weights(run.checkpoint(8) / WEIGHTS)
    assert training.keys() == {f"training_weights.{name}" for name in kept}
    assert not equal(list(training.values()), list(kept.values()))


def test_averaging_does_not_affect_training(tmp_path: Path) -> None:
    """The trained weights equal those of a run without averages, even if averaging is changed on resuming."""
    plain = read_weights(finished(tmp_path / "plain").checkpoint(8) / WEIGHTS)
    for name, first, second in (("off", DECAY, 0.0), ("on", 0.0, DECAY)):
        with pytest.raises(InterruptedRunError):
            trainer(toy_config(ema_decay=first), tmp_path / name, Quiet(signal_at=3)).train()
        resumed(toy_config(ema_decay=second), tmp_path / name).train()
        folder = RunDir(tmp_path / name).checkpoint(8)
        saved = torch.load(folder / TRAINER_STATE, weights_only=True)["training_weights"] or read_weights(
            folder / WEIGHTS
        )
        assert equal(list(saved.values()), [plain[key] for key in saved])

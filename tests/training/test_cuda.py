"""Training on CUDA in each precision; run with `pytest -m gpu` where there is a device."""

import pytest
import torch
from toy_training import MODEL, VOCAB, toy_batch, toy_config

from mtformer.model.transformer import Transformer
from mtformer.training.step import TrainingStep

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 3e-2), ("fp16", 5e-3)])
def test_loss_and_gradient_agree_with_float64(precision: str, tolerance: float) -> None:
    torch.manual_seed(1)
    exact = Transformer(MODEL, VOCAB, VOCAB).double().eval()
    model = Transformer(MODEL, VOCAB, VOCAB)
    model.load_state_dict({name: weight.float() for name, weight in exact.state_dict().items()})
    step = TrainingStep(model.cuda().eval(), toy_config().training, precision)
    reference = TrainingStep(exact, toy_config().training, "fp32")
    exact.compute_dtype = torch.float64
    losses = []
    for one in (step, reference):
        loss, _ = one.loss(toy_batch(1))
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=tolerance)
    grads = [torch.cat([p.grad.double().cpu().flatten() for p in m.parameters()]) for m in (model, exact)]
    assert (grads[0] - grads[1]).norm() < 2 * tolerance * grads[1].norm()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_it_learns(precision: str) -> None:
    config = toy_config(learning_rate=1e-2, schedule="constant", warmup_steps=20)
    torch.manual_seed(1)
    step = TrainingStep(Transformer(MODEL, VOCAB, VOCAB).cuda(), config.training, precision)
    losses = [float(step.run([toy_batch(n % 4)], n).nll) for n in range(1, 151)]
    assert sum(losses[-8:]) < 0.55 * sum(losses[:8])

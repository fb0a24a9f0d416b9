"""One optimizer step: what is summed, divided, clipped, skipped."""

import pytest
import torch
from toy_training import toy_batch, toy_config, toy_step

from mtformer.data.batches import make_batch
from mtformer.training.step import TrainingStep

A, B = ([4, 5, 6], [6, 5, 4]), ([7, 8], [8, 7])


def weights(step: TrainingStep) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in step.model.parameters()])


def without_dropout(step: TrainingStep) -> TrainingStep:
    for module in step.model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    return step


def test_accumulation_equals_one_batch_of_all() -> None:
    # A large eps: the gradient of a key's bias is 0 but for rounding, which Adam would blow up to a whole step.
    config = toy_config(learning_rate=1e-2, clip_norm=0.1, eps=1e-3)
    whole, parts = without_dropout(toy_step(config)), without_dropout(toy_step(config))
    for number in (1, 2, 3):
        one = whole.run([make_batch([A, B])], number)
        two = parts.run([make_batch([A]), make_batch([B])], number)
        torch.testing.assert_close(one.loss, two.loss)
        torch.testing.assert_close(one.grad_norm, two.grad_norm)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-4, atol=1e-6)


def test_the_same_seed_gives_the_same_weights_with_dropout() -> None:
    results = []
    for _ in range(2):
        step = toy_step(toy_config())
        for number in range(1, 4):
            step.run([toy_batch(number)], number)
        results.append(weights(step))
    assert torch.equal(*results)


def test_clipping_bounds_what_the_optimizer_sees() -> None:
    step = toy_step(toy_config(clip_norm=0.01))
    seen = []
    step.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.stack([p.grad.norm() for p in step.model.parameters()]).norm().item())
    )
    result = step.run([toy_batch(1)], 1)
    assert result.grad_norm > 0.01
    assert seen == [pytest.approx(0.01, rel=1e-3)]


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    step = toy_step(toy_config())
    before = weights(step).clone()
    step.model.decoder_norm.weight.register_hook(lambda grad: grad * float("nan"))
    result = step.run([toy_batch(1)], 1)
    assert not result.is_finite
    assert torch.equal(weights(step), before)
    assert not step.optimizer.state


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_it_learns_to_reverse(precision: str) -> None:
    step = toy_step(toy_config(learning_rate=1e-2, schedule="constant", warmup_steps=20), precision)
    losses = [float(step.run([batch := toy_batch(n % 4)], n).nll / batch.num_tgt_tokens) for n in range(1, 151)]
    assert sum(losses[-8:]) < 0.55 * sum(losses[:8])
    assert all(p.dtype == torch.float32 for p in step.model.parameters())


def test_fp16_clips_the_true_gradient_and_halves_the_scale_on_overflow() -> None:
    step, reference = (without_dropout(toy_step(toy_config(), precision)) for precision in ("fp16", "fp32"))
    norms = [float(one.run([toy_batch(1)], 1).grad_norm) for one in (step, reference)]
    assert norms[0] == pytest.approx(norms[1], rel=0.02)  # not the 65,536 times larger one of the scaled loss
    before, scale = weights(step).clone(), step.scaler.get_scale()
    step.model.decoder_norm.weight.register_hook(lambda grad: grad * float("inf"))
    assert not step.run([toy_batch(2)], 2).is_finite
    assert torch.equal(weights(step), before)
    assert step.scaler.get_scale() == scale / 2


def test_compiled_equals_eager() -> None:
    config = toy_config(learning_rate=1e-2, eps=1e-3)
    eager = without_dropout(toy_step(config))
    compiled = without_dropout(toy_step(config))
    compiled.forward = torch.compile(compiled.model, dynamic=True, backend="aot_eager")
    for number in range(1, 4):
        eager.run([toy_batch(number)], number)
        compiled.run([toy_batch(number)], number)
    torch.testing.assert_close(weights(eager), weights(compiled), rtol=1e-4, atol=1e-6)

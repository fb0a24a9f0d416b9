"""Optimizer step: loss normalization, clipping, skipped steps, and out-of-memory errors."""

import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from toy_training import REGULARIZED, regularize_without_chance, toy_batch, toy_config, toy_step

from mtformer.data.batching.batches import make_batch
from mtformer.errors import DeviceError
from mtformer.training.objective import Objective
from mtformer.training.ranks import Ranks
from mtformer.training.step import MAX_SKIPPED_IN_A_ROW, TrainingStep
from mtformer.training.weight_copies import WeightCopies

A, B = ([4, 5, 6], [6, 5, 4]), ([7, 8], [8, 7])


def weights(step: TrainingStep) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in step.model.parameters()])


def without_dropout(step: TrainingStep) -> TrainingStep:
    for module in step.model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    return step


def test_accumulating_micro_batches_equals_one_large_batch() -> None:
    # Use a large eps: the gradient of a key bias is 0 except for rounding, which Adam would amplify to a full step.
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


def test_training_sets_up_the_kernels_of_the_device_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[torch.device] = []
    monkeypatch.setattr("mtformer.training.step.set_up_kernels", devices.append)
    assert [toy_step(toy_config()).device] == devices


def test_gradients_are_clipped_before_the_update() -> None:
    step = toy_step(toy_config(clip_norm=0.01))
    seen = []
    step.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.stack([p.grad.norm() for p in step.model.parameters()]).norm().item())
    )
    result = step.run([toy_batch(1)], 1)
    assert result.grad_norm > 0.01
    assert seen == [pytest.approx(0.01, rel=1e-3)]


def everything(step: TrainingStep) -> list[torch.Tensor]:
    """Return copies of weights, moments, counts and the random state."""
    state = [value for values in step.optimizer.state_dict()["state"].values() for value in values.values()]
    return [tensor.clone() for tensor in (weights(step), *state, torch.get_rng_state())]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_non_finite_gradient_changes_nothing(precision: str, optimizer: str) -> None:
    step = without_dropout(toy_step(toy_config(optimizer=optimizer), precision))
    step.run([toy_batch(1)], 1)
    before = everything(step)
    handle = step.model.decoder_norm.weight.register_hook(lambda grad: grad * float("nan"))
    for number in range(1, MAX_SKIPPED_IN_A_ROW + 1):
        assert not step.run([toy_batch(number)], 1).is_finite
        assert int(step.skipped_in_a_row) == number
    assert same(everything(step), before)
    handle.remove()
    assert step.run([toy_batch(2)], 2).is_finite
    assert not same(everything(step), before)
    assert int(step.skipped_in_a_row) > MAX_SKIPPED_IN_A_ROW  # not reset, so that the trainer detects it


def test_the_count_of_skipped_steps_is_reset_by_a_step_with_finite_gradients() -> None:
    step = toy_step(toy_config())
    handle = step.model.decoder_norm.weight.register_hook(lambda grad: grad * float("inf"))
    step.run([toy_batch(1)], 1)
    assert int(step.skipped_in_a_row) == 1
    handle.remove()
    step.run([toy_batch(1)], 2)
    assert int(step.skipped_in_a_row) == 0


# ---- memory ---------------------------------------------------------------------------------------------------------


def limited(step: TrainingStep, max_padded_tokens: int) -> list[int]:
    """Simulate running out of memory above a batch size, alternately in forward and backward; return the attempts."""
    tries: list[int] = []

    def forward(module: Objective, arguments: tuple[torch.Tensor, ...]) -> None:
        src_BS, _, tgt_in_BT, _ = arguments
        tries.append(src_BS.size(0) * max(src_BS.size(1), tgt_in_BT.size(1)))
        if tries[-1] > max_padded_tokens and len(tries) % 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def fail(grad: torch.Tensor) -> None:
        if tries[-1] > max_padded_tokens:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12 bytes")

    step.objective.register_forward_pre_hook(forward)
    # At this point in the backward pass, the decoder already has gradients.
    step.model.encoder[0].feed_forward.expand.weight.register_hook(fail)
    return tries


def test_micro_batches_are_split_if_memory_runs_out() -> None:
    config = toy_config(learning_rate=1e-2, eps=1e-3)
    roomy, narrow = without_dropout(toy_step(config)), without_dropout(toy_step(config))
    batches = [toy_batch(1, num_pairs=3), toy_batch(2, num_pairs=12), toy_batch(3)]
    tries = limited(narrow, 40)
    one, two = roomy.run(batches, 1), narrow.run(batches, 1)
    assert (one.num_splits, two.num_splits > 1) == (0, True)
    for name in ("loss", "nll", "grad_norm"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name))
    torch.testing.assert_close(weights(roomy), weights(narrow), rtol=1e-4, atol=1e-6)
    tries.clear()
    assert narrow.run(batches, 2).num_splits == two.num_splits, "later batches are split immediately"
    assert max(tries) <= 40


def test_a_single_pair_that_does_not_fit_in_memory_is_an_error() -> None:
    step = toy_step(toy_config())
    limited(step, 3)
    with pytest.raises(DeviceError, match=r"a pair of \d and \d tokens does not fit .*filters\.max_tokens"):
        step.run([toy_batch(1)], 1)


def test_dev_batches_are_split_if_memory_runs_out() -> None:
    roomy, narrow = toy_step(toy_config()), toy_step(toy_config())
    limited(narrow, 20)
    assert narrow.evaluate(toy_batch(2)) == pytest.approx(roomy.evaluate(toy_batch(2)), rel=1e-6)


def test_running_out_of_memory_is_an_error_with_several_processes() -> None:
    step = toy_step(toy_config())
    step.ranks = TwoEqualRanks(size=2)
    limited(step, 20)
    with pytest.raises(DeviceError, match=r"lower training\.batch_tokens"):
        step.run([toy_batch(1)], 1)


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.OutOfMemoryError(),
    torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:126] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),  # Windows
]
memory_errors = pytest.mark.parametrize(
    "error", OUT_OF_MEMORY, ids=lambda error: f"{type(error).__name__} {error}"[:50]
)


def failing(error: Exception) -> Callable[..., None]:
    """Return a function that raises an error."""

    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


@memory_errors
def test_all_errors_of_exhausted_memory_are_recognized_in_a_pass(error: Exception) -> None:
    step = toy_step(toy_config())
    num_calls = []

    def forward(*_: object) -> None:
        num_calls.append(1)
        if len(num_calls) == 1:
            raise error

    step.objective.register_forward_pre_hook(forward)
    assert step.run([toy_batch(1)], 1).num_splits == 1


@memory_errors
@pytest.mark.parametrize("place", ["the gradient norm", "the optimizer", "the averages", "the memory check"])
def test_exhausted_memory_in_an_update_is_an_error(
    place: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = toy_step(toy_config(ema_decay=0.9))
    assert step.ema is not None
    if place == "the gradient norm":
        monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", failing(error))
    elif place == "the averages":
        monkeypatch.setattr(step.ema, "update", failing(error))
    else:
        monkeypatch.setattr(step.optimizer, "step", failing(error))
    message = r"^out of memory on cpu in the update of the weights; lower training\.batch_tokens, [^\n]*$"
    with pytest.raises(DeviceError, match=message):
        step.try_batch(toy_batch(1)) if place == "the memory check" else step.run([toy_batch(1)], 1)


@memory_errors
def test_exhausted_memory_in_validation_is_an_error(error: Exception) -> None:
    step = toy_step(toy_config(ema_decay=0.9))
    with pytest.raises(DeviceError, match=r"^out of memory on cpu in validation; lower [^\n]*$"), step.ema_weights():
        raise error


def test_other_errors_in_an_update_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    step = toy_step(toy_config())
    monkeypatch.setattr(step.optimizer, "step", failing(RuntimeError("CUDA error: an illegal memory access")))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        step.run([toy_batch(1)], 1)


class TwoEqualRanks(Ranks):
    """Simulates a second process with the same values."""

    def sum(self, values: Sequence[float]) -> list[float]:
        return [2 * value for value in values]


def test_other_errors_are_not_treated_as_out_of_memory() -> None:
    step = toy_step(toy_config())
    step.objective.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("shapes do not fit")))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        step.run([toy_batch(1)], 1)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("max_padded_tokens", [None, 30])
def test_a_memory_check_changes_nothing(precision: str, max_padded_tokens: int | None) -> None:
    checked, fresh = (toy_step(toy_config(), precision) for _ in range(2))
    torch.manual_seed(5)
    before = weights(checked).clone()
    if max_padded_tokens is not None:
        limited(checked, max_padded_tokens)
    assert checked.try_batch(toy_batch(9, num_pairs=10)) > 0
    assert torch.equal(weights(checked), before)
    assert (checked.max_padded_tokens is None) == (max_padded_tokens is None)
    checked.max_padded_tokens = None
    torch.manual_seed(5)
    checked.objective._forward_pre_hooks.clear()
    for number in (1, 2):
        checked.run([toy_batch(number)], number)
    torch.manual_seed(5)
    for number in (1, 2):
        fresh.run([toy_batch(number)], number)
    assert same(everything(checked), everything(fresh))


def test_a_batch_without_targets_has_no_gradient() -> None:
    config = toy_config(learning_rate=1e-2)
    plain, with_empty = without_dropout(toy_step(config)), without_dropout(toy_step(config))
    one = plain.run([toy_batch(1)], 1)
    two = with_empty.run([toy_batch(1), toy_batch(2).without_targets()], 1)
    assert torch.equal(one.loss, two.loss)
    assert torch.equal(weights(plain), weights(with_empty))


# ---- precision ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_model_learns_to_reverse_sequences(precision: str) -> None:
    step = toy_step(toy_config(learning_rate=1e-2, schedule="constant", warmup_steps=20), precision)
    losses = [float(step.run([batch := toy_batch(n % 4)], n).nll / batch.num_tgt_tokens) for n in range(1, 151)]
    assert sum(losses[-8:]) < 0.55 * sum(losses[:8])
    assert all(p.dtype == torch.float32 for p in step.model.parameters())


def test_fp16_clips_the_true_gradient_and_halves_the_scale_on_overflow() -> None:
    step, reference = (without_dropout(toy_step(toy_config(), precision)) for precision in ("fp16", "fp32"))
    norms = [float(one.run([toy_batch(1)], 1).grad_norm) for one in (step, reference)]
    assert norms[0] == pytest.approx(norms[1], rel=0.02)  # not the 65,536 times larger norm for the scaled loss
    before, scale = weights(step).clone(), step.scaler.get_scale()
    step.model.decoder_norm.weight.register_hook(lambda grad: grad * float("inf"))
    assert not step.run([toy_batch(2)], 2).is_finite
    assert torch.equal(weights(step), before)
    assert step.scaler.get_scale() == scale / 2


def test_copies_of_weights_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training on CUDA in bf16 has them; the graph has no break, and the gradients do not change."""
    steps = [without_dropout(toy_step(toy_config(), "bf16")) for _ in range(2)]
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    steps[1].compile()
    for step in steps:
        step.copies = WeightCopies(step.model, torch.bfloat16)
        for number in (1, 2):
            step.run([toy_batch(number)], number)
    torch.testing.assert_close(weights(steps[0]), weights(steps[1]), rtol=1e-4, atol=1e-5)


def test_compiled_equals_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Test this with masks of tokens and LayerDrop; the test above has neither."""
    regularize_without_chance(monkeypatch.setattr)
    config = toy_config(learning_rate=1e-2, eps=1e-3, **REGULARIZED)
    eager = without_dropout(toy_step(config))
    compiled = without_dropout(toy_step(config))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager", fullgraph=True))
    compiled.compile()
    assert (eager.is_compiled, compiled.is_compiled) == (False, True)
    for number in range(1, 4):
        eager.run([toy_batch(number)], number)
        compiled.run([toy_batch(number)], number)
    torch.testing.assert_close(weights(eager), weights(compiled), rtol=1e-4, atol=1e-6)

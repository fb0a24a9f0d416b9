"""Consistency regularization (R-Drop, SimCut) and token dropout."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toy_training import toy_batch, toy_config, toy_step

from mtformer.model import ops
from mtformer.text.tokenizer import EOS
from mtformer.training import loss as loss_module
from mtformer.training.loss import PAD, linear_cross_entropy
from mtformer.training.step import StepResult, TrainingStep

M, D, V = 13, 6, 19
Pair = tuple[float, float]


def example(has_second_loss: bool, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return states of two passes over M tokens, weights, targets, and a bias that excludes a class."""
    generator = torch.Generator().manual_seed(3)
    hidden, weight = (torch.randn(rows, D, generator=generator, dtype=dtype) for rows in (2 * M, V))
    target_M = torch.randint(3, V, (M,), generator=generator)
    target_M[::5] = PAD
    bias = torch.randn(V, generator=generator, dtype=dtype)
    bias[2] = -math.inf
    second_M = target_M if has_second_loss else torch.full_like(target_M, PAD)
    target = torch.stack([target_M, second_M], dim=1).flatten()
    return hidden.requires_grad_(), weight.requires_grad_(), target, bias.requires_grad_()


def naive(hidden: Tensor, weight: Tensor, target: Tensor, kl_weights: Pair, bias: Tensor | None) -> Tensor:
    """Return the sum of the losses of all rows (see `linear_cross_entropy`) and of the weighted divergences."""
    total = linear_cross_entropy(hidden, weight, target, 0.1, bias)[0]
    logits = hidden @ weight.t()
    if bias is not None:
        is_possible = ~bias.isinf()
        logits = logits[:, is_possible] + bias[is_possible]
    for row in range(0, len(target), 2):
        if target[row] != PAD:
            p, q = logits[row : row + 2].softmax(dim=1)
            total = total + kl_weights[0] * (p * (p / q).log()).sum() + kl_weights[1] * (q * (q / p).log()).sum()
    return total


@pytest.mark.parametrize("kl_weights", [(3.0, 0.0), (2.5, 2.5), (0.3, 1.2)])
@pytest.mark.parametrize("chunk_rows", [1, 7, 8, 1000])
@pytest.mark.parametrize("has_bias", [False, True])
def test_divergence_and_gradients_equal_the_formula(
    kl_weights: Pair, chunk_rows: int, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of a row itself is tested in test_loss.py."""
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", chunk_rows * V)
    monkeypatch.setitem(loss_module.BLOCK_LOGITS, "cpu", 5 * V)
    hidden, weight, target, bias = example(has_second_loss=kl_weights[1] > 0)
    inputs = (hidden, weight, bias) if has_bias else (hidden, weight)
    expected = naive(hidden, weight, target, kl_weights, bias if has_bias else None)
    expected_grads = torch.autograd.grad(expected * 0.3, inputs)
    objective, loss, nll = linear_cross_entropy(
        hidden, weight, target, 0.1, bias if has_bias else None, kl_weights=kl_weights
    )
    torch.testing.assert_close(objective, expected, rtol=1e-12, atol=1e-12)
    for grad, expected_grad in zip(torch.autograd.grad(objective * 0.3, inputs), expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-12)
    plain, _, plain_nll = linear_cross_entropy(hidden, weight, target, 0.1, bias if has_bias else None)
    torch.testing.assert_close((loss, nll), (plain.detach(), plain_nll))
    assert objective > plain + 1


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 4e-3)])
@pytest.mark.parametrize("kl_weights", [(3.0, 0.0), (2.5, 2.5)])
def test_divergence_of_16_bit_states(dtype: torch.dtype, tolerance: float, kl_weights: Pair) -> None:
    hidden, weight, target, bias = example(kl_weights[1] > 0, torch.float32)
    narrow = hidden.detach().to(dtype).requires_grad_()
    objective, *_ = linear_cross_entropy(narrow, weight, target, 0.1, bias, kl_weights)
    grad_hidden, *grads = torch.autograd.grad(objective, (narrow, weight, bias))
    expected = naive(hidden, weight, target, kl_weights, bias)
    expected_hidden, *expected_grads = torch.autograd.grad(expected, (hidden, weight, bias))
    assert (objective.dtype, grad_hidden.dtype) == (torch.float32, dtype)
    assert all(grad.dtype == torch.float32 for grad in grads)
    torch.testing.assert_close(objective, expected, rtol=tolerance, atol=0)
    assert (grad_hidden.float() - expected_hidden).norm() < tolerance * expected_hidden.norm()
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert (grad - expected_grad).norm() < tolerance * expected_grad.norm()


def test_confident_but_different_predictions_have_a_finite_divergence() -> None:
    weight = torch.zeros(V, 2)
    weight[3, 0] = weight[4, 1] = 200.0
    hidden = torch.eye(2).requires_grad_()
    objective, *_ = linear_cross_entropy(hidden, weight, torch.tensor([3, PAD]), 0.0, kl_weights=(1.0, 0.0))
    assert objective.item() == pytest.approx(200, rel=1e-3)
    assert torch.autograd.grad(objective, hidden)[0].isfinite().all()


class Largest(TorchDispatchMode):
    """Records the largest number of elements in a result."""

    numel = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operator(*args, **(kwargs or {}))
        self.numel = max(self.numel, *(one.numel() for one in tree_leaves(result) if isinstance(one, Tensor)), 0)
        return result


def test_no_tensor_has_tokens_x_vocabulary_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", 8 * V)
    hidden, weight, target, bias = example(has_second_loss=True)
    with Largest() as largest:
        linear_cross_entropy(hidden, weight, target, 0.1, bias, (1.0, 1.0))[0].backward()
    assert max(2 * M * D, V * D) <= largest.numel <= max(8 * V, 2 * M * D)
    assert largest.numel < M * V


# ---- steps ----------------------------------------------------------------------------------------------------------


def run(step: TrainingStep, numbers: Iterator[int] | range = range(1, 4)) -> list[StepResult]:
    return [step.run([toy_batch(number), toy_batch(number + 10)], number) for number in numbers]


def weights(step: TrainingStep) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in step.model.parameters()])


def losses(results: list[StepResult]) -> list[tuple[float, float]]:
    return [(float(result.loss), float(result.nll)) for result in results]


@pytest.mark.parametrize("token_dropout", [0.0, 0.2])
def test_simcut_with_weight_0_equals_no_consistency(token_dropout: float) -> None:
    """The second pass is left out, so the random state is the same too."""
    outcomes = []
    for more in ({}, {"consistency": "simcut", "consistency_weight": 0.0, "cutoff": 0.4}):
        step = toy_step(toy_config(token_dropout=token_dropout, **more))
        outcomes.append((losses(run(step)), weights(step), torch.get_rng_state()))
    assert outcomes[0][0] == outcomes[1][0]
    assert all(map(torch.equal, outcomes[0][1:], outcomes[1][1:]))


def gradient(step: TrainingStep, seed: int) -> tuple[float, Tensor]:
    """Return the objective of a batch and its gradient."""
    step.model.train()
    objective, _, _ = step.loss(toy_batch(seed))
    gradients = torch.autograd.grad(objective, list(step.model.parameters()))
    return objective.item(), torch.cat([one.flatten() for one in gradients])


def test_rdrop_with_weight_0_equals_the_mean_of_two_plain_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain passes repeat the dropout masks of the first and the second half of the doubled batch."""
    masks: list[Tensor] = []

    def record(x: Tensor, p: float) -> Tensor:
        masks.append((torch.rand(x.shape) >= p) / (1 - p))
        return x * masks[-1]

    monkeypatch.setattr(ops, "dropout", record)
    mean, expected = gradient(toy_step(toy_config(consistency="rdrop", consistency_weight=0.0)), 1)
    passes = []
    for half in (0, 1):
        rest = iter(masks)
        monkeypatch.setattr(ops, "dropout", lambda x, p, half=half, rest=rest: x * next(rest).chunk(2)[half])
        passes.append(gradient(toy_step(toy_config()), 1))
        assert next(rest, None) is None
    (first, first_gradient), (second, second_gradient) = passes
    assert mean == pytest.approx((first + second) / 2, rel=1e-6)
    torch.testing.assert_close(expected, (first_gradient + second_gradient) / 2, rtol=1e-4, atol=1e-5)
    assert abs(first - second) > 1e-3 * mean, "the masks differ"


@pytest.mark.parametrize("consistency", ["rdrop", "simcut"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_identical_passes_have_divergence_0(consistency: str, precision: str) -> None:
    """The loss differs from that of one pass by rounding only, because matrix products depend on the batch size."""
    more = {"cutoff": 0.0} if consistency == "simcut" else {}
    step = toy_step(toy_config(consistency=consistency, consistency_weight=100.0, **more), precision, dropout=0.0)
    step.model.train()
    objective, loss, _ = step.loss(toy_batch(1))
    assert torch.equal(objective.detach(), loss)
    expected, expected_gradient = gradient(toy_step(toy_config(), precision, dropout=0.0), 1)
    own, own_gradient = gradient(step, 1)
    tolerance = 1e-5 if precision == "fp32" else 1e-2
    assert own == pytest.approx(expected, rel=tolerance)
    assert (own_gradient - expected_gradient).norm() < tolerance * expected_gradient.norm()


def test_the_first_steps_have_no_consistency() -> None:
    plain, late, early = (
        losses(run(toy_step(toy_config(**more))))
        for more in ({}, {"consistency": "rdrop", "consistency_start": 2}, {"consistency": "rdrop"})
    )
    assert late[:2] == plain[:2]
    assert late[2] != plain[2]
    assert early[0] != plain[0]


@pytest.mark.parametrize("more", [{"consistency": "rdrop"}, {"consistency": "simcut", "cutoff": 0.3}])
def test_the_logged_loss_does_not_include_the_divergence(more: dict[str, Any]) -> None:
    step = toy_step(toy_config(**more), dropout=0.3)
    step.model.train()
    torch.manual_seed(7)
    objective, loss, nll = step.loss(toy_batch(1))
    torch.manual_seed(7)
    result = step.run([toy_batch(1)], 1)
    assert (result.loss, result.nll) == (loss, nll)
    assert objective > 1.01 * loss


def test_the_loss_of_simcut_is_that_of_the_first_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    step, plain = (toy_step(toy_config(**more), dropout=0.0) for more in ({"consistency": "simcut", "cutoff": 0.5}, {}))
    (one,), (other,) = (losses([each.run([toy_batch(1)], 1)]) for each in (step, plain))
    assert one == pytest.approx(other, rel=1e-6)


@pytest.mark.parametrize("more", [{"consistency": "rdrop"}, {"consistency": "simcut"}])
def test_training_with_consistency_makes_passes_agree(more: dict[str, Any]) -> None:
    """Compare the divergence of the passes with that of a model trained without it."""
    divergences = []
    for each in ({}, more):
        settings = {"learning_rate": 1e-2, "schedule": "constant", **each}
        step = toy_step(toy_config(**settings), dropout=0.3)
        run(step, range(1, 80))
        measure = toy_step(toy_config(**more), dropout=0.3)
        measure.model.load_state_dict(step.model.state_dict())
        measure.model.train()
        sums = [measure.loss(toy_batch(number)) for number in range(20)]
        divergences.append(sum((objective - loss).item() for objective, loss, _ in sums))
    assert divergences[1] < 0.6 * divergences[0]


@pytest.mark.parametrize("more", [{"consistency": "rdrop"}, {"consistency": "simcut"}, {"token_dropout": 0.5}])
def test_validation_has_one_pass_without_dropout(more: dict[str, Any]) -> None:
    step, plain = toy_step(toy_config(**more)), toy_step(toy_config())
    rows: list[int] = []
    step.model.register_forward_pre_hook(lambda _, inputs: rows.append((len(inputs[0]), len(inputs))))
    before, batch = torch.get_rng_state(), toy_batch(1)
    assert step.evaluate(batch) == plain.evaluate(batch)
    assert rows == [(batch.num_pairs, 3)]
    assert torch.equal(torch.get_rng_state(), before)


# ---- masks of tokens ------------------------------------------------------------------------------------------------


def masks_of(**training: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return source ids, and the masks of source and target tokens that the model gets in training."""
    step, found = toy_step(toy_config(**training)), []
    step.model.register_forward_pre_hook(lambda _, inputs: found.append(inputs))
    step.model.train()
    step.loss(toy_batch(1, num_pairs=150))
    ((src_BS, _, _, src_mask_BS, tgt_mask_BT),) = found
    return src_BS, src_mask_BS, tgt_mask_BT


@pytest.mark.parametrize(
    ("training", "shares"),
    [
        ({"token_dropout": 0.25}, [0.25]),
        ({"consistency": "simcut", "cutoff": 0.4}, [0.0, 0.4]),
        ({"consistency": "simcut", "cutoff": 0.4, "token_dropout": 0.25}, [0.25, 0.55]),
        ({"consistency": "rdrop", "token_dropout": 0.25}, [0.25, 0.25]),
    ],
)
def test_share_of_tokens_without_embedding(training: dict[str, Any], shares: list[float]) -> None:
    src_BS, src_mask_BS, tgt_mask_BT = masks_of(**training)
    is_word_BS = src_BS > EOS
    halves = zip(*(x.chunk(len(shares)) for x in (src_mask_BS, is_word_BS, tgt_mask_BT)), strict=True)
    for (src_mask, is_word, tgt_mask), share in zip(halves, shares, strict=True):
        assert (~src_mask[is_word]).double().mean().item() == pytest.approx(share, abs=0.02)
        assert (~tgt_mask[:, 1:]).double().mean().item() == pytest.approx(share, abs=0.02)
    assert src_mask_BS[src_BS == EOS].all()
    assert tgt_mask_BT[:, 0].all()


def test_there_are_no_masks_without_these_options() -> None:
    step, found = toy_step(toy_config()), []
    step.model.register_forward_pre_hook(lambda _, inputs: found.append(inputs))
    step.model.train()
    step.loss(toy_batch(1))
    assert [len(inputs) for inputs in found] == [3]


def test_fp16_chunks_are_smaller_with_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, target, _ = example(True, torch.float32)
    monkeypatch.setattr(loss_module, "FP16_ROWS", 16)
    sizes: list[int] = []
    real = loss_module._divergences

    def record(logits_CV: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(logits_CV))
        return real(logits_CV, *rest)

    monkeypatch.setattr(loss_module, "_divergences", record)
    found = linear_cross_entropy(hidden.half(), weight, target, 0.1, None, (1.5, 1.5))[0]
    assert sizes == [4] * 6 + [2]
    assert F.l1_loss(found, naive(hidden, weight, target, (1.5, 1.5), None)) < 0.01 * found

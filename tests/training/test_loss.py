"""The chunked loss against the naive formula."""

import math

import pytest
import torch
from torch import Tensor

from mtformer.training import loss as loss_module
from mtformer.training.loss import PAD, linear_cross_entropy

N, D, V = 37, 6, 19


def example(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, D, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(V, D, generator=generator, dtype=dtype).requires_grad_()
    target = torch.randint(1, V, (N,), generator=generator)
    target[::5] = PAD
    return hidden, weight, target


def naive(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """- sum_v q_v log p_v; q gives smoothing / (V - 1) to each class but pad, and what remains to the target."""
    total = hidden.new_zeros(())
    for h, y in zip(hidden, target.tolist(), strict=True):
        if y == PAD:
            continue
        log_p = torch.log_softmax(weight @ h, dim=0)
        q = torch.full_like(log_p, smoothing / (V - 1))
        q[PAD] = 0.0
        q[y] += 1 - smoothing
        assert math.isclose(q.sum().item(), 1.0, rel_tol=1e-6)
        total = total - (q * log_p).sum()
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 1000])
def test_equals_the_naive_formula(smoothing: float, chunk_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", chunk_tokens * V)
    hidden, weight, target = example()
    expected = naive(hidden, weight, target, smoothing)
    expected_grads = torch.autograd.grad(expected * 0.3, (hidden, weight))
    loss, nll = linear_cross_entropy(hidden, weight, target, smoothing)
    grads = torch.autograd.grad(loss * 0.3, (hidden, weight))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(nll, naive(hidden, weight, target, 0.0), rtol=1e-12, atol=1e-12)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-12)


def test_equals_torch_without_smoothing() -> None:
    hidden, weight, target = example()
    loss, _ = linear_cross_entropy(hidden, weight, target, 0.0)
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t(), target, ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(loss, expected)


def test_pad_tokens_give_no_loss_and_no_gradient() -> None:
    hidden, weight, target = example()
    loss, nll = linear_cross_entropy(hidden, weight, torch.full_like(target, PAD), 0.1)
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert loss.item() == nll.item() == 0.0
    assert all(not grad.any() for grad in grads)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 4e-3)])
def test_narrow_states_keep_loss_and_weight_gradient_wide(dtype: torch.dtype, tolerance: float) -> None:
    hidden, weight, target = example(torch.float32)
    narrow = hidden.detach().to(dtype).requires_grad_()
    loss, _ = linear_cross_entropy(narrow, weight, target, 0.1)
    grad_hidden, grad_weight = torch.autograd.grad(loss, (narrow, weight))
    expected = naive(hidden, weight, target, 0.1)
    expected_hidden, expected_weight = torch.autograd.grad(expected, (hidden, weight))
    assert (loss.dtype, grad_hidden.dtype, grad_weight.dtype) == (torch.float32, dtype, torch.float32)
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    assert (grad_hidden.float() - expected_hidden).norm() < tolerance * expected_hidden.norm()
    assert (grad_weight - expected_weight).norm() < tolerance * expected_weight.norm()


def test_a_hopeless_token_has_a_finite_loss() -> None:
    hidden = torch.tensor([[1000.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [0.0], [1.0]], requires_grad=True)
    loss, _ = linear_cross_entropy(hidden, weight, torch.tensor([1]), 0.0)
    assert math.isfinite(loss.item())

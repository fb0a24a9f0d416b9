"""Compare the chunked loss with a naive implementation."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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


def naive(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float, bias: Tensor | None = None) -> Tensor:
    """Return - sum_v q_v log p_v; q spreads the smoothing evenly over all possible classes."""
    total, bias = hidden.new_zeros(()), weight.new_zeros(V) if bias is None else bias
    is_possible = bias != -math.inf
    for h, y in zip(hidden, target.tolist(), strict=True):
        if y == PAD:
            continue
        log_p = torch.log_softmax(weight[is_possible] @ h + bias[is_possible], dim=0)
        q = torch.zeros(V, dtype=log_p.dtype)
        q[is_possible] = smoothing / int(is_possible[PAD + 1 :].sum())
        q[PAD] = 0.0
        q[y] += 1 - smoothing
        assert math.isclose(q.sum().item(), 1.0, rel_tol=1e-6)
        total = total - (q[is_possible] * log_p).sum()
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 1000])
def test_loss_equals_the_naive_formula(smoothing: float, chunk_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", chunk_tokens * V)
    monkeypatch.setitem(loss_module.BLOCK_LOGITS, "cpu", 5 * V)
    hidden, weight, target = example()
    expected = naive(hidden, weight, target, smoothing)
    expected_grads = torch.autograd.grad(expected * 0.3, (hidden, weight))
    loss, _, nll = linear_cross_entropy(hidden, weight, target, smoothing)
    grads = torch.autograd.grad(loss * 0.3, (hidden, weight))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(nll, naive(hidden, weight, target, 0.0), rtol=1e-12, atol=1e-12)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("closed", [[], [2], [PAD, 2, 7]])
def test_loss_with_a_bias_equals_the_naive_formula(
    smoothing: float, closed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also test biases of -inf, which exclude a class."""
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", 7 * V)
    hidden, weight, target = example()
    bias = torch.randn(V, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    bias[closed] = -math.inf
    bias.requires_grad_()
    for piece in closed[-2:]:
        target[target == piece] = 5
    everything = (hidden, weight, bias)
    expected = naive(hidden, weight, target, smoothing, bias)
    expected_grads = torch.autograd.grad(expected * 0.3, everything)
    loss, _, nll = linear_cross_entropy(hidden, weight, target, smoothing, bias)
    grads = torch.autograd.grad(loss * 0.3, everything)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(nll, naive(hidden, weight, target, 0.0, bias), rtol=1e-12, atol=1e-12)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-12)
    assert not grads[2][closed].any()


def test_loss_without_smoothing_equals_torch() -> None:
    hidden, weight, target = example()
    loss, _, _ = linear_cross_entropy(hidden, weight, target, 0.0)
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t(), target, ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(loss, expected)


class Products(TorchDispatchMode):
    """Counts matrix products, and zero tensors of the size of the weight gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.number = self.gradients = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operator.overloadpacket.__name__
        result = operator(*args, **(kwargs or {}))
        self.number += name in ("mm", "addmm")
        self.gradients += "zeros" in name and result.shape == (V, D)
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_without_gradients_there_is_one_product_per_chunk(
    dtype: torch.dtype, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(loss_module.CHUNK_LOGITS, "cpu", 13 * V)  # 3 chunks
    hidden, weight, target = example(torch.float32)
    bias = torch.randn(V, generator=torch.Generator().manual_seed(1)).requires_grad_() if has_bias else None
    with Products() as training:
        expected = linear_cross_entropy(hidden.to(dtype), weight, target, 0.1, bias)
    with torch.no_grad(), Products() as validation:
        found = linear_cross_entropy(hidden.to(dtype), weight, target, 0.1, bias)
    assert [one.item() for one in found] == [one.item() for one in expected]
    assert (training.number, training.gradients) == (9 + has_bias, 1)  # with a bias, one more for the uniform part
    assert (validation.number, validation.gradients) == (3 + has_bias, 0)


def test_float16_chunks_have_a_maximum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, target = example(torch.float32)
    with Products() as whole:
        expected = torch.autograd.grad(linear_cross_entropy(hidden.half(), weight, target, 0.1)[0], weight)[0]
    monkeypatch.setattr(loss_module, "FP16_ROWS", 10)
    with Products() as limited:
        found = torch.autograd.grad(linear_cross_entropy(hidden.half(), weight, target, 0.1)[0], weight)[0]
    assert (whole.number, limited.number) == (3, 12)
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)


def test_padding_has_no_loss_and_no_gradient() -> None:
    hidden, weight, target = example()
    loss, _, nll = linear_cross_entropy(hidden, weight, torch.full_like(target, PAD), 0.1)
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert loss.item() == nll.item() == 0.0
    assert all(not grad.any() for grad in grads)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 4e-3)])
def test_loss_and_weight_gradient_are_float32_for_16_bit_states(
    dtype: torch.dtype, tolerance: float, has_bias: bool
) -> None:
    hidden, weight, target = example(torch.float32)
    narrow = hidden.detach().to(dtype).requires_grad_()
    biases = (torch.linspace(-1.0, 1.0, V).requires_grad_(),) if has_bias else ()
    loss, _, _ = linear_cross_entropy(narrow, weight, target, 0.1, *biases)
    grad_hidden, *grads = torch.autograd.grad(loss, (narrow, weight, *biases))
    expected = naive(hidden, weight, target, 0.1, *biases)
    expected_hidden, *expected_grads = torch.autograd.grad(expected, (hidden, weight, *biases))
    assert (loss.dtype, grad_hidden.dtype) == (torch.float32, dtype)
    assert all(grad.dtype == torch.float32 for grad in grads)
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    assert (grad_hidden.float() - expected_hidden).norm() < tolerance * expected_hidden.norm()
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        assert (grad - expected_grad).norm() < tolerance * expected_grad.norm()


def test_the_validation_loss_of_a_diverged_model_is_high() -> None:
    hidden, weight = torch.ones(1, 1), torch.full((10, 1), 2000.0)
    weight[5] = 0.0
    with torch.no_grad():
        loss, _, nll = linear_cross_entropy(hidden, weight, torch.tensor([5]), 0.1)
    assert nll.item() == pytest.approx(2000, rel=0.01)
    assert loss.item() == pytest.approx(0.9 * 2000 + 0.1 / 9 * 2000, rel=0.01)


def test_loss_of_a_very_improbable_token_is_finite() -> None:
    hidden = torch.tensor([[1000.0]], requires_grad=True)
    weight = torch.tensor([[0.0], [0.0], [1.0]], requires_grad=True)
    loss, _, _ = linear_cross_entropy(hidden, weight, torch.tensor([1]), 0.0)
    assert loss.item() == pytest.approx(-math.log(torch.finfo(torch.float32).tiny), rel=1e-4)


def memorized_batch(sharpness: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return states and targets with reference probabilities of about 0.9, as after training on these tokens."""
    num_tokens, width, num_pieces = 200, 64, 1000
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(num_pieces, width, generator=generator) * width**-0.5
    target = torch.randint(1, num_pieces, (num_tokens,), generator=generator)
    hidden = weight[target] * sharpness + 0.3 * torch.randn(num_tokens, width, generator=generator)
    hidden = hidden.bfloat16().float()  # rounded as in the model, because only the loss is compared
    return hidden, weight, target


def autocast_gradients(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return gradients as with `torch.autocast`: product in bfloat16, softmax and loss in float32."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = torch.nn.functional.linear(hidden, weight)
    log_p = logits.float().log_softmax(dim=1)
    uniform = smoothing / (weight.size(0) - 1)
    loss = -((1 - smoothing) * log_p.gather(1, target[:, None])).sum() - uniform * log_p[:, PAD + 1 :].sum()
    return torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.parametrize(("sharpness", "limit"), [(0.0, 1.4), (2.0, 1.4), (9.0, 1.1), (9.5, 1.1), (10.0, 1.1)])
def test_bfloat16_gradients_are_at_least_as_accurate_as_autocast(sharpness: float, limit: float) -> None:
    """Test models from untrained (sharpness 0) to confident, for which p - q is a small difference."""
    hidden, weight, target = memorized_batch(sharpness)

    def gradients(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        states = hidden.to(dtype).requires_grad_()
        master = weight.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
        return torch.autograd.grad(linear_cross_entropy(states, master, target, 0.1)[0], (states, master))

    autocast = autocast_gradients(hidden.clone().requires_grad_(), weight.clone().requires_grad_(), target, 0.1)
    for exact, own, peer in zip(gradients(torch.float64), gradients(torch.bfloat16), autocast, strict=True):
        assert (own - exact).norm() <= limit * (peer - exact).norm()

"""Attention on CUDA: compare fused kernels with the unfused computation in float64, and check which kernels run."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mtformer.model.attention import MultiHeadAttention, attend, attention_weights
from mtformer.model.ops import padding_mask

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]
B, H, K = 5, 4, 64
TOLERANCE = {torch.float32: 5e-5, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}
"""Maximum norm of the difference, relative to the norm."""
LENGTHS = [(1, 1), (1, 70), (2, 3), (7, 8), (8, 9), (31, 33), (64, 63), (65, 64), (70, 1), (128, 130)]
dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.fixture
def _as_in_training():
    """Disable cuDNN's attention, as training does."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def heads(T: int, S: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values with the memory layout of a projection, (B, T, H, K)."""
    generator = torch.Generator().manual_seed(1000 * T + S)
    shapes = [(B, T, H, K), (B, S, H, K), (B, S, H, K)]
    drawn = [torch.randn(shape, generator=generator).to(DEVICE, dtype) for shape in shapes]
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in drawn)
    return q, k, v


def mask_of(kind: str, T: int, S: int) -> Tensor | None:
    """Return a mask for sentences of 1 to S positions, a mask with a length per query, or None."""
    lengths_B = torch.linspace(S, 1, B).long().to(DEVICE)
    if kind == "padding":
        return padding_mask(lengths_B, S)[:, None, None, :]
    if kind == "per query":
        return padding_mask(1 + (torch.arange(T, device=DEVICE) + lengths_B[:, None]) % S, S)[:, None]
    return None


def assert_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert actual.isfinite().all()
    assert (actual.double() - expected).norm() <= tolerance * expected.norm()


@dtypes
@pytest.mark.parametrize("kind", ["none", "padding", "per query", "causal"])
@pytest.mark.usefixtures("_as_in_training")
def test_fused_equals_unfused_forward_and_backward(kind: str, dtype: torch.dtype) -> None:
    for T, S in LENGTHS:
        S = T if kind == "causal" else S
        fused = heads(T, S, dtype)
        exact = [x.detach().double().requires_grad_() for x in fused]
        mask, is_causal = mask_of(kind, T, S), kind == "causal"
        out = attend(*fused, mask, is_causal)
        expected = attention_weights(*exact[:2], mask, is_causal) @ exact[2]
        assert_near(out, expected, TOLERANCE[dtype])
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
        out.backward(grad)
        expected.backward(grad.double())
        assert_near(*(torch.cat([x.grad.flatten() for x in side]) for side in (fused, exact)), 2 * TOLERANCE[dtype])


@dtypes
@pytest.mark.parametrize("kind", ["none", "padding", "per query", "causal"])
def test_forward_is_correct_with_all_kernels_allowed(kind: str, dtype: torch.dtype) -> None:
    for T, S in LENGTHS:
        S = T if kind == "causal" else S
        with torch.inference_mode():
            q, k, v = (x.detach() for x in heads(T, S, dtype))
            mask, is_causal = mask_of(kind, T, S), kind == "causal"
            expected = attention_weights(q.double(), k.double(), mask, is_causal) @ v.double()
            assert_near(attend(q, k, v, mask, is_causal), expected, TOLERANCE[dtype])


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the autograd nodes of all fused attention kernels that run."""
    fused, seen = functional.scaled_dot_product_attention, list[str]()

    def recorded(*arguments: Tensor, **named: Tensor) -> Tensor:
        out = fused(*arguments, **named)
        seen.append(out.grad_fn.name())
        return out

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recorded)
    return seen


def multi_head_attention() -> MultiHeadAttention:
    layer = MultiHeadAttention(H * K, H)
    for projection in (layer.in_projection, layer.out_projection):
        torch.nn.init.xavier_uniform_(projection.weight)
    return layer.to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("T", [2, 30, 31, 64])
@pytest.mark.usefixtures("_as_in_training")
def test_causal_self_attention_uses_the_flash_kernel(T: int, dtype: torch.dtype, kernels: list[str]) -> None:
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("PyTorch's flash attention needs compute capability 8.0")
    layer = multi_head_attention()
    layer(torch.randn(B, T, H * K, device=DEVICE, dtype=dtype), is_causal=True)
    assert kernels == ["ScaledDotProductFlashAttentionBackward0"]


@dtypes
@pytest.mark.parametrize("S", [29, 32])
@pytest.mark.usefixtures("_as_in_training")
def test_masked_attention_does_not_store_the_weights(S: int, dtype: torch.dtype, kernels: list[str]) -> None:
    layer = multi_head_attention()
    x, source = (torch.randn(B, length, H * K, device=DEVICE, dtype=dtype) for length in (17, S))
    mask = mask_of("padding", S, S)
    layer(source, mask=mask)
    layer(x, layer.keys_values(source), mask)
    assert len(kernels) == 2
    assert all("Efficient" in name or "Flash" in name for name in kernels), kernels

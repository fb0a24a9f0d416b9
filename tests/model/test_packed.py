"""Packed weights against the plain ones."""

import copy

import numpy as np
import pytest
import torch
from tiny import sources, tiny_model, tokens

from mtformer.decoding.topk import top_candidates
from mtformer.errors import DeviceError
from mtformer.model.linear import Linear
from mtformer.model.packed import PackedLinear, PackedMatrix, for_decoding, pack
from mtformer.model.transformer import Transformer

CPU = torch.device("cpu")
TOLERANCE = {"fp32": 1e-6, "bf16": 2e-2, "int8": 3e-2}
"""Of the norm of the difference, relative to the norm."""


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def models(precision: str, **changes: object) -> tuple[Transformer, Transformer]:
    """A float32 model, and the same packed."""
    plain = tiny_model(**changes).float().eval()
    return plain, for_decoding(copy.deepcopy(plain), CPU, precision)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (1, 1, 8)])
@torch.no_grad()
def test_a_packed_matrix_is_the_plain_product(precision: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    linear, x = Linear(8, 16, 24), torch.randn(shape)
    linear.bias.normal_()
    packed = PackedLinear(linear, precision)
    for rows in ((0, None), (0, 16), (16, None), (8, 24)):
        off = distance(packed(x, *rows), linear(x, *rows))
        assert off < TOLERANCE[precision]
        assert precision == "fp32" or off > 1e-4, "not narrow at all"


@torch.no_grad()
def test_int8_is_what_numpy_says() -> None:
    torch.manual_seed(2)
    weight, bias, x = torch.randn(6, 32), torch.randn(6), torch.randn(4, 32)
    scale_V = np.abs(weight.numpy()).max(axis=1) / 127
    weight_VD = np.rint(weight.numpy() / scale_V[:, None])
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = (high - low) / 255
    zero = round(-low / scale)
    x_ND = np.clip(np.rint(x.numpy() / scale) + zero, 0, 255) - zero
    expected_NV = x_ND @ weight_VD.T * scale * scale_V + bias.numpy()
    np.testing.assert_allclose(PackedMatrix(weight, bias, "int8")(x).numpy(), expected_NV, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_position": "post", "num_kv_heads": 2}, {"positions": "rotary", "activation": "swiglu"}],
    ids=["default", "post-norm, grouped heads", "rotary, swiglu"],
)
@torch.inference_mode()
def test_a_packed_model_gives_nearly_the_same_logits(precision: str, changes: dict[str, object]) -> None:
    plain, packed = models(precision, **changes)
    src_BS, lengths_B = sources([7, 2, 4])
    expected = plain.project(plain(src_BS, lengths_B, tokens(3, 6)))
    found = packed.project(packed(src_BS, lengths_B, tokens(3, 6)))
    assert found.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
    assert distance(found, expected) < TOLERANCE[precision]
    caches = [model.start(model.encode(src_BS, lengths_B), 2, 4) for model in (plain, packed)]
    for t in range(4):
        steps = [model.step(tokens(6, seed=t), cache) for model, cache in zip((plain, packed), caches, strict=True)]
        assert distance(steps[1], steps[0]) < TOLERANCE[precision]


@torch.inference_mode()
def test_rounded_logits_are_put_right_where_it_matters() -> None:
    """After a step in bf16 the likeliest tokens get log-probabilities as if only the products before were in bf16."""
    _, packed = models("bf16")
    src_BS, lengths_B = sources([7, 2, 4])
    cache = packed.start(packed.encode(src_BS, lengths_B), 2, 4)
    logits_NV = packed.step(tokens(6), cache)
    assert cache.exact_logits is not None
    row_NV = torch.arange(6).unsqueeze(1).expand_as(logits_NV)
    token_NV = torch.arange(logits_NV.size(1)).expand_as(logits_NV)
    exact_NV = cache.exact_logits(row_NV, token_NV)
    assert 1e-4 < distance(logits_NV, exact_NV) < 5e-3
    expected_BRV = exact_NV.log_softmax(-1).view(3, 2, -1)
    rounded_BRV = logits_NV.log_softmax(-1, dtype=torch.float32).view(3, 2, -1)

    def exact(beam_BX: torch.Tensor, token_BX: torch.Tensor) -> torch.Tensor:
        row_BX = beam_BX + 2 * torch.arange(3).unsqueeze(1)
        return exact_NV[row_BX, token_BX] - logits_NV[row_BX, token_BX].float()

    score_BK, beam_BK, token_BK = top_candidates(rounded_BRV.clone(), torch.zeros(3, 2), 8, exact)
    expected_BK = expected_BRV[torch.arange(3).unsqueeze(1), beam_BK, token_BK]
    rounded_BK = rounded_BRV[torch.arange(3).unsqueeze(1), beam_BK, token_BK]
    assert (score_BK - expected_BK).abs().max() < 0.5 * (rounded_BK - expected_BK).abs().max()
    assert torch.equal(score_BK, score_BK.sort(dim=1, descending=True).values)


def test_precisions_that_do_not_round_have_nothing_to_put_right() -> None:
    for precision in ("fp32", "int8"):
        _, packed = models(precision)
        with torch.inference_mode():
            cache = packed.start(packed.encode(*sources([3])), 1, 1)
            packed.step(tokens(1), cache)
        assert cache.exact_logits is None


def test_int8_that_pytorch_does_not_have_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "quantize_per_channel")
    with pytest.raises(DeviceError, match="precision 'int8': this PyTorch cannot multiply in it; use bf16 or fp32"):
        pack(tiny_model().float(), "int8")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_decoding_on_cuda_disables_cudnn_attention(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the device is there: the model is not moved."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    monkeypatch.setattr(Transformer, "to", lambda self, **_: self)
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        for_decoding(tiny_model().float(), torch.device(device), "bf16")
        assert torch.backends.cuda.cudnn_sdp_enabled() == (device == "cpu")
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)

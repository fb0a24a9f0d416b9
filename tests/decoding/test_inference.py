"""Tests of inference models: packed weights compared to plain ones, and search compared to decoding without a cache."""

import copy

import pytest
import torch
from toy import Limits, batch, beam_search, greedy, random_ids, tiny_transformer

from mtformer.decoding.search.candidates import top_candidates
from mtformer.decoding.search.inference import InferenceModel, PackedLinear
from mtformer.model.ops import Linear
from mtformer.model.transformer import Transformer
from mtformer.text.tokenizer import BOS, EOS, PAD

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"fp32": 1e-6, "bf16": 2e-2}
"""Maximum norm of the difference, divided by the norm of the expected values."""
CONFIGS = {
    "default": {},
    "post-norm, grouped heads": {"norm_position": "post", "num_heads": 4, "num_kv_heads": 2},
    "rotary, swiglu": {"positions": "rotary", "activation": "swiglu"},
    "learned positions, rmsnorm": {"positions": "learned", "norm": "rmsnorm"},
}
configs = pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS.keys())
precisions = pytest.mark.parametrize("precision", TOLERANCE)


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def test_a_processor_without_bf16_support_uses_unpacked_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ONEDNN_MAX_CPU_ISA=AVX2, oneDNN cannot pack a bf16 matrix."""
    weight, x = torch.randn(8, 4), torch.randn(3, 4)
    packed = PackedLinear(weight, None, torch.bfloat16)(x)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    plain = PackedLinear(weight, None, torch.bfloat16)
    assert distance(plain(x), packed) < TOLERANCE["bf16"]
    assert not any(packed_weight.is_mkldnn for packed_weight, _ in plain.parts.values())


def plain_and_packed(precision: str, **changes: object) -> tuple[InferenceModel, InferenceModel]:
    """Return a model with random biases and norms, plain and packed."""
    plain = tiny_transformer(1, **changes)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.div_(2.0).add_(0.2 * torch.randn_like(parameter))
    return InferenceModel(plain), InferenceModel.prepare(copy.deepcopy(plain), CPU, precision)


@precisions
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (1, 1, 8)])
@torch.no_grad()
def test_packed_linear_equals_plain_linear(precision: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    linear, x = Linear(8, 16, 24), torch.randn(shape)
    for parameter in linear.parameters():
        parameter.normal_()
    packed = PackedLinear(linear.weight, linear.bias, DTYPES[precision])
    for rows in ((0, None), (0, 16), (16, None), (8, 24)):
        error = distance(packed(x, *rows), linear(x, *rows))
        assert error < TOLERANCE[precision]
        assert precision == "fp32" or error > 1e-4, "the result is not rounded at all"


@precisions
@configs
@torch.inference_mode()
def test_packed_model_has_nearly_the_same_logits(precision: str, changes: dict[str, object]) -> None:
    plain, packed = plain_and_packed(precision, **changes)
    src, tgt_in_BT = batch(*random_ids(3, seed=2)), torch.arange(4, 19).view(3, 5)
    expected, found = (model.project(model.transformer(*src, tgt_in_BT)) for model in (plain, packed))
    assert found.dtype == DTYPES[precision]
    assert distance(found, expected) < TOLERANCE[precision]
    caches = [model.start(*src, 2, 4) for model in (plain, packed)]
    for token in range(4, 8):
        token_N = torch.arange(6) + token
        expected, found = (model.step(token_N, cache)[0] for model, cache in zip((plain, packed), caches, strict=True))
        assert distance(found, expected) < TOLERANCE[precision]


@torch.inference_mode()
def test_exact_logits_correct_the_scores_of_the_most_probable_tokens() -> None:
    """Their log-probabilities are as accurate as if bf16 were used only in the layers before the logits."""
    _, packed = plain_and_packed("bf16")
    logits_NV, correct = packed.step(torch.arange(4, 10), packed.start(*batch(*random_ids(3, seed=2)), 2, 4))
    assert correct is not None
    V = logits_NV.size(1)
    index_BX = torch.arange(2 * V).expand(3, -1)
    exact_NV = logits_NV.float() + correct(index_BX // V, index_BX % V).view(6, V)
    assert 1e-4 < distance(logits_NV, exact_NV) < 5e-3
    expected_BRV = exact_NV.log_softmax(-1).view(3, 2, -1)
    rounded_BRV = logits_NV.log_softmax(-1, dtype=torch.float32).view(3, 2, -1)
    score_BK, beam_BK, token_BK = top_candidates(rounded_BRV.clone(), torch.zeros(3, 2), 8, correct)
    expected_BK = expected_BRV[torch.arange(3).unsqueeze(1), beam_BK, token_BK]
    rounded_BK = rounded_BRV[torch.arange(3).unsqueeze(1), beam_BK, token_BK]
    assert (score_BK - expected_BK).abs().max() < 0.5 * (rounded_BK - expected_BK).abs().max()
    assert torch.equal(score_BK, score_BK.sort(dim=1, descending=True).values)


@torch.inference_mode()
def test_infinite_logits_stay_infinite() -> None:
    """An imported Marian model excludes tokens by a bias of -inf."""
    plain, _ = plain_and_packed("bf16", output_bias=True)
    assert plain.transformer.output_bias is not None
    plain.transformer.output_bias[:3] = -torch.inf
    packed = InferenceModel.prepare(plain.transformer, CPU, "bf16")
    _, correct = packed.step(torch.arange(4, 10), packed.start(*batch(*random_ids(3, seed=2)), 2, 4))
    assert correct is not None
    index_BX = torch.arange(3).expand(3, -1)
    assert not correct(index_BX * 0, index_BX).any()


@torch.inference_mode()
def test_fp32_logits_need_no_correction() -> None:
    for model in plain_and_packed("fp32"):
        assert model.step(torch.tensor([BOS]), model.start(*batch([5]), 1, 1))[1] is None


@torch.inference_mode()
def greedy_decode(model: Transformer, src_BS: torch.Tensor, src_lengths_B: torch.Tensor, steps: int) -> torch.Tensor:
    """Return the most probable token at each of at most `steps` steps (B, T); tokens after eos are meaningless."""
    encoder_output = model.encode(src_BS, src_lengths_B)
    tgt_BT = torch.full((src_BS.size(0), 1), BOS)
    for _ in range(steps):
        logits_BV = model.project(model.decode(tgt_BT, encoder_output)[:, -1])
        tgt_BT = torch.cat([tgt_BT, logits_BV.argmax(dim=-1, keepdim=True)], dim=1)
    return tgt_BT[:, 1:]


@configs
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "packed"])
def test_greedy_search_and_beam_size_one_equal_greedy_decoding_without_a_cache(
    is_packed: bool, changes: dict[str, object]
) -> None:
    """Sentences leave the batch at different steps. The bias excludes pad and bos, and favors eos in two models."""
    most, found = 20, set()
    for seed, eos_bias in [(0, 0.0), (1, 0.0), (2, 6.0), (3, 6.0)]:
        # With tied embeddings a random model repeats one token.
        transformer = tiny_transformer(seed, **{**changes, "tie_embeddings": "none", "output_bias": True})
        with torch.no_grad():
            transformer.output_bias[[PAD, BOS]] = -torch.inf
            transformer.output_bias[EOS] = eos_bias
        src = batch(*random_ids(20, seed=seed))
        rows = greedy_decode(transformer, *src, most).tolist()
        expected = [[*row, EOS][: [*row, EOS].index(EOS)] for row in rows]
        model = InferenceModel.prepare(transformer, CPU, "fp32") if is_packed else InferenceModel(transformer)
        limits = Limits(max_length_ratio=100.0, max_length=most)
        assert [one.tokens for one in greedy(model, *src, limits)] == expected
        assert [n_best[0].tokens for n_best in beam_search(model, *src, 1, 1.0, limits)] == expected
        found |= set(map(tuple, expected))
    assert len(found) > 30, "translations should differ"
    assert len(set(map(len, found))) > 4, "translations should differ in length"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_decoding_on_cuda_sets_up_the_kernels(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is not moved, so no CUDA device is needed."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    matmul = torch.backends.cuda.matmul
    names = ("allow_tf32", "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    settings = [getattr(matmul, name) for name in names]
    monkeypatch.setattr(Transformer, "to", lambda self, **_: self)
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        for name in names:
            setattr(matmul, name, True)
        InferenceModel.prepare(tiny_transformer(0), torch.device(device), "bf16")
        assert torch.backends.cuda.cudnn_sdp_enabled() == (device == "cpu")
        assert [getattr(matmul, name) for name in names] == [device == "cpu"] * 3
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
        for name, value in zip(names, settings, strict=True):
            setattr(matmul, name, value)

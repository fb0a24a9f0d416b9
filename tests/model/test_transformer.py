"""The full model: comparison with torch.nn.Transformer, masks, tied weights and precision."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tiny import (
    PAD,
    D,
    F,
    H,
    V,
    assert_same,
    random,
    sources,
    step,
    tiny_config,
    tiny_model,
    tokens,
)
from torch import Tensor, nn
from torch.nn import functional

from mtformer.config.schema import ModelConfig, TrainingConfig
from mtformer.model import cache as cache_module
from mtformer.model import kernels
from mtformer.model import transformer as transformer_module
from mtformer.model.cache import EncoderOutput
from mtformer.model.kernels import additive_mask
from mtformer.model.ops import causal_mask
from mtformer.model.positions import sinusoid
from mtformer.model.transformer import Transformer, count_parameters
from mtformer.training.objective import Objective

LENGTHS = [7, 2, 4]
ALL_POSITIONS = pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])


def logits(model: Transformer, src_BS: Tensor, lengths_B: Tensor, tgt_BT: Tensor) -> Tensor:
    return model.project(model(src_BS, lengths_B, tgt_BT))


TORCH_NAMES = {
    r"^(encoder|decoder)\.(\d)": r"\1.layers.\2",
    r"^(encoder|decoder)_norm": r"\1.norm",
    r"self_attention\.": "self_attn.",
    r"cross_attention\.": "multihead_attn.",
    r"in_projection\.": "in_proj_",
    r"out_projection": "out_proj",
    r"feed_forward\.expand": "linear1",
    r"feed_forward\.contract": "linear2",
    r"self_attention_residual\.norm": "norm1",
    r"cross_attention_residual\.norm": "norm2",
    r"(encoder.*)feed_forward_residual\.norm": r"\1norm2",
    r"(decoder.*)feed_forward_residual\.norm": r"\1norm3",
}
"""Patterns of our parameter names, with the corresponding names in torch.nn.Transformer."""


def as_torch(ours: Transformer) -> tuple[nn.Transformer, list[tuple[nn.Parameter, nn.Parameter]]]:
    """Return torch.nn.Transformer with our weights, and all pairs of parameters; post-norm has no final norms."""
    pre = ours.config.norm_position == "pre"
    options = {"dropout": 0.0, "activation": ours.config.activation, "batch_first": True, "norm_first": pre}
    encoder_layer, decoder_layer = (
        kind(D, H, F, **options) for kind in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
    )
    encoder_norm, decoder_norm = (nn.LayerNorm(D) if pre else None for _ in range(2))
    theirs = nn.Transformer(
        D,
        H,
        batch_first=True,
        custom_encoder=nn.TransformerEncoder(encoder_layer, 2, encoder_norm, enable_nested_tensor=False),
        custom_decoder=nn.TransformerDecoder(decoder_layer, 2, decoder_norm),
    ).double()
    named, pairs = dict(theirs.named_parameters()), []
    for name, parameter in ours.named_parameters():
        if "embedding" not in name and name != "output":
            for pattern, replacement in TORCH_NAMES.items():
                name = re.sub(pattern, replacement, name)
            named[name].data.copy_(parameter.data)
            pairs.append((parameter, named.pop(name)))
    assert not named
    return theirs, pairs


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize(("tie", "activation"), [("all", "relu"), ("output", "gelu"), ("none", "relu")])
@pytest.mark.usefixtures("kernel")
def test_the_model_equals_torch_apart_from_the_embeddings(norm_position: str, tie: str, activation: str) -> None:
    """Compare logits and gradients of all parameters; torch.nn.Transformer has no embeddings."""
    ours = tiny_model(norm_position=norm_position, tie_embeddings=tie, activation=activation)
    (src_BS, lengths_B), tgt_BT = sources(LENGTHS), tokens(3, 5, seed=1)
    theirs, pairs = as_torch(ours)
    copies = {w: w.detach().clone().requires_grad_() for w in (ours.src_embedding, ours.tgt_embedding, ours.output)}
    src, tgt, out = (copies[w] for w in (ours.src_embedding, ours.tgt_embedding, ours.output))
    table = sinusoid(10, D)
    hidden_BTD = theirs(
        src[src_BS] * D**0.5 + table[:7],
        tgt[tgt_BT] * D**0.5 + table[:5],
        tgt_mask=~causal_mask(5),
        src_key_padding_mask=src_BS == PAD,
        memory_key_padding_mask=src_BS == PAD,
    )
    expected, actual = hidden_BTD @ out.T, logits(ours, src_BS, lengths_B, tgt_BT)
    assert_same(actual, expected)
    for y in (actual, expected):
        y.backward(random(3, 5, V, seed=2))
    for parameter, other in (*pairs, *copies.items()):
        assert parameter.grad.any()
        assert_same(parameter.grad, other.grad)


@ALL_POSITIONS
@pytest.mark.usefixtures("kernel")
def test_padding_has_no_effect(positions: str) -> None:
    """Changing ids in the padding changes no bit of any state; changing another id changes every state."""
    model = tiny_model(positions=positions)
    (src_BS, lengths_B), tgt_BT = sources(LENGTHS), tokens(3, 5, seed=1)
    encoder_output = model.encode(src_BS, lengths_B)
    states = model.decode(tgt_BT, encoder_output)
    mask_BS = encoder_output.mask_B11S[:, 0, 0]
    assert torch.equal(mask_BS, src_BS != PAD)
    changed = model.encode(src_BS.masked_fill(~mask_BS, V - 1), lengths_B)
    assert torch.equal(changed.states_BSD[mask_BS], encoder_output.states_BSD[mask_BS])
    assert torch.equal(model.decode(tgt_BT, changed), states)
    src_BS[:, 0] = (src_BS[:, 0] + 1) % V
    moved = (model(src_BS, lengths_B, tgt_BT) - states).abs().amax(dim=-1)
    assert moved.min() > 1e-4


@ALL_POSITIONS
@pytest.mark.usefixtures("kernel")
def test_no_gradient_reaches_padding(positions: str) -> None:
    """The embedding of the padding id gets no gradient; all others do."""
    model = tiny_model(positions=positions, tie_embeddings="output")
    src_BS, lengths_B = sources(LENGTHS)
    model(src_BS, lengths_B, tokens(3, 5, seed=1)).backward(random(3, 5, D, seed=2))
    learned = model.src_embedding.grad.abs().amax(dim=-1) > 0
    used = src_BS[src_BS != PAD].unique().tolist()
    assert learned.nonzero().flatten().tolist() == used


@pytest.mark.usefixtures("kernel")
def test_no_gradient_reaches_encoder_states_of_padding() -> None:
    model = tiny_model()
    states_BSD, mask_B11S = model.encode(*sources(LENGTHS))
    leaf = states_BSD.detach().requires_grad_()
    model.decode(tokens(3, 5, seed=1), EncoderOutput(leaf, mask_B11S)).backward(random(3, 5, D, seed=2))
    assert torch.equal(leaf.grad.abs().amax(dim=-1) > 0, mask_B11S[:, 0, 0])


@ALL_POSITIONS
@pytest.mark.usefixtures("kernel")
def test_later_target_tokens_do_not_change_earlier_states(positions: str) -> None:
    model = tiny_model(positions=positions)
    encoder_output, tgt_BT = model.encode(*sources(LENGTHS)), tokens(3, 6, seed=1)
    states = model.decode(tgt_BT, encoder_output)
    for t in range(6):
        changed_BT = tgt_BT.clone()
        changed_BT[:, t] = (tgt_BT[:, t] + 1) % V
        changed = model.decode(changed_BT, encoder_output)
        assert torch.equal(changed[:, :t], states[:, :t])
        assert (changed[:, t:] - states[:, t:]).abs().amax(dim=-1).min() > 1e-5


@ALL_POSITIONS
@pytest.mark.usefixtures("kernel")
def test_batching_does_not_change_results(positions: str) -> None:
    """Padding of any length on either side has no effect."""
    model = tiny_model(positions=positions)
    src_BS, lengths_B = sources(LENGTHS)
    tgt_lengths, tgt_BT = [3, 6, 1], tokens(3, 6, seed=1)
    together = model(src_BS, lengths_B, tgt_BT)
    padded = model(functional.pad(src_BS, (0, 5)), lengths_B, functional.pad(tgt_BT, (0, 4)))
    assert_same(padded[:, :6], together)
    for b in range(3):
        S, T = LENGTHS[b], tgt_lengths[b]
        alone = model(src_BS[b : b + 1, :S], lengths_B[b : b + 1], tgt_BT[b : b + 1, :T])
        assert_same(together[b : b + 1, :T], alone)


@ALL_POSITIONS
def test_order_affects_the_states(positions: str) -> None:
    """Without positions, the states of these sources, and the last states of these targets, would be equal."""
    model = tiny_model(positions=positions)
    src_BS, tgt_BT = torch.tensor([[4, 5, 6, 3], [5, 4, 6, 3]]), torch.tensor([[7, 8, 9], [8, 7, 9]])
    lengths_B = torch.tensor([4, 4])
    by_source = model(src_BS, lengths_B, tgt_BT[[0, 0]])[:, -1]
    by_target = model(src_BS[[0, 0]], lengths_B, tgt_BT)[:, -1]
    for last in (by_source, by_target):
        assert (last[0] - last[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("tie", "shared"),
    [("all", {"src_embedding", "output", "tgt_embedding"}), ("output", {"output", "tgt_embedding"}), ("none", set())],
)
def test_tied_embeddings_are_one_parameter(tie: str, shared: set[str]) -> None:
    """They stay tied when the dtype changes and weights are loaded."""
    model = Transformer(tiny_config(tie_embeddings=tie), V, V)
    model.double()
    model.load_state_dict(model.state_dict())
    names = {"src_embedding", "tgt_embedding", "output"}
    assert {name for name in names if getattr(model, name) is model.tgt_embedding} == shared | {"tgt_embedding"}
    own = names - shared
    assert len({id(getattr(model, name)) for name in names}) == len(own) + bool(shared)


@pytest.mark.parametrize(("tie", "rows"), [("all", 17), ("output", 11 + 17), ("none", 11 + 17 + 17)])
def test_parameter_counts_equal_the_formula(tie: str, rows: int) -> None:
    """Test width 16, 4 heads of width 4, 2 key/value heads, SwiGLU 24, 32 learned positions, 3 + 2 layers, pre-norm."""
    config = tiny_config(
        tie_embeddings=tie, num_kv_heads=2, activation="swiglu", positions="learned", num_encoder_layers=3
    )
    model = Transformer(config, 17 if tie == "all" else 11, 17)
    attention = (16 * 16 + 16) + 2 * (16 * 8 + 8) + (16 * 16 + 16)
    feed_forward = 2 * (16 * 24 + 24) + (24 * 16 + 16)
    norm = 16 + 16
    expected = {
        "embeddings": rows * 16,
        "positions": 2 * 32 * 16,
        "encoder": 3 * (attention + feed_forward + 2 * norm) + norm,
        "decoder": 2 * (2 * attention + feed_forward + 3 * norm) + norm,
    }
    counts = count_parameters(model)
    assert counts.pop("total") == sum(expected.values()) == sum(p.numel() for p in model.parameters())
    assert counts == expected


@pytest.mark.parametrize("tie", ["all", "output", "none"])
def test_parameters_are_restored_exactly_from_safetensors(tie: str, tmp_path: Path) -> None:
    """Each parameter is saved once; on loading, only tied names are missing."""
    model = Transformer(tiny_config(tie_embeddings=tie), V, V).eval()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    assert len({parameter.data_ptr() for parameter in parameters.values()}) == len(parameters)
    save_file(parameters, tmp_path / "model.safetensors")
    loaded = Transformer(tiny_config(tie_embeddings=tie), V, V).eval()
    missing, unexpected = loaded.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=False)
    tied = {"all": ["src_embedding", "output"], "output": ["output"], "none": []}[tie]
    assert (sorted(missing), unexpected) == (sorted(tied), [])
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, parameters[name]), name
    (src_BS, lengths_B), tgt_BT = sources(LENGTHS), tokens(3, 5)
    assert torch.equal(logits(loaded, src_BS, lengths_B, tgt_BT), logits(model, src_BS, lengths_B, tgt_BT))


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@ALL_POSITIONS
@pytest.mark.usefixtures("kernel")
def test_bf16_activations_are_close_to_float32_and_gradients_are_float32(norm_position: str, positions: str) -> None:
    config = tiny_config(d_model=64, d_ff=128, norm_position=norm_position, positions=positions)
    (src_BS, lengths_B), tgt_BT = sources(LENGTHS), tokens(3, 5)
    results = {}
    for dtype in (None, torch.bfloat16):
        torch.manual_seed(0)
        model = Transformer(config, V, V, compute_dtype=dtype)
        out = logits(model, src_BS, lengths_B, tgt_BT)
        assert out.dtype == (dtype or torch.float32)
        functional.cross_entropy(out.float().flatten(0, 1), tgt_BT.flatten()).backward()
        assert {(p.dtype, p.grad.dtype) for p in model.parameters()} == {(torch.float32, torch.float32)}
        results[dtype] = out.detach().float(), torch.cat([p.grad.flatten() for p in model.parameters()])
    for wide, narrow in zip(results[None], results[torch.bfloat16], strict=True):
        assert 0 < (wide - narrow).norm() < 0.05 * wide.norm()


@torch.no_grad()
def test_cached_decoding_in_bf16_is_close_to_uncached_in_bf16() -> None:
    torch.manual_seed(0)
    model = Transformer(tiny_config(d_model=64, d_ff=128), V, V, compute_dtype=torch.bfloat16).eval()
    encoder_output, tgt_BT = model.encode(*sources(LENGTHS)), tokens(3, 5)
    whole_BTD = model.decode(tgt_BT, encoder_output).float()
    cache = model.new_cache(encoder_output, 1, 5)
    assert cache.layers[0].k.dtype == cache.layers[0].source.k_BGSK.dtype == torch.bfloat16
    steps_BTD = torch.stack([step(model, tgt_BT[:, t], cache) for t in range(5)], dim=1)
    assert steps_BTD.dtype == torch.bfloat16
    assert (steps_BTD.float() - whole_BTD).norm() < 0.02 * whole_BTD.norm()


def test_the_output_bias_is_optional_initialized_to_zero_and_counted() -> None:
    plain, biased = (Transformer(tiny_config(output_bias=has_bias), V, V) for has_bias in (False, True))
    assert plain.output_bias is None
    assert biased.state_dict().keys() - plain.state_dict().keys() == {"output_bias"}
    assert torch.equal(biased.output_bias, torch.zeros(V))
    counts = count_parameters(biased)
    assert counts["embeddings"] == count_parameters(plain)["embeddings"] + V
    assert counts["total"] == sum(parameter.numel() for parameter in biased.parameters())


@torch.no_grad()
def test_the_output_bias_is_used_in_logits_and_loss() -> None:
    """A bias of -inf excludes a token."""
    model = tiny_model(output_bias=True, tie_embeddings="output").eval()
    model.output_bias[5] = -torch.inf
    src, tgt_in_BT, tgt_out_BT = sources([5, 3]), tokens(2, 4), tokens(2, 4, seed=1).clamp(min=6)
    hidden_BTD = model(*src, tgt_in_BT)
    expected_BTV = hidden_BTD @ model.output.T + model.output_bias
    actual_BTV, is_finite = model.project(hidden_BTD), expected_BTV != -torch.inf
    assert not is_finite[..., 5].any()
    assert_same(actual_BTV[is_finite], expected_BTV[is_finite])
    assert torch.equal(actual_BTV == -torch.inf, ~is_finite)
    _, _, nll = Objective(model, TrainingConfig())(*src, tgt_in_BT, tgt_out_BT)
    expected = functional.cross_entropy(expected_BTV.flatten(0, 1), tgt_out_BT.flatten(), reduction="sum")
    assert_same(nll, expected)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_masked_tokens_have_the_embedding_zero_but_keep_their_positions(positions: str) -> None:
    model = tiny_model(positions=positions, tie_embeddings="none").eval()
    src, tgt_in_BT = sources([5, 3]), tokens(2, 4)
    dropped = int(src[0][0, 1]), int(tgt_in_BT[1, 2])
    masked = model(*src, tgt_in_BT, src[0] != dropped[0], tgt_in_BT != dropped[1])
    assert (masked - model(*src, tgt_in_BT)).abs().max() > 0.01
    with torch.no_grad():
        model.src_embedding[dropped[0]] = model.tgt_embedding[dropped[1]] = 0.0
    assert_same(masked, model(*src, tgt_in_BT))


def test_dropout_applies_in_training_only_and_depends_on_the_seed() -> None:
    model = Transformer(tiny_config(dropout=0.3, attention_dropout=0.1, activation_dropout=0.1), V, V)
    arguments = (*sources(LENGTHS), tokens(3, 5))

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return model(*arguments)

    model.train()
    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    model.eval()
    assert torch.equal(run(1), run(2))


def test_dropout_applies_to_the_embeddings_of_both_sides() -> None:
    """The input of the first layers is 0 or 1 / (1 - 0.25) times the input in evaluation mode."""
    torch.manual_seed(0)
    model = tiny_model(dropout=0.25)
    read: list[Tensor] = []
    for layer in (model.encoder[0], model.decoder[0]):
        layer.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0].detach()))
    for is_training in (True, False):
        model.train(is_training)(*sources([9, 9, 9]), tokens(3, 9))
    for trained, evaluated in ((read[0], read[2]), (read[1], read[3])):
        ratio = trained / evaluated
        assert ((ratio - 1 / 0.75).abs().lt(1e-10) | ratio.eq(0)).all()
        assert 0.15 < (ratio == 0).double().mean().item() < 0.35


def test_every_parameter_has_a_gradient() -> None:
    """All weights are used with every option."""
    for changes in ({"positions": "learned"}, {"norm": "rmsnorm", "norm_position": "post", "activation": "geglu"}):
        model = tiny_model(tie_embeddings="none", num_kv_heads=2, **changes)
        src_BS, lengths_B = sources(LENGTHS)
        logits(model, src_BS, lengths_B, tokens(3, 5)).backward(random(3, 5, V))
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 30, "num_heads": 4}, "num_heads 4 does not divide d_model 30"),
        ({"num_heads": 8, "num_kv_heads": 3}, "num_kv_heads 3 does not divide num_heads 8"),
        ({"num_heads": 4, "num_kv_heads": 8}, "num_kv_heads 8 does not divide num_heads 4"),
        (
            {"d_model": 20, "num_heads": 4, "positions": "rotary"},
            "rotary positions need an even head width, not 5; change d_model or num_heads",
        ),
        ({"d_model": 15, "num_heads": 3}, "sinusoidal positions need an even d_model, not 15"),
    ],
)
def test_invalid_shapes_are_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**changes)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
@pytest.mark.parametrize("beams", [1, 3])
def test_additive_masks_give_the_same_model(positions: str, beams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the masks used on a GPU, with the fused kernel, in training and in cached decoding."""
    model = tiny_model(positions=positions)
    src_BS, lengths_B = sources([6, 3, 9])
    tgt_BT = tokens(3, 5)

    def run() -> list[Tensor]:
        encoder_output = model.encode(src_BS, lengths_B)
        cache = model.new_cache(encoder_output, beams, 5)
        steps = []
        for t in range(5):
            if t == 3:
                cache.keep(torch.tensor([2, 0, 1]))
            steps.append(model.decode(tokens(3, beams), cache.encoder_output, cache))
            cache.reorder(torch.arange(beams).flip(0).expand(3, beams))
        loss = model(src_BS, lengths_B, tgt_BT).square().sum()
        masks.extend([cache.encoder_output.mask_B11S, cache.history_B1RX])
        return [*steps, *torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)]

    masks: list[Tensor] = []
    expected = run()
    calls = []
    for module in (transformer_module, cache_module):
        monkeypatch.setattr(module, "kernel_mask", lambda *both: calls.append(1) or additive_mask(*both))
    monkeypatch.setattr(kernels, "CPU_FUSED_FROM", {torch.float64: 0})
    for found, other in zip(run(), expected, strict=True):
        assert_same(found, other)
    assert len(calls) == 3, "one for each encoded batch and one for the beams"
    assert [mask.is_floating_point() for mask in masks] == [False, False, True, True]
    assert all(stride % 8 == 0 for mask in masks[2:] for stride in mask.stride()[:-1]), "a GPU would copy the mask"

"""Copies of weights in the dtype of the activations."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toy_training import MODEL, VOCAB, toy_batch, toy_config

from mtformer.model.ops import Linear
from mtformer.model.transformer import Transformer
from mtformer.training.step import TrainingStep
from mtformer.training.weight_copies import WeightCopies


def random_linear(in_width: int, *out_widths: int) -> Linear:
    """Return a layer with the same random weights and biases at each call."""
    linear = Linear(in_width, *out_widths)
    generator = torch.Generator().manual_seed(0)
    for parameter in linear.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return linear


def output_and_gradients(linear: Linear, x: Tensor, gradient: Tensor, *rows: int | None) -> list[Tensor]:
    """Return the output, and the gradients of x, weight and bias."""
    x = x.clone().requires_grad_()
    y = linear(x, *rows)
    y.backward(gradient)
    results = [y.detach(), x.grad, linear.weight.grad, linear.bias.grad]
    linear.zero_grad()
    return results


@pytest.mark.parametrize("rows", [(0, None), (16, None), (0, 16)], ids=str)
def test_copies_change_only_the_rounding_of_weight_gradients(rows: tuple[int, int | None]) -> None:
    torch.manual_seed(0)
    linear = random_linear(32, 16, 8)
    x, gradient = torch.randn(4, 64, 32).bfloat16(), torch.randn(4, 64, 24).bfloat16()[..., slice(*rows)]
    cast = output_and_gradients(linear, x, gradient, *rows)
    exact = output_and_gradients(random_linear(32, 16, 8).double(), x.double(), gradient.double(), *rows)
    WeightCopies(linear, torch.bfloat16)
    copied = output_and_gradients(linear, x, gradient, *rows)
    assert torch.equal(copied[0], cast[0])
    assert torch.equal(copied[1], cast[1])
    for with_copies, without, expected in zip(copied[2:], cast[2:], exact[2:], strict=True):
        assert with_copies.dtype == torch.float32
        assert (with_copies - expected).norm() < 1e-5 * expected.norm() < (without - expected).norm()


def test_copies_follow_the_weights_and_are_used_in_training_only() -> None:
    model = nn.ModuleList([random_linear(6, 4), random_linear(4, 3)])
    x = torch.randn(5, 6).bfloat16()
    copies = WeightCopies(model, torch.bfloat16)
    before = model[0](x)
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    assert torch.equal(model[0](x), before)
    assert not torch.equal(model.eval()[0](x), before), "evaluation reads the weights"
    copies.refresh()
    assert torch.equal(model.train()[0](x), model.eval()[0](x))


OPTIONS: list[dict[str, Any]] = [
    {},
    {"tie_embeddings": "none", "output_bias": True},
    {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary", "num_kv_heads": 1},
    {"norm_position": "post", "positions": "learned", "tie_embeddings": "output"},
]


def scores(model: Transformer) -> Tensor:
    batch = toy_batch(1)
    with torch.no_grad():
        return model.project(model.eval()(batch.src_BS, batch.src_lengths_B, batch.tgt_in_BT))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_model_for_search_gives_the_same_bits_without_casting(options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = Transformer(MODEL.model_copy(update=options), VOCAB, VOCAB, compute_dtype=torch.bfloat16)
    step = TrainingStep(model, toy_config(learning_rate=1e-2, ema_decay=0.9).training)
    for number in (1, 2):
        step.run([toy_batch(number)], number)
        with step.ema_weights():
            random_state = torch.get_rng_state()
            search_model = step.search_model()
            assert torch.equal(random_state, torch.get_rng_state())
            assert torch.equal(scores(search_model), scores(model))
        cast = {name for name, weight in search_model.named_parameters() if weight.dtype == torch.bfloat16}
        kept = {name for name, weight in search_model.named_parameters() if weight.dtype == torch.float32}
        assert all("embedding" in name or "positions" in name for name in kept)
        assert {"output", "decoder.0.feed_forward.expand.weight", "decoder.0.feed_forward_residual.norm.weight"} <= cast
    assert all(weight.dtype == torch.float32 for weight in model.parameters())


def test_in_fp32_the_model_itself_searches() -> None:
    step = TrainingStep(Transformer(MODEL, VOCAB, VOCAB, compute_dtype=torch.float32), toy_config().training)
    assert step.search_model() is step.model

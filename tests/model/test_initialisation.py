"""How weights begin, and that a new model's guess is almost uniform."""

import math

import pytest
import torch
from tiny import tiny_config
from torch import Tensor
from torch.nn import functional as F

from mtformer.config.schema import ModelConfig
from mtformer.model.attention import MultiHeadAttention
from mtformer.model.initialisation import init_embedding, init_projections
from mtformer.model.layers import FeedForward
from mtformer.model.linear import Linear
from mtformer.model.transformer import Transformer


def assert_xavier(block: Tensor) -> None:
    """Glorot and Bengio 2010, equation 16: uniform in +-sqrt(6 / (fan in + fan out))."""
    bound = math.sqrt(6 / (block.size(0) + block.size(1)))
    assert block.abs().max() <= bound
    assert block.max() > 0.98 * bound
    assert block.min() < -0.98 * bound
    assert block.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert abs(block.mean().item()) < 0.05 * bound


def test_each_block_of_a_fused_projection_has_its_own_bounds() -> None:
    torch.manual_seed(0)
    weight = torch.empty(64 + 16 + 128, 64)
    init_projections(weight, [64, 16, 128])
    for block in weight.split([64, 16, 128]):
        assert_xavier(block)


def test_attention_and_feed_forward_give_the_widths_of_their_blocks() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(64, 8, num_kv_heads=2)
    for block in attention.in_projection.weight.split([64, 16, 16]):
        assert_xavier(block)
    assert_xavier(attention.out_projection.weight)
    gated = FeedForward(tiny_config(d_model=64, d_ff=96, activation="swiglu"))
    for block in gated.expand.weight.split([96, 96]):
        assert_xavier(block)
    assert_xavier(gated.contract.weight)


def test_fusing_changes_nothing_but_the_place() -> None:
    """Three projections fused are drawn from the same distribution as three alone."""
    torch.manual_seed(0)
    fused, alone = Linear(64, 64, 64, 64), Linear(64, 64)
    assert fused.weight[:64].std().item() == pytest.approx(alone.weight.std().item(), rel=0.05)


def test_embeddings_have_deviation_d_to_the_minus_half() -> None:
    torch.manual_seed(0)
    weight = torch.empty(2000, 64)
    init_embedding(weight)
    assert weight.std().item() == pytest.approx(1 / 8, rel=0.02)
    assert abs(weight.mean().item()) < 0.005


def test_every_parameter_of_a_model_begins_as_told() -> None:
    torch.manual_seed(0)
    config = ModelConfig(
        d_model=64, num_heads=4, d_ff=96, num_encoder_layers=1, num_decoder_layers=1, positions="learned", dropout=0.0
    )
    for name, parameter in Transformer(config, 900, 900).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif "embedding" in name or "positions" in name:
            assert parameter.std().item() == pytest.approx(1 / 8, rel=0.03), name
        elif "in_projection" in name:
            for block in parameter.split(64):
                assert_xavier(block)
        else:
            assert_xavier(parameter)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_new_model_guesses_almost_uniformly(norm_position: str, norm: str, tie: str) -> None:
    """Logits of unit variance make a loss of ln V + 1/2 on random targets."""
    torch.manual_seed(0)
    vocab = 1000
    config = tiny_config(d_model=64, d_ff=128, norm_position=norm_position, norm=norm, tie_embeddings=tie)
    model = Transformer(config, vocab, vocab).eval()
    src_BS, tgt_in_BT, tgt_out_BT = (torch.randint(4, vocab, (8, 12)) for _ in range(3))
    with torch.no_grad():
        logits_BTV = model.project(model(src_BS, torch.full((8,), 12), tgt_in_BT))
    assert logits_BTV.std().item() == pytest.approx(1.0, abs=0.15)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1), tgt_out_BT.flatten()).item()
    assert math.log(vocab) < loss < math.log(vocab) + 1

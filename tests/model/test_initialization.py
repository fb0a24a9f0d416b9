"""Distributions of initial weights, and the almost uniform predictions of a new model."""

import math

import pytest
import torch
from tiny import tiny_config
from torch import Tensor
from torch.nn import functional as F

from mtformer.model.transformer import Transformer


def assert_xavier(projection: Tensor) -> None:
    """Check that weights are uniform in +-sqrt(6 / (fan in + fan out)) (Glorot and Bengio 2010, equation 16)."""
    bound = math.sqrt(6 / (projection.size(0) + projection.size(1)))
    assert projection.abs().max() <= bound
    assert projection.max() > 0.98 * bound
    assert projection.min() < -0.98 * bound
    assert projection.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert abs(projection.mean().item()) < 0.05 * bound


@pytest.mark.parametrize("tie", ["all", "none"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_each_parameter_has_its_distribution(tie: str, norm: str) -> None:
    """Projections that share a matrix have separate bounds: width 64 for queries, 32 for keys and values."""
    torch.manual_seed(0)
    sizes = {"d_model": 64, "num_heads": 4, "num_kv_heads": 2, "d_ff": 96}
    config = tiny_config(**sizes, activation="swiglu", positions="learned", tie_embeddings=tie, norm=norm)
    for name, parameter in Transformer(config, 900, 900).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif "embedding" in name or "positions" in name or name == "output":
            assert parameter.std().item() == pytest.approx(1 / 8, rel=0.04), name
            assert abs(parameter.mean().item()) < 0.01, name
        else:
            widths = {"in_projection": [64, 32, 32], "expand": [96, 96]}.get(name.split(".")[-2], [64])
            for projection in parameter.split(widths):
                assert_xavier(projection)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_new_model_predicts_an_almost_uniform_distribution(norm_position: str, norm: str, tie: str) -> None:
    """Logits of unit variance give a loss of ln V + 1/2 on random targets."""
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

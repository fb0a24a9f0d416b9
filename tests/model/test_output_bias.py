"""`model.output_bias`: a number for each piece's logit, wherever logits are made."""

import torch
from tiny import EXACT, V, assert_same, sources, tiny_config, tiny_model, tokens

from mtformer.model.layers import ACTIVATIONS
from mtformer.model.transformer import Transformer, count_parameters
from mtformer.training.objective import Objective


def test_there_is_none_unless_asked_for() -> None:
    model = Transformer(tiny_config(), V, V)
    assert model.output_bias is None
    assert "output_bias" not in model.state_dict()


def test_a_new_one_is_zero_and_counted() -> None:
    plain, biased = (Transformer(tiny_config(output_bias=has), V, V) for has in (False, True))
    assert torch.equal(biased.output_bias, torch.zeros(V))
    counts = count_parameters(biased)
    assert counts["embeddings"] == count_parameters(plain)["embeddings"] + V
    assert counts["total"] == sum(parameter.numel() for parameter in biased.parameters())


def test_it_is_added_in_training_in_decoding_and_in_the_loss() -> None:
    """-inf too, which keeps a piece out."""
    model = tiny_model(output_bias=True, tie_embeddings="output", dropout=0.0).eval()
    with torch.no_grad():
        model.output_bias[5] = -torch.inf
    src, tgt_in, tgt_out = sources([5, 3]), tokens(2, 4), tokens(2, 4, seed=1).clamp(min=6)
    hidden = model(*src, tgt_in)
    expected = hidden @ model.output.T + model.output_bias
    kept = expected != -torch.inf
    assert not kept[..., 5].any()
    assert_same(model.project(hidden)[kept], expected[kept])
    cache = model.start(model.encode(*src), 1, 4)
    stepped = torch.stack([model.step(tgt_in[:, position], cache) for position in range(4)], dim=1)
    assert_same(stepped[kept], expected[kept])
    assert torch.equal(stepped == -torch.inf, ~kept)
    _, nll = Objective(model, 0.1, compile=False)(*src, tgt_in, tgt_out)
    naive = torch.nn.functional.cross_entropy(expected.flatten(0, 1), tgt_out.flatten(), reduction="sum")
    assert abs(nll.item() - naive.item()) < EXACT


def test_silu_is_x_times_its_sigmoid() -> None:
    x = torch.linspace(-4.0, 4.0, 9, dtype=torch.float64)
    assert_same(ACTIVATIONS["silu"](x), x / (1.0 + (-x).exp()))
    assert not tiny_model(activation="silu").encoder[0].feed_forward.is_gated

"""The checks of the `model` section that keep shapes from going wrong later."""

from typing import Any

import pytest
from pydantic import ValidationError

from mtformer.config.schema import ModelConfig


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 30, "num_heads": 4}, "num_heads 4 does not divide d_model 30"),
        ({"num_heads": 8, "num_kv_heads": 3}, "num_kv_heads 3 does not divide num_heads 8"),
        ({"num_heads": 4, "num_kv_heads": 8}, "num_kv_heads 8 does not divide num_heads 4"),
        ({"d_model": 20, "num_heads": 4, "positions": "rotary"}, "rotary positions need an even head width, not 5"),
        ({"d_model": 15, "num_heads": 3}, "sinusoidal positions need an even d_model, not 15"),
    ],
)
def test_shapes_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"d_model": 0},
        {"num_heads": 0},
        {"num_kv_heads": 0},
        {"d_ff": -1},
        {"num_encoder_layers": 0},
        {"num_decoder_layers": 0},
        {"max_positions": 0},
        {"dropout": 1.0},
        {"attention_dropout": -0.1},
        {"activation_dropout": 1.5},
        {"norm": "batchnorm"},
        {"norm_position": "middle"},
        {"activation": "tanh"},
        {"positions": "alibi"},
        {"tie_embeddings": "some"},
        {"heads": 8},
    ],
)
def test_a_value_out_of_range_names_its_key(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as error:
        ModelConfig(**changes)
    assert [mistake["loc"] for mistake in error.value.errors()] == [tuple(changes)]

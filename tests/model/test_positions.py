"""Sinusoidal, learned and rotary positions."""

import numpy as np
import pytest
import reference
import torch
from tiny import EXACT, assert_same, random, randomize, sources, tiny_model, tokens
from torch import nn

from mtformer.model.positions import AddedPositions, RotaryPositions, sinusoid

HALF_UNIT = 2.0**-25
"""Rounding error of float32 for numbers in [0.5, 1)."""


@pytest.mark.parametrize("D", [2, 6, 64])
def test_sinusoid_equals_the_formula_up_to_one_rounding(D: int) -> None:
    """[sin | cos] is the table of the paper with even columns first."""
    table = sinusoid(300, D)
    assert table.dtype == torch.float32
    paper = reference.sinusoid(300, D)
    expected = np.concatenate([paper[:, 0::2], paper[:, 1::2]], axis=1)
    np.testing.assert_allclose(table.double().numpy(), expected, rtol=0, atol=HALF_UNIT + EXACT)
    assert torch.equal(AddedPositions(300, D, is_learned=False)(slice(5, 9)), table[5:9])


def test_sinusoidal_and_rotary_positions_are_not_weights() -> None:
    """Checkpoints do not contain them, so max_positions may be changed later."""
    for positions in (AddedPositions(9, 8, is_learned=False), RotaryPositions(9, 8)):
        assert not positions.state_dict()
        assert not list(positions.parameters())


def test_only_used_learned_positions_have_gradients() -> None:
    positions = randomize(AddedPositions(9, 8, is_learned=True))
    y_TD = positions(slice(3, 7))
    assert_same(y_TD, positions.weight[3:7])
    gradient_TD = random(4, 8, seed=1)
    y_TD.backward(gradient_TD)
    assert_same(positions.weight.grad, nn.functional.pad(gradient_TD, (0, 0, 3, 2)))


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary"])
def test_a_sequence_longer_than_max_positions_is_an_error(kind: str) -> None:
    model = tiny_model(positions=kind, max_positions=6)
    model(*sources([6]), tokens(1, 6))
    with pytest.raises(RuntimeError):
        model.encode(*sources([7]))
    with pytest.raises(RuntimeError):
        model(*sources([6]), tokens(1, 7))


def test_rotary_is_a_complex_rotation() -> None:
    x_BTHK = random(2, 7, 3, 8)
    rotated = RotaryPositions(7, 8)(slice(7))(x_BTHK)
    for b in range(2):
        for h in range(3):
            expected = reference.rotate(x_BTHK[b, :, h].numpy())
            np.testing.assert_allclose(rotated[b, :, h].numpy(), expected, rtol=0, atol=1e-6)


def test_a_rotation_of_one_position_applies_to_all_beams() -> None:
    """During decoding, dimension 1 contains the beams."""
    rotary, x_BTHK = RotaryPositions(7, 8), random(2, 1, 3, 8).expand(2, 7, 3, 8)
    at_each = rotary(slice(7))(x_BTHK)
    for t in range(7):
        rotated_BRHK = rotary(slice(t, t + 1))(x_BTHK[:, :5])
        assert torch.equal(rotated_BRHK, at_each[:, t : t + 1].expand(2, 5, 3, 8))

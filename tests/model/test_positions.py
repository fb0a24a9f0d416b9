"""Sinusoidal, learned and rotary positions."""

import numpy as np
import pytest
import reference
import torch
from tiny import EXACT, assert_same, random, randomise
from torch import nn

from mtformer.model.positions import LearnedPositions, RotaryPositions, SinusoidalPositions, sinusoid

HALF_UNIT = 2.0**-25
"""Half of float32's last place for numbers in [0.5, 1): the rounding of a table that was exact before."""


@pytest.mark.parametrize("D", [2, 6, 64])
def test_sinusoid_is_the_papers_formula_rounded_once(D: int) -> None:
    """[sin | cos] is the paper's table with even columns first."""
    table = sinusoid(300, D)
    assert table.dtype == torch.float32
    paper = reference.sinusoid(300, D)
    expected = np.concatenate([paper[:, 0::2], paper[:, 1::2]], axis=1)
    np.testing.assert_allclose(table.double().numpy(), expected, rtol=0, atol=HALF_UNIT + EXACT)


def test_sinusoidal_positions_add_the_table_from_the_offset() -> None:
    positions, x_BTD = SinusoidalPositions(9, 8), random(2, 4, 8)
    paper = reference.sinusoid(9, 8)
    table = np.concatenate([paper[:, 0::2], paper[:, 1::2]], axis=1)
    for offset in (0, 1, 5):
        expected = x_BTD.numpy() + table[offset : offset + 4]
        np.testing.assert_allclose(positions(x_BTD, offset).numpy(), expected, rtol=0, atol=HALF_UNIT + EXACT)


def test_sinusoidal_and_rotary_positions_are_not_weights() -> None:
    """They follow from the config, so no checkpoint holds them and max_positions may change later."""
    for positions in (SinusoidalPositions(9, 8), RotaryPositions(9, 8)):
        assert not positions.state_dict()
        assert not list(positions.parameters())


def test_learned_positions_add_their_rows_and_learn_only_those() -> None:
    positions, x_BTD = randomise(LearnedPositions(9, 8)), random(2, 4, 8)
    y_BTD = positions(x_BTD, 3)
    assert_same(y_BTD, x_BTD + positions.weight[3:7])
    gradient_BTD = random(2, 4, 8, seed=1)
    y_BTD.backward(gradient_BTD)
    assert_same(positions.weight.grad[3:7], gradient_BTD.sum(0))
    assert not positions.weight.grad[:3].any()
    assert not positions.weight.grad[7:].any()


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions, RotaryPositions])
def test_one_at_a_time_is_all_at_once(kind: type[nn.Module]) -> None:
    """An offset stands for the positions before: what decoding relies on."""
    positions = kind(6, 8)
    x = random(2, 3, 6, 8) if kind is RotaryPositions else random(2, 6, 8)
    steps = [positions(x.narrow(-2, t, 1), t) for t in range(6)]
    assert torch.equal(torch.cat(steps, dim=-2), positions(x))


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions, RotaryPositions])
def test_a_sequence_that_does_not_fit_is_an_error(kind: type[nn.Module]) -> None:
    positions = kind(6, 8)
    with pytest.raises(RuntimeError):
        positions(torch.zeros(1, 1, 7, 8) if kind is RotaryPositions else torch.zeros(1, 7, 8))


def test_rotary_is_a_complex_rotation() -> None:
    x_BHTK = random(2, 3, 7, 8)
    turned = RotaryPositions(7, 8)(x_BHTK)
    for b in range(2):
        for h in range(3):
            expected = reference.rotate(x_BHTK[b, h].numpy())
            np.testing.assert_allclose(turned[b, h].numpy(), expected, rtol=0, atol=1e-6)


def test_rotary_products_depend_on_the_distance_alone() -> None:
    rotary = RotaryPositions(64, 8)
    q_11TK, k_11TK = (random(1, 1, 1, 8, seed=seed).expand(1, 1, 64, 8) for seed in (1, 2))
    products_TS = (rotary(q_11TK) @ rotary(k_11TK).transpose(-2, -1))[0, 0]
    diagonals = [products_TS.diagonal(distance) for distance in range(-50, 51)]
    for diagonal in diagonals:
        assert_same(diagonal, diagonal[0].expand_as(diagonal), 1e-5)
    at_distance = torch.stack([diagonal[0] for diagonal in diagonals])
    assert at_distance.std() > 0.1  # the distance itself is seen


def test_rotary_keeps_norms_and_turns_nothing_at_position_0() -> None:
    rotary, x_BHTK = RotaryPositions(40, 8), random(2, 2, 40, 8)
    turned = rotary(x_BHTK)
    assert_same(turned.norm(dim=-1), x_BHTK.norm(dim=-1), 1e-5)
    assert_same(turned[:, :, 0], x_BHTK[:, :, 0])
    assert (turned[:, :, 1:] - x_BHTK[:, :, 1:]).abs().amax(dim=-1).min() > 1e-3


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions, RotaryPositions])
def test_positions_keep_the_precision_of_their_input(kind: type[nn.Module]) -> None:
    assert kind(6, 8)(
        torch.zeros(1, 1, 6, 8, dtype=torch.bfloat16).squeeze(int(kind is not RotaryPositions))
    ).dtype == (torch.bfloat16)

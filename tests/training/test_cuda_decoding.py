"""Greedy and beam search on CUDA against the CPU, in float32, with a model that has learned a little."""

import copy

import pytest
import torch
from torch import Tensor
from toy_training import toy_batch, toy_config, toy_step

from mtformer.decoding.beam import beam_search
from mtformer.decoding.rules import Limits
from mtformer.decoding.sampling import generate
from mtformer.decoding.search import Hypothesis
from mtformer.model.transformer import Transformer

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Trained so briefly that it is not sure of itself: beams differ, and sentences end at many lengths."""
    step = toy_step(toy_config(learning_rate=1e-2, schedule="constant", warmup_steps=20))
    for number in range(1, 201):
        step.run([toy_batch(number, num_pairs=20)], number)
    return step.model.eval()


def sources() -> tuple[Tensor, Tensor]:
    batch = toy_batch(seed=1001, num_pairs=20)
    return batch.src_BS, batch.src_lengths_B


def assert_same(there: list[Hypothesis], here: list[Hypothesis]) -> None:
    assert [h.tokens for h in there] == [h.tokens for h in here]
    assert [h.score for h in there] == pytest.approx([h.score for h in here], rel=1e-4)


def test_greedy(model: Transformer) -> None:
    there, here = (
        [one for [one] in generate(copy.deepcopy(model).to(device), *(x.to(device) for x in sources()), Limits())]
        for device in (DEVICE, torch.device("cpu"))
    )
    assert_same(there, here)
    assert len({len(h.tokens) for h in here}) > 3


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_search(alpha: float, model: Transformer) -> None:
    there = beam_search(copy.deepcopy(model).to(DEVICE), *(x.to(DEVICE) for x in sources()), 5, alpha, Limits())
    here = beam_search(model, *sources(), 5, alpha, Limits())
    for n_best_there, n_best_here in zip(there, here, strict=True):
        assert_same(n_best_there, n_best_here)
    assert len({len(n_best[0].tokens) for n_best in here}) > 3

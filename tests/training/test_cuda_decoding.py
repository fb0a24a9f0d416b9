"""Compare greedy and beam search on CUDA with the CPU, in float32, with a briefly trained model."""

import copy

import pytest
import torch
from toy_training import toy_batch, toy_config, toy_step

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.search.beam import beam_search
from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.inference import InferenceModel
from mtformer.decoding.search.rules import LengthBounds
from mtformer.decoding.search.sampling import generate
from mtformer.decoding.search.steps import SearchBatch
from mtformer.model.transformer import Transformer

DEVICE = torch.device("cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]


@pytest.fixture(scope="module")
def model() -> Transformer:
    """Return a briefly trained, uncertain model: beams differ, and sentences end at many different lengths."""
    step = toy_step(toy_config(learning_rate=1e-2, schedule="constant", warmup_steps=20))
    for number in range(1, 201):
        step.run([toy_batch(number, num_pairs=20)], number)
    return step.model.eval()


def inputs(device: torch.device, settings: DecodingConfig) -> tuple[SearchBatch, DecodingConfig]:
    batch = toy_batch(seed=1001, num_pairs=20)
    src_BS, lengths_B = batch.src_BS.to(device), batch.src_lengths_B.to(device)
    return SearchBatch(src_BS, lengths_B, LengthBounds(settings, lengths_B, [0] * 20, 1000)), settings


def assert_same(there: list[Hypothesis], here: list[Hypothesis]) -> None:
    assert [h.tokens for h in there] == [h.tokens for h in here]
    assert [h.score for h in there] == pytest.approx([h.score for h in here], rel=1e-4)


def test_greedy(model: Transformer) -> None:
    settings = DecodingConfig(beam_size=1)
    there, here = (
        [one for [one] in generate([InferenceModel(copy.deepcopy(model).to(device))], *inputs(device, settings))]
        for device in (DEVICE, torch.device("cpu"))
    )
    assert_same(there, here)
    assert len({len(h.tokens) for h in here}) > 3


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_search(alpha: float, model: Transformer) -> None:
    settings = DecodingConfig(beam_size=5, length_penalty=alpha)
    there = beam_search([InferenceModel(copy.deepcopy(model).to(DEVICE))], *inputs(DEVICE, settings))
    here = beam_search([InferenceModel(model)], *inputs(torch.device("cpu"), settings))
    for n_best_there, n_best_here in zip(there, here, strict=True):
        assert_same(n_best_there, n_best_here)
    assert len({len(n_best[0].tokens) for n_best in here}) > 3

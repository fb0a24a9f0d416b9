"""Tests of ensembles: models of any size are combined by averaging probabilities."""

import numpy as np
import pytest
import torch
from toy import Limits, ToyModel, assert_same, batch, beam_search, greedy, random_ids, sentences, tiny_model

from mtformer.decoding.search.inference import mean_log_probs
from mtformer.decoding.search.transformer_engine import TransformerEngine
from mtformer.text.tokenizer import EOS

LIMITS = Limits(max_length_ratio=1.0)


class Mean(ToyModel):
    """Mean of toy models, computed with NumPy separately for each prefix."""

    def __init__(self, *members: ToyModel) -> None:
        super().__init__()
        self.members = members

    def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        each = [member.logits(source, prefix).double().numpy() for member in self.members]
        probs = np.mean([np.exp(one) / np.exp(one).sum() for one in each], axis=0)
        return torch.from_numpy(np.log(probs)).float()


def test_mean_log_probs_averages_probabilities() -> None:
    logits = [torch.randn(5, 9, generator=torch.Generator().manual_seed(seed)) * 3 for seed in range(3)]
    logits[0][0, 0] = -torch.inf
    found = mean_log_probs([logits[0], logits[1].bfloat16(), logits[2]])
    logits[1] = logits[1].bfloat16().float()
    each = [np.exp(one.double().numpy()) for one in logits]
    probs = np.mean([one / one.sum(axis=1, keepdims=True) for one in each], axis=0)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), np.log(probs), rtol=1e-5, atol=1e-6)
    assert torch.equal(mean_log_probs(logits[:1]), logits[0].log_softmax(-1))


@pytest.mark.parametrize("beam_size", [1, 3])
def test_ensemble_search_equals_search_with_the_mean_model(beam_size: int) -> None:
    members, many = [ToyModel(seed=1), ToyModel(seed=2)], sentences(40)
    mean, src = Mean(*members), batch(*many)
    together = beam_search(members, *src, beam_size, 0.6, LIMITS)
    for ours, expected in zip(together, beam_search(mean, *src, beam_size, 0.6, LIMITS), strict=True):
        assert_same(ours, expected)
    assert_same(greedy(members, *src, LIMITS), greedy(mean, *src, LIMITS))
    alone = beam_search(members[0], *src, beam_size, 0.6, LIMITS)
    assert sum(a[0].tokens == b[0].tokens for a, b in zip(together, alone, strict=True)) < 30


def test_members_of_different_sizes_give_results_independent_of_the_batch() -> None:
    models = [
        tiny_model(seed=1),
        tiny_model(seed=2, d_model=24, num_heads=3, num_decoder_layers=1, norm_position="post"),
        tiny_model(seed=3, d_ff=48, num_encoder_layers=1, positions="rotary", max_positions=40),
    ]
    many = random_ids(25, seed=2)
    together = beam_search(models, *batch(*many), 3, 1.0, LIMITS)
    for source, n_best in zip(many[:8], together, strict=False):
        assert_same(n_best, beam_search(models, *batch(source), 3, 1.0, LIMITS)[0])
    scored = TransformerEngine(models).score(
        [[*source, EOS] for source in many], [n_best[0].tokens for n_best in together]
    )
    for n_best, expected in zip(together, scored, strict=True):
        assert n_best[0].token_log_probabilities == pytest.approx(expected, abs=1e-4)

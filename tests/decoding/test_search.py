"""The quick selection is the plain one."""

import pytest
import torch

from mtformer.decoding.search import top_candidates


@pytest.mark.parametrize("vocab", [6, 64, 127, 640, 1000])
@pytest.mark.parametrize("beams", [1, 2, 5])
def test_the_same_as_sorting_everything(vocab: int, beams: int) -> None:
    generator = torch.Generator().manual_seed(vocab + beams)
    log_prob_BRV = torch.randn(7, beams, vocab, generator=generator).log_softmax(-1)
    log_prob_BRV[0, 0, -3:] += 9.0  # The best ones stand in the last columns, which may fill no chunk.
    score_BR = -torch.rand(7, beams, generator=generator)
    for K in {1, 2 * beams}:
        expected = (log_prob_BRV + score_BR.unsqueeze(2)).flatten(1).sort(dim=1, descending=True)
        score_BK, beam_BK, token_BK = top_candidates(log_prob_BRV, score_BR, K)
        assert torch.equal(score_BK, expected.values[:, :K])
        assert torch.equal(beam_BK * vocab + token_BK, expected.indices[:, :K])


def test_beams_that_are_dead_give_nothing() -> None:
    log_prob_BRV = torch.randn(3, 4, 500).log_softmax(-1)
    score_BR = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf]).expand(3, 4)
    _, beam_BK, _ = top_candidates(log_prob_BRV, score_BR, 8)
    assert (beam_BK == 0).all()

"""Tests of scoring given translations: scores equal those of the search, and nothing depends on batching."""

import pytest
import torch
from toy import Limits, batch, beam_search, greedy, random_ids, tiny_model

from mtformer.decoding.search import transformer_engine
from mtformer.decoding.search.transformer_engine import TransformerEngine
from mtformer.text.tokenizer import EOS

LIMITS = Limits(max_length_ratio=1.0)


def with_eos(many: list[list[int]]) -> list[list[int]]:
    return [[*source, EOS] for source in many]


@pytest.mark.parametrize("num_models", [1, 2])
def test_scores_equal_those_of_the_search(num_models: int) -> None:
    models = [tiny_model(seed, d_model=16 + 8 * seed) for seed in range(num_models)]
    many = random_ids(30, seed=1)
    n_bests = [*beam_search(models, *batch(*many), 4, 0.6, LIMITS)]
    n_bests += [[one] for one in greedy(models, *batch(*many), LIMITS)]
    sources = [source for source, n_best in zip(many + many, n_bests, strict=True) for _ in n_best]
    hypotheses = [one for n_best in n_bests for one in n_best]
    assert len({len(one.tokens) for one in hypotheses}) > 8, "translations should differ in length"
    scored = TransformerEngine(models).score(with_eos(sources), [one.tokens for one in hypotheses])
    for one, log_probs in zip(hypotheses, scored, strict=True):
        assert log_probs == pytest.approx(one.token_log_probabilities, abs=1e-4)
        assert sum(log_probs) == pytest.approx(one.log_probability, abs=1e-4)


def test_scores_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [tiny_model(1), tiny_model(2, norm_position="post")]
    sources, targets = with_eos(random_ids(40, seed=2)), [[], *random_ids(39, seed=3)]
    together = TransformerEngine(models).score(sources, targets)
    assert [len(log_probs) for log_probs in together] == [len(target) + 1 for target in targets]
    for i in range(40):
        assert TransformerEngine(models).score(sources[i : i + 1], targets[i : i + 1])[0] == pytest.approx(
            together[i], abs=5e-4
        )
    monkeypatch.setattr(transformer_engine, "POSITIONS_AT_ONCE", 7)
    for few, all_at_once in zip(TransformerEngine(models).score(sources, targets), together, strict=True):
        assert few == pytest.approx(all_at_once, abs=1e-6)


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_attention_does_not_depend_on_the_batch(norm_position: str) -> None:
    """For a comparison to a reference implementation see tests/decoding/test_attention_maps.py."""
    model = tiny_model(4, norm_position=norm_position)
    sources, targets = with_eos(random_ids(20, seed=4)), [[], *random_ids(19, seed=5)]
    sharpest = 0.0
    together = TransformerEngine([model]).attention(sources, targets)
    for source, target, weights_TS in zip(sources, targets, together, strict=True):
        assert weights_TS.shape == (len(target), len(source) - 1)
        torch.testing.assert_close(weights_TS, TransformerEngine([model]).attention([source], [target])[0])
        assert (weights_TS.sum(dim=1) < 1 + 1e-5).all()  # the rest is the weight of eos
        sharpest = max([sharpest, *(weights_TS * len(source)).flatten().tolist()])
    assert sharpest > 1.5, "all attention weights are nearly uniform, so nothing was tested"


def test_attention_of_several_models_is_their_mean() -> None:
    models = [tiny_model(5), tiny_model(6, d_model=24)]
    sources, targets = with_eos(random_ids(10, seed=6)), random_ids(10, seed=7)
    first, second = (TransformerEngine([model]).attention(sources, targets) for model in models)
    for mean, a, b in zip(TransformerEngine(models).attention(sources, targets), first, second, strict=True):
        torch.testing.assert_close(mean, (a + b) / 2)

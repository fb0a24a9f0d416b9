"""Tests of beam search: compared to exhaustive search and to other settings of beam search."""

import math

import pytest
import torch
from toy import ConfidentModel, Limits, ToyModel, assert_same, batch, beam_search, greedy, sentences, up_to

from mtformer.config.schema import Stopping
from mtformer.decoding.search.candidates import Candidates, Step, best_candidates
from mtformer.text.tokenizer import EOS

TEN = [4, 5, 6, 5, 4, 6, 6, 4, 5, 5]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("fewest", [0, 2])
def test_very_wide_beam_equals_exhaustive_search(alpha: float, fewest: int) -> None:
    for seed in range(3):
        model = ToyModel(seed, vocab=6)  # three words including unk, up to 4 of them, then eos: 121 translations
        everything = model.exhaustive((*TEN, EOS), alpha, fewest, most=4)
        found = beam_search(model, *batch(TEN), 128, alpha, up_to(4, fewest))[0]
        assert len(everything) == (121 if fewest == 0 else 117)
        assert_same(found, everything)


def test_certain_stopping_ends_before_the_limit_without_length_penalty() -> None:
    """Without a length penalty a worse beam cannot improve, so the search need not reach the limit."""
    many = sentences(40, seed=5)
    working, expected = ToyModel(seed=7), ToyModel(seed=7)
    found = beam_search(working, *batch(*many), 3, 0.0, up_to(60), early_stopping="certain")
    longest = sum(3 * (max(len(h.tokens) for h in n_best) + 1) for n_best in found)
    assert working.num_rows < 4 * longest < 3 * len(many) * 61 / 2
    for source, n_best in zip(many, found, strict=True):
        assert_same(n_best, beam_search(expected, *batch(source), 3, 0.0, up_to(60), early_stopping="certain")[0])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_certain_stopping_finds_the_best_translation_with_a_narrower_beam(alpha: float) -> None:
    for seed in range(40):
        model = ToyModel(seed, vocab=6)
        best = model.exhaustive((*TEN, EOS), alpha, 0, 4)[0]  # of 121 translations, up to 81 with the same length
        found = beam_search(model, *batch(TEN), 12, alpha, up_to(4), early_stopping="certain")[0]
        assert_same(found[:1], [best])


class Recorder:
    """Chooser of a search for one sentence that remembers the scores of the beams that are alive."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.alive: list[float] = []

    def __call__(self, step: Step, score_UR: torch.Tensor, K: int) -> Candidates:
        candidates = best_candidates(step, score_UR, K)
        continues = (candidates.token_BK[0] != EOS).tolist()
        scores = zip(candidates.score_BK[0].tolist(), continues, strict=True)
        self.alive = [score for score, is_alive in scores if is_alive][: score_UR.size(1)]
        self.num_steps += 1
        return candidates


@pytest.mark.parametrize("alpha", [0.6, 1.0, 1.4])
@pytest.mark.parametrize("early_stopping", ["auto", "estimate", "certain"])
@pytest.mark.parametrize("kind", [ToyModel, ConfidentModel])
def test_no_beam_is_better_when_the_search_stops(kind: type[ToyModel], early_stopping: Stopping, alpha: float) -> None:
    """With `certain`, none can become better; at the maximum length, the search stops in any case."""
    models = [kind(seed) for seed in range(3)]
    limits = Limits(max_length_ratio=6.0)
    num_stopped = 0
    for number, source in enumerate(sentences(30, seed=2)):
        src = batch(source)
        recorder = Recorder()
        model = models[number % len(models)]
        [[best, *_]] = beam_search(model, *src, 5, alpha, limits, choose=recorder, early_stopping=early_stopping)
        most_steps = int(limits.bounds(src[1]).max_B) + 1
        if recorder.num_steps < most_steps:
            num_stopped += 1
            length = most_steps if early_stopping == "certain" else recorder.num_steps
            assert max(recorder.alive) / length**alpha <= best.score + 1e-6
    assert early_stopping == "certain" or num_stopped > 5


def test_beam_search_is_rarely_worse_than_greedy_search() -> None:
    """Pruning can remove the beam of greedy search, but a stop before its end cannot."""
    num_worse = {"auto": 0, "ended": 0}
    for seed in range(20):
        model = ConfidentModel(seed)
        src = batch(*sentences(500, seed=seed))
        one_by_one = greedy(model, *src, Limits())
        for early_stopping in ("auto", "ended") if seed == 0 else ("auto",):
            found = beam_search(model, *src, 5, 1.0, Limits(), early_stopping=early_stopping)
            for n_best, other in zip(found, one_by_one, strict=True):
                num_worse[early_stopping] += n_best[0].score < other.score - 1e-6
    assert num_worse["auto"] <= 10
    assert num_worse["ended"] > 50, "of 500 searches; improbable ends stop them"


def test_removing_finished_sentences_saves_work_and_keeps_results(monkeypatch: pytest.MonkeyPatch) -> None:
    src = batch(*sentences(60, seed=1))
    leaving, staying = ToyModel(), ToyModel()
    expected = beam_search(leaving, *src, 3, 1.0, Limits()), greedy(leaving, *src, Limits())
    for module in ("beam", "sampling"):
        monkeypatch.setattr(f"mtformer.decoding.search.{module}.sentences_to_keep", lambda done_B, position: None)
    found = beam_search(staying, *src, 3, 1.0, Limits()), greedy(staying, *src, Limits())
    assert found == expected
    assert leaving.num_rows < staying.num_rows / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_are_computed_from_token_log_probabilities(dtype: torch.dtype) -> None:
    model = ToyModel(seed=5, dtype=dtype)
    many = sentences(20, seed=3)
    n_bests = beam_search(model, *batch(*many), 4, 0.7, up_to(6))
    n_bests += [[h] for h in greedy(model, *batch(*many), up_to(6), 0.7)]
    for source, n_best in zip(many + many, n_bests, strict=True):
        for hypothesis in n_best:
            expected = model.log_probability((*source, EOS), hypothesis.tokens)
            assert hypothesis.log_probability == pytest.approx(expected, rel=1e-5)
            assert hypothesis.score == pytest.approx(expected / (len(hypothesis.tokens) + 1) ** 0.7, rel=1e-5)


def test_pad_and_bos_are_never_generated_but_unk_may_be() -> None:
    class Biased(ToyModel):
        def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
            return super().logits(source, prefix) + torch.tensor([9.0, 2.0, 9.0, 0.0, 0.0, 0.0, 0.0])

    src = batch(*sentences(10))
    n_bests = beam_search(Biased(), *src, 3, 1.0, Limits()) + [[h] for h in greedy(Biased(), *src, Limits())]
    tokens = {token for n_best in n_bests for h in n_best for token in h.tokens}
    assert tokens == {1, 4, 5, 6}


def test_nan_logits_give_one_translation_per_sentence() -> None:
    class Broken(ToyModel):
        def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
            return torch.full((self.vocab,), math.nan)

    src = batch(*sentences(5))
    assert all(beam_search(Broken(), *src, 3, 1.0, Limits()))
    assert len(greedy(Broken(), *src, Limits())) == 5

"""Diverse beam search: each group is a search of its own, kept from the tokens of those before it."""

import torch
from toy import ToyModel, batch, sentences

from mtformer.config.schema import Stopping
from mtformer.decoding.beam import Diverse, beam_search
from mtformer.decoding.rules import Limits, Step
from mtformer.decoding.search import Hypothesis
from mtformer.text.tokenizer import EOS, UNK

LIMITS = Limits(max_length_ratio=0.8)


def diverse(
    model: ToyModel,
    many: list[list[int]],
    beam_size: int,
    num_groups: int,
    penalty: float,
    early_stopping: Stopping = "ended",
) -> list[list[Hypothesis]]:
    chooser = Diverse(num_groups, penalty)
    return beam_search(
        model,
        *batch(*many),
        beam_size,
        0.6,
        LIMITS,
        choose=chooser,
        num_groups=num_groups,
        early_stopping=early_stopping,
    )


def tokens(n_best: list[Hypothesis]) -> set[tuple[int, ...]]:
    return {tuple(h.tokens) for h in n_best}


def test_the_first_group_is_plain_beam_search_and_the_others_differ_from_it() -> None:
    model, many = ToyModel(seed=3), sentences(40, seed=4)
    plain = beam_search(model, *batch(*many), 2, 0.6, LIMITS)
    new = 0
    for first, n_best in zip(plain, diverse(model, many, 6, 3, 2.0), strict=True):
        assert len(n_best) == 6
        assert tokens(first) <= tokens(n_best)
        new += len(tokens(n_best)) - len(tokens(first))
    assert new > 100, "of 160 that the other groups find"
    for n_best in diverse(model, many, 6, 3, 0.0):
        assert len(tokens(n_best)) == 2, "without a penalty all groups are alike"


def test_with_a_huge_penalty_no_two_groups_begin_alike() -> None:
    for n_best in diverse(ToyModel(seed=4), sentences(30), 5, 5, 1e6):
        assert {(h.tokens or [EOS])[0] for h in n_best} == {UNK, EOS, 4, 5, 6}


def test_beams_that_are_dead_cost_nothing() -> None:
    chooser, R, V = Diverse(2, 100.0), 4, 8
    log_prob_URV = torch.full((2, R, V), -torch.inf)
    log_prob_URV[0, 0, 5] = -1.0  # All that the first group may take.
    log_prob_URV[1, 0] = -torch.arange(1.0, V + 1)
    score_UR = torch.tensor([[0.0, -torch.inf, -torch.inf, -torch.inf]]).expand(2, R)
    step = Step(log_prob_URV, log_prob_URV, torch.zeros(2, R, 0, dtype=torch.long), torch.tensor([0, 0]))
    assert chooser(step, score_UR, V).token_UK[1].tolist() == [0, 1, 2, 3, 4, 6, 7, 5]

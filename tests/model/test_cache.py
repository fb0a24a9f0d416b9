"""Cached decoding against the whole target at once, and what reordering and leaving do to it."""

from itertools import product

import pytest
import torch
from tiny import V, assert_same, sources, tiny_model, tokens
from torch import Tensor

from mtformer.model.transformer import Memory, Transformer

B, R, T = 3, 3, 6
OPTIONS = {
    "positions": ("sinusoidal", "learned", "rotary"),
    "norm_position": ("pre", "post"),
    "norm": ("layernorm", "rmsnorm"),
    "activation": ("relu", "swiglu"),
    "num_kv_heads": (None, 2),
    "tie_embeddings": ("all", "none"),
}


def for_rows(memory: Memory, num_beams: int) -> Memory:
    """The memory once a row, as uncached decoding wants it."""
    return Memory(*(x.repeat_interleave(num_beams, dim=0) for x in memory))


@pytest.mark.parametrize("values", list(product(*OPTIONS.values())), ids=lambda values: "-".join(map(str, values)))
@torch.no_grad()
def test_cached_decoding_is_uncached(values: tuple[str | int | None, ...]) -> None:
    model = tiny_model(**dict(zip(OPTIONS, values, strict=True))).eval()
    memory = model.encode(*sources([7, 2, 4]))
    tgt_NT = tokens(B * R, T, seed=1)
    expected_NTV = model.project(model.decode(tgt_NT, for_rows(memory, R)))
    cache = model.start(memory, R, T)
    for t in range(T):
        assert_same(model.step(tgt_NT[:, t], cache), expected_NTV[:, t])


@torch.no_grad()
def test_cached_decoding_is_uncached_with_output_tied_and_one_key_head(kernel: str) -> None:
    model = tiny_model(tie_embeddings="output", num_kv_heads=1, activation="geglu").eval()
    memory, tgt_NT = model.encode(*sources([7, 2, 4])), tokens(B, T, seed=1)
    expected_NTV = model.project(model.decode(tgt_NT, memory))
    cache = model.start(memory, 1, T)
    for t in range(T):
        assert_same(model.step(tgt_NT[:, t], cache), expected_NTV[:, t])


class Histories:
    """The rows' tokens in plain lists, decoded from scratch at every step: what the cache must equal."""

    def __init__(self, model: Transformer, lengths: list[int], num_beams: int) -> None:
        self.model, self.R = model, num_beams
        self.source, self.lengths = sources(lengths)
        self.sentences = list(range(len(lengths)))
        self.rows: list[list[int]] = [[] for _ in range(len(lengths) * num_beams)]

    def step(self, token_N: Tensor) -> Tensor:
        for row, token in zip(self.rows, token_N.tolist(), strict=True):
            row.append(token)
        memory = self.model.encode(self.source[self.sentences], self.lengths[self.sentences])
        return self.model.project(self.model.decode(torch.tensor(self.rows), for_rows(memory, self.R))[:, -1])

    def reorder(self, rows_N: Tensor) -> None:
        self.rows = [list(self.rows[row]) for row in rows_N.tolist()]

    def keep(self, sentences_M: Tensor) -> None:
        chosen = sentences_M.tolist()
        self.rows = [self.rows[b * self.R + r] for b in chosen for r in range(self.R)]
        self.sentences = [self.sentences[b] for b in chosen]


def within_sentences(num_sentences: int, seed: int) -> Tensor:
    """Random rows, each of its own sentence; some beams die and others multiply."""
    chosen_MR = torch.randint(0, R, (num_sentences, R), generator=torch.Generator().manual_seed(seed))
    return (torch.arange(num_sentences).unsqueeze(1) * R + chosen_MR).flatten()


@pytest.mark.parametrize("positions", OPTIONS["positions"])
@torch.no_grad()
def test_reordered_and_leaving_rows_go_on_as_if_from_scratch(positions: str, kernel: str) -> None:
    """A whole life of a beam search: reordering at each step, sentences leaving, alone and several, in any order."""
    model = tiny_model(positions=positions, num_kv_heads=2).eval()
    histories = Histories(model, [7, 2, 4, 5], R)
    cache = model.start(model.encode(histories.source, histories.lengths), R, 9)
    leave = {2: [0, 1, 3], 4: [2, 0, 1], 5: [2, 0], 7: [1]}
    for t in range(9):
        num_rows = len(histories.rows)
        token_N = tokens(num_rows, seed=t)
        assert_same(model.step(token_N, cache), histories.step(token_N))
        rows_N = within_sentences(num_rows // R, seed=t)
        cache.reorder(rows_N)
        histories.reorder(rows_N)
        if t in leave:
            sentences_M = torch.tensor(leave[t])
            cache.keep(sentences_M)
            histories.keep(sentences_M)
    assert histories.sentences == [3]


@torch.no_grad()
def test_keeping_all_sentences_in_their_order_changes_nothing() -> None:
    model = tiny_model().eval()
    memory, tgt_NT = model.encode(*sources([7, 2, 4])), tokens(B * R, 3)
    one, other = model.start(memory, R, 3), model.start(memory, R, 3)
    for t in range(3):
        assert torch.equal(model.step(tgt_NT[:, t], one), model.step(tgt_NT[:, t], other))
        one.keep(torch.arange(B))


@torch.no_grad()
def test_histories_matter() -> None:
    """Rows of one sentence with other pasts give other logits: the tests above could not pass by forgetting them."""
    model = tiny_model().eval()
    cache = model.start(model.encode(*sources([5])), R, 2)
    model.step(torch.tensor([4, 5, 6]), cache)
    logits_NV = model.step(torch.tensor([7, 7, 7]), cache)
    assert torch.pdist(logits_NV).min() > 1e-3


@torch.no_grad()
def test_cross_attention_is_kept_once_a_sentence() -> None:
    model = tiny_model(num_kv_heads=2).eval()
    cache = model.start(model.encode(*sources([7, 2, 4])), R, T)
    for k, v in cache.cross:
        assert k.shape == v.shape == (B, 2, 7, 4)
    for layer in cache.layers:
        assert layer.k.shape == layer.v.shape == (B, 2, T * R, 4)
    cache.keep(torch.tensor([2]))
    assert cache.cross[0][0].shape == (1, 2, 7, 4)
    assert cache.layers[0].k.shape == (1, 2, T * R, 4)


@torch.no_grad()
def test_a_step_gives_logits_of_every_piece() -> None:
    model = tiny_model().eval()
    cache = model.start(model.encode(*sources([7, 2, 4])), R, 1)
    assert model.step(tokens(B * R), cache).shape == (B * R, V)
    assert cache.length == 1


def step_often(model: Transformer, num_steps: int) -> None:
    cache = model.start(model.encode(*sources([3])), 1, num_steps)
    for _ in range(num_steps):
        model.step(tokens(1), cache)


@pytest.mark.parametrize("positions", OPTIONS["positions"])
@torch.no_grad()
def test_a_step_beyond_max_positions_is_an_error(positions: str) -> None:
    model = tiny_model(positions=positions, max_positions=4).eval()
    step_often(model, 4)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        step_often(model, 5)


@torch.no_grad()
def test_a_step_beyond_the_room_of_the_cache_is_an_error() -> None:
    model = tiny_model().eval()
    cache = model.start(model.encode(*sources([5])), 1, 1)
    model.step(tokens(1), cache)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        model.step(tokens(1), cache)

"""Compare decoding with and without a cache, including reordered beams and removed sentences."""

from itertools import product

import pytest
import torch
from tiny import D, assert_same, sources, step, tiny_model, tokens
from torch import Tensor

from mtformer.model.cache import EncoderOutput
from mtformer.model.transformer import Transformer

B, R, T = 3, 3, 6
OPTIONS = {
    "positions": ("sinusoidal", "learned", "rotary"),
    "norm_position": ("pre", "post"),
    "norm": ("layernorm", "rmsnorm"),
    "activation": ("relu", "swiglu"),
    "num_kv_heads": (None, 2),
    "tie_embeddings": ("all", "none"),
}


def for_rows(encoder_output: EncoderOutput, num_beams: int) -> EncoderOutput:
    """Repeat the encoder output for each row, for decoding without a cache."""
    return EncoderOutput(*(x.repeat_interleave(num_beams, dim=0) for x in encoder_output))


def assert_cached_equals_uncached(model: Transformer, num_beams: int) -> None:
    """Check that the hidden states of each cached step equal those computed from the full target at once."""
    encoder_output, tgt_NT = model.encode(*sources([7, 2, 4])), tokens(B * num_beams, T, seed=1)
    expected_NTD = model.decode(tgt_NT, for_rows(encoder_output, num_beams))
    cache = model.new_cache(encoder_output, num_beams, T)
    for t in range(T):
        assert_same(step(model, tgt_NT[:, t], cache), expected_NTD[:, t])
        assert cache.length == t + 1


@pytest.mark.parametrize("values", list(product(*OPTIONS.values())), ids=lambda values: "-".join(map(str, values)))
@torch.no_grad()
def test_cached_decoding_equals_uncached(values: tuple[str | int | None, ...]) -> None:
    model = tiny_model(**dict(zip(OPTIONS, values, strict=True))).eval()
    assert_cached_equals_uncached(model, R)


@torch.no_grad()
@pytest.mark.usefixtures("kernel")
def test_cached_decoding_equals_uncached_with_tied_output_and_one_key_head() -> None:
    assert_cached_equals_uncached(tiny_model(tie_embeddings="output", num_kv_heads=1, activation="geglu").eval(), 1)


class Histories:
    """Reference without a cache: token lists per row, decoded from scratch at each step."""

    def __init__(self, model: Transformer, lengths: list[int], num_beams: int) -> None:
        self.model, self.R = model, num_beams
        self.source, self.lengths = sources(lengths)
        self.sentences = list(range(len(lengths)))
        self.rows: list[list[int]] = [[] for _ in range(len(lengths) * num_beams)]

    def step(self, token_N: Tensor) -> Tensor:
        for row, token in zip(self.rows, token_N.tolist(), strict=True):
            row.append(token)
        encoder_output = self.model.encode(self.source[self.sentences], self.lengths[self.sentences])
        return self.model.decode(torch.tensor(self.rows), for_rows(encoder_output, self.R))[:, -1]

    def reorder(self, beam_BR: Tensor) -> None:
        self.rows = [list(self.rows[b * self.R + r]) for b, beams in enumerate(beam_BR.tolist()) for r in beams]

    def keep(self, sentences_M: Tensor) -> None:
        chosen = sentences_M.tolist()
        self.rows = [self.rows[b * self.R + r] for b in chosen for r in range(self.R)]
        self.sentences = [self.sentences[b] for b in chosen]


def parents(num_sentences: int, seed: int) -> Tensor:
    """Return random beams (B, R) of each sentence; some beams are dropped and others copied."""
    return torch.randint(0, R, (num_sentences, R), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("positions", OPTIONS["positions"])
@pytest.mark.usefixtures("kernel")
@torch.no_grad()
def test_reordered_and_kept_rows_continue_their_own_histories(positions: str) -> None:
    """Beams are reordered at each step, and sentences are removed in any order, as in beam search."""
    model = tiny_model(positions=positions, num_kv_heads=2).eval()
    histories = Histories(model, [7, 2, 4, 5], R)
    cache = model.new_cache(model.encode(histories.source, histories.lengths), R, 9)
    leave = {2: [0, 1, 3], 4: [2, 0, 1], 5: [2, 0], 7: [1]}
    for t in range(9):
        num_rows = len(histories.rows)
        token_N = tokens(num_rows, seed=t)
        assert_same(step(model, token_N, cache), histories.step(token_N))
        beam_BR = parents(num_rows // R, seed=t)
        cache.reorder(beam_BR)
        histories.reorder(beam_BR)
        if t in leave:
            sentences_M = torch.tensor(leave[t])
            cache.keep(sentences_M)
            histories.keep(sentences_M)
    assert histories.sentences == [3]


@torch.no_grad()
def test_states_depend_on_histories() -> None:
    """Rows with different histories have different states, so the tests above detect mixed-up histories."""
    model = tiny_model().eval()
    cache = model.new_cache(model.encode(*sources([5])), R, 2)
    step(model, torch.tensor([4, 5, 6]), cache)
    assert torch.pdist(step(model, torch.tensor([7, 7, 7]), cache)).min() > 1e-3


@torch.no_grad()
def test_source_keys_and_values_are_stored_once_per_sentence() -> None:
    model = tiny_model(num_kv_heads=2).eval()
    cache = model.new_cache(model.encode(*sources([7, 2, 4])), R, T)
    for sentences in (B, 1):
        for layer in cache.layers:
            assert [x.shape for x in layer.source] == [(sentences, 2, 7, 4)] * 2
            assert layer.k.shape == layer.v.shape == (sentences, 2, T * R, 4)
        assert [x.shape for x in cache.encoder_output] == [(sentences, 0, D), (sentences, 1, 1, 7)]
        cache.keep(torch.tensor([2 % sentences]))


@pytest.mark.parametrize("positions", OPTIONS["positions"])
@pytest.mark.parametrize(("max_positions", "max_length"), [(4, 9), (32, 4)], ids=["max_positions", "full cache"])
@torch.no_grad()
def test_too_many_steps_are_an_error(positions: str, max_positions: int, max_length: int) -> None:
    model = tiny_model(positions=positions, max_positions=max_positions).eval()
    cache = model.new_cache(model.encode(*sources([3])), 1, max_length)
    for _ in range(4):
        step(model, tokens(1), cache)
    with pytest.raises(AssertionError, match="than max_positions" if max_positions == 4 else "the cache is full"):
        step(model, tokens(1), cache)

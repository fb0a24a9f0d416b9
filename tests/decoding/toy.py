"""Random lines, a toy model (the next token depends on the source and the whole prefix), and naive searches."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mtformer.config.schema import DecodingConfig, ModelConfig
from mtformer.decoding.search import beam
from mtformer.decoding.search.beam import Chooser
from mtformer.decoding.search.candidates import Step, best_candidates
from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.inference import InferenceModel, pad
from mtformer.decoding.search.rules import LengthBounds, Rule, exclude_repeated_ngrams, force_prefixes
from mtformer.decoding.search.sampling import generate
from mtformer.decoding.search.steps import SearchBatch
from mtformer.model.transformer import Transformer
from mtformer.text.tokenizer import BOS, EOS, PAD

WORDS = [
    *("ein", "eine", "der", "die", "das", "hund", "katze", "park", "frau", "mann", "buch", "liest", "läuft", "schläft"),
    *("und", "im", "auf", "neben", "rot", "blau", "gross"),
]
VOCAB = 7  # pad, unk, bos, eos and three words
Steer = Callable[[tuple[int, ...], list[float]], list[float]]
"""Function (tokens, log-probability of each next token) -> values for the search; -inf excludes a token."""


class ToyCache:
    """Cache whose rows are pairs of source and prefix, with minimal `keep` and `reorder`."""

    def __init__(self, sources: list[tuple[int, ...]], num_beams: int, max_length: int) -> None:
        self.num_beams = num_beams
        self.rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = [(s, ()) for s in sources for _ in range(num_beams)]
        self.max_length = max_length

    def reorder(self, beam_BR: Tensor) -> None:
        assert len(beam_BR) * self.num_beams == len(self.rows)
        assert all(0 <= beam < self.num_beams for beam in beam_BR.flatten().tolist()), "a beam changed its sentence"
        self.rows = [self.rows[b * self.num_beams + r] for b, beams in enumerate(beam_BR.tolist()) for r in beams]

    def keep(self, sentences_B: Tensor) -> None:
        R = self.num_beams
        self.rows = [self.rows[b * R + r] for b in sentences_B.tolist() for r in range(R)]


class ToyModel:
    """Model with random distributions; counts computed rows, so that tests detect when sentences leave the batch."""

    def __init__(self, seed: int = 0, vocab: int = VOCAB, dtype: torch.dtype = torch.float32) -> None:
        self.seed, self.vocab, self.dtype = seed, vocab, dtype
        self.num_rows = 0
        self.known: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}

    def start(self, src_BS: Tensor, src_lengths_B: Tensor, num_beams: int, max_length: int) -> ToyCache:
        rows = zip(src_BS.tolist(), src_lengths_B.tolist(), strict=True)
        return ToyCache([tuple(ids[:length]) for ids, length in rows], num_beams, max_length)

    def step(self, token_N: Tensor, cache: ToyCache) -> tuple[Tensor, None]:
        cache.rows = [(s, (*prefix, t)) for (s, prefix), t in zip(cache.rows, token_N.tolist(), strict=True)]
        self.num_rows += len(cache.rows)
        assert all(len(prefix) <= cache.max_length for _, prefix in cache.rows), "more steps than the cache allows"
        return torch.stack([self.logits(source, prefix) for source, prefix in cache.rows]), None

    def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> Tensor:
        if (source, prefix) not in self.known:
            generator = torch.Generator().manual_seed(hash((self.seed, source, prefix)) % 2**31)
            self.known[source, prefix] = (2.0 * torch.randn(self.vocab, generator=generator)).to(self.dtype)
        return self.known[source, prefix]

    def token_log_probabilities(self, source: tuple[int, ...], tokens: list[int]) -> list[float]:
        """Return the log-probabilities of the tokens and of the final eos, computed one at a time."""
        sequence = [*tokens, EOS]
        return [
            self.logits(source, (BOS, *sequence[:i])).double().log_softmax(0)[token].item()
            for i, token in enumerate(sequence)
        ]

    def log_probability(self, source: tuple[int, ...], tokens: list[int]) -> float:
        """Return the sum of `token_log_probabilities`."""
        return sum(self.token_log_probabilities(source, tokens))

    def exhaustive(self, source: tuple[int, ...], alpha: float, fewest: int, most: int) -> list[Hypothesis]:
        """Return every translation of `fewest` to `most` tokens, best first."""
        words = [token for token in range(self.vocab) if token not in (PAD, BOS, EOS)]
        found = []
        for length in range(fewest, most + 1):
            for tokens in itertools.product(words, repeat=length):
                each = self.token_log_probabilities(source, list(tokens))
                found.append(Hypothesis(list(tokens), sum(each) / (length + 1) ** alpha, sum(each), each))
        return sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True)


class ConfidentModel(ToyModel):
    """Toy model that gives one token a probability of at least 0.9 at each step, as a trained model does.

    The rest is distributed unevenly, so that some steps have an improbable eos that ends a beam early. The
    distributions are those of a table, because drawing new ones would take most of the time of a test.
    """

    TABLE_SIZE = 1024
    LEAST = 0.9

    def __init__(self, seed: int, vocab: int = 12) -> None:
        super().__init__(seed, vocab)
        rng = random.Random(seed)
        self.table = [self._distribution(rng) for _ in range(self.TABLE_SIZE)]

    def _distribution(self, rng: random.Random) -> Tensor:
        weights = [rng.expovariate(1.0) ** 3 for _ in range(self.vocab)]
        weights[PAD] = weights[BOS] = 0.0
        best = rng.choice([token for token in range(self.vocab) if token not in (PAD, BOS)])
        weights[best] = 0.0
        probability = rng.uniform(self.LEAST, 0.999)
        others = [(1 - probability) * weight / sum(weights) for weight in weights]
        others[best] = probability
        return torch.tensor(others).clamp(min=1e-30).log()

    def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> Tensor:
        return self.table[hash((self.seed, source, prefix)) % self.TABLE_SIZE]


@dataclass(frozen=True)
class Limits:
    """Length limits with the names used in the config; without `reserved`, no sentence has constraints."""

    max_length_ratio: float = 2.0
    min_length_ratio: float = 0.0
    max_length: int | None = None
    min_length: int = 0
    reserved: Sequence[int] | None = None
    capacity: int = 10_000

    def settings(self, **others: Any) -> DecodingConfig:
        """Return decoding settings without validation, because some tests use limits that the config refuses."""
        names = ("max_length_ratio", "min_length_ratio", "max_length", "min_length")
        return DecodingConfig.model_construct(**{name: getattr(self, name) for name in names}, **others)

    def bounds(self, src_lengths_B: Tensor) -> LengthBounds:
        reserved = [0] * len(src_lengths_B) if self.reserved is None else self.reserved
        return LengthBounds(self.settings(), src_lengths_B, reserved, self.capacity)


def beam_search(
    models: Any,
    src_BS: Tensor,
    src_lengths_B: Tensor,
    beam_size: int,
    alpha: float,
    limits: Limits,
    *,
    rules: Sequence[Rule] = (),
    choose: Chooser = best_candidates,
    **settings: Any,
) -> list[list[Hypothesis]]:
    """Return the n-best translations of each sentence by beam search with a model or an ensemble."""
    decoding = limits.settings(beam_size=beam_size, length_penalty=alpha, **settings)
    batch = SearchBatch(src_BS, src_lengths_B, limits.bounds(src_lengths_B), rules)
    return beam.beam_search(_as_list(models), batch, decoding, choose)


def greedy(
    model: Any, src_BS: Tensor, src_lengths_B: Tensor, limits: Limits, alpha: float = 1.0, rules: Sequence[Rule] = ()
) -> list[Hypothesis]:
    """Return the translation of each sentence by greedy search."""
    decoding = limits.settings(beam_size=1, length_penalty=alpha)
    batch = SearchBatch(src_BS, src_lengths_B, limits.bounds(src_lengths_B), rules)
    return [hypothesis for [hypothesis] in generate(_as_list(model), batch, decoding)]


def sample(
    model: Any,
    src_BS: Tensor,
    src_lengths_B: Tensor,
    limits: Limits,
    num_samples: int,
    keys: Sequence[int] | None = None,
    alpha: float = 1.0,
    rules: Sequence[Rule] = (),
    **settings: Any,
) -> list[list[Hypothesis]]:
    """Return sampled translations of each sentence; the default keys are the indices of the sentences."""
    decoding = limits.settings(sampling=True, n_best=num_samples, length_penalty=alpha, **settings)
    batch = SearchBatch(src_BS, src_lengths_B, limits.bounds(src_lengths_B), rules)
    return generate(_as_list(model), batch, decoding, range(len(src_BS)) if keys is None else keys)


def _as_list(models: Any) -> list[Any]:
    return models if isinstance(models, list) else [models]


def naive_beam_search(
    model: ToyModel,
    source: tuple[int, ...],
    beam_size: int,
    alpha: float,
    limits: Limits,
    *,
    steer: Steer = lambda tokens, own: own,
    early_stopping: str = "ended",
) -> list[Hypothesis]:
    """Return the result of `beam_search` for a single sentence, computed with lists of Python floats."""
    bounds = limits.bounds(torch.tensor([len(source)]))
    fewest, most = int(bounds.min_B), int(bounds.max_B)
    R, is_done = beam_size, False
    living: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for position in range(most + 1):
        candidates = []
        for score, tokens in living:
            own = model.logits(source, (BOS, *tokens)).double().log_softmax(0).tolist()
            for token, log_prob in enumerate(_within(steer(tokens, own), own, position, fewest, most)):
                if log_prob > -math.inf:
                    candidates.append((score + log_prob, tokens, token))
        candidates.sort(key=lambda one: -one[0])
        if not is_done:
            ended += [(score, tokens) for score, tokens, token in candidates[:R] if token == EOS]
        living = [(score, (*tokens, token)) for score, tokens, token in candidates if token != EOS][:R]
        worst = sorted((s / (len(t) + 1) ** alpha for s, t in ended), reverse=True)[R - 1 : R]
        length = most + 1 if early_stopping == "certain" else position + 1
        can_win = any(s / length**alpha > worst[0] for s, _ in living) if worst else True
        is_done |= bool(worst) and (early_stopping == "ended" or not can_win)
    found = []
    for _, tokens in sorted(((s / (len(t) + 1) ** alpha, t) for s, t in ended), key=lambda one: -one[0])[:R]:
        each = model.token_log_probabilities(source, list(tokens))
        found.append(Hypothesis(list(tokens), sum(each) / (len(tokens) + 1) ** alpha, sum(each), each))
    return found


def _within(steered: Sequence[float], own: Sequence[float], position: int, fewest: int, most: int) -> list[float]:
    """Apply the length limits and exclude pad and bos; allow eos if nothing else is allowed."""
    allowed = [
        -math.inf if token in (PAD, BOS) or (position >= most) or (token == EOS and position < fewest) else log_prob
        for token, log_prob in enumerate(steered)
    ]
    if max(allowed) == -math.inf:
        allowed[EOS] = own[EOS]
    return allowed


def batch(*sources: list[int]) -> tuple[Tensor, Tensor]:
    """Return (src_BS, src_lengths_B) for sources given as word ids; adds eos."""
    rows = [[*source, EOS] for source in sources]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows]), torch.tensor([len(row) for row in rows])


def up_to(most: int, fewest: int = 0) -> Limits:
    """Return limits of `fewest` to `most` tokens for a source of 10 words."""
    return Limits(max_length_ratio=1.0, min_length_ratio=fewest / 10, max_length=most)


def tiny_transformer(seed: int, vocab: int = 40, **changes: Any) -> Transformer:
    """Return a real model with random weights, in evaluation mode; `changes` override keys of its config."""
    config = {
        "d_model": 16,
        "num_heads": 2,
        "d_ff": 32,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "max_positions": 64,
    }
    torch.manual_seed(seed)
    model = Transformer(ModelConfig.model_validate({**config, **changes}), vocab, vocab).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # sharper distributions than at initialization
    return model


def tiny_model(seed: int, **changes: Any) -> InferenceModel:
    """Return `tiny_transformer` as an inference model."""
    return InferenceModel(tiny_transformer(seed, **changes))


def random_ids(count: int, seed: int, vocab: int = 40) -> list[list[int]]:
    """Return sentences of one to twelve ids, without special ids."""
    rng = random.Random(seed)
    return [rng.choices(range(4, vocab), k=rng.randint(1, 12)) for _ in range(count)]


def sentences(count: int, seed: int = 0) -> list[list[int]]:
    """Return sources of one to nine words in the vocabulary of the toy model."""
    rng = random.Random(seed)
    return [[rng.choice((4, 5, 6)) for _ in range(rng.randint(1, 9))] for _ in range(count)]


def assert_same(ours: Sequence[Hypothesis], theirs: Sequence[Hypothesis]) -> None:
    """Check that both have the same tokens in the same order, and the same scores up to rounding."""
    assert [h.tokens for h in ours] == [h.tokens for h in theirs]
    assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], rel=1e-5)


def random_lines(count: int, seed: int) -> list[str]:
    """Return lines of one to nine German words."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) for _ in range(count)]


PIECES = [b"", b"?", b"", b"", b"a", b"ab", b"b"]
"""Text of each token of the toy model; some texts have several segmentations."""


def text(tokens: Sequence[int]) -> bytes:
    return b"".join(PIECES[token] for token in tokens)


def repeats(tokens: Sequence[int], n: int) -> bool:
    ngrams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(ngrams)) < len(ngrams)


def forbid(*tokens: int) -> Rule:
    """Return a rule that excludes these tokens."""

    def rule(step: Step) -> None:
        step.log_prob_URV[..., list(tokens)] = -math.inf

    return rule


def no_repeated(n: int) -> Rule:
    return partial(exclude_repeated_ngrams, n)


def begin_with(prefixes: Sequence[Sequence[int]]) -> Rule:
    return partial(force_prefixes, pad(prefixes, torch.device("cpu"), value=-1)[0])

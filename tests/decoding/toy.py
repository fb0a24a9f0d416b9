"""Random lines, and a toy model: the next token's distribution hangs on the source and the whole prefix."""

import itertools
import random

import torch
from torch import Tensor

from mtformer.decoding.limits import Limits
from mtformer.decoding.protocol import Hypothesis
from mtformer.text.tokenizer import BOS, EOS, PAD

WORDS = [
    *("ein", "eine", "der", "die", "das", "hund", "katze", "park", "frau", "mann", "buch", "liest", "läuft", "schläft"),
    *("und", "im", "auf", "neben", "rot", "blau", "gross"),
]
VOCAB = 7  # pad, unk, bos, eos and three words


class ToyCache:
    """Rows remember their prefix as text; `keep` and `reorder` are the plainest that meet the contract."""

    def __init__(self, sources: list[tuple[int, ...]], num_beams: int, max_length: int) -> None:
        self.num_beams = num_beams
        self.rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = [(s, ()) for s in sources for _ in range(num_beams)]
        self.max_length = max_length

    def reorder(self, rows_N: Tensor) -> None:
        sources = [source for source, _ in self.rows]
        self.rows = [self.rows[row] for row in rows_N.tolist()]
        assert [source for source, _ in self.rows] == sources, "a beam moved to another sentence"

    def keep(self, sentences_B: Tensor) -> None:
        R = self.num_beams
        self.rows = [self.rows[b * R + r] for b in sentences_B.tolist() for r in range(R)]


class ToyModel:
    """Counts the rows that it was asked for, so that a test can see sentences leave."""

    def __init__(self, seed: int = 0, vocab: int = VOCAB, dtype: torch.dtype = torch.float32) -> None:
        self.seed, self.vocab, self.dtype = seed, vocab, dtype
        self.num_rows = 0
        self.known: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}

    def encode(self, src_BS: Tensor, src_lengths_B: Tensor) -> list[tuple[int, ...]]:
        rows = zip(src_BS.tolist(), src_lengths_B.tolist(), strict=True)
        return [tuple(ids[:length]) for ids, length in rows]

    def start(self, memory: list[tuple[int, ...]], num_beams: int, max_length: int) -> ToyCache:
        return ToyCache(memory, num_beams, max_length)

    def step(self, token_N: Tensor, cache: ToyCache) -> Tensor:
        cache.rows = [(s, (*prefix, t)) for (s, prefix), t in zip(cache.rows, token_N.tolist(), strict=True)]
        self.num_rows += len(cache.rows)
        assert all(len(prefix) <= cache.max_length for _, prefix in cache.rows), "more steps than promised"
        return torch.stack([self.logits(source, prefix) for source, prefix in cache.rows])

    def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> Tensor:
        if (source, prefix) not in self.known:
            generator = torch.Generator().manual_seed(hash((self.seed, source, prefix)) % 2**31)
            self.known[source, prefix] = (2.0 * torch.randn(self.vocab, generator=generator)).to(self.dtype)
        return self.known[source, prefix]

    def token_log_probabilities(self, source: tuple[int, ...], tokens: list[int]) -> list[float]:
        """Of the tokens and the eos after them, one at a time."""
        sequence = [*tokens, EOS]
        return [
            self.logits(source, (BOS, *sequence[:i])).double().log_softmax(0)[token].item()
            for i, token in enumerate(sequence)
        ]

    def log_probability(self, source: tuple[int, ...], tokens: list[int]) -> float:
        """The sum of them."""
        return sum(self.token_log_probabilities(source, tokens))

    def exhaustive(self, source: tuple[int, ...], alpha: float, fewest: int, most: int) -> list[Hypothesis]:
        """Every translation of so many tokens, best first."""
        words = [token for token in range(self.vocab) if token not in (PAD, BOS, EOS)]
        found = []
        for length in range(fewest, most + 1):
            for tokens in itertools.product(words, repeat=length):
                each = self.token_log_probabilities(source, list(tokens))
                found.append(Hypothesis(list(tokens), sum(each) / (length + 1) ** alpha, sum(each), each))
        return sorted(found, key=lambda hypothesis: hypothesis.score, reverse=True)


def batch(*sources: list[int]) -> tuple[Tensor, Tensor]:
    """Word ids -> (src_BS, src_lengths_B), eos added."""
    rows = [[*source, EOS] for source in sources]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows]), torch.tensor([len(row) for row in rows])


def up_to(most: int, fewest: int = 0) -> Limits:
    """Limits of `fewest` to `most` tokens for a source of 10 words."""
    return Limits(max_length_ratio=1.0, min_length_ratio=fewest / 10, max_tokens=most)


def random_lines(count: int, seed: int) -> list[str]:
    """Lines of one to nine German words."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) for _ in range(count)]

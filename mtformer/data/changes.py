"""Pairs as an epoch sees them: with noise on the source, and segmented anew."""

from collections.abc import Sequence

import numpy as np

from mtformer.config.data import NoiseConfig
from mtformer.data.noise import Noise
from mtformer.data.ragged import Ragged
from mtformer.data.store import Pairs
from mtformer.text.tokenizer import Tokenizer, TokenizerPair


class Changes:
    """A function of the pairs and of a seed.

    Args:
        tokenizers: those of the stores, which keep their text.
        sampling_alpha: each line is segmented at random, see `Tokenizer.sample`; 0: as it is stored.
        noise: on the sources.
        max_tokens: a line that gets more tokens than this, eos not counted, stays as it is stored.
    """

    def __init__(self, tokenizers: TokenizerPair, sampling_alpha: float, noise: NoiseConfig, max_tokens: int) -> None:
        self.tokenizers, self.alpha, self.max_tokens = tokenizers, sampling_alpha, max_tokens
        self.noise = Noise(noise) if any(noise.model_dump().values()) else None

    def __call__(self, pairs: Pairs, seed: Sequence[int]) -> Pairs:
        seeds = np.random.SeedSequence(seed).generate_state(3, np.uint64).tolist()
        src_lines, tgt_lines = pairs.text()
        if self.noise is not None:
            src_lines = self.noise(src_lines, np.random.default_rng(seeds[2]))
        return Pairs(
            self._encoded(self.tokenizers.src, src_lines, pairs.src, seeds[0]),
            self._encoded(self.tokenizers.tgt, tgt_lines, pairs.tgt, seeds[1]) if self.alpha else pairs.tgt,
        )

    def _encoded(self, tokenizer: Tokenizer, lines: Sequence[str], stored: Ragged, seed: int) -> Ragged:
        rows = tokenizer.sample(lines, self.alpha, seed) if self.alpha else tokenizer.encode(lines)
        if max(map(len, rows), default=0) > self.max_tokens:
            rows = [
                row if len(row) <= self.max_tokens else kept.tolist()
                for row, kept in zip(rows, stored.rows(), strict=True)
            ]
        return Ragged.of(rows)

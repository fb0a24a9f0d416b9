"""Augmentation: random noise and subword segmentation, different in each epoch and reproducible from the seed."""

from collections.abc import Sequence
from itertools import compress

import numpy as np

from mtformer.config.data import NoiseConfig
from mtformer.data.store.ragged import Ragged
from mtformer.data.store.store import Pairs
from mtformer.text.tokenizer import Tokenizer, TokenizerPair

TYPOS = ("swap", "drop", "double", "replace")


class Augmentation:
    """Callable that applies noise and random segmentation to pairs.

    Args:
        tokenizers: the tokenizers with which the corpora were prepared; the stores must include the text of the pairs.
        sampling_alpha: parameter of random segmentation, see `Tokenizer.sample`; 0: use the stored segmentation.
        noise: noise settings for source lines.
        max_tokens: maximum number of tokens of an augmented line, excluding eos; a longer one is replaced with the
            stored line.
    """

    def __init__(self, tokenizers: TokenizerPair, sampling_alpha: float, noise: NoiseConfig, max_tokens: int) -> None:
        self.tokenizers, self.alpha, self.noise, self.max_tokens = tokenizers, sampling_alpha, noise, max_tokens
        self._has_noise = any(noise.model_dump().values())

    def __call__(self, pairs: Pairs, seed: Sequence[int]) -> Pairs:
        """Return the pairs with noise and random segmentation, which depend on the seed only."""
        seeds = np.random.SeedSequence(seed).generate_state(3, np.uint64).tolist()
        src_lines, tgt_lines = pairs.text()
        if self._has_noise:
            src_lines = add_noise(src_lines, self.noise, np.random.default_rng(seeds[2]))
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


def add_noise(lines: Sequence[str], config: NoiseConfig, random: np.random.Generator) -> list[str]:
    """Add noise to lines, to train robust models (Karpukhin et al. 2019; Niu et al. 2020)."""
    noisy = []
    for line in lines:
        words = line.split(" ")
        if config.word_dropout:
            is_kept = random.random(len(words)) >= config.word_dropout
            words = list(compress(words, is_kept.tolist())) or words  # keep at least one word
        if config.typos:
            is_hit = (random.random(len(words)) < config.typos).tolist()
            words = [_typo(word, random) if hit else word for word, hit in zip(words, is_hit, strict=True)]
        line = " ".join(words)
        if config.case and random.random() < config.case:
            line = line.upper() if random.random() < 0.5 else line.lower()
        noisy.append(line)
    return noisy


def _typo(word: str, random: np.random.Generator) -> str:
    """Return the word with one typo; words of one letter are returned unchanged."""
    if len(word) < 2:
        return word
    kind, place = TYPOS[random.integers(len(TYPOS))], int(random.integers(len(word) - 1))
    if kind == "swap":
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    if kind == "drop":
        return word[:place] + word[place + 1 :]
    if kind == "double":
        return word[: place + 1] + word[place:]
    # Replace the letter with another letter of the word, which is in the same script.
    return word[:place] + word[random.integers(len(word))] + word[place + 1 :]

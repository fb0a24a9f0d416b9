"""Noise on training sources, for models that stand up to it (Karpukhin et al. 2019; Niu et al. 2020).

What is drawn hangs on the random numbers alone, so that an epoch can be made again.
"""

from collections.abc import Sequence

import numpy as np

from mtformer.config.data import NoiseConfig

TYPOS = ("swap", "drop", "double", "replace")


class Noise:
    """A function of lines and of a random generator.

    Args:
        config: the shares.
    """

    def __init__(self, config: NoiseConfig) -> None:
        self.config = config

    def __call__(self, lines: Sequence[str], random: np.random.Generator) -> list[str]:
        return [self._line(line, random) for line in lines]

    def _line(self, line: str, random: np.random.Generator) -> str:
        words = line.split(" ")
        if self.config.word_dropout:
            kept = random.random(len(words)) >= self.config.word_dropout
            # A line never loses all of its words: nothing could be learned from it.
            words = [word for word, keep in zip(words, kept.tolist(), strict=True) if keep] or words
        if self.config.typos:
            hit = random.random(len(words)) < self.config.typos
            words = [_typo(word, random) if is_hit else word for word, is_hit in zip(words, hit.tolist(), strict=True)]
        line = " ".join(words)
        if self.config.case and random.random() < self.config.case:
            line = line.upper() if random.random() < 0.5 else line.lower()
        return line


def _typo(word: str, random: np.random.Generator) -> str:
    """The word with one mistake; a word of one letter is left alone."""
    if len(word) < 2:
        return word
    kind, place = TYPOS[random.integers(len(TYPOS))], int(random.integers(len(word) - 1))
    if kind == "swap":
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    if kind == "drop":
        return word[:place] + word[place + 1 :]
    if kind == "double":
        return word[: place + 1] + word[place:]
    # By another letter of the word, which is of its script at least.
    return word[:place] + word[random.integers(len(word))] + word[place + 1 :]

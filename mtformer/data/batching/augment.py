"""Augmentation: random noise, different in each epoch and reproducible from the seed.

Noise that a translation should show (capitals, no final stop, text to copy) changes both sides, mistakes the source.
"""

import re
import string
from collections.abc import Callable, Sequence
from itertools import compress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mtformer.config.data import NoiseConfig
from mtformer.data.store.pairs import Pairs, count_id, lengths, make_pairs, text_of
from mtformer.data.store.pipeline import encode
from mtformer.text.case import title_case
from mtformer.text.tokenizer import UNK, TokenizerPair

STOPS = (".", "。", "．", "｡", "।", "۔", "։", "።")
EMOJI = "😀😂😉😍🤔😢👍👏🙏🎉🔥🚀☀☕✅❤"  # frequent ones


class Augmentation:
    """Callable that adds noise to pairs with text, given the tokenizers with which they were prepared.

    A noisy line of more than `max_tokens` tokens, excluding eos, or with new unknown tokens is replaced with the stored
    line (if noise changed targets, the pair with the stored pair).
    """

    def __init__(self, tokenizers: TokenizerPair, noise: NoiseConfig, max_tokens: int) -> None:
        self.tokenizers, self.noise, self.max_tokens = tokenizers, noise, max_tokens

    def __call__(self, pairs: Pairs, seed: Sequence[int]) -> Pairs:
        """Return the pairs with noise, which depends on the seed only."""
        random, (old_src, old_tgt) = np.random.default_rng(seed), text_of(pairs)
        noisy = [add_noise(*pair, self.noise, random) for pair in zip(old_src, old_tgt, strict=True)]
        src = encode(self.tokenizers.src, [src for src, _ in noisy])
        tgt_lines = [tgt for _, tgt in noisy]
        has_new_targets = tgt_lines != old_tgt
        tgt = encode(self.tokenizers.tgt, tgt_lines) if has_new_targets else pairs["tgt"]
        is_unusable = [
            (lengths(new) > self.max_tokens) | (count_id(new, UNK) > count_id(pairs[side], UNK))  # capitals
            for new, side in ((src, "src"), (tgt, "tgt"))
        ]
        if has_new_targets:  # a changed source does not fit the stored target
            is_unusable = [is_unusable[0] | is_unusable[1]] * 2
        sides = zip(is_unusable, (pairs["src"], pairs["tgt"]), (src, tgt), strict=True)
        return make_pairs(*(pc.if_else(pa.array(is_bad), stored, changed) for is_bad, stored, changed in sides))


def add_noise(src: str, tgt: str, config: NoiseConfig, random: np.random.Generator) -> tuple[str, str]:
    """Add noise to a pair (Karpukhin et al. 2019; Niu et al. 2020)."""
    if config.word_dropout:
        words = src.split()
        is_kept = random.random(len(words)) >= config.word_dropout
        src = " ".join(compress(words, is_kept.tolist())) or src  # keep at least one word
    if config.typos:
        src = add_typos(src, config.typos, random)
    if config.case and random.random() < config.case and not re.search("[<>@/]", src + tgt):
        change = (str.upper, title_case, None)[random.integers(3)]
        src, tgt = change_case(src, tgt, change) if change is not None else (src.lower(), tgt)
    if config.final_stop and random.random() < config.final_stop:
        src, tgt = drop_final_stop(src, tgt)
    if config.copies and random.random() < config.copies:
        text = str(random.choice([*texts_to_copy(random).values()]))
        form = "{0} {1}" if random.random() < 0.5 else "{1} {0}"
        src, tgt = form.format(src, text), form.format(tgt, text)
    return src, tgt


def change_case(src: str, tgt: str, change: Callable[[str], str]) -> tuple[str, str]:
    """Change the case of both sides, unless the source stays the same or most of its letters have no case."""
    letters = [letter for letter in src if letter.isalpha()]
    num_cased = sum(letter.upper() != letter.lower() for letter in letters)
    return (change(src), change(tgt)) if change(src) != src and 2 * num_cased >= len(letters) else (src, tgt)


def drop_final_stop(src: str, tgt: str) -> tuple[str, str]:
    """Remove the final full stop of both sides, if the source has one; an ellipsis is kept."""
    short, short_tgt = (
        rest if line.endswith(STOPS) and (rest := line[:-1].rstrip()) and not rest.endswith(STOPS) else line
        for line in (src, tgt)
    )
    return (short, short_tgt) if short != src else (src, tgt)


def texts_to_copy(random: np.random.Generator) -> dict[str, str]:
    """Return random texts by the row of `exam` that adds them; emoji: a frequent one, or up to three others."""
    others = "".join(map(chr, random.integers(0x1F300, 0x1F650, random.integers(1, 4)).tolist()))
    emoji = str(random.choice([*EMOJI])) if random.random() < 0.5 else others
    name = "".join(random.choice([*string.ascii_lowercase], 12))
    url, email = f"https://{name[:6]}.com/{name[6:]}", f"{name[:6]}@{name[6:]}.org"
    number = str(random.integers(10 ** random.integers(1, 7)))
    parts = [f"{random.integers(1, 29):02}", f"{random.integers(1, 13):02}", str(random.integers(1950, 2050))]
    date = str(random.choice([*"-./"])).join(parts[:: random.choice([1, -1])])
    return {"emoji": emoji, "urls": url, "emails": email, "numbers": number, "dates": date}


def add_typos(line: str, share: float, random: np.random.Generator) -> str:
    """Insert a typo in this share of the words."""
    words = [f"{word} " for word in line.split(" ")]
    is_hit = (random.random(len(words)) < share).tolist()
    words = [_typo(word, random) if hit else word for word, hit in zip(words, is_hit, strict=True)]
    return "".join(words).removesuffix(" ")


def _typo(word: str, random: np.random.Generator) -> str:
    """Return the word, which ends with a space, with one typo; one letter, numbers, tags and addresses are kept."""
    if len(word) < 3 or re.search(r"[\d<>@/]", word):
        return word
    place = int(random.integers(len(word) - 2))
    before, letter, after = word[:place], word[place], word[place + 1 :]
    other = word[random.integers(len(word) - 1)]  # in the same script
    swapped, dropped = before + after[0] + letter + after[1:], before + after
    doubled, replaced, joined = before + letter + letter + after, before + other + after, word[:-1]
    return (swapped, dropped, doubled, replaced, joined)[random.integers(5)]

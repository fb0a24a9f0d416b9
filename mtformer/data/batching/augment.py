"""Augmentation: random noise, different in each epoch and reproducible from the seed.

The noise of a pair depends only on its key, which `pair_keys` derives from the seed of the run and the position of the
pair in the stream of its corpus. So each process augments only the pairs that it trains on, in any order, and the
result does not depend on the number of processes.

Noise that a translation should show (capitals, no final stop, text to copy) changes both sides, mistakes the source.
"""

import re
import string
from collections.abc import Iterator
from itertools import compress
from operator import ne
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import regex
from numpy.typing import NDArray

from mtformer.config.data import NoiseConfig
from mtformer.data.store.pairs import Column, Ints, Pairs, count_id, lengths, make_pairs, text_of
from mtformer.data.store.pipeline import encode
from mtformer.text.case import Change, lower_case, title_case, upper_case
from mtformer.text.characters import FINAL_STOP
from mtformer.text.tokenizer import UNK, Tokenizer, TokenizerPair

MAX_STOP = 3
"""Number of characters of the longest full stop: two Ethiopic wordspaces with a space between them."""

EMOJI = "😀😂😉😍🤔😢👍👏🙏🎉🔥🚀☀☕✅❤"
"""Frequent emoji."""

TAGS_OR_ADDRESSES = re.compile("[<>@/]")
"""Characters of text whose case is kept."""

UNCHANGED_WORD = re.compile(r"[\d<>@/]")
"""Characters of words without typos: numbers, tags and addresses."""


Keys = NDArray[np.uint64]
"""Random number of each pair, from which its noise is drawn."""

GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64 (Steele et al. 2014, "Fast splittable pseudorandom number generators", figure 16)."""

Languages = tuple[str, str]
"""Language codes of sources and targets."""

UNKNOWN_LANGUAGES = ("", "")
"""Languages of a pair for which the default rules of case apply."""


class Augmentation:
    """Callable that adds noise to pairs with text.

    A noisy line that is too long or has new unknown tokens is replaced with the stored line; if noise changed the
    target, the pair is replaced with the stored pair, because a changed source does not fit the stored target.

    Args:
        tokenizers: the tokenizers with which the pairs were prepared.
        noise: kinds of noise and their shares.
        max_tokens: maximum number of tokens of a noisy line, excluding eos.
    """

    def __init__(self, tokenizers: TokenizerPair, noise: NoiseConfig, max_tokens: int) -> None:
        self.tokenizers = tokenizers
        self.noise = noise
        self.max_tokens = max_tokens

    def __call__(self, pairs: Pairs, keys: Keys, languages: Languages = UNKNOWN_LANGUAGES) -> Pairs:
        """Return the pairs with noise.

        Args:
            pairs: pairs with text.
            keys: key of each pair, on which its noise depends, see `pair_keys`.
            languages: languages of the pairs, for the rules of case.
        """
        stored_src_lines, stored_tgt_lines = text_of(pairs)
        noisy_src_lines: list[str] = []
        noisy_tgt_lines: list[str] = []
        lines = zip(stored_src_lines, stored_tgt_lines, _generators(keys), strict=True)
        for src_line, tgt_line, random in lines:
            noisy_src_line, noisy_tgt_line = add_noise(src_line, tgt_line, self.noise, random, languages)
            noisy_src_lines.append(noisy_src_line)
            noisy_tgt_lines.append(noisy_tgt_line)

        stored_src = pairs["src"]
        stored_tgt = pairs["tgt"]
        noisy_src = _encode_changed(self.tokenizers.src, noisy_src_lines, stored_src_lines, stored_src)
        noisy_tgt = _encode_changed(self.tokenizers.tgt, noisy_tgt_lines, stored_tgt_lines, stored_tgt)
        is_bad_pair = self._is_unusable(noisy_src, stored_src) | self._is_unusable(noisy_tgt, stored_tgt)
        src = _replace(is_bad_pair, noisy_src, stored_src)
        tgt = _replace(is_bad_pair, noisy_tgt, stored_tgt)
        return make_pairs(src, tgt)

    def _is_unusable(self, noisy: Column, stored: Column) -> NDArray[np.bool_]:
        """Return True for each line that became too long, or has new unknown tokens, such as rare capitals."""
        is_too_long = lengths(noisy) > np.maximum(lengths(stored), self.max_tokens)
        has_new_unknown = count_id(noisy, UNK) > count_id(stored, UNK)
        return is_too_long | has_new_unknown


def _encode_changed(tokenizer: Tokenizer, noisy_lines: list[str], stored_lines: list[str], stored: Column) -> Column:
    """Return the ids of the noisy lines; unchanged lines keep the stored ids, because encoding takes long."""
    is_changed = list(map(ne, noisy_lines, stored_lines))
    changed_lines = list(compress(noisy_lines, is_changed))
    if not changed_lines:
        return stored
    encoded = encode(tokenizer, changed_lines)
    rows = np.arange(len(stored))
    rows[is_changed] = len(stored) + np.arange(len(encoded))
    return pa.concat_arrays([stored, encoded]).take(pa.array(rows))


def _replace(is_unusable: NDArray[np.bool_], noisy: Column, stored: Column) -> Column:
    """Return the noisy lines, with the stored line in place of each unusable one."""
    return pc.if_else(pa.array(is_unusable), stored, noisy)


def pair_keys(seed: int, corpus: str, numbers: Ints) -> Keys:
    """Return the keys of pairs, from which their noise is drawn.

    Args:
        seed: seed of the run.
        corpus: name of the corpus.
        numbers: number of each pair in the endless stream of the corpus, which differs between epochs.
    """
    name = list(corpus.encode())
    [start] = np.random.SeedSequence([seed, *name]).generate_state(1, np.uint64)
    return _mixed(numbers.astype(np.uint64) + start)


def _mixed(numbers: Keys) -> Keys:
    """Return the output of SplitMix64 for each state; consecutive numbers give independent results."""
    mixed = (numbers + np.uint64(1)) * GOLDEN_GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _generators(keys: Keys) -> Iterator[np.random.Generator]:
    """Yield the random number generator of each key; it is one object, because creating one takes 13 us, not 1.3 us."""
    bit_generator: Any = np.random.PCG64(0)
    random = np.random.Generator(bit_generator)
    state = bit_generator.state
    increment = state["state"]["inc"]
    for high, low in zip(keys.tolist(), _mixed(keys).tolist(), strict=True):
        bit_generator.state = {**state, "state": {"state": (high << 64) | low, "inc": increment}}
        yield random


def add_noise(
    src: str, tgt: str, config: NoiseConfig, random: np.random.Generator, languages: Languages = UNKNOWN_LANGUAGES
) -> tuple[str, str]:
    """Add noise to a pair (Karpukhin et al. 2019; Niu et al. 2020).

    Args:
        src: source of the pair.
        tgt: target of the pair.
        config: kinds of noise and their shares.
        random: random number generator.
        languages: their languages, which determine capitals.
    """
    if config.word_dropout:
        words = src.split()
        is_kept = random.random(len(words)) >= config.word_dropout
        src = " ".join(compress(words, is_kept.tolist())) or src  # keep at least one word
    if config.typos:
        src = add_typos(src, config.typos, random)
    if config.case and random.random() < config.case:
        src, tgt = _random_case(src, tgt, random, languages)
    if config.final_stop and random.random() < config.final_stop:
        src, tgt = drop_final_stop(src, tgt)
    if config.copies and random.random() < config.copies:
        src, tgt = _add_copied_text(src, tgt, random)
    return src, tgt


def _random_case(src: str, tgt: str, random: np.random.Generator, languages: Languages) -> tuple[str, str]:
    """Change both sides to upper case or title case, or only the source to lower case; keep tags and addresses."""
    if TAGS_OR_ADDRESSES.search(src + tgt):
        return src, tgt
    choice = random.integers(3)
    if choice == 0:
        return change_case(src, tgt, upper_case, languages)
    if choice == 1:
        return change_case(src, tgt, title_case, languages)
    src_lang, _ = languages
    return lower_case(src, src_lang), tgt


def _add_copied_text(src: str, tgt: str, random: np.random.Generator) -> tuple[str, str]:
    """Add the same random text at the end or the start of both sides."""
    texts = list(texts_to_copy(random).values())
    text = str(random.choice(texts))
    if random.random() < 0.5:
        return f"{src} {text}", f"{tgt} {text}"
    return f"{text} {src}", f"{text} {tgt}"


def change_case(src: str, tgt: str, change: Change, languages: Languages = UNKNOWN_LANGUAGES) -> tuple[str, str]:
    """Change the case of both sides, unless the source stays the same or most of its letters have no case.

    Args:
        src: source of the pair.
        tgt: target of the pair.
        change: function that returns a text in the other case.
        languages: languages of the pair.
    """
    src_lang, tgt_lang = languages
    changed_src = change(src, src_lang)
    if changed_src == src:
        return src, tgt

    num_letters = sum(map(str.isalpha, src))
    num_cased = sum(map(_is_cased, src))
    if 2 * num_cased < num_letters:
        return src, tgt
    return changed_src, change(tgt, tgt_lang)


def _is_cased(character: str) -> bool:
    """Return True for a letter with a capital; Georgian has none that begins a word."""
    return character.isalpha() and character.title() != character.lower()


def drop_final_stop(src: str, tgt: str) -> tuple[str, str]:
    """Remove the final full stop of both sides, if the source has one; an ellipsis is kept."""
    src_without_stop = _without_final_stop(src)
    if src_without_stop == src:
        return src, tgt
    return src_without_stop, _without_final_stop(tgt)


def _without_final_stop(line: str) -> str:
    stop = _final_stop(line)
    if stop is None:
        return line
    rest = line[: stop.start()].rstrip()
    is_ellipsis = _final_stop(rest) is not None
    if is_ellipsis or not rest:
        return line
    return rest


def _final_stop(line: str) -> regex.Match[str] | None:
    return FINAL_STOP.search(line, max(0, len(line) - MAX_STOP))


def texts_to_copy(random: np.random.Generator) -> dict[str, str]:
    """Return random texts by the row of `exam` that adds them; emoji: a frequent one, or up to three others."""
    num_emoji = random.integers(1, 4)
    code_points = random.integers(0x1F300, 0x1F650, num_emoji)
    emoji = "".join(map(chr, code_points.tolist()))
    if random.random() < 0.5:
        emoji = str(random.choice([*EMOJI]))

    name = "".join(random.choice([*string.ascii_lowercase], 12))
    host = name[:6]
    rest = name[6:]

    num_digits = random.integers(1, 7)
    number = str(random.integers(10**num_digits))

    day = f"{random.integers(1, 29):02}"
    month = f"{random.integers(1, 13):02}"
    year = str(random.integers(1950, 2050))
    separator = str(random.choice([*"-./"]))
    direction = random.choice([1, -1])  # day first or year first
    date = separator.join([day, month, year][::direction])

    return {
        "emoji": emoji,
        "urls": f"https://{host}.com/{rest}",
        "emails": f"{host}@{rest}.org",
        "numbers": number,
        "dates": date,
    }


def add_typos(line: str, share: float, random: np.random.Generator) -> str:
    """Insert typos in random words.

    Args:
        line: a line, whose words are separated by spaces.
        share: probability of a typo in a word.
        random: random number generator.
    """
    words = [f"{word} " for word in line.split(" ")]
    has_typo = (random.random(len(words)) < share).tolist()
    for index in compress(range(len(words)), has_typo):
        words[index] = _typo(words[index], random)
    return "".join(words).removesuffix(" ")


def _typo(word: str, random: np.random.Generator) -> str:
    """Return the word, which ends with a space, with one typo; one letter, numbers, tags and addresses are kept."""
    if len(word) < 3 or UNCHANGED_WORD.search(word):
        return word

    index = int(random.integers(len(word) - 2))  # of any letter but the last one
    before = word[:index]
    letter = word[index]
    after = word[index + 1 :]
    other_letter = word[random.integers(len(word) - 1)]  # in the same script

    kind = random.integers(5)
    if kind == 0:  # two letters exchanged
        return before + after[0] + letter + after[1:]
    if kind == 1:  # a letter dropped
        return before + after
    if kind == 2:  # a letter doubled
        return before + letter + letter + after
    if kind == 3:  # a letter replaced
        return before + other_letter + after
    return word[:-1]  # joined with the next word

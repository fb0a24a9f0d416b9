"""Noise on sources: its amount is set in the config, and it depends on the seed only."""

from itertools import pairwise

import numpy as np
import pytest

from mtformer.config.data import NoiseConfig
from mtformer.data.batching.augment import Augmentation, add_noise
from mtformer.data.store.ragged import Ragged, bytes_of
from mtformer.data.store.store import Pairs
from mtformer.text.tokenizer import TokenizerPair

WORDS = [f"word{chr(97 + n % 26)}{n}" for n in range(40)]
LINES = [" ".join(WORDS[n % 20 : n % 20 + 10]) for n in range(1000)]


def noisy(seed: int = 1, **shares: float) -> list[str]:
    return add_noise(LINES, NoiseConfig(**shares), np.random.default_rng(seed))


def test_noise_depends_on_the_seed() -> None:
    shares = {"word_dropout": 0.1, "typos": 0.2, "case": 0.1}
    assert noisy(**shares) == noisy(**shares)
    assert noisy(**shares) != noisy(2, **shares)


def test_word_dropout_keeps_the_order_and_at_least_one_word() -> None:
    found = noisy(word_dropout=0.3)
    assert sum(len(line.split()) for line in found) == pytest.approx(7000, rel=0.05)
    for line, plain in zip(found, LINES, strict=True):
        places = [plain.split().index(word) for word in line.split()]
        assert all(one < other for one, other in pairwise(places))
    lines = add_noise(["one"] * 500, NoiseConfig(word_dropout=0.9), np.random.default_rng(1))
    assert lines == ["one"] * 500


def test_typos_change_one_position_of_a_word() -> None:
    found = noisy(typos=0.2)
    kinds = {-1: 0, 0: 0, 1: 0}
    num_changed = 0
    for line, plain in zip(found, LINES, strict=True):
        for word, before in zip(line.split(), plain.split(), strict=True):
            num_changed += word != before
            kinds[len(word) - len(before)] += word != before
            # A typo changes one letter or two adjacent letters.
            assert sum(a != b for a, b in zip(word, before, strict=False)) <= len(before)
    # Replacing or swapping equal letters has no effect.
    assert 1700 < num_changed <= 2100
    assert all(count > 300 for count in kinds.values())
    assert add_noise(["a b  c", ""], NoiseConfig(typos=0.9), np.random.default_rng(1)) == ["a b  c", ""]


def test_case_noise_converts_whole_lines() -> None:
    mixed = ["One Two"] * 2000
    found = add_noise(mixed, NoiseConfig(case=0.3), np.random.default_rng(1))
    assert found.count("ONE TWO") == pytest.approx(300, rel=0.2)
    assert found.count("one two") == pytest.approx(300, rel=0.2)


# ---- in training ----------------------------------------------------------------------------------------------------


def stored(lines: list[str], tokenizers: TokenizerPair) -> Pairs:
    ids = Ragged.of(tokenizers.src.encode(lines))
    return Pairs(ids, ids, bytes_of(lines), bytes_of(lines))


def test_noise_applies_to_the_source_only(tokenizers: TokenizerPair) -> None:
    lines = ["one two three four five six seven"] * 50
    pairs = stored(lines, tokenizers)
    changes = Augmentation(tokenizers, 0.0, NoiseConfig(word_dropout=0.3), max_tokens=100)
    found = changes(pairs, (1, 2, 3, 0))
    assert [row.tolist() for row in found.tgt.rows()] == [row.tolist() for row in pairs.tgt.rows()]
    texts = tokenizers.src.decode([row.tolist() for row in found.src.rows()])
    assert 20 < len(set(texts)) <= 50
    again, other = changes(pairs, (1, 2, 3, 0)), changes(pairs, (1, 2, 4, 0))
    assert np.array_equal(found.src.ids_N, again.src.ids_N)
    assert not np.array_equal(found.src.ids_N, other.src.ids_N)


def test_sampling_applies_to_both_sides_and_preserves_the_text(tokenizers: TokenizerPair) -> None:
    lines = [f"one two three four five six seven {n}" for n in range(50)]
    found = Augmentation(tokenizers, 0.05, NoiseConfig(), max_tokens=100)(stored(lines, tokenizers), (1, 0, 0, 0))
    for side in (found.src, found.tgt):
        assert tokenizers.src.decode([row.tolist() for row in side.rows()]) == lines
    assert not np.array_equal(found.src.ids_N, found.tgt.ids_N)


def test_lines_that_become_too_long_keep_the_stored_ids(tokenizers: TokenizerPair) -> None:
    lines = ["one two three", "one two three four five six seven eight nine ten"]
    pairs = stored(lines, tokenizers)
    limit = int(pairs.src.lengths_B.max())
    for seed in range(20):
        found = Augmentation(tokenizers, 0.01, NoiseConfig(), limit)(pairs, (seed,))
        assert found.src.lengths_B.max() <= limit

"""Sampled segmentations depend on the seed only and have the probabilities given in the papers."""

import itertools
import math
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from mtformer.errors import DataError
from mtformer.text import sampling
from mtformer.text.pieces import UNIGRAM, read_pieces
from mtformer.text.tokenizer import Tokenizer

UNUSUAL = ["", "  ", "old 漢字 man", "漢字", "\x00", "<2de> the<2de>old man<2de>", "a" * 300, "🙂🙂 old"]
WORD = "choquawy"


def kind(tokenizer: Tokenizer) -> int:
    return read_pieces(tokenizer.model).kind


def sharp(tokenizer: Tokenizer) -> float:
    """Return the alpha at which sampling is deterministic."""
    return 1000.0 if kind(tokenizer) == UNIGRAM else 0.0


def test_ids_depend_on_the_seed_only(tokenizer: Tokenizer, lines: list[str]) -> None:
    first = tokenizer.sample(lines, 0.3, seed=7)
    tokenizer.sample(lines[::-1] + UNUSUAL, 0.1, seed=3)
    assert tokenizer.sample(lines, 0.3, seed=7) == first
    assert Tokenizer(tokenizer.model).sample(lines, 0.3, seed=7) == first
    assert tokenizer.sample(lines, 0.3, seed=8) != first


def test_result_is_the_same_in_another_process(tokenizer: Tokenizer, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "x.model").write_bytes(tokenizer.model)
    script = (
        "import sys; from mtformer.text.tokenizer import Tokenizer; "
        "print(Tokenizer.load(sys.argv[1]).sample(sys.argv[2:], 0.3, seed=7))"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "x.model"), *lines[:20]]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == f"{tokenizer.sample(lines[:20], 0.3, seed=7)}\n"


def test_result_is_the_same_in_concurrent_threads(tokenizer: Tokenizer, lines: list[str]) -> None:
    expected = [tokenizer.sample(lines, 0.3, seed=seed) for seed in range(4)]
    copy = Tokenizer(tokenizer.model)
    found: dict[int, list[list[int]]] = {}

    def sample(seed: int) -> None:
        found[seed] = copy.sample(lines, 0.3, seed)

    threads = [threading.Thread(target=sample, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == expected


def test_the_cache_of_lattices_does_not_change_the_result(
    tokenizer: Tokenizer, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [tokenizer.sample(lines[n : n + 10], 0.3, seed=n) for n in range(0, 100, 10)]
    monkeypatch.setattr(sampling, "MAX_EDGES", 50)
    monkeypatch.setattr(sampling, "MAX_WORDS", 5)
    copy = Tokenizer(tokenizer.model)
    assert [copy.sample(lines[n : n + 10], 0.3, seed=n) for n in range(0, 100, 10)] == expected


def test_sampling_without_randomness_equals_encoding(
    tokenizer: Tokenizer, byte_tokenizer: Tokenizer, lines: list[str]
) -> None:
    assert tokenizer.sample(lines + UNUSUAL, sharp(tokenizer), seed=1) == tokenizer.encode(lines + UNUSUAL)
    text = [line for line in lines + UNUSUAL if line != "🙂🙂 old"] + ["☃ old 漢"]
    assert byte_tokenizer.sample(text, sharp(byte_tokenizer), seed=1) == byte_tokenizer.encode(text)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.9])
def test_every_segmentation_decodes_to_the_line(byte_tokenizer: Tokenizer, lines: list[str], alpha: float) -> None:
    text = [*lines, *UNUSUAL]
    for seed in range(3):
        sampled = byte_tokenizer.sample(text, alpha, seed)
        assert byte_tokenizer.decode(sampled) == byte_tokenizer.decode(byte_tokenizer.encode(text))


def test_user_symbols_are_not_split_and_empty_lines_stay_empty(tokenizer: Tokenizer) -> None:
    symbol = tokenizer.vocabulary().index("<2de>")
    for ids in tokenizer.sample(["<2de> the<2de>old man<2de>"] * 50, 0.5, seed=1):
        assert ids.count(symbol) == 3
    assert tokenizer.sample([], 0.3, seed=1) == []
    assert tokenizer.sample(["", ""], 0.3, seed=1) == [[], []]


@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_unigram_probabilities_equal_those_in_the_paper(unigram: Tokenizer, alpha: float) -> None:
    pieces = read_pieces(unigram.model)
    word = f"▁{WORD}"
    weights: dict[tuple[int, ...], float] = {}
    for cuts in itertools.product([False, True], repeat=len(word) - 1):
        bounds = [0, *(n + 1 for n, cut in enumerate(cuts) if cut), len(word)]
        parts = [word[a:b] for a, b in itertools.pairwise(bounds)]
        if all(part in pieces.normal for part in parts):
            ids = tuple(pieces.normal[part] for part in parts)
            weights[ids] = math.exp(alpha * sum(pieces.scores[piece] for piece in ids))
    assert len(weights) > 5
    assert_drawn_as(weights, unigram, alpha)


@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_bpe_dropout_probabilities_equal_those_in_the_paper(bpe: Tokenizer, alpha: float) -> None:
    pieces = read_pieces(bpe.model)
    weights: dict[tuple[int, ...], float] = Counter()

    def expand(parts: tuple[str, ...], closed: frozenset[int], weight: float) -> None:
        """Add the probability of each outcome; `closed` has the start positions of dropped merges."""
        starts = [sum(map(len, parts[:n])) for n in range(len(parts))]
        candidates = [
            (-pieces.scores[pieces.normal[a + b]], start)
            for start, (a, b) in zip(starts, itertools.pairwise(parts), strict=False)
            if a + b in pieces.normal and start not in closed
        ]
        if not candidates:
            weights[tuple(pieces.normal[part] for part in parts)] += weight
            return
        start = min(candidates)[1]
        at = starts.index(start)
        expand(parts, closed | {start}, weight * alpha)
        merged = (*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :])
        # The pairs on both sides of the merged symbol are new, so they can be merged again.
        renewed = {start, starts[at - 1]} if at else {start}
        expand(merged, closed - renewed, weight * (1 - alpha))

    expand(tuple(f"▁{WORD}"), frozenset(), 1.0)
    assert len(weights) > 5
    assert_drawn_as(weights, bpe, alpha)


def assert_drawn_as(weights: dict[tuple[int, ...], float], tokenizer: Tokenizer, alpha: float) -> None:
    """Check that frequencies in 20,000 samples are within 4.5 standard deviations of the exact probabilities."""
    draws = 20_000
    found = Counter(map(tuple, tokenizer.sample([WORD] * draws, alpha, seed=5)))
    total = sum(weights.values())
    assert set(found) <= set(weights)
    for ids, weight in weights.items():
        p = weight / total
        assert abs(found[ids] - p * draws) <= 4.5 * math.sqrt(draws * p * (1 - p)) + 1


def test_sampling_from_other_model_types_is_an_error(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = read_pieces(tokenizer.model)
    pieces.kind = 4  # characters
    monkeypatch.setattr(sampling, "read_pieces", lambda model: pieces)
    with pytest.raises(DataError, match="sampling_alpha: only unigram and BPE models"):
        Tokenizer(tokenizer.model).sample(["a"], 0.1, seed=1)

"""Fixtures: a small corpus and its tokenizer."""

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from mtformer.config.data import DataConfig
from mtformer.config.schema import TokenizerConfig
from mtformer.text.tokenizer import Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

Pairs = list[tuple[str, str]]
WORDS = re.findall(r"\w+", "one two three four five six seven eight nine ten eleven red green blue small large old new")


def make_pairs(number: int, seed: int = 1) -> Pairs:
    """Return distinct pairs of 1 to 25 words; the target is the reversed source, slightly longer."""
    random = Random(seed)
    lines = [" ".join(random.choices(WORDS, k=random.randint(1, 25))) + f" {n}" for n in range(number)]
    return [(line, " ".join(reversed(line.split())) + " and so on" * (n % 2)) for n, line in enumerate(lines)]


@pytest.fixture(scope="session")
def pairs() -> Pairs:
    return make_pairs(1200)


@pytest.fixture(scope="session")
def tokenizers(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> TokenizerPair:
    """Joint tokenizer without byte fallback."""
    path = tmp_path_factory.mktemp("tokenizer") / "joint.model"
    train_tokenizer((line for pair in pairs for line in pair), TokenizerConfig(vocab_size=120), path)
    joint = Tokenizer.load(path)
    return TokenizerPair(joint, joint)


@pytest.fixture
def corpus(tmp_path: Path) -> Callable[..., DataConfig]:
    """Return a function that writes pairs to two files and returns their `data` section with a separate cache."""

    def write(pairs: Pairs, **settings: object) -> DataConfig:
        for number, name in enumerate(("train.en", "train.de")):
            (tmp_path / name).write_text("".join(pair[number] + "\n" for pair in pairs), encoding="utf-8", newline="")
        source = {"src": str(tmp_path / "train.en"), "tgt": str(tmp_path / "train.de")}
        defaults = {"src_lang": "en", "tgt_lang": "de", "cache_dir": str(tmp_path / "cache"), "num_workers": 1}
        return DataConfig.model_validate({**defaults, "train": [source], **settings})

    return write

"""Small tokenizers that are trained once."""

import re
from pathlib import Path
from random import Random

import pytest

from mtformer.config.schema import TokenizerConfig
from mtformer.text.tokenizer import Tokenizer
from mtformer.text.train import train_tokenizer

SYLLABLES = re.findall(r"\w+", "ba cho den fli gro jak lum net or pi qua ris sto ter un vex wy zen")


def _lines() -> list[str]:
    """Return 400 lines with 300 invented words, and a few real lines."""
    random = Random(1)
    words = ["".join(random.choices(SYLLABLES, k=random.randint(1, 4))) for _ in range(300)]
    words += ["the", "old", "man", "letter", "better"] * 10
    return [" ".join(random.choices(words, k=random.randint(3, 12))) + "." for _ in range(400)]


LINES = _lines()


@pytest.fixture(scope="session")
def lines() -> list[str]:
    return LINES


@pytest.fixture(scope="session")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Tokenizer without byte fallback, with a user-defined symbol."""
    return trained(tmp_path_factory.mktemp("unigram"), model_type="unigram", user_symbols=["<2de>"])


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Tokenizer without byte fallback, with a user-defined symbol."""
    return trained(tmp_path_factory.mktemp("bpe"), model_type="bpe", user_symbols=["<2de>"])


@pytest.fixture(params=["unigram", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Tokenizer of each model type."""
    made: Tokenizer = request.getfixturevalue(request.param)
    return made


@pytest.fixture(scope="session", params=["unigram", "bpe"])
def byte_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Tokenizer of each model type with byte fallback."""
    return trained(tmp_path_factory.mktemp("bytes"), model_type=request.param, byte_fallback=True, vocab_size=400)


def trained(folder: Path, **settings: object) -> Tokenizer:
    config = TokenizerConfig.model_validate({"vocab_size": 200, **settings})
    train_tokenizer(LINES, config, folder / "x.model")
    return Tokenizer.load(folder / "x.model")

"""Tokenizer training: settings, reproducibility, and errors."""

from pathlib import Path

import pytest

from mtformer.config.schema import TokenizerConfig
from mtformer.errors import DataError
from mtformer.text.tokenizer import UNK, Tokenizer
from mtformer.text.train import train_tokenizer


def config(**settings: object) -> TokenizerConfig:
    return TokenizerConfig.model_validate({"vocab_size": 100, **settings})


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_same_text_gives_the_same_bytes(tmp_path: Path, lines: list[str], model_type: str) -> None:
    for name in ("one.model", "two.model"):
        train_tokenizer(iter(lines), config(model_type=model_type, train_sentences=90), tmp_path / name)
    assert (tmp_path / "one.model").read_bytes() == (tmp_path / "two.model").read_bytes()


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_model_uses_the_settings_of_the_config(tmp_path: Path, lines: list[str], model_type: str) -> None:
    symbols = ["<2de>", "a,b"]
    train_tokenizer(lines, config(model_type=model_type, user_symbols=symbols), tmp_path / "x.model")
    tokenizer = Tokenizer.load(tmp_path / "x.model")
    assert tokenizer.vocab_size == 100
    scores = [tokenizer._processor.GetScore(number) for number in range(10, 100)]
    assert all(score == round(score) for score in scores) == (model_type == "bpe"), "ranks instead of probabilities"
    for symbol in symbols:
        assert symbol in tokenizer.pieces(f"the old{symbol}man")


def test_normalization_and_case(tmp_path: Path, lines: list[str]) -> None:
    train_tokenizer(lines, config(normalization="nmt_nfkc_cf"), tmp_path / "folded.model")
    folded = Tokenizer.load(tmp_path / "folded.model")
    assert folded.encode(["THE OLD MAN"]) == folded.encode(["the old man"])
    train_tokenizer(lines, config(normalization="identity"), tmp_path / "plain.model")
    plain = Tokenizer.load(tmp_path / "plain.model")
    assert UNK in plain.encode(["the ﬁne man"])[0]
    assert folded.decode(folded.encode(["the ﬁne man"])) == ["the fine man"]


def test_coverage_excludes_rare_characters(tmp_path: Path, lines: list[str]) -> None:
    text = [*lines * 3, "漢字"]
    train_tokenizer(text, config(character_coverage=1.0), tmp_path / "all.model")
    train_tokenizer(text, config(character_coverage=0.999), tmp_path / "common.model")
    complete = Tokenizer.load(tmp_path / "all.model")
    assert complete.decode(complete.encode(["漢字"])) == ["漢字"]
    assert UNK in Tokenizer.load(tmp_path / "common.model").encode(["漢字"])[0]


def test_the_training_sample_covers_the_whole_text(tmp_path: Path, lines: list[str]) -> None:
    # Each tenth of the text uses different letters; a sample of a third of the lines contains all these letters.
    text = [f"{line} {chr(0x3042 + 10 * number // len(lines))}" for number, line in enumerate(lines)]
    train_tokenizer(text, config(train_sentences=len(text) // 3), tmp_path / "x.model")
    tokenizer = Tokenizer.load(tmp_path / "x.model")
    letters = "".join(chr(0x3042 + number) for number in range(10))
    assert tokenizer.decode(tokenizer.encode([letters])) == [letters]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_error_for_too_little_text_gives_the_possible_size(
    tmp_path: Path, lines: list[str], model_type: str
) -> None:
    asked = config(vocab_size=8000, model_type=model_type)
    with pytest.raises(DataError, match=r"vocab_size 8000: the training text gives at most (\d+) pieces") as error:
        train_tokenizer(lines, asked, tmp_path / "x.model")
    possible = int("".join(filter(str.isdigit, str(error.value).split("at most")[1].split("pieces")[0])))
    train_tokenizer(lines, config(vocab_size=possible, model_type=model_type), tmp_path / "y.model")
    assert Tokenizer.load(tmp_path / "y.model").vocab_size == possible
    assert [path.name for path in tmp_path.iterdir()] == ["y.model"]


def test_more_characters_than_pieces_is_an_error(tmp_path: Path) -> None:
    text = ["".join(chr(0x4E00 + n) for n in range(start, start + 20)) for start in range(0, 200, 20)]
    with pytest.raises(DataError, match=r"vocab_size 100: special pieces and the distinct .* need 20\d pieces;"):
        train_tokenizer(text, config(), tmp_path / "x.model")


@pytest.mark.parametrize("text", [[], ["", "  ", "\u3000"]])
def test_training_data_without_text_is_an_error(tmp_path: Path, text: list[str]) -> None:
    with pytest.raises(DataError, match="the corpus is empty: the training data has no line with text"):
        train_tokenizer(text, config(), tmp_path / "x.model")


def test_long_lines_are_skipped_with_a_warning_and_sentencepiece_is_quiet(
    tmp_path: Path, lines: list[str], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "mtformer")
    train_tokenizer([*lines, "漢" * 6000], config(), tmp_path / "x.model")
    assert UNK in Tokenizer.load(tmp_path / "x.model").encode(["漢"])[0]
    assert "not trained on 1 lines of more than" in caplog.text
    with pytest.raises(DataError):
        train_tokenizer(lines, config(vocab_size=8000), tmp_path / "y.model")
    assert capfd.readouterr() == ("", "")

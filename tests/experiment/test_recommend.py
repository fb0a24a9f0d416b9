"""Recommended settings by corpus size: counting, the table, and `config show --recommend`."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import yaml
from typer.testing import CliRunner, Result

from mtformer.cli.app import app
from mtformer.config.loading import load_config
from mtformer.config.schema import Config
from mtformer.data.demo import make_pairs
from mtformer.errors import DataError
from mtformer.experiment import recommend as module
from mtformer.experiment.recommend import MAX_PAIRS, SIZES, CorpusSize, differences, measure, recommend
from mtformer.text.tokenizer import Tokenizer
from mtformer.text.train import train_tokenizer

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
Write = Callable[..., Config]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes a corpus and returns its config."""

    def corpus(src: str, tgt: str, **keys: object) -> Config:
        (tmp_path / "train.en").write_text(src)
        (tmp_path / "train.de").write_text(tgt)
        train = [{"src": str(tmp_path / "train.en"), "tgt": str(tmp_path / "train.de")}]
        languages = {"src_lang": "en", "tgt_lang": "de"}
        return Config.model_validate({"data": {**languages, "train": train, **keys}})

    return corpus


def test_pairs_characters_and_words_are_counted(write: Write) -> None:
    expected = CorpusSize(
        pairs=2, characters=4.5, words=4, fewest_pieces=12, character_coverage=1.0, byte_fallback=False
    )
    assert measure(write("a b\na\n", "a b c\nwxyz\n")) == expected
    assert measure(write("a b\na\n", "a b c\nwxyz\n", both_directions=True, language_tags="source")).pairs == 4


def test_each_side_without_a_joint_tokenizer_has_its_own_words(write: Write) -> None:
    given = write("a b\na\n", "a b c\nwxyz\n")
    tokenizer = given.tokenizer.model_copy(update={"joint": False})
    found = measure(given.model_copy(update={"tokenizer": tokenizer}))
    assert (found.words, found.fewest_pieces) == (2, 4 + 8)


def test_numbers_are_not_words(write: Write, tmp_path: Path) -> None:
    random = Random(1)
    words = {"".join(random.choices("abcdefghij", k=4)) for _ in range(150)}
    lines = [f"{word} on {random.randrange(100_000)}" for word in sorted(words) for _ in range(20)]
    text = "\n".join(lines) + "\n"
    given = write(text, text)
    assert measure(given).words == len(words) + 1
    config = Config.model_validate({"data": given.data.model_dump(), **recommend(measure(given))})
    train_tokenizer(lines, config.tokenizer, tmp_path / "model")
    assert Tokenizer.load(tmp_path / "model").vocab_size == config.tokenizer.vocab_size


def test_a_line_that_filters_remove_counts_as_the_longest_one_that_they_keep(write: Write) -> None:
    given = write("a b\n" + "a " * 50_000 + "\n", "a b c\nwxyz\n")
    assert measure(given).characters == pytest.approx((5 + 4.5 * given.data.filters.max_tokens) / 2, rel=0.01)


def test_a_large_corpus_is_not_read_to_its_end(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAIRS", 3)
    assert measure(write("a\n" * 10, "b\n" * 10)).pairs == 3


def test_an_empty_corpus_is_refused(write: Write) -> None:
    with pytest.raises(DataError, match=r"train\.de: the corpus is empty: no lines were read; check its files"):
        measure(write("", ""))


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_each_size_gives_a_valid_config(number: int) -> None:
    size = SIZES[number]
    values = recommend(CorpusSize(size.max_pairs, 60.0, 100_000, 100, 1.0, False))
    config = Config.model_validate({"data": {"src_lang": "en", "tgt_lang": "de"}, **values})
    assert config.model.d_model == size.d_model
    assert config.tokenizer.vocab_size == size.vocab_size
    assert config.training.max_steps // config.training.validate_every == pytest.approx(20, abs=1)
    assert differences(config, values) == "no changes"
    if number:
        assert (
            recommend(CorpusSize(SIZES[number - 1].max_pairs + 1, 60.0, 100_000, 100, 1.0, False))["model"]
            == values["model"]
        )


def test_the_number_of_steps_gives_the_number_of_epochs() -> None:
    training = recommend(CorpusSize(29_000, 63.0, 100_000, 100, 1.0, False))["training"]
    tokens = 29_000 * (63 / 4.5 + 1)
    assert training["max_steps"] * training["step_tokens"] / tokens == pytest.approx(SIZES[1].epochs, rel=0.02)
    assert recommend(CorpusSize(1, 1.0, 1, 100, 1.0, False))["training"]["max_steps"] == 100


def test_the_vocabulary_fits_a_text_with_few_words(write: Write, tmp_path: Path) -> None:
    sources, targets = zip(*make_pairs(3000, seed=1), strict=True)
    given = write("\n".join(sources) + "\n", "\n".join(targets) + "\n")
    values = recommend(measure(given))
    assert 100 < values["tokenizer"]["vocab_size"] < SIZES[0].vocab_size
    config = Config.model_validate({"data": given.data.model_dump(), **values})
    train_tokenizer([*sources, *targets], config.tokenizer, tmp_path / "model")
    assert Tokenizer.load(tmp_path / "model").vocab_size == values["tokenizer"]["vocab_size"]


@pytest.mark.parametrize("lines", [[f"yes yes {n}" for n in range(40)], [src for src, _ in make_pairs(3, seed=1)]])
def test_the_vocabulary_fits_a_tiny_or_repetitive_text(lines: list[str], write: Write, tmp_path: Path) -> None:
    given = write("\n".join(lines) + "\n", "\n".join(lines) + "\n")
    values = recommend(measure(given))
    config = Config.model_validate({"data": given.data.model_dump(), **values})
    train_tokenizer(lines, config.tokenizer, tmp_path / "model")
    tokenizer = Tokenizer.load(tmp_path / "model")
    assert tokenizer.vocab_size == values["tokenizer"]["vocab_size"]
    assert tokenizer.decode(tokenizer.encode(lines)) == lines


def test_the_vocabulary_has_all_characters_and_fits_text_without_spaces(write: Write, tmp_path: Path) -> None:
    random = Random(1)
    words = [chr(0x4E00 + number) + chr(0x5000 + number) + "の" for number in range(300)]
    many = ["".join(random.choices(words, k=3)) for _ in range(900)]
    few = ["".join(random.choice("กขคงจ") for _ in range(9)) for _ in range(900)]
    for lines, language in ((many, "ja"), (few, "th")):
        text = "\n".join(lines) + "\n"
        given = write(text, text, src_lang=language, tgt_lang="zh")
        size = measure(given)
        config = Config.model_validate({"data": given.data.model_dump(), **recommend(size)})
        train_tokenizer(lines, config.tokenizer, tmp_path / language)
        assert size.characters == pytest.approx(6 * 3.5 + 3 * 2 if language == "ja" else 9)


@pytest.mark.parametrize("joint", [True, False])
def test_rare_characters_of_languages_with_many_become_bytes(joint: bool, write: Write) -> None:
    random = Random(1)
    frequent, rare = ([chr(start + number) for number in range(600)] for start in (0x4E00, 0x5000))
    lines = ["".join(random.choices(frequent, k=1000)) for _ in range(1900)]
    lines[:100] = [line[:-3] + "".join(random.choices(rare, k=3)) for line in lines[:100]]  # 0.016 percent
    text = "\n".join(lines) + "\n"
    given = write(text, "a b\n" * len(lines), src_lang="zh", filters={"max_tokens": 1000})
    given = given.model_copy(update={"tokenizer": given.tokenizer.model_copy(update={"joint": joint})})
    size = measure(given)
    assert (size.character_coverage, size.byte_fallback) == (0.9995, True)
    assert 590 < size.fewest_pieces - 4 - 256 <= 603
    assert recommend(size)["tokenizer"] | {"vocab_size": 0} == {
        "vocab_size": 0, "character_coverage": 0.9995, "byte_fallback": True
    }  # fmt: skip
    own = given.model_copy(update={"tokenizer": given.tokenizer.model_copy(update={"character_coverage": 0.99})})
    assert measure(own).character_coverage == 0.99, "a lower one is kept"
    english = given.model_copy(update={"data": given.data.model_copy(update={"src_lang": "en"})})
    size = measure(english)
    assert (size.character_coverage, size.byte_fallback) == (1.0, False)
    assert size.fewest_pieces - 4 >= len(set(text) - {"\n"})


def test_differences_are_overrides() -> None:
    values = recommend(CorpusSize(29_000, 63.0, 100_000, 100, 1.0, False))
    config = Config.model_validate({"data": {"src_lang": "en", "tgt_lang": "de"}, **values})
    other = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.01, "d_ff": 7})})
    assert differences(other, values) == f"model.d_ff={config.model.d_ff} model.dropout={config.model.dropout}"
    grouped = config.model_copy(update={"model": config.model.model_copy(update={"num_kv_heads": 2})})
    assert differences(grouped, values) == "model.num_kv_heads=null"


def show(*arguments: str) -> Result:
    return CliRunner().invoke(app, ("config", "show", *arguments))


def test_the_command_prints_a_config(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("ein Hund\n" * 30, "a dog\n" * 30)
    data = "data: {src_lang: en, tgt_lang: de, train: [{src: train.en, tgt: train.de}]}\n"
    own = "max_minutes: 2, accumulation_steps: 4, consistency: simcut, cutoff: 0.1"  # the last three do not fit
    Path("corpus.yaml").write_text(f"{data}training: {{{own}}}\n")
    Path("tuned.yaml").write_text(f"{data}training: {{init_from: corpus.yaml}}\n")
    result = show("corpus.yaml", "--recommend")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("# Recommended for 30 training pairs; keep this file beside corpus.yaml.\n")
    Path("new.yaml").write_text(result.stdout)
    config = load_config("new.yaml").config
    assert (config.training.max_minutes, config.model.dropout) == (2, SIZES[0].dropout)
    assert differences(config, recommend(measure(config))) == "no changes"
    for arguments, message in (
        ([], "--recommend needs CONFIG, a YAML file that names the training corpus"),
        (["tuned.yaml"], "training.init_from in tuned.yaml determines the model"),
        (["corpus.yaml", "model.dropout=0.2"], "--recommend extends CONFIG as it is; set the values of overrides"),
        (["corpus.yaml", "--section", "model"], "--section and --recommend cannot be combined"),
    ):
        result = show(*arguments, "--recommend")
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
        assert result.stderr.count("\n") == 1


def test_the_tutorial_has_the_same_table() -> None:
    rows = [line.strip("| ").split(" | ") for line in TUTORIAL.read_text().splitlines() if line.startswith("| ")]
    names = ["up to", *SIZES[0]._fields[1:]]
    start = next(number for number, row in enumerate(rows) if [cell.strip("`") for cell in row] == names)
    for row, size in zip(rows[start + 1 :], SIZES, strict=False):
        assert [yaml.safe_load(cell.replace(",", "")) for cell in row] == [yaml.safe_load(f"{value}") for value in size]
    assert SIZES[-1].max_pairs == MAX_PAIRS

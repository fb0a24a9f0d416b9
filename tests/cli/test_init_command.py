"""`mtformer init`: configs for corpora in several formats and languages, their opposites, and wrong arguments."""

import gzip
import json
from pathlib import Path

import pytest
from program import invoke

from mtformer.cli.init import repeat_options
from mtformer.config.data import DataConfig, TextFiles
from mtformer.config.loading import load_config
from mtformer.config.schema import Config
from mtformer.data.demo import make_pairs
from mtformer.experiment import new_config
from mtformer.experiment.recommend import SIZES, CorpusSize, differences, measure, recommend
from mtformer.run_dir import RunDir

QUICK = [
    "model.num_encoder_layers=1", "model.num_decoder_layers=1", "training.device=cpu", "training.precision=fp32",
    "training.max_steps=2", "training.validate_every=2", "training.warmup_steps=1", "decoding.max_length_ratio=0.1",
]  # fmt: skip
"""Overrides for training that takes seconds."""
PAIRS = make_pairs(200, seed=1)
# No language: the letters are those of the script.
KANA = str.maketrans("abcdefghijklmnopqrstuvwxyz", "あいうえおかきくけこさしすせそたちつてとなにぬねのは")
ETHIOPIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ሀለሐመሠረሰቀበተኀነአከወዐዘየደገጠጰጸፀፈፐ")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with English-German text."""
    monkeypatch.chdir(tmp_path)
    write_text("train", "en", "de", PAIRS[:160])
    write_text("dev", "en", "de", PAIRS[160:180])
    write_text("test", "en", "de", PAIRS[180:])
    return tmp_path


def write_text(name: str, src: str, tgt: str, pairs: list[tuple[str, str]]) -> None:
    for language, lines in zip((src, tgt), zip(*pairs, strict=True), strict=True):
        Path(f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def train(config: str) -> None:
    result = invoke("train", config, *QUICK, "--run-dir", "run")
    assert result.exit_code == 0, result.stderr
    assert RunDir(Path("run")).steps() == [2]


def test_a_config_is_written_for_two_files_and_trains() -> None:
    result = invoke("init", "train.en", "train.de")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[:2] == [
        "en_de.yaml: English-German (en-de), 144 training pairs",
        "en_de_data: train 144, dev 8, test 8 pairs; dev and test were held out, with all copies",
    ]
    next_commands = [line.split("  ")[1] for line in result.stdout.splitlines()[3:]]
    assert next_commands == [
        "mtformer data check en_de.yaml", "mtformer train en_de.yaml --dry-run", "mtformer train en_de.yaml"
    ]  # fmt: skip
    assert invoke("config", "show", "en_de.yaml").exit_code == 0
    config = load_config("en_de.yaml").config
    assert differences(config, recommend(measure(config))) == "no changes"
    assert config.data.dev == [TextFiles(src="en_de_data/dev.en", tgt="en_de_data/dev.de")]
    train("en_de.yaml")


def test_given_sets_are_used_as_they_are() -> None:
    result = invoke(
        "init", "train.en", "train.de", "--dev", "dev.en", "dev.de", "sub/x.yaml", "--test", "test.en,test.de"
    )
    assert result.exit_code == 0, result.stderr
    data = load_config("sub/x.yaml").config.data
    assert data.train == [TextFiles(src="train.en", tgt="train.de")]
    assert data.dev == [TextFiles(src="dev.en", tgt="dev.de")]
    assert data.test == {"test": TextFiles(src="test.en", tgt="test.de")}
    assert [path.name for path in Path("sub").iterdir()] == ["x.yaml"]
    assert "held out" not in Path("sub/x.yaml").read_text().lower()


def test_only_the_missing_set_is_held_out() -> None:
    assert invoke("init", "--dev", "dev.en", "dev.de", "train.en", "train.de").exit_code == 0
    data = load_config("en_de.yaml").config.data
    assert data.dev == [TextFiles(src="dev.en", tgt="dev.de")]
    assert sorted(path.name for path in Path("en_de_data").iterdir()) == ["test.de", "test.en", "train.de", "train.en"]


@pytest.mark.parametrize("kind", ["tsv", "jsonl", "tmx"])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_one_file_with_both_sides_is_read(kind: str, is_compressed: bool) -> None:
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>{src}</seg></tuv><tuv xml:lang="de-DE"><seg>{tgt}</seg></tuv></tu>'
        for src, tgt in PAIRS
    )
    text = {
        "tsv": "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS),
        "jsonl": "".join(json.dumps({"translation": {"en": src, "de": tgt}}) + "\n" for src, tgt in PAIRS),
        "tmx": f'<?xml version="1.0"?><tmx version="1.4"><header/><body>{units}</body></tmx>',
    }[kind]
    name = f"corpus.en-de.{kind}{'.gz' * is_compressed}"
    Path(name).write_bytes(gzip.compress(text.encode()) if is_compressed else text.encode())
    assert invoke("init", name).exit_code == 0
    train("en_de.yaml")
    written = [Path(f"en_de_data/train.{language}").read_text().splitlines() for language in ("en", "de")]
    assert set(zip(*written, strict=True)) < set(PAIRS)

    given = ["--dev", "dev.en", "dev.de", "--test", "test.en", "test.de"]
    assert invoke("init", name, "given.yaml", *given).exit_code == 0
    assert Path("given_data").exists() == (kind == "tmx")  # a config cannot name it
    train_source = load_config("given.yaml").config.data.train
    assert invoke("data", "check", "given.yaml").exit_code in (0, 1)
    assert (kind == "tmx") == isinstance(train_source[0], TextFiles)


@pytest.mark.parametrize(("src", "tgt", "table", "title"), [
    ("en", "ja", KANA, "English-Japanese (en-ja)"),
    ("en", "am", ETHIOPIC, "English-Amharic (en-am)"),
])  # fmt: skip
def test_other_scripts(src: str, tgt: str, table: dict[int, int], title: str) -> None:
    write_text("corpus", src, tgt, [(line, other.lower().translate(table)) for line, other in PAIRS])
    for language in (src, tgt):
        Path(f"corpus.{language}.gz").write_bytes(gzip.compress(Path(f"corpus.{language}").read_bytes()))
    result = invoke("init", f"corpus.{src}.gz", f"corpus.{tgt}.gz")
    assert result.exit_code == 0, result.stderr
    assert f": {title}, 180 training pairs" in result.stdout
    train(f"{src}_{tgt}.yaml")


def test_the_folder_of_an_interrupted_call_is_used_again() -> None:
    invoke("init", "train.en", "train.de")
    Path("en_de.yaml").unlink()
    assert invoke("init", "train.en", "train.de").exit_code == 0
    Path("en_de.yaml").unlink()
    Path("en_de_data/dev.de").write_text("changed\n")
    result = invoke("init", "train.en", "train.de")
    assert result.stderr.startswith("error: en_de_data: exists already, and is not replaced")
    assert Path("en_de_data/dev.de").read_text() == "changed\n"


def test_unusual_names_are_quoted() -> None:
    name = "it's #1: a (b)"
    write_text(name, "no", "en", [(tgt[::-1], src[::-1]) for src, tgt in PAIRS])  # in no language
    result = invoke("init", f"{name}.no", f"{name}.en", "--src-lang", "de", "--tgt-lang", "no", f"{name}.yaml")
    assert result.exit_code == 0, result.stderr
    assert """mtformer train 'it'"'"'s #1: a (b).yaml' --dry-run""" in result.stdout
    data = load_config(f"{name}.yaml").config.data
    assert (data.src_lang, data.tgt_lang) == ("de", "no")
    assert data.train == [TextFiles(src=f"{name}_data/train.de", tgt=f"{name}_data/train.no")]


def test_both_sides_may_have_the_same_language() -> None:
    write_text("simple", "long", "short", [(src, f"so {src.lower()}") for src, _ in PAIRS])
    result = invoke("init", "simple.long", "simple.short", "--src-lang", "en", "--tgt-lang", "en")
    assert result.exit_code == 0, result.stderr
    assert load_config("en_en.yaml").config.data.dev == [TextFiles(src="en_en_data/dev.src", tgt="en_en_data/dev.tgt")]


@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_the_config_has_all_recommended_values(number: int, byte_fallback: bool) -> None:
    corpus = CorpusSize(SIZES[number].max_pairs, 60.0, 100_000, 500, 0.9995 if byte_fallback else 1.0, byte_fallback)
    files = TextFiles(src="a.en", tgt="a.de")
    data = DataConfig(src_lang="en", tgt_lang="de", train=[files], dev=[files], test={"test": files})
    new = new_config.NewConfig("English-German (en-de)", "many", Path("x_data"), {}, [])
    text = new_config._text(new, Config(data=data), corpus)
    Path("x.yaml").write_text(text)
    config = load_config("x.yaml").config
    assert differences(config, recommend(corpus)) == "no changes"
    assert config.data == data
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_opposite_direction_trains() -> None:
    invoke("init", "train.en", "train.de", "corpus_en-de.yaml")
    result = invoke("init", "--reverse", "corpus_en-de.yaml")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("corpus_de-en.yaml: de-en\nnext:\n")
    text = Path("corpus_de-en.yaml").read_text()
    assert text.splitlines()[:4] == [
        "# de-en: the opposite direction of corpus_en-de.yaml", "data:", "  src_lang: de", "  tgt_lang: en"
    ]  # fmt: skip
    assert load_config("corpus_de-en.yaml").config.data.train[0].src == "corpus_en-de_data/train.de"
    train("corpus_de-en.yaml")
    invoke("init", "--reverse", "run", "again.yaml")
    assert load_config("again.yaml").config.data.src_lang == "en"


def test_a_tagged_corpus_of_the_opposite_direction_is_mentioned() -> None:
    corpora = "corpora: {bt: {sources: [{tsv: bt.tsv}], tag: <bt>}}"
    Path("x.yaml").write_text(f"data: {{src_lang: sw, tgt_lang: fr, {corpora}}}\n")
    result = invoke("init", "--reverse", "x.yaml")
    assert result.stdout.startswith("fr_sw.yaml: fr-sw\n")
    assert "data.corpora.bt has the tag <bt>; if its source was written by a model" in result.stderr


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "no corpus; give two parallel files"),
    (["train.en"], "train.en: the names do not say the languages"),
    (["train.en", "missing.de"], "missing.de: no such file"),
    (["train.en", "."], "the names do not say the languages"),
    (["train.en", "train.de", "dev.en"], "dev.en: too many files"),
    (["train.en", "train.de", "a.yaml", "b.yaml"], "b.yaml: a second config"),
    (["train.en", "train.de", "there.yaml"], "there.yaml: exists already, and is not replaced"),
    (["train.en", "train.de", "old.yaml"], "old_data: exists already, and is not replaced"),
    (["train.en", "train.de", "--src-lang", "english"], "must be an ISO 639 code"),
    (["train.en", "dev.de"], "train.en has 160 lines but dev.de has 20"),
    (["train.de", "train.en", "--src-lang", "ru", "--tgt-lang", "en"], "files belong together and are ru"),
    (["train.en", "empty.de"], "train.en has 160 lines but empty.de has 0"),
    (["empty.en", "empty.de"], "empty.en and empty.de: the corpus is empty"),
    (["latin.en", "train.de"], "latin.en: contains text in another encoding than UTF-8"),
    (["dev.en", "dev.de"], "the corpus has 20 different pairs, and at least 40 are needed to hold out dev and test"),
    (["train.en", "train.de", "--dev", "dev.de", "dev.en"], "dev.en: is de-en, but the training text is en-de"),
    (["train.en", "train.de", "--dev", "dev.en"], "dev.en:1: tgt_column is 2, but the number of columns is 1"),
    (["train.en", "train.de", "--dev", "dev.en", "none.de"], "none.de: no such file"),
    (["--reverse", "there.yaml", "train.en"], "--reverse takes everything from the config"),
    (["--reverse", "missing.yaml"], "missing.yaml: no such config file"),
    (["--reverse", "there.yaml", "there.yaml"], "there.yaml: exists already, and is not replaced"),
    (["--reverse", "tuned.yaml"], "training.init_from names a model of the direction of this config"),
])  # fmt: skip
def test_wrong_arguments_are_reported_in_one_line(arguments: list[str], message: str) -> None:
    Path("there.yaml").write_text("data: {src_lang: en, tgt_lang: de}\n")
    Path("tuned.yaml").write_text("data: {src_lang: en, tgt_lang: de}\ntraining: {init_from: run}\n")
    Path("old_data").mkdir()
    Path("empty.en").touch()
    Path("empty.de").touch()
    Path("latin.en").write_bytes("é\n".encode("latin-1") * 160)
    before = sorted(Path.cwd().rglob("*"))
    result = invoke("init", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize(("words", "expected"), [
    ("a.en a.de --dev b.en b.de", "a.en a.de --dev b.en --dev b.de"),
    ("--dev b.en b.de a.en a.de x.yaml", "--dev b.en --dev b.de a.en a.de x.yaml"),
    ("--dev b.tsv a.tsv", "--dev b.tsv a.tsv"),
    ("--dev b.tmx.gz a.en a.de", "--dev b.tmx.gz a.en a.de"),
    ("--dev b.en,b.de a.en a.de", "--dev b.en,b.de a.en a.de"),
    ("a.en a.de --dev b x.yaml", "a.en a.de --dev b x.yaml"),
    ("a.en a.de --test b --dev c d", "a.en a.de --test b --dev c --dev d"),
])  # fmt: skip
def test_an_option_takes_one_or_two_files(words: str, expected: str) -> None:
    assert repeat_options(words.split()) == expected.split()

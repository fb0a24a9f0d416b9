"""The style of the training text is kept with the model, and input of another style is named once."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_experiment import make_config, train, write_corpus
from typer.testing import CliRunner

from mtformer.cli.app import app
from mtformer.decoding.translator import Translator
from mtformer.experiment.prepare import prepare_experiment
from mtformer.export.bundle import export
from mtformer.files import sealed, write_json
from mtformer.run_dir import TEXT_STYLE, RunDir
from mtformer.text.style import Sign, signs_of

TOKENIZED = {Sign.SPACED_STOPS, Sign.SMALL}


def tokenized(line: str) -> str:
    return line.replace(".", " .").replace(",", " ,").lower()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a corpus with tokenized, lowercased English and usual German."""
    folder = write_corpus(tmp_path_factory.mktemp("corpus"), train=300, dev=20)
    for name in ("train", "dev"):
        path = folder / f"{name}.en"
        path.write_text(tokenized(path.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = RunDir(tmp_path_factory.mktemp("runs") / "run")
    train(make_config(corpus), run)
    return run


def warnings(run: Path, text: str, tmp_path: Path, *options: str) -> list[str]:
    """Return the warnings of `translate` about the style of a text."""
    path = tmp_path / "input.txt"
    path.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["translate", str(run), "--input", str(path), "--max-length", "2", *options])
    assert result.exit_code == 0, result.stderr
    return [line for line in result.stderr.splitlines() if "unlike the training text" in line]


RAW = "A man goes, and a woman reads.\n" * 20
MESSAGE = (
    "warning: the input is unlike the training text: the training text has spaces before commas and full stops and "
    "only small letters, the input does not; give input in the style of the training text, or train on text like it"
)


def test_the_style_of_each_side_is_measured(run: RunDir) -> None:
    style = Translator.load(run.path).style
    assert style is not None
    assert {language: set(signs_of(counts)) for language, counts in style.src.items()} == {"en": TOKENIZED}
    assert {language: set(signs_of(counts)) for language, counts in style.tgt.items()} == {"de": set()}


def test_translate_tells_raw_input_once(run: RunDir, tmp_path: Path) -> None:
    assert warnings(run.path, RAW, tmp_path) == [MESSAGE]
    assert warnings(run.path, tokenized(RAW), tmp_path) == []
    assert warnings(run.path, "A man goes.\n", tmp_path) == []
    html = "".join(f"<p>{line}</p>\n" for line in RAW.splitlines())
    assert warnings(run.path, html, tmp_path, "--html") == [MESSAGE]


def test_exports_keep_the_style_and_tell_it(run: RunDir, tmp_path: Path) -> None:
    for form in ("bundle", "ctranslate2"):
        export(run, tmp_path / form, form=form)
        assert warnings(tmp_path / form, RAW, tmp_path) == [MESSAGE]
        card = (tmp_path / form / "README.md").read_text(encoding="utf-8")
        expected = "English sources with spaces before commas and full stops, only small letters."
        assert f"**Not usual text:** {expected} Change input in the same way, and translations back." in card


def test_a_run_of_an_earlier_version_is_used_without_warnings(corpus: Path, tmp_path: Path) -> None:
    old = RunDir(tmp_path / "old")
    train(make_config(corpus), old)
    report: dict[str, Any] = json.loads(old.data_report.read_text(encoding="utf-8"))
    del report["checksum"]
    del report[TEXT_STYLE]
    for changes in ({}, {TEXT_STYLE: {"format": 99}}, {TEXT_STYLE: []}):
        write_json(old.data_report, sealed({**report, **changes}))
        assert Translator.load(old.path).style is None
        assert warnings(old.path, RAW, tmp_path) == []


def test_both_directions_have_a_style_each(corpus: Path, tmp_path: Path) -> None:
    both = {"both_directions": True, "language_tags": "source"}
    run = RunDir(tmp_path / "both")
    train(make_config(corpus, data=both, tokenizer={"vocab_size": 220}), run)
    style = Translator.load(run.path).style
    assert style is not None
    assert {language: set(signs_of(counts)) for language, counts in style.src.items()} == {"en": TOKENIZED, "de": set()}
    assert warnings(run.path, RAW, tmp_path, "--to", "de") == [MESSAGE]
    german = "Ein Mann geht, und eine Frau liest.\n" * 20
    assert warnings(run.path, german, tmp_path, "--to", "en") == []


def test_noise_of_case_makes_a_model_accept_any_case(corpus: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "noisy")
    train(make_config(corpus, data={"noise": {"case": 0.1}}), run)
    [message] = warnings(run.path, RAW, tmp_path)
    assert message == MESSAGE.replace(" and only small letters", "")


def test_a_dev_set_of_another_style_is_told(corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "dev.en").write_text(RAW, encoding="utf-8")
    (tmp_path / "dev.de").write_text("Ein Mann geht, und eine Frau liest.\n" * 20, encoding="utf-8")
    dev = [{"src": f"{tmp_path}/dev.en", "tgt": f"{tmp_path}/dev.de"}]
    prepare_experiment(make_config(corpus, data={"dev": dev}), tmp_path / "tokenizer")
    [message] = [message for message in caplog.messages if "unlike the training text" in message]
    assert message.startswith("dev: the source text is unlike the training text: the training text has spaces before")
    assert message.endswith("give source text in the style of the training text, or train on text like it")


def test_text_unlike_that_of_the_pretrained_run_is_told(
    corpus: Path, run: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raw = write_corpus(tmp_path, train=300, dev=20)
    for folder, num_messages in ((raw, 1), (corpus, 0)):
        caplog.clear()
        settings = make_config(folder, training={"init_from": str(run.path)})
        prepare_experiment(settings, tmp_path / f"tokenizer of {folder.name}")
        messages = [message for message in caplog.messages if "unlike the training text" in message]
        assert len(messages) == num_messages
        for message in messages:
            assert message.startswith("train: the source text is unlike the training text: the training text has")
            assert message.endswith(f"(training text: that of {run.path})")

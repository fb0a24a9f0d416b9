"""Tokenized and lowercased corpora are found in any script, and told in all reports."""

import html
import logging
import re
from pathlib import Path

import pytest

from mtformer.config.data import DataConfig, NoiseConfig
from mtformer.data.check.check import check_corpora, warn_of_layout
from mtformer.data.check.report import page, report_lines, unusual_styles, verdict
from mtformer.data.check.result import FindingKind

SENTENCES = {
    "en": "Sentence number {} says, as always, that it isn't late.",
    "fr": "La phrase {} dit : « Où est-il ? », puis elle part.",
    "ru": "Предложение {} говорит, что ещё не поздно.",
    "el": "Η πρόταση {} λέει, όπως πάντα, ότι δεν είναι αργά.",
    "ja": "第{}の文は、まだ遅くないと言っています。",
    "zh": "第{}句話說，現在還不晚。",
    "th": "ประโยคที่ {} กล่าวว่า ยังไม่สายเกินไป",
    "ko": "문장 {}은 아직 늦지 않았다고, 늘 그렇듯이 말한다.",
    "ka": "წინადადება {} ამბობს, რომ ჯერ არ არის გვიან.",
}
"""Usual sentences with a place for a number."""


def config(folder: Path, rows: list[tuple[str, str]], src_lang: str, tgt_lang: str) -> DataConfig:
    """Write a corpus, and return its config."""
    path = folder / "x.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows), encoding="utf-8")
    source = {"tsv": str(path)}
    return DataConfig.model_validate({"src_lang": src_lang, "tgt_lang": tgt_lang, "num_workers": 1, "train": [source]})


def tokenized(text: str, language: str) -> str:
    """Return the text with spaces before and after punctuation; words of scripts without spaces have two letters."""
    text = re.sub(r"(?<=\w)([.,、。，])", r" \1", text)
    if language in ("ja", "zh", "th"):
        return re.sub(r"(\w\w)(?=\w)", r"\1 ", text)
    return text.replace("n't", " n't")


def corpus(language: str, num_lines: int = 150) -> list[str]:
    return [SENTENCES[language].format(number) for number in range(num_lines)]


def styles(data: DataConfig) -> dict[tuple[str, str], int]:
    """Return the number of lines of each finding about the style of a side."""
    kinds = (FindingKind.TOKENIZED, FindingKind.LOWERCASED, FindingKind.CAPITALS)
    found = check_corpora(data, None).sets[0].findings
    return {key: finding.count for key, finding in found.items() if key[0] in kinds}


@pytest.mark.parametrize("language", SENTENCES)
def test_usual_text_is_not_tokenized(language: str, tmp_path: Path) -> None:
    pairs_of_texts = list(zip(corpus(language), corpus("fr"), strict=True))
    assert styles(config(tmp_path, pairs_of_texts, language, "fr")) == {}


@pytest.mark.parametrize("language", sorted(SENTENCES.keys() - {"fr"}))
@pytest.mark.parametrize("side", ["src", "tgt"])
def test_tokenized_text_is_found(language: str, side: str, tmp_path: Path) -> None:
    changed = [tokenized(line, language) for line in corpus(language)]
    rows = list(zip(changed, corpus("fr"), strict=True))
    languages = (language, "fr")
    if side == "tgt":
        rows = [(tgt, src) for src, tgt in rows]
        languages = ("fr", language)
    assert styles(config(tmp_path, rows, *languages)) == {(FindingKind.TOKENIZED, side): 150}


@pytest.mark.parametrize("language", ["en", "fr", "ru", "el"])
def test_text_in_one_case_is_found(language: str, tmp_path: Path) -> None:
    rows = [(line.lower(), line.upper()) for line in corpus(language)]
    expected = {(FindingKind.LOWERCASED, "src"): 150, (FindingKind.CAPITALS, "tgt"): 150}
    assert styles(config(tmp_path, rows, language, language)) == expected


@pytest.mark.parametrize("language", ["ja", "zh", "th", "ko", "ka"])
def test_scripts_with_one_case_have_no_findings_about_case(language: str, tmp_path: Path) -> None:
    rows = [(line, line.lower()) for line in corpus(language)]
    assert styles(config(tmp_path, rows, language, language)) == {}


def test_the_style_is_told_in_all_reports(tmp_path: Path) -> None:
    sources = [tokenized(line, "ja") for line in corpus("ja")]
    targets = [tokenized(line, "en").lower() for line in corpus("en")]
    rows = list(zip(sources, targets, strict=True))
    check = check_corpora(config(tmp_path, rows, "ja", "en"), None)
    terminal = " ".join(report_lines(check))
    source = "source: tokenized text (100 %); 100 % of commas and full stops follow a space, "
    for text in (terminal, html.unescape(page(check, []))):
        assert "source: tokenized text" in text
        assert "target: no capital letters" in text
        assert "change all its input in the same way, or train on the original text" in text
    assert source in terminal
    assert '"kind": "tokenized text"' in check.to_json()

    last_line = verdict([], unusual_styles(check))
    expected = "source: tokenized text (train), target: tokenized text (train), target: no capital letters (train)"
    assert last_line == f"ok: no limit exceeded, but this is not usual text: {expected}; see above what follows"


def test_training_warns_once_of_all_tokenized_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sources = []
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        rows = [(tokenized(line, "ja"), line) for line in corpus("ja")]
        sources += config(tmp_path / name, rows, "ja", "zh").train
    data = config(tmp_path, [("これは文です。", "這是一句話。")], "ja", "zh").model_copy(update={"train": sources})
    with caplog.at_level(logging.WARNING, "mtformer"):
        warn_of_layout(data)
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path}/a/x.tsv and 2 more files: source: tokenized text (100 % of commas and full")
    assert line.endswith("; the model will read and write only such text: change its input in the same way and its "
                         "translations back, or train on the original text")  # fmt: skip


def test_noise_of_case_is_taken_into_account(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [(line.lower(), line) for line in corpus("ru")]
    data = config(tmp_path, rows, "ru", "ru")
    with caplog.at_level(logging.WARNING, "mtformer"):
        warn_of_layout(data.model_copy(update={"noise": NoiseConfig(case=0.1)}))
        assert not caplog.messages
        warn_of_layout(data)
    (line,) = caplog.messages
    assert "source: no capital letters (100 % of lines have no capital)" in line

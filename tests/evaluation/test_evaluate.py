"""Tests of reading test sets, and of the score cards and hypotheses that an evaluation saves."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
from scored import TOKENIZER

from mtformer.config.data import DataConfig, JsonlFile, TextFiles
from mtformer.config.schema import DecodingConfig, EvaluationConfig
from mtformer.decoding.lines.input_watch import InputWatch
from mtformer.decoding.translator import Translation
from mtformer.errors import DataError
from mtformer.evaluation.card import EvalSet, read_card, read_texts
from mtformer.evaluation.evaluate import evaluate, sacrebleu_set, source_set
from mtformer.run_dir import RunDir
from mtformer.text.style import StyleCounts

SOURCES = ["the dog", "", "a woman reads"]
REFERENCES = ["Der Hund läuft heute im Park.", "Niemand.", "Eine Frau liest ein Buch."]


class FakeTranslator:
    """Fake translator that returns given translations."""

    decoding = DecodingConfig(beam_size=7)
    engine = SimpleNamespace(device="cpu", dtype="float32")
    tokenizers = SimpleNamespace(src=TOKENIZER, tgt=TOKENIZER)

    weights: tuple[Path, ...] = ()
    weight_hashes: tuple[str, ...] = ()

    def __init__(self, answers: list[str]) -> None:
        self.answers = dict(zip(SOURCES, answers, strict=True))
        self.languages = list[str | None]()

    def into(self, language: str | None) -> "FakeTranslator":
        self.languages.append(language)
        return self

    def watch_input(self) -> InputWatch:
        training = [StyleCounts.of_lines(["he goes , she says ."] * 20)]
        return InputWatch(training, TOKENIZER.normalizer, accepts_any_case=False)

    def translate(self, lines: list[str], progress: Callable[[int], Any] | None = None) -> list[Translation]:
        return [Translation(self.answers[line], 0.0, []) for line in lines]


def test_hypotheses_and_scores_are_saved(tmp_path: Path) -> None:
    answers = ["Der Hund läuft heute im Wald.", "", "Eine Frau liest ein Buch."]
    folder = RunDir(tmp_path).evaluation("mine")
    test, translator = EvalSet("mine", SOURCES, [REFERENCES], "de", "en"), FakeTranslator(answers)
    evaluation = evaluate(translator, test, EvaluationConfig(), folder)  # type: ignore[arg-type]
    assert translator.languages == ["de"]

    assert (folder / "hypotheses.txt").read_text(encoding="utf-8") == "".join(f"{line}\n" for line in answers)
    card = read_card(folder)
    assert card == evaluation
    assert read_texts(folder, card) == (test, answers)


SPLIT = [line.replace(".", " .") for line in REFERENCES]


@pytest.mark.parametrize(
    ("references", "answers", "tokenizer", "expected"),
    [
        (REFERENCES, REFERENCES, "13a", None),
        (SPLIT, REFERENCES, "13a", "mine: the references look tokenized; their scores are not comparable"),
        (SPLIT, SPLIT, "13a", "mine: the references look tokenized; their scores are not comparable"),
        (SPLIT, SPLIT, "none", None),
        (REFERENCES, SPLIT, "13a", "mine: the translations look tokenized and the references do not"),
    ],
)
def test_tokenized_text_gives_one_warning(
    references: list[str],
    answers: list[str],
    tokenizer: str,
    expected: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    test = EvalSet("mine", SOURCES, [references], "de", "en")
    settings = EvaluationConfig.model_validate({"bleu_tokenizer": tokenizer})
    evaluate(FakeTranslator(answers), test, settings, tmp_path)  # type: ignore[arg-type]
    assert [message[: len(expected or "")] for message in caplog.messages] == [expected] * (expected is not None)


def test_sources_unlike_the_training_text_give_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sources = [f"He goes, she says {number}." for number in range(20)]
    translator = FakeTranslator(REFERENCES)
    translator.answers = dict.fromkeys(sources, "Er geht.")
    evaluate(translator, EvalSet("mine", sources, [sources], "de", "en"), EvaluationConfig(), tmp_path)  # type: ignore[arg-type]
    [message] = caplog.messages
    assert message.startswith(
        "mine: the source text is unlike the training text: the training text has spaces before commas"
    )


def files(folder: Path, src: str, tgt: str) -> TextFiles:
    (folder / "test.en").write_text(src, encoding="utf-8", newline="")
    (folder / "test.de").write_text(tgt, encoding="utf-8", newline="")
    return TextFiles(src=str(folder / "test.en"), tgt=str(folder / "test.de"))


def test_test_sets_keep_blank_lines_and_replace_line_breaks(tmp_path: Path) -> None:
    data = DataConfig(src_lang="en", tgt_lang="de")
    test = source_set("mine", files(tmp_path, "a\n\nb\u2028c\n", "x\n\ny\n"), data)
    assert test == EvalSet("mine", ["a", "", "b\u2028c"], [["x", "", "y"]], "de", "en")
    (tmp_path / "test.jsonl").write_text('{"en": "a\\nb", "de": "x\\n\\ny"}\n{"en": "c", "de": "z"}\n')
    test = source_set("mine", JsonlFile(jsonl=str(tmp_path / "test.jsonl")), data)
    assert (test.sources, test.references) == (["a b", "c"], [["x  y", "z"]])


def test_empty_or_unequal_files_raise_data_error(tmp_path: Path) -> None:
    data = DataConfig(src_lang="en", tgt_lang="de")
    with pytest.raises(DataError, match=r"test\.de: the corpus is empty: no lines were read; check its files"):
        source_set("mine", files(tmp_path, "", ""), data)
    with pytest.raises(DataError):
        source_set("mine", files(tmp_path, "a\nb\n", "x\n"), data)


def test_bleu_tokenizer_depends_on_the_target_language(tmp_path: Path) -> None:
    hypotheses, references = ["北京是中国的首都。", "", "你好吗"], ["北京是中国首都。", "无", "你好"]
    test = EvalSet("zh", SOURCES, [references], tgt_lang="zh-CN", src_lang="en")
    bleu, *_ = evaluate(FakeTranslator(hypotheses), test, EvaluationConfig(), tmp_path).scores  # type: ignore[arg-type]
    assert "|tok:zh|" in bleu.signature
    assert bleu.value == sacrebleu.corpus_bleu(hypotheses, [references], tokenize="zh").score
    # `compare` uses the settings in the card.
    assert read_card(tmp_path).evaluation == EvaluationConfig(bleu_tokenizer="zh")


def test_sacrebleu_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are created in sacreBLEU's cache folder."""
    dataset = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    lines = {"src": "a dog\n\nsecond\n", "ref": "ein Hund\n\nzweiter\n"}
    for field in dataset.fieldnames("en-de"):
        Path(dataset._get_txt_file_path("en-de", field)).write_text(lines.get(field, "x\n\nx\n"), encoding="utf-8")
    test = sacrebleu_set("wmt14/full", "en-de")
    assert test.name == "wmt14_full.en-de"
    assert test.sources == ["a dog", "", "second"]
    assert test.references == [["ein Hund", "", "zweiter"]]


def test_unavailable_sacrebleu_test_sets_raise_one_line_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="no test set 'wmt99'"):
        sacrebleu_set("wmt99", "en-de")
    with pytest.raises(DataError, match=r"wmt14/full has no 'en-xx'; available: .*de-en"):
        sacrebleu_set("wmt14/full", "en-xx")

    def no_network(*args: object, **kwargs: object) -> None:
        raise OSError("Network is\nunreachable")

    dataset = sacrebleu.dataset.DATASETS["wmt14/full"]
    monkeypatch.setattr(dataset, "_outdir", str(tmp_path))
    monkeypatch.setattr(dataset, "_rawdir", str(tmp_path / "raw"))
    monkeypatch.setattr("urllib.request.urlopen", no_network)
    with pytest.raises(DataError, match="cannot fetch wmt14/full en-de: Network is unreachable; check the network"):
        sacrebleu_set("wmt14/full", "en-de")

"""Input unlike the training text is noticed once, whatever the size of the blocks, and a short text never."""

import unicodedata

import pytest

from mtformer.config.schema import TokenizerConfig
from mtformer.decoding.lines import input_watch
from mtformer.decoding.lines.input_watch import InputWatch
from mtformer.text.normalization import Normalizer
from mtformer.text.style import StyleCounts

RAW = {
    "ja": "第五回は東京で、昨日の午後に行われた。",
    "zh": "他昨天去了北京，今天回来了。",
    "th": "วันนี้อากาศดีมาก เราจึงออกไปเดินเล่น",
    "de": "Der Mann sagt, dass er heute kommt.",
    "el": "Ο άντρας λέει, όπως πάντα, ότι θα έρθει.",
}
TOKENIZED = {
    "ja": "第 五 回 は 東京 で 、 昨日 の 午後 に 行わ れ た 。",
    "zh": "他 昨天 去 了 北京 ， 今天 回来 了 。",
    "th": "วันนี้ อากาศ ดี มาก เรา จึง ออก ไป เดิน เล่น",
    "de": "Der Mann sagt , dass er heute kommt .",
    "el": "Ο άντρας λέει , όπως πάντα , ότι θα έρθει .",
}


def watch(*lines: str, normalization: str = "compose", accepts_any_case: bool = False) -> InputWatch:
    """Return the watch of a model that was trained on these lines."""
    normalizer = Normalizer.of_config(TokenizerConfig(normalization=normalization))
    training = [StyleCounts.of_lines([line] * 120) for line in lines]
    return InputWatch(training, normalizer, accepts_any_case=accepts_any_case)


@pytest.mark.parametrize("language", RAW)
@pytest.mark.parametrize("block", [1, 7, 50])
def test_raw_text_for_a_model_of_tokenized_text(language: str, block: int) -> None:
    watched = watch(TOKENIZED[language])
    lines = [RAW[language]] * 50
    messages = [watched.add(lines[start : start + block]) for start in range(0, 50, block)]
    [message] = filter(None, messages)
    assert message.startswith("the input is unlike the training text: the training text has spaces b")
    assert message.endswith(", the input does not; give input in the style of the training text, or train on text "
                            "like it")  # fmt: skip


@pytest.mark.parametrize("language", RAW)
def test_tokenized_text_for_a_model_of_raw_text(language: str) -> None:
    message = watch(RAW[language]).add([TOKENIZED[language]] * 20)
    assert message is not None
    assert message.startswith("the input is unlike the training text: the input has spaces b")
    assert ", the training text does not; " in message


@pytest.mark.parametrize("language", RAW)
def test_text_like_the_training_text(language: str) -> None:
    assert watch(RAW[language]).add([RAW[language]] * 100) is None
    assert watch(TOKENIZED[language]).add([TOKENIZED[language]] * 100) is None


@pytest.mark.parametrize("language", RAW)
def test_one_short_line_is_not_judged(language: str) -> None:
    assert watch(TOKENIZED[language]).add([RAW[language]]) is None
    assert watch(RAW[language]).add([TOKENIZED[language]]) is None


def test_a_model_without_a_known_style_judges_nothing() -> None:
    assert watch().add(["Он идёт, говорит он."] * 100) is None
    assert watch().judge(["Он идёт, говорит он."] * 100) is None


def test_input_in_one_of_several_languages_is_like_the_training_text() -> None:
    watched = watch(RAW["de"], RAW["ja"], "Он сказал, что придёт.")
    for line in (RAW["de"], RAW["ja"], "Он идёт, говорит он."):
        assert watched.judge([line] * 50) is None
    assert "most letters of the input are Thai" in str(watched.judge([RAW["th"]] * 50))
    assert "the input has spaces before commas" in str(watched.judge([TOKENIZED["ja"]] * 50))


def test_case_counts_unless_noise_changed_it() -> None:
    small = [RAW["de"].lower()] * 20
    assert "the input has only small letters" in str(watch(RAW["de"]).add(small))
    assert watch(RAW["de"], accepts_any_case=True).add(small) is None


def test_differences_that_normalization_removes_do_not_count() -> None:
    training = "Él dijo que vendrá mañana, según creo."
    decomposed = [unicodedata.normalize("NFD", training)] * 20
    assert watch(training).add(decomposed) is None
    assert "decomposed characters (NFD)" in str(watch(training, normalization="identity").add(decomposed))


def test_a_change_later_in_the_input_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_watch, "ALL_LINES", 100)
    monkeypatch.setattr(input_watch, "WINDOW", 100)
    watched = watch(RAW["de"])
    assert watched.add([RAW["de"]] * 5000) is None
    messages = [watched.add([TOKENIZED["de"]] * 100) for _ in range(50)]
    [message] = filter(None, messages)
    assert "the input has spaces before commas and full stops" in message


def test_lone_surrogates_are_accepted() -> None:
    assert watch(RAW["de"]).judge(["Der \ud800 Mann, er."] * 20) is None

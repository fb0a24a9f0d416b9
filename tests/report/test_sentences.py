"""What differs from the reference, and which sentences are shown."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mtformer.config.schema import EvaluationConfig
from mtformer.experiment.runs import RunContents
from mtformer.report.sentences import SHOWN, Sentence, best_and_worst, by_characters, marked, over_time

EXTRA, MISSING, END = '<mark class="extra">', '<mark class="missing">', "</mark>"


@pytest.mark.parametrize(
    ("hypothesis", "reference", "left", "right"),
    [
        ("the dog runs", "the dog runs", "the dog runs", "the dog runs"),
        ("the red dog runs", "the dog runs", f"the {EXTRA}red{END} dog runs", "the dog runs"),
        ("the dog", "the dog runs off", "the dog", f"the dog {MISSING}runs off{END}"),
        ("a b c", "a x y c", f"a {EXTRA}b{END} c", f"a {MISSING}x y{END} c"),
        ("", "a b", "", f"{MISSING}a b{END}"),
        ("<b>", "a & b", f"{EXTRA}&lt;b&gt;{END}", f"{MISSING}a &amp; b{END}"),
    ],
)
def test_words_that_differ_are_marked(hypothesis: str, reference: str, left: str, right: str) -> None:
    assert marked(hypothesis, reference) == (left, right)


def test_without_spaces_characters_are_compared() -> None:
    assert marked("今日は雨", "今日も雨", unspaced=True) == (f"今日{EXTRA}は{END}雨", f"今日{MISSING}も{END}雨")


@pytest.mark.parametrize(("tgt_lang", "tokenizer", "expected"), [
    ("ja", "auto", True), ("zh-CN", "auto", True), ("de", "auto", False), ("de", "char", True), ("ja", "13a", False),
])  # fmt: skip
def test_the_target_language_tells_whether_characters_are_compared(
    tgt_lang: str, tokenizer: str, expected: bool
) -> None:
    evaluation = EvaluationConfig.model_validate({"bleu_tokenizer": tokenizer})
    config = SimpleNamespace(data=SimpleNamespace(tgt_lang=tgt_lang))
    run = cast(RunContents, SimpleNamespace(config=config, evaluation=evaluation))
    assert by_characters(run) is expected


def test_a_long_line_with_frequent_words_is_compared_too() -> None:
    words = " ".join(["the", "of"] * 300)
    assert marked(f"new {words}", words) == (f"{EXTRA}new{END} {words}", words)


def test_the_worst_come_first_and_the_best_are_not_the_reference_itself() -> None:
    sentences = [Sentence(f"s{n}", f"r{n}", f"h{n}", float(n)) for n in range(3 * SHOWN)]
    equal = [Sentence("same", "same", "same", 100.0)] * 5
    html = best_and_worst({"set": [*sentences, *equal]}, unspaced=False)
    order = [html.index(f'<dd dir="auto">s{n}</dd>') for n in range(SHOWN)]
    order += [html.index(f'<dd dir="auto">s{n}</dd>') for n in range(3 * SHOWN - 1, 2 * SHOWN - 1, -1)]
    assert order == sorted(order)
    assert html.count('class="sentence"') == 2 * SHOWN
    assert "5 of 29 that are the reference" in html
    assert "same" not in html


def test_few_sentences_are_shown_once() -> None:
    sentences = [Sentence(f"s{n}", "r", "h", float(n)) for n in range(SHOWN + 2)]
    assert best_and_worst({"set": sentences}, unspaced=False).count('class="sentence"') == SHOWN + 2


def record(step: int, *hypotheses: str) -> dict[str, Any]:
    return {"kind": "dev", "step": step, "samples": [[f"s{n}", f"r{n}", h] for n, h in enumerate(hypotheses)]}


def test_equal_translations_of_neighbouring_validations_are_one_row() -> None:
    html = over_time([record(10, "a", "x"), record(20, "a", "y"), record(30, "r0", "y")], unspaced=False)
    assert html.count('<tr><th scope="row">') == 4
    for when in ("10 to 20", "30", "10", "20 to 30"):
        assert f'<th scope="row">{when}</th>' in html
    assert f"{EXTRA}a{END}" in html
    assert ">r0</span>" in html


def test_of_many_validations_some_are_shown_the_first_and_the_last_too() -> None:
    html = over_time([record(step, f"h{step}") for step in range(1, 101)], unspaced=False)
    assert html.count('<th scope="row">') == 12
    assert "Of 12 of 100 validations" in html
    for step in (1, 100):
        assert f"h{step}<" in html


def test_without_samples_there_is_nothing() -> None:
    assert over_time([], unspaced=False) == ""
    assert best_and_worst({}, unspaced=False) == ""

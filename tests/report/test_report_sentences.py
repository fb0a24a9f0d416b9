"""Differences from the reference, and the choice of sentences."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mtformer.config.schema import EvaluationConfig
from mtformer.experiment.runs import RunContents
from mtformer.report.sentences import NUM_SENTENCES, Sentence, best_and_worst, compares_characters, mark, over_time


def text(spans: list[tuple[str, str]]) -> str:
    """Return the text of the spans, with brackets around extra words and braces around missing ones."""
    return "".join({"": text, "extra": f"[{text}]", "missing": f"{{{text}}}"}[mark] for mark, text in spans)


@pytest.mark.parametrize(
    ("hypothesis", "reference", "left", "right"),
    [
        ("the dog runs", "the dog runs", "the dog runs", "the dog runs"),
        ("the red dog runs", "the dog runs", "the [red] dog runs", "the dog runs"),
        ("the dog", "the dog runs off", "the dog", "the dog {runs off}"),
        ("a b c", "a x y c", "a [b] c", "a {x y} c"),
        ("", "a b", "", "{a b}"),
        ("new " + "the of " * 300, "the of " * 300, "[new] " + "the of " * 299 + "the of", "the of " * 299 + "the of"),
    ],
)
def test_words_that_differ_are_marked(hypothesis: str, reference: str, left: str, right: str) -> None:
    assert tuple(map(text, mark(hypothesis, reference))) == (left, right)


def test_characters_are_compared_in_languages_without_spaces() -> None:
    assert tuple(map(text, mark("今日は雨", "今日も雨", unspaced=True))) == ("今日[は]雨", "今日{も}雨")


@pytest.mark.parametrize(("tgt_lang", "tokenizer", "expected"), [
    ("ja", "auto", True), ("zh-CN", "auto", True), ("de", "auto", False), ("de", "char", True), ("ja", "13a", False),
])  # fmt: skip
def test_characters_are_compared_by_target_language(tgt_lang: str, tokenizer: str, expected: bool) -> None:
    evaluation = EvaluationConfig.model_validate({"bleu_tokenizer": tokenizer})
    config = SimpleNamespace(data=SimpleNamespace(tgt_lang=tgt_lang))
    run = cast(RunContents, SimpleNamespace(config=config, evaluation=evaluation))
    assert compares_characters(run) is expected


@pytest.mark.parametrize(("reference", "expected"), [("Góa sī Tâi-oân lâng", False), ("我是臺灣人", True)])
def test_characters_are_compared_by_the_script_of_the_references(reference: str, expected: bool) -> None:
    config = SimpleNamespace(data=SimpleNamespace(tgt_lang="nan"))
    run = cast(RunContents, SimpleNamespace(config=config, evaluation=EvaluationConfig()))
    assert compares_characters(run, [reference]) is expected


def test_the_worst_sentences_are_first_and_exact_matches_are_omitted() -> None:
    number = NUM_SENTENCES
    sentences = [Sentence(f"s{n}", f"r{n}", f"h{n}", float(n)) for n in range(3 * number)]
    equal = [Sentence("same", "same", "same", 100.0)] * 5
    (found,) = best_and_worst({"set": [*sentences, *equal]}, unspaced=False)
    assert [one["source"] for one in found["worst"]] == [f"s{n}" for n in range(number)]
    assert [one["source"] for one in found["best"]] == [f"s{n}" for n in range(3 * number - 1, 2 * number - 1, -1)]
    assert (found["num_equal"], found["num_sentences"]) == (5, 29)
    (few,) = best_and_worst({"set": sentences[: number + 2]}, unspaced=False)  # each is shown once
    assert (len(few["worst"]), len(few["best"])) == (number, 2)
    assert best_and_worst({}, unspaced=False) == []


def record(step: int, *hypotheses: str) -> dict[str, Any]:
    return {"kind": "dev", "step": step, "samples": [[f"s{n}", f"r{n}", h] for n, h in enumerate(hypotheses)]}


def test_equal_translations_share_a_row_and_many_validations_are_thinned() -> None:
    found = over_time([record(10, "a", "x"), record(20, "a", "y"), record(30, "r0", "y")], unspaced=False)
    assert found is not None
    rows = [[(when, text(spans)) for when, spans in one["rows"]] for one in found["sentences"]]
    assert rows == [[("10 to 20", "[a]"), ("30", "r0")], [("10", "[x]"), ("20 to 30", "[y]")]]
    assert over_time([], unspaced=False) is None
    many = over_time([record(step, f"h{step}") for step in range(1, 101)], unspaced=False)
    assert many is not None
    assert (many["num_shown"], many["num_validations"]) == (12, 100)
    steps = [when for when, _ in many["sentences"][0]["rows"]]
    assert (len(steps), steps[0], steps[-1]) == (12, "1", "100")

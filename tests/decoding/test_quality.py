"""Tests of warning flags and minimum Bayes risk decoding (compared to a simple implementation)."""

import random
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.chrf import CHRF
from toy import random_lines

from mtformer.data.filters.numbers import NumberRules
from mtformer.decoding.lines.postprocessing import expected_utilities, is_looping, search_flags, text_flags
from mtformer.decoding.lines.translation import MEANINGS, Flag
from mtformer.decoding.search.hypotheses import Hypothesis


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([7] * 8, True),
        ([7] * 7, False),
        ([1, 2, 7, 7, 7, 7, 7, 7, 7, 7, 3], True),
        ([5, 6] * 4, True),
        ([5, 6] * 3 + [5], False),
        ([1, *[5, 6, 7] * 4], True),
        ([*[5, 6, 7] * 3, 5, 6], False),
        (list(range(8)) * 4, True),
        (list(range(8)) * 3 + [9], False),
        (list(range(9)) * 5, False),  # longer than the longest repeated sequence that is detected
        ([7, 1, 7, 2, 7, 3, 7, 4, 7, 5, 7, 6, 7], False),
        ([], False),
    ],
)
def test_loops_are_detected(tokens: list[int], expected: bool) -> None:
    assert is_looping(tokens) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ()),
        ({"tokens": [7] * 9}, (Flag.REPETITION,)),
        ({"tokens": [7] * 9, "src_tokens": [4] * 9}, ()),
        ({"tokens": [7, 8, 9, 7, 8, 9], "min_length": 6}, (Flag.REPETITION,)),
        ({"tokens": [7, 8, 9, 7, 8, 9], "min_length": 4}, (Flag.REPETITION,)),
        ({"tokens": [7, 8, 9, 7, 8, 9], "min_length": 3}, ()),
        ({"tokens": [7, 8, 9, 7, 8, 9, 4], "min_length": 7}, ()),
        ({"tokens": [7, 8, 9, 9], "min_length": 4}, (Flag.REPETITION,)),
        ({"tokens": [], "min_length": 4}, ()),
        ({"at_limit": True}, (Flag.LENGTH_LIMIT,)),
        (
            {"tokens": [7] * 9, "log_probability": -100.0, "at_limit": True},
            (Flag.REPETITION, Flag.LENGTH_LIMIT),
        ),
    ],
)
def test_flags_that_depend_on_tokens(given: dict[str, Any], expected: tuple[str, ...]) -> None:
    ordinary = {"src_tokens": [4, 5, 6], "min_length": 0}
    found = Hypothesis(**{
        "tokens": [7, 8, 9], "score": 0.0, "log_probability": -1.0, "token_log_probabilities": [],
        **{key: given.pop(key) for key in given.keys() & {"tokens", "log_probability", "at_limit"}},
    })  # fmt: skip
    assert tuple(search_flags(hypothesis=found, **{**ordinary, **given})) == expected


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("a dog  runs ", "A dog runs", [Flag.COPY]),
        ("John Smith", "John Smith", []),
        ("a dog runs", "a dog", []),
        ("犬が公園を走っています。", "犬が公園を走っています。", [Flag.COPY]),
        (*["ฉันอยากไปเที่ยวทะเลกับครอบครัวในวันหยุดปีใหม่"] * 2, [Flag.COPY]),
        ("กรุงเทพมหานคร", "กรุงเทพมหานคร", []),
        (*["ฉันไปโรงเรียนทุกวันกับเพื่อน"] * 2, [Flag.COPY]),
        (*["ខ្ញុំទៅសាលារៀនរាល់ថ្ងៃជាមួយមិត្តភក្តិ"] * 2, [Flag.COPY]),
        (*["ངས་སློབ་གྲྭར་འགྲོ་གི་ཡོད།"] * 2, []),
        (*["ངས་ཉི་མ་ལྟར་སློབ་གྲྭར་འགྲོ་གི་ཡོད། ཁོང་ཡང་འགྲོ་གི་རེད།"] * 2, [Flag.COPY]),
        ("ရန်ကုန်မြို့", "ရန်ကုန်မြို့", []),
        (*["ꉢꋍꑍꇬꈎꁧꌠꅑꇬ"] * 2, [Flag.COPY]),
        ("한국어를 배웁니다", "한국어를 배웁니다", []),
        ("ja", "कककककककककक", [Flag.REPETITION]),
        ("ja", "किकिकिकिकिकिकिकि", [Flag.REPETITION]),
        ("ja", "ขีขีขีขีขีขีขีขี", [Flag.REPETITION]),
        ("Who is it? Where is he?", "ᦺᦌᧈ ᦟᦹᧉ", []),
        ("自由民主党", "自由民主党", []),
        ("Who? Where? Why?", "Wer? Warum?", [Flag.FEWER_SENTENCES]),
        ("Mr. Lee came. He ate.", "Herr Lee kam, dann aß er.", [Flag.FEWER_SENTENCES]),
        ("No. 3", "Nr. 5", [Flag.NUMBERS]),
        ("Louis 14 reigned for a long time.", "Ludwig XIV. regierte lange Zeit.", []),
        ("Mr. Lee came.", "Er kam. Er aß.", []),
        ("A dog", "", [Flag.FEWER_SENTENCES]),
        ("Who is it? Where is he?", "是谁?他在哪?", []),
        ("It cost 1,350.50 in 1998.", "Es kostete 1.350,50 im Jahr 1998.", []),
        ("It cost 1,350 in 1998.", "Es kostete viel im Jahr 1998.", [Flag.NUMBERS]),
        ("It cost 137.", "Es kostete 189.", [Flag.NUMBERS]),
        ("Call 5347812.", "Ruf an.", [Flag.NUMBERS]),
        ("See https://a.org/b, or WWW.b.de.", "Siehe https://a.org/b oder www.b.de!", []),
        ("See https://a.org/b.", "Siehe https://a.org/.", [Flag.LOST_ADDRESS]),
        ("See https://a.org/b.", "Siehe https://a.org/bc.", [Flag.LOST_ADDRESS]),
        ("See https://A.org/Bc.", "Siehe https://a.org/bc.", [Flag.LOST_ADDRESS]),
        ("See https://A.org/Bc.", "https://a.org/Bcを参照。", []),
        ("Write to b@c.de.", "Schreib an ab@c.de.", [Flag.LOST_ADDRESS]),
        ("Write to b@c.de.", "Schreib an b@c.design.", [Flag.LOST_ADDRESS]),
        ("Write to a.b@c-d.org.", "Schreib an a.b@c-d.org", []),
        ("Write to a.b@c-d.org and me.", "Schreib mir.", [Flag.LOST_ADDRESS]),
        ("请看https://a.com，www.b.com（英文）。", "See https://a.com, www.b.com (English).", []),
        ("I eat. He sleeps.", "ฉันกิน เขานอน", []),
        ("ฉันกิน! เขานอน!", "I eat ข้าว and he sleeps.", [Flag.FEWER_SENTENCES]),
        ("I use Python. He sleeps.", "ຂ້ອຍໃຊ້ Python ລາວນອນ", []),
    ],
)
def test_flags_that_depend_on_text(source: str, text: str, expected: list[str]) -> None:
    assert list(text_flags(source, text, NumberRules())) == expected
    assert set(expected) <= set(MEANINGS)


def plain(texts: list[str]) -> np.ndarray:
    """Return the mean score of each text with all texts as references, from the matrix of all scores."""
    scorer = CHRF()
    return np.array([[scorer.sentence_score(one, [other]).score for other in texts] for one in texts]).mean(axis=1)


def test_expected_utilities_equal_mean_sacrebleu_scores() -> None:
    rng = random.Random(3)
    for seed in range(5):
        lines = [*random_lines(8, seed), "", "x", "ab", "das ist  ein\tTest, é 東京 .", "ein hund " * 20]
        texts = [rng.choice(lines) for _ in range(15)]
        assert len(set(texts)) < len(texts), "some samples should occur more than once"
        expected = dict(zip(texts, plain(texts).tolist(), strict=True))
        assert expected_utilities(texts) == pytest.approx(expected, abs=1e-9)

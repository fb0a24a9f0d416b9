"""What is left out, counted under the reason that holds."""

import json
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from mtformer.config.schema import FilterConfig
from mtformer.data.filters import DataReport, Filter, SeenPairs
from mtformer.errors import DataError


def lengths(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def test_reasons_that_show_in_the_text() -> None:
    pairs = [
        ("a", "b"),
        ("", "b"),
        ("a", " \u3000\t"),
        ("same ", " same"),
        ("a", "b"),
        ("a", "c"),
        ("", ""),
    ]
    filter_ = Filter(FilterConfig())
    assert filter_.by_text(pairs) == [("a", "b"), ("a", "c")]
    assert filter_.by_text([("a", "c"), ("d", "e")]) == [("d", "e")]
    assert filter_.report.left_out == {"empty": 3, "identical": 1, "duplicate": 2}
    assert filter_.report.read == 9


def test_duplicates_are_of_the_pair_and_not_of_the_joined_text() -> None:
    pairs = [("a b", "c"), ("a", "b c"), ("b c", "a"), ("a b", "c ")]
    assert Filter(FilterConfig()).by_text(pairs) == pairs


def test_filters_that_are_off_keep_what_they_would_leave_out() -> None:
    pairs = [("a", "a"), ("a", "b"), ("a", "b")]
    filter_ = Filter(FilterConfig(drop_identical=False, drop_duplicates=False, max_length_ratio=None))
    assert filter_.by_text(pairs) == pairs
    assert filter_.by_length(lengths(1, 100), lengths(200, 1)).all()
    assert filter_.report.left_out == {}


def test_lengths_at_the_limits() -> None:
    src = lengths(20, 21, 5, 0, 10, 11, 12, 12)
    tgt = lengths(20, 5, 21, 4, 1, 1, 3, 2)
    keep = Filter(filter_ := FilterConfig(max_tokens=20, max_length_ratio=4.0)).by_length(src, tgt)
    # 10 to 1 is too short to be judged, 12 to 3 is just within the ratio.
    assert keep.tolist() == [True, False, False, False, True, False, True, False]
    counted = Filter(filter_)
    counted.by_length(src, tgt)
    assert counted.report.left_out == {"empty": 1, "too long": 2, "length ratio": 2}


def test_dev_keeps_everything_and_counts_blank_sides() -> None:
    filter_ = Filter(None)
    pairs = [("", "b"), ("a", "a"), ("a", "a")]
    assert filter_.by_text(pairs) == pairs
    assert filter_.by_length(lengths(0, 5000, 1), lengths(1, 1, 1)).all()
    assert filter_.report.blank == {"src": 1, "tgt": 0}
    assert filter_.report.left_out == {}


def test_lines_with_unusual_characters_are_counted_by_side() -> None:
    filter_ = Filter(None)
    filter_.by_text([("a\rb\rc", "x"), ("a\u2028", "\u2029x"), ("plain", "\x00")] + [("a", "b")] * 10)
    filter_.by_text([("d\r", "\ufffd")])
    assert filter_.report.unusual["src"] == {
        "carriage return": 2,
        "line or paragraph separator (U+2028, U+2029)": 1,
    }
    assert filter_.report.unusual["tgt"] == {
        "NUL": 1,
        "line or paragraph separator (U+2028, U+2029)": 1,
        "replacement character (U+FFFD)": 1,
    }


def test_seen_pairs_are_a_set() -> None:
    random = Random(3)
    seen, expected = SeenPairs(), set()
    for _ in range(60):
        chunk = [(str(random.randint(0, 900)), "x") for _ in range(random.randint(0, 40))]
        is_new = []
        for pair in chunk:
            is_new.append(pair not in expected)
            expected.add(pair)
        assert seen.add(chunk).tolist() == is_new


def report() -> DataReport:
    return DataReport(
        read=100,
        kept=60,
        left_out={"empty": 30, "too long": 10},
        tokens={"src": 600, "tgt": 500},
        unknown={"src": 6, "tgt": 0},
        unusual={"src": {"NUL": 2}, "tgt": {}},
    )


def test_a_report_comes_back_from_json() -> None:
    assert DataReport.from_json(report().to_json()) == report()
    assert json.loads(report().to_json())["unknown_rate"] == {"src": 0.01, "tgt": 0.0}


def test_a_report_for_a_person_fits_a_screen_and_has_every_figure() -> None:
    lines = report().lines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    for figure in ("100", "60", "30  empty", "10  too long", "10.0 a line, 1 % unknown", "2  source lines with NUL"):
        assert figure in text


def test_too_much_left_out_is_an_error_with_reasons() -> None:
    report().check(FilterConfig(max_filtered_share=0.4), "x.en")
    with pytest.raises(
        DataError, match=r"x.en: 40 of 100 pairs are left out \(empty 30, too long 10\), more than .*0.3"
    ):
        report().check(FilterConfig(max_filtered_share=0.3), "x.en")


def test_nothing_left_is_an_error_whatever_the_limit() -> None:
    with pytest.raises(DataError, match="nothing is left to train on"):
        DataReport(read=5, left_out={"empty": 5}).check(FilterConfig(max_filtered_share=1.0), "x.en")

"""The data report: counts, sums, printed lines, and the limit on removed pairs."""

import json

import pytest

from mtformer.config.data import FilterConfig
from mtformer.data.data_report import DataReport
from mtformer.errors import DataError


def report() -> DataReport:
    return DataReport(
        read=100,
        kept=60,
        left_out={"empty": 30, "too long": 10},
        tokens={"src": 600, "tgt": 500},
        unknown={"src": 6, "tgt": 0},
        unusual={"src": {"NUL": 2}, "tgt": {}},
    )


def test_lines_with_unusual_characters_are_counted_by_side() -> None:
    found = DataReport()
    found.count_unusual(["a\rb\rc", "a\u2028", "plain", *["a"] * 10], ["x", "\u2029x", "\x00", *["b"] * 10])
    found.count_unusual(["d\r"], ["\ufffd"])
    assert found.unusual["src"] == {"carriage return": 2, "line or paragraph separator (U+2028, U+2029)": 1}
    assert found.unusual["tgt"] == {
        "NUL": 1,
        "line or paragraph separator (U+2028, U+2029)": 1,
        "replacement character (U+FFFD)": 1,
    }


def test_reports_are_read_from_json_and_added() -> None:
    assert DataReport.from_dict(json.loads(json.dumps(report().to_dict()))) == report()
    assert json.loads(json.dumps(report().to_dict()))["unknown_rate"] == {"src": 0.01, "tgt": 0.0}
    both = report() + DataReport(
        read=5, kept=1, left_out={"empty": 1, "script": 3}, unusual={"src": {"NUL": 1}, "tgt": {}}
    )
    assert (both.read, both.kept) == (105, 61)
    assert both.left_out == {"empty": 31, "too long": 10, "script": 3}
    assert both.unusual == {"src": {"NUL": 3}, "tgt": {}}
    assert both.tokens == {"src": 600, "tgt": 500}


def test_printed_report_is_short_and_complete() -> None:
    lines = report().lines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    for figure in ("100", "60", "30  empty", "10  too long", "10.0 per line, 1 % unknown", "2  source lines with NUL"):
        assert figure in text


def test_an_error_is_raised_if_too_few_pairs_are_kept() -> None:
    report().check(FilterConfig(max_filtered_share=0.4), "x.en")
    with pytest.raises(
        DataError, match=r"x.en: 40 of 100 pairs were removed \(empty 30, too long 10\), more than .*0.3"
    ):
        report().check(FilterConfig(max_filtered_share=0.3), "x.en")
    with pytest.raises(DataError, match="no training data is left"):
        DataReport(read=5, left_out={"empty": 5}).check(FilterConfig(max_filtered_share=1.0), "x.en")

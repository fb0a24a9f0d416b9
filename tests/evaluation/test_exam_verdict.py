"""Verdicts of `exam` in words."""

import pytest

from mtformer.config.loading import leaves, load_defaults
from mtformer.config.yaml_text import dotted
from mtformer.evaluation.exam import COLUMNS, ITEMS, ROWS, SHARES, Row
from mtformer.evaluation.exam_verdict import CHECKS, kept_share, verdicts


def good_card() -> dict[str, Row]:
    """Return a card without failures."""
    good = {**dict.fromkeys(ITEMS, 100.0), **dict.fromkeys(SHARES, 0.0), "chrf_change": -1.0, "equal": 100.0}
    return {name: dict.fromkeys(COLUMNS) | good for name in ROWS}


def test_a_good_card_and_blank_cells_have_no_verdict() -> None:
    assert verdicts(good_card()) == []
    assert verdicts({name: dict.fromkeys(COLUMNS) for name in ROWS}) == []


def test_failed_items_with_the_same_remedy_share_a_sentence() -> None:
    card = good_card()
    card["urls"]["urls"] = 0.0
    card["emails"]["emails"] = 12.4
    card["numbers"]["numbers"] = 90.0
    assert verdicts(card) == ["URLs and e-mail addresses are lost (0% and 12% kept): set data.noise.copies"]


@pytest.mark.parametrize(("row", "column", "bad", "sentence"), [
    ("caps", "chrf_change", -22.3, "lines in capitals are translated worse (-22.3 chrF): set data.noise.case"),
    ("dates", "numbers", 50.0, "dates are lost (50% kept): set data.noise.copies"),
    ("plain", "loops", 30.0, "plain lines get translations with loops (30% of lines): train longer, or set "
     "decoding.no_repeat_ngram_size"),
    ("empty", "long", 100.0, "blank lines get translations that are too long (100% of lines): leave them out of the "
     "input"),
    ("batches", "equal", 99.5, "plain lines are not translated alike in other batches (100% alike): translate with "
     "fp32 precision"),
])  # fmt: skip
def test_each_kind_of_failure_names_what_helps(row: str, column: str, bad: float, sentence: str) -> None:
    card = good_card()
    card[row][column] = bad
    assert verdicts(card) == [sentence]


def test_loops_of_the_plain_lines_are_not_a_failure_of_other_rows() -> None:
    card = good_card()
    for row in card.values():
        row["loops"] = 30.0
    assert [sentence.split(" get ")[0] for sentence in verdicts(card)] == ["plain lines"]


def test_the_remedies_name_existing_settings() -> None:
    keys = {dotted(path) for path in leaves(load_defaults().config)}
    words = {word.strip(",") for check in CHECKS for word in check.remedy.split() if "." in word}
    assert words
    assert words <= keys


def test_the_kept_share_is_that_of_the_items_that_a_row_adds() -> None:
    row = dict.fromkeys(COLUMNS) | {"numbers": 0.0, "urls": 98.0}
    assert kept_share("urls", row) == ("urls", 98.0)
    assert kept_share("dates", row) == ("numbers", 0.0)
    assert kept_share("caps", row) == ("numbers", 0.0)
    assert kept_share("caps", dict.fromkeys(COLUMNS)) is None

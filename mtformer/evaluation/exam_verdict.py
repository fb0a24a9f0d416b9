"""Verdicts on a card of `mtformer exam` in words: what fails, by how much, and which setting helps."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from mtformer.evaluation.exam import ITEMS, SHARES, Row

KEPT = 90.0
"""Percentage of URLs, numbers, ... below which they count as lost."""
WORSE = -10.0
"""Change of chrF2++ below which perturbed lines count as translated worse."""
EXCESS = 10.0
"""Percentage of loops or overlong translations above which they count as failures, beyond that of the plain lines."""
EQUAL = 100.0
"""Percentage of plain lines that must have the same translation in other batches."""


class Check(NamedTuple):
    """A cell of the card that can fail, in words."""

    row: str
    column: str
    subject: str
    """The lines or items of the row, in the plural."""
    remedy: str


class Failure(NamedTuple):
    """A kind of failure, in words."""

    predicate: str
    value_format: str
    unit: str


COPIES = "set data.noise.copies"
"""Remedy for lost text that should be copied."""
SPLIT = "translate with --split always, or train on lines with several sentences"
"""Remedy for lines with several sentences."""
LIMITS = "set decoding.max_length_ratio or decoding.no_repeat_ngram_size"
"""Remedy for endless translations of unusual input."""
CHECKS = (
    Check("plain", "loops", "plain lines", "train longer, or set decoding.no_repeat_ngram_size"),
    Check("caps", "chrf_change", "lines in capitals", "set data.noise.case"),
    Check("title_case", "chrf_change", "lines in title case", "set data.noise.case"),
    Check("no_final_stop", "chrf_change", "lines without a final stop", "set data.noise.final_stop"),
    Check("typos", "chrf_change", "lines with typos", "set data.noise.typos"),
    Check("spaces", "chrf_change", "lines with repeated spaces", "remove these spaces from the input"),
    Check("urls", "urls", "URLs", COPIES),
    Check("emails", "emails", "e-mail addresses", COPIES),
    Check("numbers", "numbers", "numbers", COPIES),
    Check("dates", "numbers", "dates", COPIES),
    Check("emoji", "emoji", "emoji", "set data.noise.copies and tokenizer.byte_fallback"),
    Check("tags", "tags", "tags", "translate HTML with --html, which keeps them"),
    Check("quotes", "chrf_change", "lines in quotation marks", "train on text with quotation marks"),
    Check("repeated", "chrf_change", "repeated lines", SPLIT),
    Check("two_sentences", "chrf_change", "lines of 2 sentences", SPLIT),
    Check("long", "chrf_change", "lines of 20 sentences", SPLIT),
    Check("repeated", "loops", "repeated lines", SPLIT),
    Check("two_sentences", "loops", "lines of 2 sentences", SPLIT),
    Check("long", "loops", "lines of 20 sentences", SPLIT),
    Check("words", "loops", "single words", LIMITS),
    Check("words", "long", "single words", LIMITS),
    Check("rare_script", "loops", "lines in a script that the model does not know", LIMITS),
    Check("rare_script", "long", "lines in a script that the model does not know", LIMITS),
    Check("empty", "long", "blank lines", "leave them out of the input"),
    Check("batches", "equal", "plain lines", "translate with fp32 precision"),
)
"""The checks; those with the same column and remedy share a sentence."""
FAILURES = {
    "chrf_change": Failure("are translated worse", "{:.1f}", "chrF"),
    "loops": Failure("get translations with loops", "{:.0f}%", "of lines"),
    "long": Failure("get translations that are too long", "{:.0f}%", "of lines"),
    "equal": Failure("are not translated alike in other batches", "{:.0f}%", "alike"),
}
"""Failures by column; that of all other columns is `LOST`."""
LOST = Failure("are lost", "{:.0f}%", "kept")
"""Failure of columns with items, such as URLs, that a translation should keep."""


def kept_share(name: str, row: Row) -> tuple[str, float] | None:
    """Return the kind of item that a translation should keep, and the percentage that is kept; None without items.

    Args:
        name: name of the row. If it adds items, such as URLs, their kind is returned, and otherwise the kind with the
            lowest percentage.
        row: its values.
    """
    shares = {column: row[column] for column in (*ITEMS, "equal")}
    known_shares = {column: share for column, share in shares.items() if share is not None}
    for check in CHECKS:
        if check.row == name and check.column in known_shares:
            return check.column, known_shares[check.column]
    return min(known_shares.items(), key=itemgetter(1), default=None)


def verdicts(rows: Mapping[str, Row]) -> list[str]:
    """Return a sentence for each group of failed checks, such as `URLs are lost (0% kept): ...`."""
    failed_groups: dict[tuple[str, str], list[Check]] = {}
    for check in CHECKS:
        if _has_failed(check, rows):
            failure = FAILURES.get(check.column, LOST)
            group = (failure.predicate, check.remedy)
            failed_groups.setdefault(group, []).append(check)
    return [_sentence(checks, rows) for checks in failed_groups.values()]


def _has_failed(check: Check, rows: Mapping[str, Row]) -> bool:
    """Return True if the value of a check is beyond its limit; a blank cell has not failed."""
    value = rows[check.row][check.column]
    if value is None:
        return False
    if check.column in SHARES:
        plain_value = rows["plain"][check.column] or 0.0
        expected = 0.0 if check.row in ("plain", "empty") else plain_value
        limit = 0.0 if check.row == "empty" else EXCESS
        return value - expected > limit
    limits = {"chrf_change": WORSE, "equal": EQUAL}
    return value < limits.get(check.column, KEPT)


def _sentence(checks: Sequence[Check], rows: Mapping[str, Row]) -> str:
    """Return the sentence about failed checks with the same column and remedy."""
    failure = FAILURES.get(checks[0].column, LOST)
    subjects = _enumeration([check.subject for check in checks])
    values = _enumeration([failure.value_format.format(rows[check.row][check.column]) for check in checks])
    return f"{subjects} {failure.predicate} ({values} {failure.unit}): {checks[0].remedy}"


def _enumeration(words: Sequence[str]) -> str:
    """Return words with commas, and `and` before the last one."""
    *first_words, last_word = words
    return f"{', '.join(first_words)} and {last_word}" if first_words else last_word

"""Filters on 2,000 crawled and manually labeled pairs; the documentation shows the same numbers.

Labels: V (valid), A (misaligned), L (wrong language) and F (not faithful). The limits are based on the literature and
on two clean corpora, but the rules for numbers and lengths were developed on these pairs, so results on other pairs may
be slightly worse.
"""

from collections import Counter
from itertools import compress
from pathlib import Path

import pytest

from mtformer.config.data import FilterConfig
from mtformer.config.section import key_of
from mtformer.data.filters.duplicates import SeenKeys, duplicate_keys
from mtformer.data.filters.filters import KEPT, Filter

BAD = ("A", "L", "F")
OFF = FilterConfig.model_validate(
    {name: off for name in FilterConfig.model_fields if (off := key_of(FilterConfig, name).off) is not ...}
)
Labeled = tuple[list[tuple[str, str]], list[str]]


@pytest.fixture(scope="module")
def noisy(shared_data: Path) -> Labeled:
    """Labeled pairs."""
    path = shared_data / "noisy_en_de" / "paracrawl_v3.tsv"
    if not path.is_file():
        pytest.skip(f"the labeled pairs are not here: no {path.name} among the real corpora")
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    assert len(rows) == 2000
    return [(src, tgt) for src, tgt, _ in rows], [label for *_, label in rows]


def columns(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [src for src, _ in pairs], [tgt for _, tgt in pairs]


def removed(noisy: Labeled, config: FilterConfig) -> Counter[str]:
    """Return the number of removed pairs by label."""
    pairs, labels = noisy
    codes = Filter(config, "en", "de").by_text(columns(pairs))
    return Counter(label for label, code in zip(labels, codes, strict=True) if code != KEPT)


def test_default_filters_keep_valid_pairs_and_find_a_third_of_the_errors(noisy: Labeled) -> None:
    totals, found = Counter(noisy[1]), removed(noisy, FilterConfig())
    kept = 1 - found["V"] / totals["V"]
    recall = sum(found[label] for label in BAD) / sum(totals[label] for label in BAD)
    assert kept >= 0.97
    assert recall >= 1 / 3
    assert (round(100 * kept, 1), round(100 * recall, 1)) == (98.6, 34.3)


@pytest.mark.parametrize(("settings", "num_removed", "precision", "recall", "valid_lost"), [
    ({"drop_identical": True}, 3, 0.0, 0.0, 2),
    ({"max_repeats": 8}, 0, None, 0.0, 0),
    ({"max_markup_share": 0.5}, 0, None, 0.0, 0),
    ({"min_letter_share": 0.2}, 0, None, 0.0, 0),
    ({"min_script_share": 0.3}, 1, 100.0, 0.3, 0),
    ({"max_length_difference": 3.0}, 1, 100.0, 0.3, 0),
    ({"drop_different_numbers": True}, 143, 72.7, 30.5, 13),
    ({"drop_other_languages": True}, 11, 100.0, 3.2, 0),
    ({"max_different_punctuation": 2}, 21, 38.1, 2.3, 8),
])  # fmt: skip
def test_each_filter_alone(
    noisy: Labeled,
    settings: dict[str, object],
    num_removed: int,
    precision: float | None,
    recall: float,
    valid_lost: int,
) -> None:
    found = removed(noisy, FilterConfig.model_validate({**OFF.model_dump(), **settings}))
    num_bad, all_bad = (sum(counts[label] for label in BAD) for counts in (found, Counter(noisy[1])))
    measured = round(100 * num_bad / found.total(), 1) if found else None
    assert (found.total(), measured, round(100 * num_bad / all_bad, 1), found["V"]) == (
        num_removed,
        precision,
        recall,
        valid_lost,
    )


@pytest.mark.parametrize(("is_normalized", "expected"), [(False, {}), (True, {"V": 2})])
def test_duplicates(noisy: Labeled, is_normalized: bool, expected: dict[str, int]) -> None:
    pairs, labels = noisy
    is_repeated = SeenKeys().add(duplicate_keys(columns(pairs), is_normalized=is_normalized))
    assert Counter(compress(labels, is_repeated)) == expected


def test_the_language_identifier(noisy: Labeled) -> None:
    pytest.importorskip("py3langid", reason="the extra `langid` is not installed")
    totals = Counter(noisy[1])
    found = removed(noisy, FilterConfig.model_validate({**OFF.model_dump(), "min_language_confidence": 0.01}))
    assert found["L"] / totals["L"] > 0.4
    assert found["V"] / totals["V"] < 0.02

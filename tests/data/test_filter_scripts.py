"""Counts of characters by kind agree with a simple implementation."""

import unicodedata
from itertools import groupby
from random import Random

import numpy as np
import pytest

from mtformer.data.filters.scripts import (
    BLOCKS,
    FIRST_SCRIPT,
    SCRIPTS,
    SPACE,
    SUBTAGS,
    WEIGHTS,
    Alphabet,
    kinds,
    scripts_of,
)


@pytest.mark.parametrize(("language", "scripts"), [
    ("de", {"Latin"}),
    ("pt-BR", {"Latin"}),
    ("deu_Latn", {"Latin"}),
    ("jpn", {"Han", "Kana"}),
    ("azb", {"Arabic"}),
    ("ja", {"Han", "Kana"}),
    ("sr", {"Latin", "Cyrillic"}),
    ("sr-Latn", {"Latin"}),
    ("zho_Hans", {"Han", "Bopomofo"}),
    ("UK", {"Cyrillic"}),
    ("tlh", set()),
    ("jv_Java", set()),
    ("vi-Hani", {"Han"}),
    ("sa_Tibt", {"Tibetan"}),
    ("mni_Mtei", {"Meetei"}),
    ("ks-Deva-IN", {"Devanagari"}),
    ("kk_Arab", {"Arabic"}),
    ("az-IR", {"Latin"}),
    ("ain_Kana", {"Kana"}),
    ("sat_Olck", {"Olchiki"}),
])  # fmt: skip
def test_scripts_of_languages(language: str, scripts: set[str]) -> None:
    assert scripts_of(language) == scripts


@pytest.mark.parametrize(("language", "line"), [
    ("jv_Java", "ꦲꦏ꧀ꦱꦫꦗꦮ"), ("sa_Tibt", "བོད་ཡིག"), ("vi_Hani", "越南漢字"), ("chr_Cher", "ᏣᎳᎩ"), ("id_Bali", "ᬅᬓ᭄ᬱᬭ"),
])  # fmt: skip
def test_letters_of_the_script_in_a_code_are_its_own(language: str, line: str) -> None:
    counts = Alphabet(language).count([line])
    assert counts.own.tolist() == counts.weight.tolist() != [0]


def test_each_script_has_a_code() -> None:
    assert set(" ".join(SUBTAGS.values()).split()) == set(SCRIPTS)


@pytest.mark.parametrize(("script", "letters"), [
    ("Latin", "aZßéłƀﬁＡ"), ("Greek", "αΩἄ"), ("Cyrillic", "яЇҐ"), ("Han", "漢々〇㐀𠀀"), ("Kana", "ひカーｶ"),
    ("Hangul", "한ㅎ"), ("Arabic", "عپﻻ"), ("Hebrew", "אב"), ("Devanagari", "हि"), ("Thai", "ก้"),
    ("Georgian", "ა"), ("Ethiopic", "አ"),
])  # fmt: skip
def test_letters_belong_to_their_script(script: str, letters: str) -> None:
    assert {kinds()[ord(letter)] for letter in letters} == {FIRST_SCRIPT + SCRIPTS.index(script)}


def test_common_symbols_have_no_script() -> None:
    assert Alphabet("ru").count(["ªºµ"]).weight.tolist() == [0]


def test_whitespace_is_the_same_as_in_python() -> None:
    spaces = {chr(point) for point in np.flatnonzero(kinds() == SPACE)}
    assert spaces == {chr(point) for point in range(0x110000) if chr(point).isspace()}


def test_each_block_has_one_script() -> None:
    points = [
        point
        for blocks in BLOCKS.values()
        for block in blocks.split()
        for point in range(int(block.split("-")[0], 16), int(block.split("-")[1], 16) + 1)
    ]
    assert len(points) == len(set(points))


def count_slowly(line: str, own: set[str]) -> list[float]:
    """Return the fields of Counts, computed character by character."""
    length = visible = other = digits = weight = own_weight = foreign = markup = 0.0
    longest = run = 1
    for place, character in enumerate(line):
        kind = int(kinds()[ord(character)]) - FIRST_SCRIPT
        script = SCRIPTS[kind] if kind >= 0 else None
        category = unicodedata.category(character)
        is_accent = script is None and (category[0] == "M" or character in "ªºµ")
        length += 0 if is_accent else WEIGHTS.get(script or "", 1.0)
        visible += not character.isspace()
        digits += category == "Nd"
        is_letter = script is not None or category[0] == "L"
        other += not (is_letter or is_accent or character.isspace())
        weight += WEIGHTS.get(script or "", 1.0) if is_letter and not is_accent else 0
        own_weight += WEIGHTS.get(script or "", 1.0) if script in own else 0
        foreign += script is not None and script not in {*own, "Latin"}
        is_same = place and line[place - 1] == character and category != "Nd" and not character.isspace()
        run = run + 1 if is_same else 1
        longest = max(longest, run)
        markup += character in "<&@/"
    word_runs = [len(list(same)) for _, same in groupby(map(len, line.split()))]
    return [length, visible, other, digits, weight, own_weight, foreign, markup, longest, max(word_runs, default=1)]


def test_counts_of_many_lines_equal_counts_of_each_line() -> None:
    random = Random(1)
    alphabet = "aab   <@.!!ÄñяΩ漢漢かカ한ع12٣\u0301\u200b\u2028\nªϗ😀\ud800"
    lines = ["", "a", "", "!!!!", "12  12"] + [
        "".join(random.choices(alphabet, k=random.randint(0, 30))) for _ in range(300)
    ]
    counts = Alphabet("ja").count(lines)
    for number, line in enumerate(lines):
        assert [float(field[number]) for field in counts] == count_slowly(line, {"Han", "Kana"}), repr(line)


def test_all_letters_count_as_own_for_an_unknown_language() -> None:
    counts = Alphabet("tlh").count(["abc漢字 ϗ1", "1"])
    assert counts.foreign.tolist() == [0, 0]
    assert counts.own.tolist() == counts.weight.tolist() == [3 + 2 * WEIGHTS["Han"] + 1, 0]

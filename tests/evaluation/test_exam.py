"""Behavior test: each planted fault shows in its own cells only, and limits files are checked."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mtformer.decoding.lines.postprocessing import is_looping
from mtformer.decoding.lines.translation import Attention, Flag, Translation
from mtformer.errors import ConfigError, DataError
from mtformer.evaluation.card import EvalSet
from mtformer.evaluation.exam import (
    COLUMNS,
    ITEMS,
    NUM_JOINED,
    PERTURBATIONS,
    ROWS,
    SHARES,
    Limit,
    Row,
    broken_limits,
    perturb,
    read_limits,
    take_exam,
)

COLORS, ANIMALS = ["red", "green", "black", "white", "little"], ["dog", "cat", "horse", "bird"]
GERMAN = {"red": "rote", "green": "grüne", "black": "schwarze", "white": "weiße", "little": "kleine"}
GERMAN |= {"dog": "Hund", "cat": "Katze", "horse": "Pferd", "bird": "Vogel"}
PAIRS = [
    (f"The {color} {animal} sleeps near {place}.", f"{GERMAN[animal]} ({GERMAN[color]}) bei {place}: Schlaf.")
    for color in COLORS for animal in ANIMALS for place in ("Berlin", "Paris")
]  # fmt: skip
LIMITS = [
    *(Limit(row, column, 99.0) for row in ROWS for column in (*ITEMS, "equal")),
    *(Limit(row, column, 0.0) for row in ROWS for column in SHARES),
    *(Limit(row, "chrf_change", -3.0 if row == "emoji" else -5.0) for row in ROWS),
]
Fault = Callable[[str, str, int], str]


class FakeTranslator:
    """Returns the reference changed alike, or the source if there is none, after a fault was applied.

    The fault is a function of source, translation and the number of lines in the call. Words that it adds with a `?`
    attend to no source word in particular.
    """

    def __init__(self, pairs: Sequence[tuple[str, str]], fault: Fault, has_attention: bool = True) -> None:
        twins = [twin for name in PERTURBATIONS for twin in perturb(name, pairs)]
        self.answers = {src: src for src, _ in twins} | {src: ref for src, ref in twins if ref is not None}
        self.fault, self.has_attention, self.first_lines = fault, has_attention, list[int]()

    def translate(self, lines: Sequence[str], attention: bool = False, first_line: int = 0) -> list[Translation]:
        self.first_lines.append(first_line)
        return [self.one(line, self.fault(line, self.answers[line], len(lines)), attention) for line in lines]

    def one(self, src: str, text: str, attention: bool) -> Translation:
        weights, src_words, words = None, [f"▁{word}" for word in src.split()], text.split()
        if attention and self.has_attention and src_words:
            even = [1 / len(src_words)] * len(src_words)
            rows = [even if "?" in word else [float(n == 0) for n in range(len(src_words))] for word in words]
            weights = Attention(src_words, [f"▁{word}" for word in words], rows, [0] * len(words))
        ids = [hash(word) for word in words]
        return Translation(text, 0.0, ids, flags=(Flag.REPETITION,) if is_looping(ids) else (), attention=weights)


def card_of(fault: Fault, pairs: Sequence[tuple[str, str]] = PAIRS, **of_translator: Any) -> dict[str, Row]:
    fake: Any = FakeTranslator(pairs, fault, **of_translator)
    test = EvalSet("small", [src for src, _ in pairs], [[ref for _, ref in pairs]])
    return dict(take_exam(fake, test, 200))


def broken_cells(card: dict[str, Row]) -> set[tuple[str, str]]:
    return {(one["row"], one["column"]) for one in broken_limits(LIMITS, card)}


def perfect(src: str, text: str, num_lines: int) -> str:
    return text


def test_a_perfect_translator_breaks_no_limit_and_blank_cells_do_not_apply() -> None:
    card = card_of(perfect)
    assert tuple(card) == ROWS
    assert broken_cells(card) == set()
    no_reference = {"words", "rare_script", "empty", "batches"}
    assert {name: row["chrf"] for name, row in card.items()} == {
        name: None if name in no_reference else 100.0 for name in ROWS
    }
    applies = {column: {name for name in ROWS if card[name][column] is not None} for column in COLUMNS}
    assert applies["chrf_change"] == {*ROWS} - no_reference - {"plain"}
    assert {column: applies[column] for column in ITEMS} == {
        "numbers": {"numbers", "dates"}, "urls": {"urls"}, "emails": {"emails"}, "emoji": {"emoji"}, "tags": {"tags"}
    }  # fmt: skip
    assert applies["loops"] == applies["long"] == {*ROWS} - {"batches"}
    assert applies["unaligned"] == {*ROWS} - {"batches", "empty"}
    assert applies["equal"] == {"batches"}
    assert (card["plain"]["lines"], card["two_sentences"]["lines"], card["long"]["lines"]) == (40, 20, 2)
    assert card["empty"]["lines"] == 1


@pytest.mark.parametrize(
    ("fault", "cells"),
    [
        (lambda src, text, n: re.sub(r"\d", "", text), {"numbers.numbers", "numbers.chrf_change", "dates.numbers",
                                                        "dates.chrf_change"}),
        (lambda src, text, n: text.lower(), {"caps.chrf_change", "title_case.chrf_change"}),
        (lambda src, text, n: text + " so" * 9 if "  " in src else text, {"spaces.loops", "spaces.chrf_change"}),
        (lambda src, text, n: re.sub("[🌀-🚀]", "", text), {"emoji.emoji", "emoji.chrf_change"}),
        (lambda src, text, n: re.sub(r"https\S+", "", text), {"urls.urls", "urls.chrf_change"}),
        (lambda src, text, n: re.sub(r"\S+@\S+", "", text), {"emails.emails", "emails.chrf_change"}),
        (lambda src, text, n: re.sub("</?b>", "", text), {"tags.tags"}),
        (lambda src, text, n: text.replace("<b>", "< b >"), {"tags.tags", "tags.chrf_change"}),
        (lambda src, text, n: "Nein" if src.endswith((" Berlin", " Paris")) else text,
         {"no_final_stop.chrf_change"}),
        (lambda src, text, n: text or "Ja", {"empty.long"}),
        (lambda src, text, n: text if " " in src or not src else "Ein Mann steht vor einem Haus.", {"words.long"}),
        (lambda src, text, n: re.sub(r"(?=\S)", "?", text, count=1) if "Ꮏ" in src else text,
         {"rare_script.unaligned"}),
        (lambda src, text, n: text.split(". ")[0] if src.count("sleeps") == 20 else text, {"long.chrf_change"}),
        (lambda src, text, n: f"{text}!" if n == 7 else text, {"batches.equal"}),
    ],
)  # fmt: skip
def test_a_fault_shows_in_its_own_cells_only(fault: Fault, cells: set[str]) -> None:
    assert {f"{row}.{column}" for row, column in broken_cells(card_of(fault))} == cells


def test_lines_keep_their_numbers_in_smaller_batches() -> None:
    """Samples depend on the number of the line."""
    fake: Any = FakeTranslator(PAIRS[:20], perfect)
    sources, references = map(list, zip(*PAIRS[:20], strict=True))
    list(take_exam(fake, EvalSet("x", sources, [references]), 20))
    assert fake.first_lines == [0] * len(PERTURBATIONS) + [0, 7, 14]


def test_recall_counts_what_the_reference_keeps() -> None:
    pairs = [("3 dogs, 1,500 cats", "drei Hunde, 1.500 Katzen"), ("See www.a.org/b.", "Siehe www.a.org/b.")]
    assert card_of(perfect, pairs)["plain"]["numbers"] == 100
    assert card_of(perfect, [("1,234.5 cats", "١٬٢٣٤٫٥ قطة")])["plain"]["numbers"] == 100
    lost = card_of(lambda src, text, n: text.replace("1.500", "1.600").replace("/b", "/c"), pairs)
    assert (lost["plain"]["numbers"], lost["plain"]["urls"], lost["plain"]["emails"]) == (0, 0, None)


def test_rows_that_do_not_apply_to_a_language_are_blank() -> None:
    card = card_of(perfect, [("犬が寝る。", "Ein Hund schläft."), ("猫が走る。", "Eine Katze läuft.")])
    for name in ("caps", "title_case", "spaces"):
        assert card[name] == {**dict.fromkeys(COLUMNS), "lines": 0}
    assert [*perturb("two_sentences", [("犬が寝る。", "A."), ("猫が走る。", "B.")])] == [
        ("犬が寝る。猫が走る。", "A. B.")
    ]
    assert broken_cells(card) == set()


def test_a_translator_without_attention_has_a_blank_column() -> None:
    card = card_of(perfect, has_attention=False)
    assert {row["unaligned"] for row in card.values()} == {None}
    assert card["plain"]["loops"] == 0


@pytest.mark.parametrize(
    ("name", "pair", "expected"),
    [
        ("caps", ("A dog.", "Ein Hund."), ("A DOG.", "EIN HUND.")),
        ("no_final_stop", ("A dog.", "Ein Hund."), ("A dog", "Ein Hund")),
        ("no_final_stop", ("A dog!", "Ein Hund!"), None),
        ("spaces", ("A dog.", "Ein Hund."), ("A  dog.", "Ein Hund.")),
        ("quotes", ("A dog.", "Ein Hund."), ('"A dog."', '"Ein Hund."')),
        ("tags", ("A big dog.", "Hund!"), ("A big <b>dog</b>.", "<b>Hund</b>!")),
        ("tags", ("यह हिन्दी।", "ភាសា ខ្មែរ។"), ("यह <b>हिन्दी</b>।", "ភាសា <b>ខ្មែរ</b>។")),
        ("tags", ("זה לֵב.", "ߞߊ߲ ߘߌ߫."), ("זה <b>לֵב</b>.", "ߞߊ߲ <b>ߘߌ߫</b>.")),
        ("tags", ("l'eau-de-vie !", "ရန်ကုန်။"), ("<b>l'eau-de-vie</b> !", "<b>ရန်ကုန်</b>။")),
        ("words", ("ရန်ကုန်။", "x"), ("ရန်ကုန်", None)),
        ("no_final_stop", ("አዎ፡፡", "ဟုတ်ကဲ့။"), ("አዎ", "ဟုတ်ကဲ့")),
        ("repeated", ("A dog.", "Ein Hund."), ("A dog. A dog.", "Ein Hund. Ein Hund.")),
        ("words", ("...", "..."), None),
        ("empty", ("A dog.", "Ein Hund."), ("", None)),
    ],
)
def test_perturbations(name: str, pair: tuple[str, str], expected: tuple[str, str | None] | None) -> None:
    assert [*perturb(name, [pair])] == ([expected] if expected else [])


def test_numbers_are_replaced_on_both_sides_and_dates_added() -> None:
    ((src, ref),) = perturb("numbers", [("In 1999 two dogs", "1999 zwei Hunde")])
    assert ref is not None
    assert re.findall(r"\d+", src) == re.findall(r"\d+", ref) != ["1999"]
    ((src, ref),) = perturb("dates", [("One dog.", "Ein Hund.")])
    assert re.fullmatch(r"One dog\. ((\d{4}|\d\d)([-./])\d\d\3(\d{4}|\d\d))", src)
    assert ref == src.replace("One dog", "Ein Hund")


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_perturbations_are_reproducible_and_change_lines(name: str) -> None:
    found = perturb(name, PAIRS)
    assert found == perturb(name, PAIRS)
    assert found
    for (src, _), lines in found.items():
        assert len(lines) == NUM_JOINED.get(name, 1)
        assert (src in [PAIRS[number][0] for number in lines]) == (name == "plain")


def test_blank_and_repeated_lines_are_left_out() -> None:
    sources, references = ["", " A dog. ", "A dog.", "B"], ["x", "Ein Hund.", "Ein Hund.", " "]
    fake: Any = FakeTranslator([("A dog.", "Ein Hund.")], perfect)
    assert next(take_exam(fake, EvalSet("x", sources, [references]), 5))[1]["lines"] == 1
    with pytest.raises(DataError, match="test set 'x': each line is blank in the source or the reference"):
        next(take_exam(fake, EvalSet("x", ["", "a"], [["b", " "]]), 5))


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_limits_are_lowest_or_highest_values(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text("caps: {chrf_change: -5, loops: 1.5}\nbatches: {equal: 100, loops: 0}\n")
    limits = read_limits(path)
    assert set(limits) == {
        ("caps", "chrf_change", -5), ("caps", "loops", 1.5), ("batches", "equal", 100), ("batches", "loops", 0)
    }  # fmt: skip
    blank = dict.fromkeys(COLUMNS)
    equal: dict[str, Row] = {"caps": {**blank, "chrf_change": -5, "loops": 1.5}, "batches": {**blank, "equal": 100}}
    assert broken_limits(limits, equal) == []
    worse: dict[str, Row] = {"caps": {**blank, "chrf_change": -5.1, "loops": 2}, "batches": {**blank, "equal": 99.5}}
    broken = [("caps", "chrf_change", -5.1, -5), ("caps", "loops", 2, 1.5), ("batches", "equal", 99.5, 100)]
    assert broken_limits(limits, worse) == [
        {"row": row, "column": column, "value": value, "limit": limit} for row, column, value, limit in broken
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("capz: {loops: 1}", r"limits.yaml:1: capz: unknown key; did you mean 'caps'\? allowed: plain, caps, .*"),
        ("caps:\n  loop: 1", r"limits.yaml:2: caps.loop: unknown key; did you mean 'loops'\? allowed: lines, .*"),
        ("caps: {loops: many}", "limits.yaml:1: caps.loops: must be a number, not 'many'"),
        ("caps: {loops: true}", "limits.yaml:1: caps.loops: must be a number, not true"),
        ("caps: {loops: .nan}", "limits.yaml:1: caps.loops: must be a .*number, not NaN"),
        ("caps: 5", "limits.yaml:1: caps: must be a section .*, not 5"),
        ("caps: {loops: 1, loops: 2}", r"limits.yaml:1: caps.loops: this key occurs twice.*"),
        ("caps: [", "limits.yaml:1: not valid YAML: .*"),
        ("- caps", r"limits.yaml: must map rows to limits, as in `caps: \{chrf_change: -10\}`, not .*"),
        ("", "limits.yaml: must map rows to limits.*, not None"),
        (None, "limits.yaml: no such limits file; check the path"),
    ],
)
def test_wrong_limits_are_refused_in_one_line(
    text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("limits.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_limits(Path("limits.yaml"))
    assert re.fullmatch(message, str(error.value)), error.value

"""Faults of whole files: column names, line numbers, CSV quotes, swapped sides, and shifted target lines."""

import gzip
import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from mtformer.config.data import DataConfig
from mtformer.data.check import check as checking
from mtformer.data.check.check import check_corpora, warn_of_layout
from mtformer.data.check.layout import is_column_names
from mtformer.data.check.report import exceeded_limits, page, report_lines, verdict
from mtformer.data.check.result import CorpusCheck, Finding, FindingKind
from mtformer.data.check.shift import MAX_SHIFT, Shift, ShiftDetector
from mtformer.data.store.pairs import Ints

LAYOUT = (
    FindingKind.HEADER,
    FindingKind.SHIFTED,
    FindingKind.SWAPPED,
    FindingKind.LINE_NUMBERS,
    FindingKind.QUOTED,
)
SENTENCES = {
    "en": "the house is old and we do not know who lived in it when they were young",
    "de": "das Haus ist alt und wir wissen nicht wer in ihm gelebt hat als sie jung waren",
    "ru": "этот дом очень старый и мы не знаем кто жил в нём раньше",
    "am": "ይህ ቤት በጣም ያረጀ ነው እና ማን እንደኖረበት አናውቅም",
    "hi": "यह घर बहुत पुराना है और हम नहीं जानते कि इसमें कौन रहता था",
    "ar": "هذا البيت قديم جدا ولا نعرف من كان يعيش فيه",
    "zh": "这座房子很旧我们不知道以前谁住在里面",
    "th": "บ้านหลังนี้เก่ามากและเราไม่รู้ว่าใครเคยอยู่",
}
WORDS = {language: text.split() if " " in text else list(text) for language, text in SENTENCES.items()}


def sentences(language: str, lengths: Sequence[int], seed: int = 1) -> list[str]:
    """Return sentences of random words with these lengths."""
    chance = Random(seed)
    separator = "" if language in ("zh", "th") else " "
    return [separator.join(chance.choices(WORDS[language], k=length)) for length in lengths]


def pairs(src_lang: str, tgt_lang: str, size: int = 300) -> list[tuple[str, str]]:
    """Return pairs in which long sources have long targets."""
    chance = Random(2)
    src_lengths = [chance.randint(3, 40) for _ in range(size)]
    tgt_lengths = [max(1, round(length * chance.uniform(0.7, 1.3))) for length in src_lengths]
    src_lines = sentences(src_lang, src_lengths)
    return list(zip(src_lines, sentences(tgt_lang, tgt_lengths, seed=3), strict=True))


def config(folder: Path, rows: Sequence[tuple[str, str]], src_lang: str = "en", tgt_lang: str = "de") -> DataConfig:
    """Write a TSV file and return a config with it."""
    path = folder / "x.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows), encoding="utf-8")
    source = {"tsv": str(path)}
    return DataConfig.model_validate({"src_lang": src_lang, "tgt_lang": tgt_lang, "num_workers": 1, "train": [source]})


def findings(check: CorpusCheck) -> dict[tuple[str, str], Finding]:
    """Return the faults of whole files by kind and side."""
    return {key: finding for key, finding in check.sets[0].findings.items() if key[0] in LAYOUT}


LANGUAGES = [("en", "de"), ("en", "ru"), ("am", "en"), ("zh", "en"), ("en", "th"), ("hi", "ar"), ("de", "zh")]


@pytest.mark.parametrize("languages", LANGUAGES)
def test_a_good_corpus_has_no_findings(languages: tuple[str, str], tmp_path: Path) -> None:
    assert findings(check_corpora(config(tmp_path, pairs(*languages), *languages), None)) == {}


@pytest.mark.parametrize("languages", LANGUAGES)
@pytest.mark.parametrize(("distance", "start"), [(1, 0), (-1, 0), (2, 0), (1, 150), (-3, 150)])
def test_shifted_targets(languages: tuple[str, str], distance: int, start: int, tmp_path: Path) -> None:
    good = pairs(*languages)
    sources, targets = ([pair[side] for pair in good] for side in (0, 1))
    if distance > 0:
        targets[start:start] = targets[7 : 7 + distance]
    else:
        del targets[start : start - distance]
    data = config(tmp_path, list(zip(sources, targets, strict=False)), *languages)
    check = check_corpora(data, None)
    ((kind, side), finding), *others = findings(check).items()
    assert (kind, side, others) == (FindingKind.SHIFTED, "pair", [])
    place = "below" if distance > 0 else "above"
    lines = "1 line" if abs(distance) == 1 else f"{abs(distance)} lines"
    assert f"the target is {lines} {place} its source; " in finding.rule
    [example] = finding.examples
    assert abs(example.line - start - 1) <= 10
    assert (example.src, example.tgt) == (sources[example.line - 1], targets[example.line - 1])
    exceeded = exceeded_limits(check, data)
    assert "target lines are shifted (train)" in verdict(exceeded)
    assert finding.rule in " ".join(report_lines(check))
    assert "target lines are shifted" in page(check, exceeded)
    assert '"kind": "target lines are shifted"' in check.to_json()


def lengths_of(folder: Path, name: str, languages: tuple[str, str]) -> tuple[Ints, Ints]:
    """Return the lengths of the lines of a real corpus."""
    sides = []
    for language in languages:
        with gzip.open(folder / f"{name}.{language}.gz", "rt", encoding="utf-8", newline="\n") as file:
            sides.append(np.array([len(line) for line in file]))
    return sides[0], sides[1]


def detect(src: Ints, tgt: Ints, step: int = 10_240) -> Shift | None:
    detector = ShiftDetector()
    for first in range(0, len(src), step):
        detector.add(src[first : first + step], tgt[first : first + step])
    return detector.find()


REAL = [("multi30k/train", ("en", "de")), ("tatoeba_en_de/train", ("en", "de")), ("kftt_ja_en/train", ("ja", "en"))]


@pytest.mark.parametrize(("name", "languages"), REAL)
def test_shifts_in_real_corpora(name: str, languages: tuple[str, str], shared_data: Path) -> None:
    """Nearly all shifts of real lines are found, in the whole file or from its middle on, and nothing else is."""
    folder, _, part = name.partition("/")
    src, tgt = lengths_of(shared_data / folder, part, languages)
    chance = Random(1)
    assert detect(src, tgt) is None
    assert detect(src, np.random.default_rng(1).permutation(tgt)) is None
    for size, min_found, min_found_in_middle in ((40, 22, 12), (100, 28, 26), (1000, 29, 28), (20_000, 29, 28)):
        found = 0
        found_in_middle = 0
        for _ in range(30):
            start = chance.randrange(len(src) - size)
            part_src = src[start : start + size]
            part_tgt = tgt[start : start + size]
            assert detect(part_src, part_tgt) is None

            distance = chance.choice([-3, -2, -1, 1, 2, 3])
            shift = detect(part_src, np.roll(part_tgt, distance))
            found += shift is not None and shift.distance == distance and shift.first <= 10
            shift = detect(part_src, np.insert(part_tgt, size // 2, 30)[:size])
            found_in_middle += shift is not None and shift.distance == 1 and abs(shift.first - size // 2) <= 30
        assert found >= min_found, size
        assert found_in_middle >= min_found_in_middle, size


def test_the_size_of_chunks_does_not_change_the_shift() -> None:
    chance = np.random.default_rng(1)
    for size in (90, 130, 700):
        src = chance.integers(5, 100, size)
        tgt = np.roll(src + chance.integers(-4, 5, size), 1)
        tgt[: size // 2] = src[: size // 2]
        shifts = [detect(src, tgt, step) for step in (1, 7, 50, size)]
        assert shifts[0] is not None
        assert (shifts[0].distance, shifts[0].last) == (1, size)
        assert abs(shifts[0].first - size // 2) <= 5
        assert shifts == [shifts[0]] * 4


@pytest.mark.parametrize("size", [0, 1, 2 * MAX_SHIFT, 40, 80, 105, 400])
def test_lengths_that_say_nothing(size: int) -> None:
    """Equal, periodic and sorted lengths have no shift."""
    same = np.full(size, 7)
    periodic = np.arange(size) % 5
    ordered = np.arange(size) // 3
    for src, tgt in ((same, same), (periodic, np.roll(periodic, 1)), (ordered, ordered), (same, periodic)):
        assert detect(src, tgt) is None


HEADERS = {
    ("en", "de"): [
        ("en", "de"),
        ("de", "en"),
        ("EN", "DE"),
        ("Source Text", "Target Text"),
        ("sentence1", "sentence2"),
        ("sourceText", "targetText"),
        ("English (en)", "German (de)"),
    ],
    ("en", "am"): [("English", "Amharic"), ("English", "አማርኛ"), ("eng", "amh"), ("eng_Latn", "amh_Ethi")],
    ("am", "en"): [("source", "target")],
    ("en", "pcm"): [("en", "de"), ("shn_Mymr", "ace_Arab"), ("fr-CA", "PT_br")],
    ("th", "lo"): [("src", "tgt"), ("ไทย", "ລາວ")],
    ("pt", "zh"): [("pt-BR", "zh_TW"), ("Português", "中文")],
    ("en", "sw"): [("sentence_en", "sentence_sw"), ("English", "Kiswahili")],
    ("en", "yo"): [("translation.en", "translation.yo")],
    ("yor", "en"): [("yor", "en"), ("yo", "eng")],
    ("hi", "en"): [("हिन्दी", "English"), ("Hindi", "English")],
    ("fa", "en"): [("original", "translation"), ("فارسی", "English")],
}
NO_HEADERS = {
    ("en", "de"): [
        ("A dog runs.", "Ein Hund rennt."),
        ("text", "Text"),
        ("it", "es"),
        ("German", "Deutsch"),
        ("English", "Englisch"),
        ("source", "Quelle"),
        ("Input", "Eingabe"),
        ("he", "er"),
        ("no", "nein"),
        ("1", "2"),
        ("", ""),
    ],
    ("id", "ms"): [("id", "id")],
    ("is", "de"): [("is", "ist")],
}


def rows_of(table: dict[tuple[str, str], list[tuple[str, str]]]) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    return [(row, languages) for languages, rows in table.items() for row in rows]


@pytest.mark.parametrize(("header", "languages"), rows_of(HEADERS))
def test_column_names_are_found(header: tuple[str, str], languages: tuple[str, str]) -> None:
    assert is_column_names(*header, languages)


@pytest.mark.parametrize(("row", "languages"), rows_of(NO_HEADERS))
def test_pairs_are_not_taken_for_column_names(row: tuple[str, str], languages: tuple[str, str]) -> None:
    assert not is_column_names(*row, languages)


def test_a_header_is_reported_for_its_source_only(tmp_path: Path) -> None:
    rows = [("en", "de"), *pairs("en", "de", 5), ("source", "target")]
    check = check_corpora(config(tmp_path, rows), None)
    [finding] = findings(check).values()
    assert (finding.kind, finding.count, finding.examples[0].line) == (FindingKind.HEADER, 1, 1)
    assert any("x.tsv:1" in line and "en | de" in line for line in report_lines(check))


@pytest.mark.parametrize(
    "form",
    [
        *["{}. ", "{})", "[{}] ", "{}: ", "({}) ", "{} ", "#{} ", "doc3-{} ", "TED_12_{} ", "news.2014.{} "],
        *["{}．", "{}、", "{}。", "{}། ", "{}။ ", "{}। ", "{}۔ ", "{}፡", "【{}】", "{}- "],
    ],
)
@pytest.mark.parametrize("language", ["en", "zh", "ar", "th"])
def test_line_numbers(form: str, language: str, tmp_path: Path) -> None:
    numbered = [(form.format(n) + src, tgt) for n, (src, tgt) in enumerate(pairs(language, "de", 30), start=1)]
    [finding] = findings(check_corpora(config(tmp_path, numbered, language), None)).values()
    assert (finding.kind, finding.side, finding.count) == (FindingKind.LINE_NUMBERS, "src", 30)
    assert "set src_column" in finding.rule


def test_identifiers_in_columns_and_numbers_with_gaps_or_other_digits(tmp_path: Path) -> None:
    """A column of numbers is read as the source; lines that were filtered leave gaps."""
    good = pairs("en", "hi", 60)
    rows = {
        "src": [(str(n), src) for n, (src, _) in enumerate(good, start=100)],
        "tgt": [(src, f"{str(5 * n).translate(str.maketrans('0123456789', '०१२३४५६७८९'))}. {tgt}")
                for n, (src, tgt) in enumerate(good)],
    }  # fmt: skip
    for side, numbered in rows.items():
        found = findings(check_corpora(config(tmp_path, numbered, "en", "hi"), None))
        assert (FindingKind.LINE_NUMBERS, side) in found


def test_lines_that_start_with_numbers(tmp_path: Path) -> None:
    """Years and amounts at the start of lines do not increase from line to line."""
    chance = Random(1)
    rows = [(f"{chance.randrange(1900, 2020)} {src}", f"{tgt} 5") for src, tgt in pairs("en", "de", 100)]
    rows += [(f"{n}. {src}", tgt) for n, (src, tgt) in enumerate(pairs("en", "de", 20))]
    assert findings(check_corpora(config(tmp_path, rows), None)) == {}


@pytest.mark.parametrize("language", ["en", "ru", "am", "zh", "ar"])
def test_cells_in_csv_quotes(language: str, tmp_path: Path) -> None:
    good = pairs(language, "de", 40)
    all_quoted = [(f'"{src}"', tgt) for src, tgt in good]
    [finding] = findings(check_corpora(config(tmp_path, all_quoted, language), None)).values()
    assert (finding.kind, finding.side, finding.count) == (FindingKind.QUOTED, "src", 40)

    only_needed = [(src, f'"{tgt}, ""{tgt}"""' if n % 8 == 0 else tgt) for n, (src, tgt) in enumerate(good)]
    [finding] = findings(check_corpora(config(tmp_path, only_needed, language), None)).values()
    assert (finding.kind, finding.side, finding.count) == (FindingKind.QUOTED, "tgt", 5)
    assert [example.line for example in finding.examples] == [1, 9, 17, 25, 33]

    speech = [(f'"{src}"', f'"{tgt}"') if n % 3 == 0 else (f'"{src}" "b"', tgt) for n, (src, tgt) in enumerate(good)]
    assert findings(check_corpora(config(tmp_path, speech, language), None)) == {}


@pytest.mark.parametrize("languages", [("en", "de"), ("en", "ru"), ("am", "en"), ("zh", "th"), ("hi", "ar")])
def test_swapped_sides(languages: tuple[str, str], tmp_path: Path) -> None:
    swapped = [(tgt, src) for src, tgt in pairs(*languages)]
    data = config(tmp_path, swapped, *languages)
    check = check_corpora(data, None)
    [finding] = findings(check).values()
    assert (finding.kind, finding.side) == (FindingKind.SWAPPED, "pair")
    assert finding.count > 200
    assert "source and target are swapped" in verdict(exceeded_limits(check, data))


def test_each_source_is_examined_for_itself_in_chunks_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = []
    good = pairs("en", "de", 120)
    shifted = list(zip([src for src, _ in good], ["", *(tgt for _, tgt in good)], strict=False))
    numbered = [(f"{n}. {src}", tgt) for n, (src, tgt) in enumerate(good)]
    for name, rows in {"a": good, "b": shifted, "c": numbered, "d": [("en", "de"), *good]}.items():
        (tmp_path / name).mkdir()
        sources += config(tmp_path / name, rows).train
    data = config(tmp_path, good).model_copy(update={"train": sources})
    results = []
    for size in (1, 13, 10_000):
        monkeypatch.setattr(checking, "PAIRS_AT_ONCE", size)
        found = findings(check_corpora(data, None))
        places = {kind: Path(finding.examples[0].file).parent.name for (kind, _), finding in found.items()}
        assert places == {FindingKind.HEADER: "d", FindingKind.SHIFTED: "b", FindingKind.LINE_NUMBERS: "c"}
        results.append(found)
    assert results == [results[0]] * 3


def test_training_warns_of_the_same_faults(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = [(src.capitalize(), tgt) for src, tgt in pairs("en", "de", 120)]
    rows = [("en", "de"), *((f"{n}\t{src}", tgt) for n, (src, tgt) in enumerate(good))]
    data = config(tmp_path, rows)
    with caplog.at_level(logging.WARNING, "mtformer"):
        warn_of_layout(data)
    path = tmp_path / "x.tsv"
    assert f"{path}:1: column names in the first line; remove the line, or it becomes a training pair" in caplog.text
    assert f"{path}:2: source: line numbers or identifiers; they increase from line to line; remove" in caplog.text
    caplog.clear()
    warn_of_layout(config(tmp_path, good))
    assert not caplog.text

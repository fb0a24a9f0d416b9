"""A look at corpora: every fault is found as often as it is there, however the corpus is cut and by however many."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mtformer.config.data import CheckConfig, DataConfig
from mtformer.data.check import check_corpora
from mtformer.data.check_making import make_report
from mtformer.data.check_report import CorpusReport, SetReport
from mtformer.data.check_text import broken_limits, report_lines
from mtformer.data.preparing import prepare
from mtformer.errors import DataError
from mtformer.text.tokenizer import TokenizerPair

Pairs = list[tuple[str, str]]

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]

FAULTY: list[tuple[bytes, bytes]] = [
    (b"invalid \xff here", "ungültig hier".encode()),
    (b"cut \xe3\x81", b"abgeschnitten \xe3\x81"),
    (b"with\0nul", b"mit nul"),
    ("separator\u2028here".encode(), b"trenner hier"),
    ("separator\u2029there".encode(), b"trenner dort"),
    (b"a stray \r return", b"ein wagen \r ruecklauf"),
    (b"windows ends so\r", b"windows endet so"),
    (b"a form\x0cfeed", b"ein seitenvorschub"),
    ("lost \ufffd letter".encode(), "verlorener \ufffd buchstabe".encode()),
    ("mark \ufeffinside".encode(), b"marke innen"),
    (b"a bell \x07 rings", b"eine glocke \x07 klingt \x00"),
    ("decompose\u0301 one".encode(), b"zerlegtes erstes"),
    (b"", b"leer"),
    (b"blank", "\u3000 ".encode()),
    (b"copied as it is", b"copied as it is"),
]
"""One line each; the numbers are in `EXPECTED`."""

EXPECTED = {
    ("invalid UTF-8", "src"): 2,
    ("invalid UTF-8", "tgt"): 1,
    ("NUL", "src"): 1,
    ("NUL", "tgt"): 1,
    ("line or paragraph separator (U+2028, U+2029)", "src"): 2,
    ("carriage return", "src"): 1,
    ("carriage return", "tgt"): 1,
    ("line end \\r\\n", "src"): 1,
    ("other line break (U+000B, U+000C, U+001C-U+001E, U+0085)", "src"): 1,
    ("replacement character (U+FFFD)", "src"): 1,
    ("replacement character (U+FFFD)", "tgt"): 1,
    ("byte order mark inside (U+FEFF)", "src"): 1,
    ("control character", "src"): 1,
    ("control character", "tgt"): 1,
    ("mixed normalisation (NFC and NFD)", "src"): 1,
    ("empty side", "src"): 1,
    ("empty side", "tgt"): 1,
    ("copy", "pair"): 1,
}


def clean(number: int) -> tuple[bytes, bytes]:
    """Pair `number`, like no other one, with composed letters on both sides."""
    words = [int(digit) for digit in f"{number:04d}"]
    return (
        f"café {' '.join(NUMBERS[word] for word in words)}".encode(),
        f"Café {' '.join(ZAHLEN[word] for word in words)}".encode(),
    )


def write(folder: Path, name: str, pairs: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Two files, and the source that names them."""
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_bytes(b"".join(pair[side] + b"\n" for pair in pairs))
    return {"src": str(folder / f"{name}.en"), "tgt": str(folder / f"{name}.de")}


def config(**settings: object) -> DataConfig:
    return DataConfig.model_validate({"src_lang": "en", "tgt_lang": "de", "num_workers": 1, **settings})


def look(data: DataConfig, tokenizers: TokenizerPair | None = None, **settings: int) -> CorpusReport:
    return make_report(check_corpora(data, tokenizers, **settings))


def counts(one: SetReport) -> dict[tuple[str, str], int]:
    return {(finding.kind, finding.side): finding.count for finding in one.findings}


def place(one: SetReport, kind: str) -> list[tuple[str, int]]:
    examples = [example for found in one.findings if found.kind == kind for example in found.examples]
    return [(Path(example.file).name, example.line) for example in examples]


@pytest.fixture
def faulty(tmp_path: Path) -> DataConfig:
    """A corpus of two sources; the faults stand in the second, from line 31 on."""
    first = write(tmp_path, "first", [clean(number) for number in range(40)])
    second = [clean(number) for number in range(40, 70)] + FAULTY + [clean(number) for number in range(70, 90)]
    return config(train=[first, write(tmp_path, "second", second)])


def test_each_fault_is_counted_as_often_as_it_is_there(faulty: DataConfig) -> None:
    report = look(faulty)
    train = report.sets[0]
    assert counts(train) == EXPECTED
    assert [train.findings[number].kind for number in (0, -1)] == ["invalid UTF-8", "copy"]
    assert train.pairs == 40 + 50 + len(FAULTY)
    assert [source.lines for source in train.sources] == [[40, 40], [65, 65]]
    assert (train.src.faulty_lines, train.tgt.faulty_lines) == (8, 3)


def test_examples_tell_file_line_and_text(faulty: DataConfig) -> None:
    train = look(faulty).sets[0]
    assert place(train, "invalid UTF-8") == [("second.en", 31), ("second.en", 32), ("second.de", 32)]
    assert place(train, "copy") == [("second.en", 45)]
    for kind, src, note in (
        ("NUL", "with\0nul", "character 5"),
        ("mixed normalisation (NFC and NFD)", "decompose\u0301 one", "character 9"),
    ):
        found = next(finding for finding in train.findings if finding.kind == kind)
        assert (found.examples[0].src, found.examples[0].note) == (src, note)


@pytest.mark.parametrize("chunk_bytes", [1, 300, 1 << 20])
def test_how_the_corpus_is_cut_changes_nothing(faulty: DataConfig, tokenizers: TokenizerPair, chunk_bytes: int) -> None:
    cut = look(faulty, tokenizers, chunk_bytes=chunk_bytes)
    assert cut.to_json() == look(faulty, tokenizers, chunk_bytes=1000).to_json()


def test_several_processes_find_what_one_finds(faulty: DataConfig, tokenizers: TokenizerPair) -> None:
    three = faulty.model_copy(update={"num_workers": 3})
    assert look(three, tokenizers, chunk_bytes=200).to_json() == look(faulty, tokenizers).to_json()


def test_a_whole_file_in_one_form_is_not_mixed(tmp_path: Path) -> None:
    pairs = [(f"cafe\u0301 {number}", f"cafe {number}") for number in range(5)]
    source = write(tmp_path, "nfd", [(src.encode(), tgt.encode()) for src, tgt in pairs])
    assert counts(look(config(train=[source])).sets[0]) == {}


def test_characters_that_unicode_has_twice_are_no_mixture(tmp_path: Path) -> None:
    pairs = [(f"10 Å, {number} \u212b".encode(), b"x %d" % number) for number in range(5)]
    assert counts(look(config(train=[write(tmp_path, "angstrom", pairs)])).sets[0]) == {}


def test_a_pair_is_placed_in_its_file(tmp_path: Path) -> None:
    sources = [write(tmp_path, name, [(b"%d" % n, b"%d" % n) for n in range(2)]) for name in "ab"]
    train = look(config(train=sources)).sets[0]
    assert place(train, "copy") == [("a.en", 1), ("a.en", 2), ("b.en", 1), ("b.en", 2)]


def test_a_byte_order_mark_at_the_start_and_windows_ends_are_taken_off(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (tmp_path / "a.de").write_bytes(b"eins\nzwei")
    train = look(config(train=[{"src": str(tmp_path / "a.en"), "tgt": str(tmp_path / "a.de")}])).sets[0]
    assert counts(train) == {("line end \\r\\n", "src"): 2}
    assert (train.src.characters.total, train.tgt.characters.total) == (6, 8)


def test_duplicates_near_duplicates_and_many_targets(tmp_path: Path) -> None:
    extra = [(b"The same.", b"Dasselbe."), (b"the same", b"dasselbe!"), (b"The same.", b"Anders"), (b"x", b"y")]
    extra += [(b"The same.", b"Dasselbe.")] * 3 + [(b"X!", b"Y")] + [(b"twice", b"zweimal")] * 2 + [(b"", b" ")] * 2
    pairs = [clean(number) for number in range(30)] + extra
    train = look(config(train=[write(tmp_path, "twice", pairs)]), chunk_bytes=100).sets[0]
    assert counts(train) == {
        ("empty side", "src"): 2,
        ("empty side", "tgt"): 2,
        ("exact duplicate", "pair"): 4,
        ("near duplicate", "pair"): 2,
        ("several targets", "src"): 1,
    }
    duplicate, near, many = train.findings[2:]
    assert [(one.line, one.note) for one in duplicate.examples] == [(35, "comes 4 times"), (40, "comes 2 times")]
    assert [one.line for one in near.examples] == [32, 38]
    assert [(one.line, one.note) for one in many.examples] == [(33, "has 2 targets")]


def test_overlap_counts_what_of_the_held_out_set_stands_elsewhere(tmp_path: Path) -> None:
    test = [(b"", b"nothing"), clean(1), clean(2), clean(2), (b"only the source", b"a"), (b"b", b"only the target")]
    train = [clean(number) for number in range(2, 40)]
    train += [(b"only the source", b"other"), (b"other", b"only the target"), clean(2), (b"", b"not this")]
    data = config(
        train=[write(tmp_path, "train", train)],
        dev=[write(tmp_path, "dev", [clean(1), clean(2), clean(50)])],
        test={"small": write(tmp_path, "test", test)},
    )
    report = look(data, chunk_bytes=50)
    found = [(one.of, one.within, one.size, one.pairs, one.sources, one.targets) for one in report.overlaps]
    assert found == [
        ("dev", "train", 3, 1, 1, 1),
        ("test.small", "train", 6, 2, 3, 3),
        ("test.small", "dev", 6, 3, 3, 3),
    ]
    examples = report.overlaps[1].examples
    assert [(Path(one.file).name, one.line, one.note) for one in examples["sources"]] == [
        ("train.en", 1, "pair 3 of test.small"),  # the longest first
        ("train.en", 39, "pair 5 of test.small"),
    ]
    assert [Path(one.file).name for one in examples["targets"]] == ["train.de", "train.de"]
    for limit, told in ((0.3, ["dev: 1 of 3 pairs", "test.small: 2 of 6 pairs"]), (0.4, [])):
        limited = data.model_copy(update={"check": CheckConfig(max_test_overlap=limit)})
        assert [line.split(" stand")[0] for line in broken_limits(report, limited)] == told


def test_outliers_by_length_and_ratio(tmp_path: Path) -> None:
    pairs = [clean(number) for number in range(200)]
    pairs += [
        (b"long " * 60, b"lang " * 60),
        (b"short " * 5, b"much longer " * 20),
        (b"much longer " * 20, b"short " * 5),
    ]
    train = look(config(train=[write(tmp_path, "odd", pairs)])).sets[0]
    assert counts(train) == {
        ("long line", "src"): 2,
        ("long line", "tgt"): 2,
        ("target short for its source", "pair"): 1,
        ("target long for its source", "pair"): 1,
    }
    assert sum(train.ratio.counts) == 203
    expected = np.histogram([len(tgt.decode()) / len(src.decode()) for src, tgt in pairs], train.ratio.edges)[0]
    assert np.abs(np.cumsum(expected) - np.cumsum(train.ratio.counts)).max() <= 10  # for ratios are rounded
    assert place(train, "target long for its source") == [("odd.en", 202)]
    assert [line for _, line in place(train, "long line")] == [201, 203, 201, 202]
    assert all(found.rule.startswith("over ") for found in train.findings if found.kind == "long line")


def test_letters_of_other_scripts(tmp_path: Path) -> None:
    pairs = [(f"a line {n}".encode(), f"行です {n}".encode()) for n in range(20)]
    pairs += [("the word 猫 here".encode(), "NHKの番組".encode()), ("Москва".encode(), b"only latin words here")]
    data = DataConfig.model_validate(
        {"src_lang": "en", "tgt_lang": "ja", "num_workers": 1, "train": [write(tmp_path, "scripts", pairs)]}
    )
    train = look(data).sets[0]
    found = {key: count for key, count in counts(train).items() if "script" in key[0]}
    assert found == {
        ("letters of another script", "src"): 2,
        ("mostly in another script", "src"): 1,
        ("mostly in another script", "tgt"): 1,
    }
    assert train.tgt.words is None
    assert train.src.words is not None


def test_fertility_and_unknown_tokens(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    pairs = [(b"one two three", b"four five"), ("one 猫 猫".encode(), b"four"), (b"six", b"")]
    train = look(config(train=[write(tmp_path, "tokens", pairs)]), tokenizers).sets[0]
    ids = tokenizers.src.encode([src.decode() for src, _ in pairs])
    total = sum(map(len, ids))
    assert train.src.tokens is not None
    assert train.src.tokens.total == total
    assert train.src.tokens_per_word == pytest.approx(total / 7)
    assert train.src.tokens_per_character == pytest.approx(total / (13 + 7 + 3))
    assert train.src.unknown_rate == pytest.approx(sum(line.count(1) for line in ids) / total)
    assert counts(train)["unknown tokens", "src"] == 1
    assert train.tgt.unknown_rate == 0


def test_the_filters_leave_out_what_preparing_leaves_out(
    corpus: Callable[..., DataConfig], pairs: Pairs, tokenizers: TokenizerPair
) -> None:
    long = " ".join(word for src, _ in pairs[:40] for word in src.split())
    dirty = [*pairs[:100], ("", "x"), pairs[3], (long, f"{long} two"), (long, f"{long} two"), *pairs[100:200]]
    dirty += [("copy this", "copy this")] * 2 + [(pairs[5][0].upper(), pairs[5][1]), pairs[4], pairs[4]]
    for is_normalised in (False, True):
        filters = {"normalise_duplicates": is_normalised, "drop_duplicates": True}
        data = corpus(dirty, filters=filters, num_workers=1)
        left_out = look(data, tokenizers).sets[0].left_out
        assert left_out is not None
        assert left_out.reasons == prepare(data.train, data, tokenizers, is_training=True).report.left_out
        assert (left_out.reasons["too long"], left_out.reasons["duplicate"]) == (2, 3 + is_normalised)
        assert left_out.count == sum(left_out.reasons.values())


def test_files_of_unequal_length_are_looked_at_and_told(tmp_path: Path) -> None:
    source = write(tmp_path, "unequal", [clean(number) for number in range(30)])
    with open(source["tgt"], "ab") as file:
        file.write(b"one more\nand more")
    data = config(train=[source])
    for chunk_bytes in (1, 64, 1 << 20):
        report = look(data, chunk_bytes=chunk_bytes)
        assert (report.sets[0].pairs, report.sets[0].sources[0].lines) == (30, [30, 32])
    assert [line for line in broken_limits(report, data) if "30 and 32 lines" in line] != []


def test_a_tsv_file_without_a_column_in_some_lines(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"x\tone\teins\ny\ttwo\nz\tthree\tdrei\xff\r\n")
    source = {"tsv": str(path), "src_column": 2, "tgt_column": 3}
    data = config(train=[source])
    report = look(data)
    assert counts(report.sets[0]) == {
        ("missing column", "pair"): 1,
        ("empty side", "tgt"): 1,
        ("invalid UTF-8", "pair"): 1,
        ("line end \\r\\n", "pair"): 1,
    }
    assert report.sets[0].tgt.characters.total == 9
    assert len([line for line in broken_limits(report, data) if "max_invalid_lines" in line]) == 2


def test_broken_lines_of_jsonl_are_counted_with_their_numbers(tmp_path: Path) -> None:
    """The first line is broken, too: the fields are those of the first object."""
    lines = [
        '{"translation": {"en": "a", ',
        '{"translation": {"en": "one line", "de": "eine Zeile"}}',
        '{"translation": {"en": "no target"}}',
        "[1]",
        '{"translation": {"en": "two lines", "de": "zwei Zeilen"}}\r',
        "",
    ]
    (tmp_path / "x.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    data = config(train=[{"jsonl": str(tmp_path / "x.jsonl")}])
    for chunk_bytes in (1 << 20, 1):
        train = look(data, chunk_bytes=chunk_bytes).sets[0]
        found = {key: count for key, count in counts(train).items() if key[0] != "long line"}
        assert found == {
            ("broken JSON line", "pair"): 4,
            ("line end \\r\\n", "pair"): 1,
            ("empty side", "src"): 4,
            ("empty side", "tgt"): 4,
        }
        broken = next(one for one in train.findings if one.kind == "broken JSON line")
        assert [(example.line, example.note.split(" (")[0]) for example in broken.examples] == [
            (1, "not JSON"),
            (3, "no field 'translation.de'"),
            (4, "not a JSON object but '[1]'; each line must be one JSON object"),
            (6, "not JSON"),
        ]
        assert (train.sources[0].lines, train.src.characters.total) == ([6], len("one line" + "two lines"))
    told = [line for line in broken_limits(look(data), data) if "JSON" in line]
    assert told == [
        "train: 4 lines are no JSON object with both texts, more than data.check.max_invalid_lines 0; mend them (the "
        f"first: {tmp_path}/x.jsonl:1: not JSON (Expecting property name enclosed in double quotes: column 29); each "
        "line must be one JSON object)"
    ]


def test_a_missing_file_is_told_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mtformer.data.check_reading.SourceReader.chunks", None)
    good = write(tmp_path, "good", [clean(1)])
    with pytest.raises(DataError, match=r"none.en: no such file"):
        look(config(train=[good, {**good, "src": str(tmp_path / "none.en")}], test={"small": good}))


def test_packed_files_and_jsonl(tmp_path: Path) -> None:
    for name in ("a.en", "a.de"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"one line\n" * 3))
    packed = {"src": str(tmp_path / "a.en.gz"), "tgt": str(tmp_path / "a.de.gz")}
    (tmp_path / "b.jsonl").write_text('{"en": "a\\nb", "de": "c"}\n', encoding="utf-8")
    train = look(config(train=[packed, {"jsonl": str(tmp_path / "b.jsonl")}])).sets[0]
    assert train.pairs == 4
    assert counts(train)["line feed inside a field", "src"] == 1
    assert place(train, "line feed inside a field") == [("b.jsonl", 1)]


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, damage: str) -> None:
    source = write(tmp_path, "a", [clean(number) for number in range(500)])
    if damage == "cut":
        packed = gzip.compress(Path(source["src"]).read_bytes())
        source["src"] += ".gz"
        Path(source["src"]).write_bytes(packed[: len(packed) // 2])
    else:
        Path(source["src"]).unlink()
    with pytest.raises(DataError, match=r"damaged or cut short" if damage == "cut" else r"no such file"):
        look(config(train=[source]))


def test_an_empty_corpus_has_a_report(tmp_path: Path) -> None:
    report = look(config(train=[write(tmp_path, "empty", [])], dev=[write(tmp_path, "blank", [(b"", b"")])]))
    assert [one.pairs for one in report.sets] == [0, 1]
    assert report.overlaps[0].pairs == 0
    assert report_lines(report)[0] == "train: 0 pairs"


def test_json_brings_back_the_report(faulty: DataConfig, tokenizers: TokenizerPair) -> None:
    report = look(faulty, tokenizers)
    assert CorpusReport.from_json(report.to_json()) == report


ALL_LIMITS = ["max_invalid_lines", "max_faulty_share", "max_unknown_rate", "max_test_overlap", "max_filtered_share"]


@pytest.mark.parametrize("num_raised", range(5))
def test_each_limit_is_told_when_it_is_broken(tmp_path: Path, tokenizers: TokenizerPair, num_raised: int) -> None:
    limits = {name: 3 if name == "max_invalid_lines" else 0.5 for name in ALL_LIMITS[: min(4, num_raised)]}
    pairs = FAULTY + [clean(number) for number in range(40)]
    data = config(
        train=[write(tmp_path, "train", pairs)],
        test={"small": write(tmp_path, "test", [clean(1), clean(200)])},
        check=limits,
        filters={"max_filtered_share": 0.0},
    )
    told = " ".join(broken_limits(look(data, tokenizers), data))
    assert [name for name in ALL_LIMITS if name in told] == ALL_LIMITS[num_raised:]


def test_lines_for_a_person_show_what_is_not_printable(faulty: DataConfig) -> None:
    lines = report_lines(look(faulty))
    assert all(line.isprintable() for line in lines)
    assert any("second.en:33" in line and "with\\x00nul" in line for line in lines)

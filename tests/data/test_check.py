"""Corpus checks count every fault, independently of the chunk size and the number of processes."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
from contrast import check_contrast
from playwright.sync_api import Browser

from mtformer.config.data import CheckConfig, DataConfig
from mtformer.data.check import check as checking
from mtformer.data.check.check import check_corpora
from mtformer.data.check.report import exceeded_limits, page, report_lines, verdict
from mtformer.data.check.result import CorpusCheck, Lengths, SetCheck, outlier_limits, percentile
from mtformer.data.store.prepare import prepare
from mtformer.errors import DataError
from mtformer.text.tokenizer import TokenizerPair

Pairs = list[tuple[str, str]]
Lines = list[tuple[bytes, bytes]]

NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
LINE_BREAK = "other line break (U+000B, U+000C, U+001C-U+001E, U+0085)"
FAULTS: dict[tuple[str, str], Callable[[bytes, bytes], tuple[bytes, bytes]]] = {
    ("invalid UTF-8", "src"): lambda src, tgt: (src + b" \xff", tgt),
    ("invalid UTF-8", "tgt"): lambda src, tgt: (src, tgt + b" \xe3\x81"),
    ("line end \\r\\n", "src"): lambda src, tgt: (src + b"\r", tgt),
    ("NUL", "src"): lambda src, tgt: (src[:5] + b"\0" + src[5:], tgt),
    ("line or paragraph separator (U+2028, U+2029)", "tgt"): lambda src, tgt: (src, tgt + "\u2029 \u2028".encode()),
    ("carriage return", "src"): lambda src, tgt: (src + b"\r ", tgt),
    (LINE_BREAK, "tgt"): lambda src, tgt: (src, tgt + b"\x0c"),
    ("replacement character (U+FFFD)", "src"): lambda src, tgt: (src + "\ufffd".encode(), tgt),
    ("byte order mark inside (U+FEFF)", "src"): lambda src, tgt: (src + "\ufeff".encode(), tgt),
    ("control character", "tgt"): lambda src, tgt: (src, tgt + b"\x07"),
    ("mixed normalization (NFC and NFD)", "src"): lambda src, tgt: (src.replace("é".encode(), b"e\xcc\x81"), tgt),
    ("empty side", "src"): lambda src, tgt: (b"", tgt),
    ("empty side", "tgt"): lambda src, tgt: (src, "\u3000".encode() * 20),
    ("copy", "pair"): lambda src, tgt: (src, src),
    ("letters of another script", "tgt"): lambda src, tgt: (src, tgt + " Москва".encode()),
}
"""Functions that add one fault to a pair, by kind and side of the finding."""
IN_OTHERS: dict[str, Callable[[bytes, bytes], tuple[bytes, bytes]]] = {
    "exact duplicate": lambda src, tgt: (src, tgt),
    "near duplicate": lambda src, tgt: (src.upper() + b"!", tgt),
    "several targets": lambda src, tgt: (src, tgt + b" more"),
}
"""Functions that return a repeated or changed version of a pair, by the kind of finding it causes."""


def clean(number: int) -> tuple[bytes, bytes]:
    """Return a pair that differs from pairs with other numbers and has composed letters on both sides."""
    words = [int(digit) for digit in f"{number:04d}"]
    src, tgt = (" ".join(names[word] for word in words) for names in (NUMBERS, ZAHLEN))
    return f"Café {src}".encode(), f"Café {tgt}".encode()


def write(folder: Path, name: str, pairs: Lines) -> dict[str, str]:
    """Write two files and return a source with their paths."""
    for side, language in enumerate(("en", "de")):
        (folder / f"{name}.{language}").write_bytes(b"".join(pair[side] + b"\n" for pair in pairs))
    return {"src": str(folder / f"{name}.en"), "tgt": str(folder / f"{name}.de")}


def config(**settings: object) -> DataConfig:
    return DataConfig.model_validate({"src_lang": "en", "tgt_lang": "de", "num_workers": 1, **settings})


def counts(one: SetCheck) -> dict[tuple[str, str], int]:
    return {key: finding.count for key, finding in one.findings.items()}


def examples(one: SetCheck, kind: str, side: str) -> list[tuple[str, int, str]]:
    return [(Path(one.file).name, one.line, one.note) for one in one.findings[kind, side].examples]


def planted(folder: Path, seed: int) -> tuple[DataConfig, dict[tuple[str, str], int]]:
    """Write a corpus of two sources with randomly placed faults; return its config and the number of each fault."""
    random = Random(seed)
    numbers = iter(range(10_000))
    lines = [clean(next(numbers)) for _ in range(200)]
    expected = Counter[tuple[str, str]]()
    for key, fault in FAULTS.items():
        expected[key] = random.randint(1, 4)
        lines += [fault(*clean(next(numbers))) for _ in range(expected[key])]
    random.shuffle(lines)
    repeats: Lines = []
    originals = iter(random.sample(range(200), 20))
    for kind, repeat in IN_OTHERS.items():
        key = (kind, "src" if kind == "several targets" else "pair")
        expected[key] = random.randint(1, 4)
        repeats += [repeat(*clean(next(originals))) for _ in range(expected[key])]
    # The default normalization removes control characters.
    expected["changed by normalization", "tgt"] = expected[LINE_BREAK, "tgt"] + expected["control character", "tgt"]
    sources = [write(folder, "first", lines), write(folder, "second", repeats)]
    return config(train=sources), dict(expected)


@pytest.mark.parametrize("seed", range(3))
def test_each_planted_fault_is_counted(tmp_path: Path, seed: int) -> None:
    data, expected = planted(tmp_path, seed)
    train = check_corpora(data, None).sets[0]
    assert counts(train) == expected
    faulty = sum(expected[key] for key in list(FAULTS)[3:10] if key[1] == "src")
    assert train.src.faulty_lines == faulty
    lines = [len(Path(path).read_bytes().split(b"\n")) - 1 for path in (tmp_path / "first.en", tmp_path / "second.en")]
    assert [one.pairs for one in train.sources] == lines
    for key, finding in train.findings.items():
        assert len(finding.examples) == finding.count, key
        for example in finding.examples:
            line = Path(example.file).read_bytes().split(b"\n")[example.line - 1].decode("utf-8", "replace")
            assert line.removesuffix("\r") == (example.tgt if key[1] == "tgt" else example.src)


def test_chunks_and_processes_do_not_change_the_result(
    tmp_path: Path, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = planted(tmp_path, 4)
    held_out = write(tmp_path, "dev", [clean(number) for number in range(50, 260, 3)])
    data = data.model_copy(update={"dev": config(dev=[held_out]).dev})
    whole = check_corpora(data, tokenizers).to_json()
    for size, num_workers in ((1, 1), (13, 2)):
        monkeypatch.setattr(checking, "PAIRS_AT_ONCE", size)
        data = data.model_copy(update={"num_workers": num_workers})
        assert json.loads(check_corpora(data, tokenizers).to_json()) == json.loads(whole)


def test_the_most_frequent_repeats_are_the_examples(tmp_path: Path) -> None:
    lines = [clean(number) for number in range(30)]
    lines += (
        [clean(1)] * 2 + [clean(2)] * 4 + [(clean(one)[0], clean(other)[1]) for one, other in ((3, 4), (4, 5), (4, 6))]
    )
    train = check_corpora(config(train=[write(tmp_path, "a", lines)]), None).sets[0]
    assert counts(train) == {("exact duplicate", "pair"): 6, ("several targets", "src"): 2}
    assert examples(train, "exact duplicate", "pair") == [
        ("a.en", 33, "occurs 5 times"),
        ("a.en", 31, "occurs 3 times"),
    ]
    assert examples(train, "several targets", "src") == [("a.en", 38, "has 3 targets"), ("a.en", 37, "has 2 targets")]


def test_a_blank_target_counts_as_empty_and_not_as_another_target(tmp_path: Path) -> None:
    lines = [clean(1), (clean(1)[0], b""), (clean(2)[0], b""), clean(2), clean(3)]
    train = check_corpora(config(train=[write(tmp_path, "a", lines)]), None).sets[0]
    assert counts(train) == {("empty side", "tgt"): 2}


def test_a_single_normalization_form_is_not_a_finding(tmp_path: Path) -> None:
    pairs = [(f"cafe\u0301 {number}".encode(), f"10 Å, {number} \u212b".encode()) for number in range(5)]
    assert counts(check_corpora(config(train=[write(tmp_path, "nfd", pairs)]), None).sets[0]) == {}


def test_overlap_counts_pairs_of_the_held_out_set(tmp_path: Path) -> None:
    test = [(b"", b"nothing"), clean(1), clean(2), clean(2), (b"only the source", b"a"), (b"b", b"only the target")]
    train = [clean(number) for number in range(2, 40)]
    train += [(b"only the source", b"other"), (b"other", b"only the target"), clean(2), (b"", b"not this")]
    data = config(
        train=[write(tmp_path, "train", train)],
        dev=[write(tmp_path, "dev", [clean(1), clean(2), clean(50)])],
        test={"small": write(tmp_path, "test", test)},
    )
    check = check_corpora(data, None)
    found = [(one.of, one.within, one.size, *(f.count for f in one.found.values())) for one in check.overlaps]
    assert found == [
        ("dev", "train", 3, 1, 1, 1),
        ("test.small", "train", 6, 2, 3, 3),
        ("test.small", "dev", 6, 3, 3, 3),
    ]
    assert {(Path(one.file).name, one.line) for one in check.overlaps[1].found["tgt"].examples} == {
        ("test.de", 3), ("test.de", 4), ("test.de", 6)
    }  # fmt: skip
    assert "2 of 6 test.small pairs also occur in train (3 sources, 3 targets)" in report_lines(check)
    for limit, names in ((0.3, ["dev", "test.small"]), (0.4, [])):
        limited = data.model_copy(update={"check": CheckConfig(max_test_overlap=limit)})
        assert [one.name for one in exceeded_limits(check, limited)] == names


def test_each_dev_set_is_checked(tmp_path: Path) -> None:
    dev = {name: write(tmp_path, name, [clean(n) for n in numbers]) for name, numbers in (("a", (1, 2)), ("b", (2, 3)))}
    data = config(train=[write(tmp_path, "train", [clean(3), clean(4)])], dev=dev, test={"t": dev["b"]})
    check = check_corpora(data, None)
    assert [one.name for one in check.sets] == ["train", "dev.a", "dev.b", "test.t"]
    assert [(one.of, one.within, one.found["pair"].count) for one in check.overlaps] == [
        ("dev.a", "train", 0), ("dev.b", "train", 1), ("dev.b", "dev.a", 1),
        ("test.t", "train", 1), ("test.t", "dev.a", 1), ("test.t", "dev.b", 2),
    ]  # fmt: skip
    assert [(one.limit, one.name) for one in exceeded_limits(check, data)] == [
        ("data.check.max_test_overlap", "dev.b"), ("data.check.max_test_overlap", "test.t"),
    ]  # fmt: skip


def test_outliers_of_length_and_ratio(tmp_path: Path) -> None:
    pairs = [clean(number) for number in range(200)]
    pairs += [
        (b"long " * 60, b"lang " * 60),
        (b"short " * 5, b"much longer " * 20),
        (b"much longer " * 20, b"short " * 5),
    ]
    train = check_corpora(config(train=[write(tmp_path, "odd", pairs)]), None).sets[0]
    assert counts(train) == {
        ("long line", "src"): 2,
        ("long line", "tgt"): 2,
        ("target short for its source", "pair"): 1,
        ("target long for its source", "pair"): 1,
    }
    assert [line for _, line, _ in examples(train, "long line", "tgt")] == [201, 202]
    assert [line for _, line, _ in examples(train, "target long for its source", "pair")] == [202]
    starts, binned = train.ratios()
    expected = np.histogram([len(tgt.decode()) / len(src.decode()) for src, tgt in pairs], [*starts, 100])[0]
    assert sum(binned) == 203
    assert np.abs(np.cumsum(expected) - np.cumsum(binned)).max() <= 10  # ratios are rounded


def test_statistics_agree_with_numpy() -> None:
    values = [Random(1).randint(0, 300) for _ in range(1001)]
    lengths = Lengths(values)
    for percent in (1, 25, 50, 99, 100):
        assert percentile(lengths, percent) == np.percentile(values, percent, method="inverted_cdf")
    starts, binned = lengths.histogram()
    assert binned == np.histogram(values, [*starts, 1000])[0].tolist()
    assert lengths.to_dict()["mean"] == pytest.approx(np.mean(values))
    logs = Counter(np.random.default_rng(1).normal(4, 0.5, 20_000).round(3).tolist())
    assert np.log(outlier_limits(logs)) == pytest.approx([4 - 3.5 * 0.5, 4 + 3.5 * 0.5], abs=0.1)


def test_scripts_and_words_of_a_language_without_spaces(tmp_path: Path) -> None:
    pairs = [(f"a line {n}".encode(), f"行です {n}".encode()) for n in range(20)]
    pairs += [("the word 猫 here".encode(), "NHKの番組".encode()), ("Москва".encode(), b"only latin words here")]
    train = check_corpora(config(tgt_lang="ja", train=[write(tmp_path, "scripts", pairs)]), None).sets[0]
    assert {key: count for key, count in counts(train).items() if "script" in key[0]} == {
        ("letters of another script", "src"): 2,
        ("mostly in another script", "src"): 1,
        ("mostly in another script", "tgt"): 1,
    }
    assert (set(train.src.lengths), set(train.tgt.lengths)) == ({"characters", "words"}, {"characters"})


def test_tokens_per_word_and_unknown_tokens(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    pairs = [(b"one two three", b"four five"), ("one 猫 猫".encode(), b"four"), (b"six", b"")]
    train = check_corpora(config(train=[write(tmp_path, "tokens", pairs)]), tokenizers).sets[0]
    ids = tokenizers.src.encode([src.decode() for src, _ in pairs])
    total = sum(map(len, ids))
    assert train.src.lengths["tokens"].sum() == total
    assert train.src.rates() == pytest.approx({
        "tokens_per_word": total / 7,
        "tokens_per_character": total / (13 + 7 + 3),
        "unknown_rate": sum(line.count(1) for line in ids) / total,
    })  # fmt: skip
    assert counts(train)["unknown tokens", "src"] == 1
    assert train.tgt.rates()["unknown_rate"] == 0


@pytest.fixture
def dirty(pairs: Pairs) -> Pairs:
    """Pairs, some of which the filters remove for various reasons."""
    long = " ".join(word for src, _ in pairs[:40] for word in src.split())
    dirty = [*pairs[:100], ("", "x"), pairs[3], (long, f"{long} two"), (long, f"{long} two"), *pairs[100:200]]
    return dirty + [("copy this", "copy this")] * 2 + [(pairs[5][0].upper(), pairs[5][1]), pairs[4], pairs[4]]


@pytest.mark.parametrize("is_normalized", [False, True])
def test_reported_removals_equal_those_of_data_preparation(
    corpus: Callable[..., DataConfig], dirty: Pairs, tokenizers: TokenizerPair, is_normalized: bool
) -> None:
    filters = {"normalize_duplicates": is_normalized, "drop_duplicates": True}
    data = corpus(dirty, filters=filters)
    train = check_corpora(data, tokenizers).sets[0]
    assert train.removed == prepare(data.train, data, tokenizers, is_training=True).report.left_out
    assert train.removed is not None
    assert (train.removed["too long"], train.removed["duplicate"]) == (2, 3 + is_normalized)
    for reason, sample in train.sample.items():
        size = train.removed[reason] if reason else train.pairs - train.num_removed()
        assert len({one.line for one in sample}) == len(sample) == min(size, 20)
        assert all(dirty[one.line - 1] == (one.src, one.tgt) for one in sample if reason != "too long")


def test_files_of_unequal_length_raise_an_error(tmp_path: Path) -> None:
    source = write(tmp_path, "unequal", [clean(number) for number in range(30)])
    with open(source["tgt"], "ab") as file:
        file.write(b"one more\nand more")
    with pytest.raises(DataError, match=r"unequal.en has 30 lines but .*unequal.de has 32"):
        check_corpora(config(train=[source]), None)


def test_tsv_lines_that_lack_a_column(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(b"\xef\xbb\xbfx\tone\teins\ny\ttwo\nz\tthree\tdrei\xff\r\n")
    data = config(train=[{"tsv": str(path), "src_column": 2, "tgt_column": 3}])
    check = check_corpora(data, None)
    assert counts(check.sets[0]) == {
        ("invalid UTF-8", "pair"): 1,
        ("missing column", "pair"): 1,
        ("line end \\r\\n", "pair"): 1,
        ("empty side", "tgt"): 1,
    }
    assert check.sets[0].tgt.lengths["characters"].sum() == 9
    (excess,) = [one for one in exceeded_limits(check, data) if "invalid" in one.limit]
    assert "2 lines cannot be read (invalid UTF-8 1, missing column 1), more than" in excess.message


def test_invalid_jsonl_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line is invalid too; the default fields are determined for each row."""
    lines = [
        '{"translation": {"en": "a", ',
        '{"translation": {"en": "one line", "de": "eine\\nZeile"}}',
        '{"translation": {"en": "no target"}}',
        "[1]",
        '{"translation": {"en": "two lines", "de": "zwei Zeilen"}}\r',
    ]
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    data = config(train=[{"jsonl": str(tmp_path / "x.jsonl.gz")}])
    for size in (1, 100):
        monkeypatch.setattr(checking, "PAIRS_AT_ONCE", size)
        check = check_corpora(data, None)
        train = check.sets[0]
        assert counts(train)["broken row", "pair"] == 3
        assert counts(train)["line feed inside a field", "tgt"] == 1
        assert [(line, note.split(" (")[0]) for _, line, note in examples(train, "broken row", "pair")] == [
            (1, "not JSON"),
            (3, "no field 'translation.de'"),
            (4, "not a JSON object but '[1]'; each line must be one JSON object"),
        ]
        assert (train.pairs, train.src.lengths["characters"].sum()) == (5, len("one line" + "two lines"))
        assert f"(the first: {tmp_path}/x.jsonl.gz:1: not JSON" in exceeded_limits(check, data)[0].message


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_file_that_cannot_be_read_raises_an_error(tmp_path: Path, damage: str) -> None:
    source = write(tmp_path, "a", [clean(number) for number in range(500)])
    if damage == "cut":
        packed = gzip.compress(Path(source["src"]).read_bytes())
        source["src"] += ".gz"
        Path(source["src"]).write_bytes(packed[: len(packed) // 2])
    else:
        Path(source["src"]).unlink()
    with pytest.raises(DataError, match=r"damaged or truncated" if damage == "cut" else r"no such file"):
        check_corpora(config(train=[source]), None)


def test_an_empty_corpus_has_a_report(tmp_path: Path) -> None:
    data = config(train=[write(tmp_path, "empty", [])], dev=[write(tmp_path, "blank", [(b"", b"")])])
    check = check_corpora(data, None)
    assert [one.pairs for one in check.sets] == [0, 1]
    assert report_lines(check)[0] == "train: 0 pairs"
    assert [(one.limit, one.name) for one in exceeded_limits(check, data)] == [("no pairs", "train")]
    assert page(check, []).startswith("<!DOCTYPE html>")


ALL_LIMITS = ["max_invalid_lines", "max_faulty_share", "max_unknown_rate", "max_filtered_share", "max_test_overlap"]


@pytest.mark.parametrize("num_raised", range(6))
def test_each_exceeded_limit_is_named(tmp_path: Path, tokenizers: TokenizerPair, num_raised: int) -> None:
    values = {name: 3 if name == "max_invalid_lines" else 0.5 for name in ALL_LIMITS[:num_raised]}
    filters = {"max_filtered_share": values.pop("max_filtered_share", 0.0)}
    faulty = [fault(*clean(100 + number)) for number, fault in enumerate(FAULTS.values())]
    data = config(
        train=[write(tmp_path, "train", faulty + [clean(number) for number in range(40)])],
        test={"small": write(tmp_path, "test", [clean(1), clean(200)])},
        check=values,
        filters=filters,
    )
    check = check_corpora(data, tokenizers)
    exceeded = exceeded_limits(check, data)
    names = list(dict.fromkeys(one.limit.split(".")[-1] for one in exceeded))
    assert names == ALL_LIMITS[num_raised:]
    assert verdict(exceeded).startswith("ok: " if num_raised == 5 else f"failed: {len(exceeded)} limit")


# ---- the page -------------------------------------------------------------------------------------------------------

SCRIPT = "<script>document.title = 'no'</script> & \"so on\""


@pytest.fixture
def checked(corpus: Callable[..., DataConfig], dirty: Pairs, tokenizers: TokenizerPair) -> CorpusCheck:
    data = corpus([*dirty, (SCRIPT, "a \u202e turned \0 line")])
    return check_corpora(data.model_copy(update={"dev": data.train}), tokenizers)


def test_the_terminal_shows_no_control_characters(checked: CorpusCheck) -> None:
    lines = report_lines(checked)
    assert all(line.isprintable() for line in lines)
    assert any("train.de:" in line and "a \\u202e turned \\x00 line" in line for line in lines)


def test_the_page_shows_twenty_pairs_per_reason(checked: CorpusCheck, chromium: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(checked, []), encoding="utf-8")
    opened, requests = chromium.new_page(viewport={"width": 400, "height": 800}), list[str]()
    errors = list[str]()
    opened.on("request", lambda request: requests.append(request.url))
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto((tmp_path / "page.html").as_uri())
    rows = opened.locator("section").first.locator("tr[data-reason]:visible")
    assert rows.count() == 20
    removed = checked.sets[0].removed
    assert removed is not None
    for reason, count in {**removed, "": 1000, "all": 1000}.items():
        opened.locator("select.reason").select_option(reason)
        assert rows.count() == min(20, count)
        assert reason == "all" or {row.get_attribute("data-reason") for row in rows.all()} == {reason}
    assert opened.locator("figure svg").count() == 2 * (3 * 2 + 1)
    bars = opened.locator("svg").first.locator("rect")
    assert bars.count() == 40
    assert max(bars.evaluate_all("all => all.map(bar => bar.getBoundingClientRect().height)")) > 50
    assert opened.title() == "Corpus check, en-de"
    check_contrast(opened, is_dark=False, min_texts=50)
    opened.emulate_media(color_scheme="dark")
    opened.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    check_contrast(opened, is_dark=True, min_texts=100)
    opened.set_viewport_size({"width": 1280, "height": 900})
    places = opened.locator(".check, .pairs, h2")
    assert min(places.evaluate_all("all => all.map(one => one.getBoundingClientRect().width)")) > 1100
    tops = opened.locator("figure").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
    assert len(set(tops[:4])) == 1
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert (len(requests), errors) == (1, [])
    opened.close()

"""Cleaning: each pair is written to one file, in order, and the output folder is either complete or not created."""

import gzip
import json
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from mtformer.cluster import workers
from mtformer.config.data import FilterConfig
from mtformer.data.check import clean as cleaning
from mtformer.data.corpus.readers import Faults, RawRecords
from mtformer.data.data_report import Columns, DataReport
from mtformer.data.filters.filters import KEPT, Filter, Reason, reason_of
from mtformer.data.store.pipeline import Pipeline
from mtformer.errors import DataError
from mtformer.text.tokenizer import TokenizerPair

Pairs = list[tuple[str, str]]
EN_DE = ("en", "de")
CHUNK = 4096


def columns(pairs: Sequence[tuple[str, str]], faults: Faults | None = None) -> Columns:
    return [src for src, _ in pairs], [tgt for _, tgt in pairs]


def records(pairs: Sequence[tuple[str, str]]) -> RawRecords:
    return RawRecords(len(pairs), partial(columns, pairs))


def clean(
    pairs: Iterable[tuple[str, str]],
    folder: Path,
    *,
    tokenizers: TokenizerPair | None = None,
    languages: tuple[str, str] = EN_DE,
    chunk: int = CHUNK,
    filters: FilterConfig | None = None,
    **options: Any,
) -> DataReport:
    """Clean pairs in small chunks."""
    rest = iter(pairs)
    corpus = map(records, iter(lambda: list(islice(rest, chunk)), []))
    return cleaning.clean(corpus, Pipeline(filters or FilterConfig(), languages, tokenizers), folder, **options)


@pytest.fixture
def mixed() -> Pairs:
    """Several chunks of pairs, some of which are removed."""
    random = Random(1)
    words = ["tree", "house", "green", "dog", "runs", "small", "light", "stone"]
    lines = [" ".join(random.choices(words, k=random.randint(2, 6))) for _ in range(CHUNK + 700)]
    pairs = [(line, f"{line} Baum") for line in lines]
    pairs[5], pairs[700], pairs[4500] = ("", "x"), ("same", "Same."), ("35 dogs", "43 Hunde")
    return pairs


def read(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text(encoding="utf-8").split("\n")[:-1]


def removed(folder: Path) -> list[tuple[str, int, str, str]]:
    rows = [row.split("\t") for row in read(folder, "removed.tsv")]
    return [(reason, int(number), src, tgt) for reason, number, src, tgt in rows]


def test_each_pair_is_written_to_one_file_in_order(mixed: Pairs, tmp_path: Path) -> None:
    out, done = tmp_path / "new" / "out", list[int]()
    report = clean(mixed, out, progress=done.append)
    assert {path.name for path in out.iterdir()} == {"kept.en", "kept.de", "removed.tsv", "report.json"}
    gone = removed(out)
    assert [(src, tgt) for _, _, src, tgt in gone] == [mixed[number - 1] for _, number, _, _ in gone]
    numbers = [number for _, number, _, _ in gone]
    assert numbers == sorted(set(numbers))
    kept = [pair for number, pair in enumerate(mixed, start=1) if number not in set(numbers)]
    assert list(zip(read(out, "kept.en"), read(out, "kept.de"), strict=True)) == kept
    assert sum(done) == report.read == len(mixed)
    assert (report.kept, report.left_out) == (len(kept), {r: [g[0] for g in gone].count(r) for r in report.left_out})
    assert DataReport.from_dict(json.loads((out / "report.json").read_text(encoding="utf-8"))) == report


def test_filtered_pairs_and_duplicates_are_removed(mixed: Pairs, tmp_path: Path) -> None:
    clean(mixed, tmp_path / "out")
    codes = Filter(FilterConfig(), *EN_DE).by_text(columns(mixed)).tolist()
    reasons = {number: reason for reason, number, _, _ in removed(tmp_path / "out")}
    seen: set[tuple[str, str]] = set()
    for number, (pair, code) in enumerate(zip(mixed, codes, strict=True), start=1):
        expected = reason_of(code) if code != KEPT else Reason.DUPLICATE if pair in seen else None
        assert reasons.get(number) == expected, pair
        if code == KEPT:
            seen.add(pair)
    assert set(reasons.values()) == {Reason.EMPTY, Reason.IDENTICAL, Reason.NUMBERS, Reason.DUPLICATE}


def test_limits_in_tokens_need_tokenizers(pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    config = FilterConfig(max_tokens=20, max_length_ratio=1.2)
    without = clean(pairs, tmp_path / "without", filters=config)
    assert without.kept == len(pairs)
    assert without.tokens == {"src": 0, "tgt": 0}
    report = clean(pairs, tmp_path / "with", filters=config, tokenizers=tokenizers)
    src, tgt = (tokenizers.src.encode([pair[side] for pair in pairs]) for side in (0, 1))
    expected = Filter(config, *EN_DE).by_length(
        *(np.array(list(map(len, side)), dtype=np.int32) for side in (src, tgt))
    )
    assert [number for _, number, _, _ in removed(tmp_path / "with")] == (np.flatnonzero(expected) + 1).tolist()
    assert report.left_out[Reason.TOO_LONG] > 0
    assert report.tokens == {
        name: sum(len(line) for line, code in zip(side, expected, strict=True) if code == KEPT)
        for name, side in (("src", src), ("tgt", tgt))
    }


def test_line_breaks_and_tabs_in_lines_are_replaced(tmp_path: Path) -> None:
    pairs = [("a\nb\tc\u2028d\r", "ein B"), ("x\ty", "\n")]
    clean(pairs, tmp_path / "out")
    assert (tmp_path / "out" / "kept.en").read_bytes().decode() == "a b\tc\u2028d\r\n"
    assert (tmp_path / "out" / "removed.tsv").read_bytes().decode() == "empty\t2\tx y\t \n"


def test_compressed_files_have_the_same_contents(mixed: Pairs, tmp_path: Path) -> None:
    for name in ("plain", "one", "two"):
        clean(mixed, tmp_path / name, is_compressed=name != "plain")
    for name in ("kept.en", "kept.de", "removed.tsv"):
        packed = (tmp_path / "one" / f"{name}.gz").read_bytes()
        assert gzip.decompress(packed) == (tmp_path / "plain" / name).read_bytes()
        assert packed == (tmp_path / "two" / f"{name}.gz").read_bytes()


def test_several_processes_write_the_same_files(
    pairs: Pairs, tokenizers: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later chunk has a duplicate of a pair in the first chunk, and each chunk has a pair that is too long."""
    config = FilterConfig(max_tokens=20)
    pairs = [("two\u2028lines", "zwei Zeilen"), *pairs, *pairs[:100]]
    expected = clean(pairs, tmp_path / "one", filters=config, tokenizers=tokenizers)
    monkeypatch.setattr(workers, "ITEMS_ALONE", 1)
    report = clean(pairs, tmp_path / "two", filters=config, tokenizers=tokenizers, num_workers=2, chunk=100)
    assert report == expected
    assert report.left_out.keys() == {Reason.DUPLICATE, Reason.TOO_LONG}
    assert report.unusual["src"] == {"line or paragraph separator (U+2028, U+2029)": 1}
    for path in (tmp_path / "one").iterdir():
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()


def test_no_processes_are_started_for_a_small_corpus(
    mixed: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtformer.cluster.workers.Workers._submit", None)
    assert clean(mixed, tmp_path / "out", num_workers=2).read == len(mixed)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_no_output_is_kept_if_the_corpus_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    monkeypatch.setattr(workers, "ITEMS_ALONE", 0)

    def broken() -> Iterator[tuple[str, str]]:
        yield from [("a dog", "ein Hund")] * 45
        raise DataError("a.en:46: not UTF-8")

    with pytest.raises(DataError, match="not UTF-8"):
        clean(broken(), tmp_path / "out", chunk=10, num_workers=num_workers)
    assert multiprocessing.active_children() == []
    assert list(tmp_path.iterdir()) == []


def test_an_empty_corpus_raises_an_error_and_equal_languages_are_allowed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no lines were read"):
        clean([], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    clean([("a dog", "one dog")], tmp_path / "out", languages=("en", "en"))
    assert (read(tmp_path / "out", "kept.src"), read(tmp_path / "out", "kept.tgt")) == (["a dog"], ["one dog"])


def test_existing_and_unwritable_folders_raise_errors(mixed: Pairs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=f"{tmp_path}/file: is a file, not a folder; give the folder to write"):
        clean(mixed, tmp_path / "file")
    with pytest.raises(DataError, match=f"{tmp_path}/file/out: cannot be written: .*; choose"):
        clean(mixed, tmp_path / "file" / "out")

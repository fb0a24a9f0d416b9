"""Read pairs from all kinds of sources; errors name the file and line."""

import bz2
import gzip
import json
import logging
import lzma
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from mtformer.config.data import DataConfig, HubDataset, JsonlFile, Source, TextFiles, TsvFile
from mtformer.data.corpus.sources import read_pairs, require_files, require_sources, source_fingerprint
from mtformer.data.store.prepare import prepare
from mtformer.errors import DataError
from mtformer.text.tokenizer import TokenizerPair

DATA = DataConfig(src_lang="en", tgt_lang="de")
PAIRS = [("a tree", "ein Baum"), ("", ""), ("  two words ", "zwei Wörter"), ("😀", "漢字")]
Pack = Callable[[bytes], bytes]


def zstd_frames(content: bytes) -> bytes:
    """Compress content as two frames, like parallel compressors."""
    middle = len(content) // 2
    return zstandard.compress(content[:middle]) + zstandard.compress(content[middle:])


PACKERS: dict[str, Pack] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,  # like the command-line tool
    ".frames.zst": zstd_frames,
    ".bz2": bz2.compress,
}


def text_files(folder: Path, src: bytes, tgt: bytes, suffix: str = "") -> TextFiles:
    paths = folder / f"x.en{suffix}", folder / f"x.de{suffix}"
    for path, content in zip(paths, (src, tgt), strict=True):
        path.write_bytes(PACKERS[suffix](content))
    return TextFiles(src=str(paths[0]), tgt=str(paths[1]))


def read(source: Source) -> list[tuple[str, str]]:
    return list(read_pairs(source, DATA))


def error_of(source: Source) -> str:
    with pytest.raises(DataError) as error:
        read(source)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_compressed_files_are_read_even_if_larger_than_all_buffers(tmp_path: Path) -> None:
    src, tgt = ("".join(pair[side] + "\n" for pair in PAIRS).encode() for side in (0, 1))
    lines = [f"line {number} " + "x" * (number % 300) for number in range(20_000)]
    content = "\n".join(lines).encode()
    for suffix in PACKERS:
        assert read(text_files(tmp_path, src, tgt, suffix)) == PAIRS
        assert read(text_files(tmp_path, content, content, suffix)) == list(zip(lines, lines, strict=True))


def test_only_line_feeds_end_lines_and_byte_order_marks_are_removed(tmp_path: Path) -> None:
    src = "a\u2028b\x0bc\x0cd\x85e\x1cf\rg\x00h\r\nlast".encode()
    assert read(text_files(tmp_path, src, b"x\ny\n")) == [
        ("a\u2028b\x0bc\x0cd\x85e\x1cf\rg\x00h", "x"),
        ("last", "y"),
    ]
    assert read(text_files(tmp_path, b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", b"x\ny\n")) == [("a", "x"), ("\ufeffb", "y")]


@pytest.mark.parametrize(("src", "tgt"), [(3, 5), (5, 3), (0, 2), (2, 0)])
def test_errors_for_files_of_unequal_length_name_both_counts(tmp_path: Path, src: int, tgt: int) -> None:
    message = error_of(text_files(tmp_path, b"a\n" * src, b"b\n" * tgt))
    assert f"x.en has {src} lines but {tmp_path}/x.de has {tgt};" in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    good = text_files(tmp_path, b"a\n", b"b\n")
    assert "none.en: no such file" in error_of(TextFiles(src=str(tmp_path / "none.en"), tgt=good.tgt))
    assert f"{tmp_path}: is a folder" in error_of(TsvFile(tsv=str(tmp_path)))
    invalid = text_files(tmp_path, b"a\nb\nc\n", b"a\nb\nT\xfcr\n")
    assert "x.de:3: not UTF-8 (byte 0xfc at column 2)" in error_of(invalid)
    assert "none.jsonl.gz: no such file" in error_of(JsonlFile(jsonl=str(tmp_path / "none.jsonl.gz")))
    with pytest.raises(DataError, match=r"none.tsv: no such file"):
        source_fingerprint(TsvFile(tsv=str(tmp_path / "none.tsv")), DATA)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ".frames.zst", ".bz2"])
@pytest.mark.parametrize("damage", ["truncated", "overwritten"])
def test_damaged_compressed_files(tmp_path: Path, suffix: str, damage: str) -> None:
    content = "".join(f"sentence number {number}\n" for number in range(5000)).encode()
    source = text_files(tmp_path, content, content, suffix)
    packed = Path(source.tgt).read_bytes()
    middle = len(packed) // 3
    overwritten = packed[:middle] + b"\xff\x00\x55" * 20 + packed[middle + 60 :]
    Path(source.tgt).write_bytes(packed[:-5] if damage == "truncated" else overwritten)
    assert "x.de" in error_of(source)
    assert "damaged or truncated" in error_of(source)


def test_tsv_columns_are_counted_from_one(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("1\ta tree\tein Baum\n2\t\tq\n", encoding="utf-8")
    source = TsvFile(tsv=str(tmp_path / "x.tsv"), src_column=3, tgt_column=2)
    assert read(source) == [("ein Baum", "a tree"), ("q", "")]
    (tmp_path / "x.tsv").write_text("a\tb\tc\na\tb\n", encoding="utf-8")
    assert "x.tsv:2: src_column is 3, but the number of columns is 2" in error_of(source)


JSON_FORMS: list[tuple[Callable[[str, str], Any], dict[str, str]]] = [
    (lambda s, t: {"translation": {"en": s, "de": t}}, {}),
    (lambda s, t: {"en": s, "de": t, "fr": "x"}, {}),
    (lambda s, t: {"a": {"b": s}, "c": t}, {"src_field": "a.b", "tgt_field": "c"}),
]


@pytest.mark.parametrize(("form", "fields"), JSON_FORMS)
def test_jsonl_fields(tmp_path: Path, form: Callable[[str, str], Any], fields: dict[str, str]) -> None:
    rows = [json.dumps(form(*pair), ensure_ascii=number % 2 == 0) for number, pair in enumerate(PAIRS)]
    rows[1] = rows[1].replace('""', "null")  # null is read as empty
    (tmp_path / "x.jsonl").write_text("\n".join(rows), encoding="utf-8")
    assert read(JsonlFile(jsonl=str(tmp_path / "x.jsonl"), **fields)) == PAIRS


@pytest.mark.usefixtures("_own_hub_cache")
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(("form", "fields"), JSON_FORMS)
def test_local_hugging_face_dataset(
    tmp_path: Path, form: Callable[[str, str], Any], fields: dict[str, str], ending: str
) -> None:
    write_dataset(tmp_path / "set", [form(*pair) for pair in PAIRS] * 600, ending)
    source = HubDataset(dataset=str(tmp_path / "set"), **fields)
    assert read(source.model_copy(update={"stream": True})) == PAIRS * 600
    assert not list(tmp_path.glob("hub_cache/**/*.arrow"))
    assert read(source) == PAIRS * 600
    assert read(source.model_copy(update={"split": "train[1:3]"})) == PAIRS[1:3]


@pytest.fixture
def _own_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary cache for `load_dataset`."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub_cache"))


def write_dataset(folder: Path, rows: list[dict[str, Any]], ending: str) -> None:
    import datasets

    folder.mkdir(exist_ok=True)
    made = datasets.Dataset.from_list(rows)
    if ending == "parquet":
        made.to_parquet(folder / "train.parquet")
    else:
        made.to_json(folder / "train.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"en": "a", "de": ', "x.jsonl:2: not JSON (Expecting value: column 19); each line must be one JSON object"),
        ("[" * 100_000, "x.jsonl:2: unsupported JSON (nested too deeply)"),
        ("", "x.jsonl:2: not JSON"),
        ('["a", "b"]', "x.jsonl:2: not a JSON object"),
        ('{"en": "a", "fr": "b"}', "x.jsonl:2: no field 'de' (found: en, fr); set the field with tgt_field"),
        ('{"en": 3, "de": "b"}', "x.jsonl:2: field 'en' is not text but 3"),
        (r'{"en": "\ud800", "de": "b"}', "x.jsonl:2: field 'en' has an unpaired surrogate"),
    ],
)
def test_invalid_json_lines(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text('{"en": "a", "de": "b"}\n' + line + "\n", encoding="utf-8")
    assert message in error_of(JsonlFile(jsonl=str(tmp_path / "x.jsonl")))


@pytest.mark.usefixtures("_own_hub_cache")
def test_hugging_face_errors(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", [{"en": "a", "de": "b"}], "jsonl")
    source = HubDataset(dataset=str(tmp_path / "set"))
    assert "['train']" in error_of(source.model_copy(update={"split": "dev"}))
    assert "row 1: no field 'fr' (found: en, de)" in error_of(source.model_copy(update={"src_field": "fr"}))
    assert "no_set train: " in error_of(HubDataset(dataset=str(tmp_path / "no_set")))


def test_unreachable_hub(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The error is one line without retry warnings, and explains how to work offline."""
    import datasets

    def unreachable(*_: object, **__: object) -> None:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 8s [Retry 5/5].")
        raise ConnectionError("Couldn't reach 'wmt/wmt14' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    message = error_of(HubDataset(dataset="wmt/wmt14", name="de-en"))
    assert message.startswith("wmt/wmt14 de-en train: the Hugging Face Hub cannot be reached; check the connection, or")
    assert "`hf download --repo-type dataset NAME --local-dir FOLDER`" in message
    assert caplog.records == []


def test_errors_are_found_before_training(tmp_path: Path) -> None:
    """Missing files of all sets, and errors in the first pair of train or anywhere in dev, are found."""
    good = text_files(tmp_path, b"a\nb\n", b"c\nd\n")
    none = TextFiles(src=str(tmp_path / "none"), tgt=good.tgt)
    (tmp_path / "x.tsv").write_text("a\tb\n", encoding="utf-8")
    (tmp_path / "late.tsv").write_text("a\tb\nc\n", encoding="utf-8")
    first, late = TsvFile(tsv=str(tmp_path / "x.tsv"), tgt_column=3), TsvFile(tsv=str(tmp_path / "late.tsv"))
    require_sources(DATA.model_copy(update={"train": [good, late], "dev": [good], "test": {"t": good}}))
    for changes, message in (
        ({"train": [good, none]}, "none: no such file"),
        ({"train": [good], "dev": [none]}, "none: no such file"),
        ({"train": [good], "test": {"t": none}}, "none: no such file"),
        ({"train": [good, first]}, "x.tsv:1: tgt_column is 3, but the number of columns is 2"),
        ({"train": [good], "dev": {"a": good, "b": none}}, "none: no such file"),
        (
            {"train": [good], "dev": {"a": good, "b": late}},
            "late.tsv:2: tgt_column is 2, but the number of columns is 1",
        ),
        ({"train": [good], "dev": [late]}, "late.tsv:2: tgt_column is 2, but the number of columns is 1"),
    ):
        with pytest.raises(DataError, match=re.escape(message)):
            require_sources(DATA.model_copy(update=changes))
    with pytest.raises(DataError, match="none: no such file"):
        require_files([good, first, none])


def test_fingerprints_depend_on_the_contents(tmp_path: Path) -> None:
    for name in ("elsewhere", "other"):
        (tmp_path / name).mkdir()
    first, copy = (text_files(folder, b"a\n", b"b\n") for folder in (tmp_path, tmp_path / "elsewhere"))
    assert source_fingerprint(first, DATA) == source_fingerprint(copy, DATA)
    swapped, other = TextFiles(src=first.tgt, tgt=first.src), text_files(tmp_path / "other", b"a\n", b"c\n")
    assert len({source_fingerprint(source, DATA) for source in (first, swapped, other)}) == 3


@pytest.mark.usefixtures("_own_hub_cache")
def test_fingerprints_of_columns_fields_and_datasets(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"en": "a", "de": "b"}\n', encoding="utf-8")
    write_dataset(tmp_path / "set", [{"en": "a", "de": "b"}] * 5, "jsonl")
    sources: list[Source] = [
        TsvFile(tsv=str(tmp_path / "x")),
        TsvFile(tsv=str(tmp_path / "x"), src_column=2, tgt_column=1),
        JsonlFile(jsonl=str(tmp_path / "x")),
        JsonlFile(jsonl=str(tmp_path / "x"), src_field="de"),
        HubDataset(dataset=str(tmp_path / "set")),
        HubDataset(dataset=str(tmp_path / "set"), split="train[:2]"),
        HubDataset(dataset=str(tmp_path / "set"), stream=True),
    ]
    prints = [source_fingerprint(source, DATA) for source in sources]
    assert len(set(prints)) == len(sources)
    assert prints == [source_fingerprint(source, DATA) for source in sources]
    write_dataset(tmp_path / "set", [{"en": "a", "de": "c"}] * 5, "jsonl")
    assert source_fingerprint(sources[4], DATA) != prints[4]
    assert source_fingerprint(sources[6], DATA) != prints[6]


@pytest.mark.usefixtures("_own_hub_cache")
def test_a_slice_of_a_dataset_cannot_be_streamed(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", [{"en": "a", "de": "b"}] * 5, "jsonl")
    with pytest.raises(DataError, match=r"set train\[:2\]: cannot be loaded: Bad split"):
        list(read_pairs(HubDataset(dataset=str(tmp_path / "set"), split="train[:2]", stream=True), DATA))


@pytest.mark.usefixtures("_own_hub_cache")
def test_preparing_a_stream_writes_only_the_store(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    write_dataset(tmp_path / "set", [{"en": f"one {n}", "de": f"two {n}"} for n in range(1500)], "parquet")
    stores = []
    for stream in (True, False):
        source = HubDataset(dataset=str(tmp_path / "set"), stream=stream)
        data = DataConfig(src_lang="en", tgt_lang="de", cache_dir=str(tmp_path / "cache"), num_workers=1)
        stores.append(prepare([source], data, tokenizers, is_training=True))
        assert bool(list(tmp_path.glob("hub_cache/**/*.arrow"))) != stream
    streamed, loaded = (store.read(range(store.num_blocks)) for store in stores)
    assert streamed == loaded


def test_all_pairs_of_real_files_are_read(shared_data: Path) -> None:
    for name, lines in (("train", 29_000), ("val", 1_014), ("test_2016_flickr", 1_000)):
        folder = shared_data / "multi30k"
        source = TextFiles(src=str(folder / f"{name}.en.gz"), tgt=str(folder / f"{name}.de.gz"))
        assert sum(1 for _ in read_pairs(source, DATA)) == lines
    noisy = TsvFile(tsv=str(shared_data / "noisy_en_de" / "paracrawl_v3.tsv"))
    assert sum(1 for _ in read_pairs(noisy, DATA)) == 2_000

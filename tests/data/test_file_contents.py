"""Files that are not what their names say: each reader names the content in one line, and says what to do."""

import bz2
import gzip
import io
import json
import lzma
import random
import re
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import zstandard

from mtformer.cli.line_files import parallel_lines
from mtformer.cli.translate import _read_glossary
from mtformer.config.data import DataConfig, JsonlFile, Source, TextFiles, TsvFile
from mtformer.data.corpus.formats import Content, content_of, is_csv
from mtformer.data.corpus.readers import read_lines
from mtformer.data.corpus.sources import read_pairs, require_files, require_sources
from mtformer.data.corpus.tmx import read_tmx
from mtformer.errors import DataError

DATA = DataConfig(src_lang="en", tgt_lang="de")
LINES = "".join(f"Sentence {number}, which is not long.\tSatz {number}.\n" for number in range(40))
TMX = (
    '<?xml version="1.0" encoding="{}"?><tmx version="1.4"><header/><body><tu><tuv xml:lang="en"><seg>a</seg></tuv>'
    '<tuv xml:lang="de"><seg>b</seg></tuv></tu></body></tmx>'
)
ROWS = [{"en": f"a {number}", "de": f"b {number}"} for number in range(3)]
SENTENCES = {
    "English": "The dog runs. The cat sleeps.",
    "French": "Où êtes-vous allé hier soir ?",
    "Russian": "Собака бежит по улице.",
    "Greek": "Ο σκύλος τρέχει στον δρόμο.",
    "Amharic": "ውሻው ይሮጣል ። ድመቷ ትተኛለች ።",
    "Arabic": "الكلب يركض في الشارع.",
    "Hindi": "कुत्ता सड़क पर दौड़ता है।",
    "Gujarati": "કૂતરો શેરીમાં દોડે છે.",
    "Punjabi": "ਕੁੱਤਾ ਗਲੀ ਵਿੱਚ ਦੌੜਦਾ ਹੈ।",
    "Thai": "สุนัข วิ่งบนถนน",
    "Tibetan": "ཁྱི་རྒྱུགས་ཀྱིས་ཡོད།",
    "Korean": "개가 거리에서 달린다.",
    "Japanese": "犬が通りを走っている。",
    "Chinese": "狗在街上跑。",
    "Fula": "𞤂𞤫𞤱𞤮 𞤢𞤲𞤣𞤢𞤤",
    "emoji": "😀 a 😀",
}
"""A sentence in each of several scripts."""


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, LINES)
    return file.getvalue()


def tarred(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        member = tarfile.TarInfo("train.en")
        member.size = len(LINES)
        archive.addfile(member, io.BytesIO(LINES.encode()))
    return file.getvalue()


def database(folder: Path) -> bytes:
    path = folder / "made.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table pairs (src, tgt)")
    connection.close()
    return path.read_bytes()


def table(write: Callable[[pa.Table, io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(pa.table({"en": ["a"], "de": ["b"]}), file)
    return file.getvalue()


def arrow_stream() -> bytes:
    file = io.BytesIO()
    made = pa.table({"en": ["a"], "de": ["b"]})
    with pa.ipc.new_stream(file, made.schema) as writer:
        writer.write_table(made)
    return file.getvalue()


BINARY: dict[str, tuple[bytes, Content]] = {
    "gzip": (gzip.compress(LINES.encode()), Content.GZIP),
    "xz": (lzma.compress(LINES.encode()), Content.XZ),
    "zstd": (zstandard.compress(LINES.encode()), Content.ZSTD),
    "bzip2": (bz2.compress(LINES.encode()), Content.BZIP2),
    "zip": (zipped("train.en"), Content.ZIP),
    "empty zip": (zipped(), Content.ZIP),
    "xlsx": (zipped("[Content_Types].xml", "_rels/.rels", "xl/workbook.xml"), Content.OFFICE),
    "xlsx of openpyxl": (zipped("docProps/app.xml", "xl/workbook.xml"), Content.OFFICE),
    "ods": (zipped("mimetypeapplication/vnd.oasis.opendocument.spreadsheet"), Content.OFFICE),
    "xls": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 500, Content.OLD_OFFICE),
    "tar": (tarred("w"), Content.TAR),
    "parquet": (table(pyarrow.parquet.write_table), Content.PARQUET),
    "feather": (table(pyarrow.feather.write_feather), Content.ARROW),
    "arrow stream": (arrow_stream(), Content.ARROW),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", Content.PDF),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", Content.MEDIA),
    "wav": (b"RIFF\x24\x08\0\0WAVEfmt ", Content.MEDIA),
    "git lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", Content.LFS),
    "git annex": (b"/annex/objects/SHA256E-s2--ab.txt\n", Content.ANNEX),
    "html": (b"\n<!DOCTYPE html>\n<html lang=en><title>404 Not Found</title></html>\n", Content.HTML),
    "xhtml": (b'<?xml version="1.0"?>\n<!-- a --><html xmlns="x"></html>\n', Content.HTML),
    "html after comments": (b"<!-- a -->\n" * 50 + b"<HTML>\n", Content.HTML),
    "JSON array": (json.dumps(ROWS).encode(), Content.JSON_ARRAY),
    "indented JSON array": (json.dumps(ROWS, indent=2).encode(), Content.JSON_ARRAY),
    "JSON array of pairs": (b'[["a", "b"], ["c", "d"]]', Content.JSON_ARRAY),
    "JSON object": (json.dumps({"data": ROWS}, indent=1).encode(), Content.JSON_DOCUMENT),
    "XLIFF": (b'<?xml version="1.0"?>\n<xliff version="1.2"><file/></xliff>\n', Content.XML),
    "WMT": (b'<srcset setid="newstest" srclang="any">\n<doc>\n', Content.XML),
    "head of a page": (b"<head><title>504 Gateway Time-out</title></head>\n", Content.HTML),
    "old line ends": (b"A dog.\rA cat.\rA cow.\r", Content.OLD_LINE_ENDS),
    "UTF-16": (LINES.encode("utf-16"), Content.UTF_16),
    "UTF-16 without mark": (LINES.encode("utf-16-be"), Content.UTF_16),
    "UTF-32": (LINES.encode("utf-32"), Content.UTF_32),
    "Latin-1 at line ends": ("Il est allé\n".encode("latin-1") * 3, Content.OTHER_ENCODING),
    "Latin-1": ("Où est-il allé ?\tJa\n".encode("latin-1") * 3, Content.OTHER_ENCODING),
}
"""Files that no reader of lines accepts."""
JSON_LINES = "".join(json.dumps({"translation": row}) + "\n" for row in ROWS).encode()


def readers(path: Path, good: Path) -> dict[str, Callable[[], object]]:
    """Return the readers of a file of any kind by their names."""

    def pairs(source: Source) -> Callable[[], object]:
        return lambda: list(read_pairs(source, DATA))

    def lines() -> object:
        with parallel_lines([path]) as opened:
            return list(opened.blocks())

    text = TextFiles(src=str(good), tgt=str(path))
    tsv, jsonl = TsvFile(tsv=str(path)), JsonlFile(jsonl=str(path))
    return {
        "text": pairs(text),
        "tsv": pairs(tsv),
        "jsonl": pairs(jsonl),
        "before training": lambda: require_sources(DATA.model_copy(update={"train": [tsv]})),
        "before a check": lambda: require_files([text]),
        "translate": lines,
        "references": lambda: read_lines(path),
        "glossary": lambda: _read_glossary(path),
    }


def error_of(read: Callable[[], object]) -> str:
    with pytest.raises(DataError) as error:
        read()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", BINARY)
@pytest.mark.parametrize("suffix", [".txt", ".gz", ".jsonl.bz2"])
def test_every_reader_names_the_content(kind: str, suffix: str, tmp_path: Path) -> None:
    """The content is recognized under any name, and inside compressed files."""
    content, expected = BINARY[kind]
    path, good = tmp_path / f"x{suffix}", tmp_path / "good"
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(content))
    good.write_text("a\n")
    for name, read in readers(path, good).items():
        message = error_of(read)
        assert message.startswith(f"{path}: contains {expected}"), name
        assert "; " in message


def test_a_database_and_an_empty_or_missing_file(tmp_path: Path) -> None:
    assert content_of(database(tmp_path)) == Content.SQLITE
    (tmp_path / "empty").touch()
    for name in ("tsv", "jsonl", "before training", "glossary"):
        assert "empty" in error_of(readers(tmp_path / "empty", tmp_path / "empty")[name])
    assert "is a folder" in error_of(readers(tmp_path, tmp_path)["translate"])


def test_json_lines_are_read_as_json_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(JSON_LINES)
    named = readers(path, path)
    assert named.pop("jsonl")() == [(row["en"], row["de"]) for row in ROWS]
    for read in named.values():
        message = error_of(read)
        assert message.startswith(f"{path}: contains JSON lines, ")
        assert ".jsonl" in message


def test_translation_memories_are_read_in_any_encoding(tmp_path: Path) -> None:
    path = tmp_path / "x.tmx"
    for encoding in ("UTF-8", "UTF-16", "ISO-8859-1"):
        path.write_bytes(TMX.format(encoding).encode(encoding))
        assert list(read_tmx(str(path), "en", "de")) == [("a", "b")]
    path.write_bytes(TMX.format("UTF-8").encode())
    for read in readers(path, path).values():
        assert "contains a translation memory (TMX), which cannot be read here; `mtformer init` and" in error_of(read)
    for kind in ("html", "gzip", "JSON array", "git lfs", "xlsx"):
        content, expected = BINARY[kind]
        path.write_bytes(content)
        assert f"{path}: contains {expected}" in error_of(lambda: list(read_tmx(str(path), "en", "de")))


@pytest.mark.parametrize("delimiter", [",", ";"])
def test_csv_under_the_name_of_tsv(delimiter: str, tmp_path: Path) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("".join(f'"A dog{delimiter} {n}"{delimiter}Ein Hund {n}\n' for n in range(5)))
    assert f"{path}: contains CSV" in error_of(readers(path, path)["tsv"])
    assert len(read_lines(path)) == 5  # lines of text may have as many commas each
    path.write_text("A dog, a cat\tEin Hund, eine Katze\n" * 3)
    assert len(list(read_pairs(TsvFile(tsv=str(path)), DATA))) == 3
    assert not is_csv(b"a, b\nc\n")


@pytest.mark.parametrize(("suffix", "name"), [("", "x.en.gz"), (".xz", "x.en.gz"), (".bz2", "x.en.gz")])
def test_a_compressed_file_with_another_name(suffix: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.en{suffix}"
    path.write_bytes(gzip.compress(b"a\n"))
    message = f"{path}: contains a gzip file, but its name says otherwise; rename it to {name}, or decompress it"
    assert error_of(lambda: read_lines(path)) == message


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ".bz2"])
def test_a_plain_file_with_the_name_of_a_compressed_one(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.en{suffix}"
    path.write_text("plain text\n" * 50)
    assert f"although its name ends with {suffix}; rename it to x.en if it is plain text" in error_of(
        lambda: read_lines(path)
    )
    path.write_bytes(BINARY["html"][0])
    assert f"{path}: contains an HTML page, although its name ends with {suffix}; " in error_of(
        lambda: read_lines(path)
    )


@pytest.mark.parametrize(("suffix", "mode"), [(".tgz", "w:gz"), (".tar.gz", "w:gz"), (".txz", "w:xz"), (".tar", "w")])
def test_tar_archives(suffix: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(tarred(mode))
    message = error_of(lambda: read_lines(path))
    assert "tar archive" in message
    assert "tar -xf" in message


@pytest.mark.parametrize("language", SENTENCES)
def test_encodings_of_text_are_recognized_in_all_scripts(language: str) -> None:
    text = f"{SENTENCES[language]}\n" * 4
    assert content_of(text.encode()) is None
    for mark in ("", "\ufeff"):
        for order in ("le", "be"):
            assert content_of(f"{mark}{text}".encode(f"utf-16-{order}")) == Content.UTF_16
            assert content_of(f"{mark}{text}".encode(f"utf-32-{order}")) == Content.UTF_32
    for cut in range(1, 7):  # a head may end inside a character
        assert content_of(text.encode()[:-cut]) is None
        assert content_of(text.encode("utf-16-le")[:-cut]) == Content.UTF_16


@pytest.mark.parametrize(
    ("language", "encoding"),
    [("French", "cp1252"), ("Russian", "cp1251"), ("Greek", "iso8859-7"), ("Arabic", "cp1256"), ("Japanese", "cp932"),
     ("Chinese", "gb18030"), ("Korean", "cp949"), ("Thai", "tis-620")],
)  # fmt: skip
def test_other_encodings_are_recognized(language: str, encoding: str) -> None:
    text = f"{SENTENCES[language]}\n" * 4
    assert content_of(text.encode(encoding)) == Content.OTHER_ENCODING


PLAIN = [
    b"",
    b"\n",
    b"\xef\xbb\xbfa dog\n",
    b"a\0b\n",
    b" \0a\n",
    b"ab \0cd\n",
    b"a \0b \0c\n" + b"some more text\n" * 3,
    b"\0\n",
    b"T\xfcr\na dog\n",
    "Tür\nT\xfcr\n".encode() + b"T\xfcr\nT\xfcr\nT\xfcr\n",
    b"T\xfcr\n" * 3 + b"a dog\n" * 100,
    b"{}\n",
    b'{"a": 1} is JSON\n{"b": 2} too\n',
    b'{"a": 1}\nThe line above is JSON.\n',
    b"[1] Smith, J.\n[2] Miller, K.\n",
    b'["Hello", she said.]\n',
    b"<b>Bold</b> text\n",
    b"< 5 people\n",
    b"<html5> is a standard\n",
    b"PK is a code\n",
    b"BZh9 is a name\n",
    b"RIFF files are old\n",
    b"PAR1 and PAR2\n",
    b"%PDF- is how it starts\n",
    b"version 2 of the file\n",
    b"ID3 tags\n",
    b"a dog\r",
    b"a\rb\rc\rd\r\n",
    b"<header> is an element\n",
    b"<body> is an element".replace(b">", b"s>"),
    b"[" * 5000,
    b'{"a":' * 5000,
]


@pytest.mark.parametrize("head", PLAIN)
def test_text_is_not_taken_for_something_else(head: bytes) -> None:
    assert content_of(head) is None


def test_random_bytes_and_damage_raise_no_other_error(tmp_path: Path) -> None:
    chance = random.Random(1)
    for _ in range(300):
        content, _ = BINARY[chance.choice(list(BINARY))]
        start = chance.randrange(len(content))
        content_of(content[:start] + chance.randbytes(3) + content[start:])
        content_of(chance.randbytes(chance.randrange(600)))


def test_comments_before_a_page_are_read_once() -> None:
    """The start of a page with thousands of comments is searched in linear time."""
    assert content_of(b"<!-- a -->" * 6000 + b"<p>") is None
    assert content_of(b"<!--" * 15_000) is None


def test_a_third_column_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.tsv"
    path.write_text("12\tA dog\tEin Hund\n")
    list(read_pairs(TsvFile(tsv=str(path)), DATA))
    assert re.search(r"x.tsv: has 3 columns, of which 1 \(source\) and 2 \(target\) are read; set src_col", caplog.text)
    caplog.clear()
    list(read_pairs(TsvFile(tsv=str(path), src_column=2, tgt_column=3), DATA))
    list(read_pairs(TsvFile(tsv=str(path), src_column=1, tgt_column=2), DATA))
    assert not caplog.text


def test_an_empty_source_among_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "good.tsv").write_text("a\tb\n")
    (tmp_path / "empty.tsv").touch()
    sources = [TsvFile(tsv=str(tmp_path / name)) for name in ("good.tsv", "empty.tsv")]
    message = error_of(lambda: require_sources(DATA.model_copy(update={"train": sources})))
    assert message == f"{tmp_path}/empty.tsv: the corpus is empty: no lines were read; check its files"

"""Each command that reads a file refuses one that is not what its name says, in one line that names its content."""

import bz2
import gzip
import json
import re
from pathlib import Path

import pytest
from program import invoke

PAIRS = [(f"The man sees {n} dogs.", f"Der Mann sieht {n} Hunde.") for n in range(5)]
JSON_LINES = "".join(json.dumps({"en": src, "de": tgt}) + "\n" for src, tgt in PAIRS)
TSV = "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS)
PAGE = "<!DOCTYPE html>\n<html><title>404 Not Found</title></html>\n\n\n\n"
FILES = {
    "good": "".join(src + "\n" for src, _ in PAIRS).encode(),
    "good.bz2": bz2.compress("".join(src + "\n" for src, _ in PAIRS).encode()),
    "utf16.txt": TSV.encode("utf-16"),
    "packed.txt": gzip.compress(TSV.encode()),
    "plain.gz": TSV.encode(),
    "page.tsv": PAGE.encode(),
    "lines.json": JSON_LINES.encode(),
    "array.jsonl": json.dumps([{"en": src, "de": tgt} for src, tgt in PAIRS]).encode(),
    "pointer.tsv": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    "table.tsv": "".join(f'"{src}","{tgt}"\n' for src, tgt in PAIRS).encode(),
    "empty.tsv": b"",
}
MESSAGES = {
    "utf16.txt": "contains text in UTF-16, which cannot be read here; convert it with `iconv -f UTF-16 -t UTF-8`",
    "packed.txt": "contains a gzip file, but its name says otherwise; rename it to packed.txt.gz, or decompress it",
    "plain.gz": "is not a gzip file, although its name ends with .gz; rename it to plain if it is plain text",
    "page.tsv": "contains an HTML page, which cannot be read here; check that the download succeeded",
    "lines.json": "contains JSON lines, which cannot be read here; give it a name that ends with .jsonl",
    "array.jsonl": "contains one JSON array, which cannot be read here; write one object per line",
    "pointer.tsv": "contains a Git LFS pointer, not the file that it points to, which cannot be read here; download",
    "table.tsv": "contains CSV (separated by commas or semicolons), which cannot be read here; save it as tab",
    "empty.tsv": "empty",
}
LANGUAGES = "--src-lang en --tgt-lang de"
COMMANDS = [
    *(f"init {name} {LANGUAGES}" for name in MESSAGES),
    *(f"data check {name} {LANGUAGES}" for name in MESSAGES if name != "empty.tsv"),
    *(f"data clean {name} OUT {LANGUAGES}" for name in MESSAGES),
    *(f"adapt RUN --train {name} --run-dir OUT" for name in MESSAGES if name != "empty.tsv"),
    *(f"translate RUN --input good --glossary {name}" for name in MESSAGES if name != "table.tsv"),
    *(f"translate RUN --input {name}" for name in ("utf16.txt", "packed.txt", "plain.gz", "page.tsv", "lines.json")),
    "data check good packed.txt --src-lang en --tgt-lang de",
    "translate RUN --input good --prefixes utf16.txt",
    "translate RUN --input good --require page.tsv",
    "score RUN good packed.txt",
    "eval RUN --src good --ref utf16.txt",
    "eval RUN --src pointer.tsv --ref good",
    "exam RUN --src good --ref packed.txt",
    "distill RUN --config CORPUS/small.yaml --mono packed.txt --run-dir OUT",
    "train CORPUS/small.yaml data.train=[{tsv:page.tsv}] --run-dir OUT",
    "train CORPUS/small.yaml data.dev=[{jsonl:array.jsonl}] --run-dir OUT",
    "tokenizer train CORPUS/small.yaml data.train=[{tsv:pointer.tsv}] --output OUT",
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("words", COMMANDS)
def test_a_wrong_file_is_named_in_one_line(words: str, trained: tuple[Path, object], corpus: Path) -> None:
    arguments = words.replace("RUN", str(trained[0])).replace("CORPUS", str(corpus)).split()
    result = invoke(*(re.sub("(?<=tsv|onl):", ": ", word) for word in arguments))
    assert result.exit_code == 2, result.stderr
    [line] = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    [message] = {message for name, message in MESSAGES.items() if name in words}
    assert message in line
    assert "Traceback" not in result.stderr
    assert not Path("OUT").exists()
    assert not Path("en_de.yaml").exists()


@pytest.mark.usefixtures("files")
def test_bzip2_is_read_and_written(trained: tuple[Path, object]) -> None:
    assert invoke("translate", trained[0], "--input", "good.bz2", "--output", "out.bz2").exit_code == 0
    assert invoke("translate", trained[0], "--input", "good", "--output", "out").exit_code == 0
    assert bz2.decompress(Path("out.bz2").read_bytes()) == Path("out").read_bytes()
    assert Path("out").read_bytes().count(b"\n") == len(PAIRS)


@pytest.mark.usefixtures("files")
def test_pages_are_translated_with_html_only(trained: tuple[Path, object]) -> None:
    Path("page.html").write_text("<!DOCTYPE html>\n<html><body><p>The man sleeps.</p></body></html>\n")
    assert invoke("translate", trained[0], "--html", "--input", "page.html").exit_code == 0
    result = invoke("translate", trained[0], "--input", "page.html")
    assert result.exit_code == 2
    assert "`mtformer translate --html` translates pages" in result.stderr


def test_stdin(trained: tuple[Path, object]) -> None:
    for command in ("translate", "tokenizer encode"):
        result = invoke(*command.split(), trained[0], stdin="a dog\n".encode("utf-16"))
        assert result.exit_code == 2
        assert "contains text in UTF-16" in result.stderr


@pytest.mark.usefixtures("files")
def test_an_empty_source_is_reported(trained: tuple[Path, object]) -> None:
    result = invoke("translate", trained[0], "--input", "empty.tsv")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "empty.tsv: is empty, so there are no lines to read; check the file" in result.stderr

"""`mtformer data clean`: arguments, files written, and exit codes."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from program import invoke

from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import TokenizerPair

LANGUAGES = ("--src-lang", "en", "--tgt-lang", "de")
EN = ["a dog runs", "", "the small house", "same text", "the small house", "35 trees", "a stone"]
DE = ["ein Hund rennt", "leer", "das kleine Haus", "Same text.", "das kleine Haus", "43 Bäume", "ein Stein"]
KEPT = ["a dog runs", "the small house", "a stone"]
REPORT = [
    "pairs read 7",
    "pairs kept 3",
    "removed 1 empty",
    "removed 1 identical",
    "removed 1 different numbers",
    "removed 1 duplicate",
    "warning: the filters removed more than data.filters.max_filtered_share (0.5); see the reasons in removed.tsv",
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return two parallel files with four pairs that must be removed."""
    paths = (tmp_path / "a.en", tmp_path / "a.de")
    for path, lines in zip(paths, (EN, DE), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


def kept(folder: Path, name: str = "kept.en") -> list[str]:
    return (folder / name).read_text(encoding="utf-8").split("\n")[:-1]


def report_lines(stderr: str) -> list[str]:
    """Return the lines after the note that length filters are not applied, with single spaces between words."""
    note, *lines = stderr.removesuffix("\n").split("\n")
    assert note.startswith("max_tokens and max_length_ratio are not applied without a tokenizer")
    return [re.sub(" +", " ", line).strip(" ") for line in lines]


def test_two_files_are_cleaned(files: tuple[Path, Path], tmp_path: Path) -> None:
    result = invoke("data", "clean", *files, tmp_path / "out", *LANGUAGES)
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    assert kept(tmp_path / "out") == KEPT
    assert kept(tmp_path / "out", "removed.tsv") == [
        "empty\t2\t\tleer",
        "identical\t4\tsame text\tSame text.",
        "duplicate\t5\tthe small house\tdas kleine Haus",
        "different numbers\t6\t35 trees\t43 Bäume",
    ]
    assert report_lines(result.stderr) == [*REPORT, f"written: {tmp_path}/out"]
    assert json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))["kept"] == 3


def test_overrides_change_the_filters(files: tuple[Path, Path], tmp_path: Path) -> None:
    overrides = ["data.filters.drop_identical=false", "data.filters.drop_different_numbers=false"]
    result = invoke("data", "clean", *files, tmp_path / "out", *overrides, *LANGUAGES, "--gz")
    assert result.exit_code == 0, result.stderr
    lines = gzip.decompress((tmp_path / "out" / "kept.en.gz").read_bytes()).decode().split("\n")[:-1]
    assert lines == ["a dog runs", "the small house", "same text", "35 trees", "a stone"]
    assert report_lines(result.stderr) == [
        "pairs read 7",
        "pairs kept 5",
        "removed 1 empty",
        "removed 1 duplicate",
        f"written: {tmp_path}/out",
    ]


@pytest.mark.parametrize(
    "name", ["pairs.tsv", "pairs.jsonl", "pairs.jsonl.gz", "PAIRS.JSONL", "k.a=v 😀 'it': \"x\".tsv"]
)
def test_one_file_is_cleaned(name: str, tmp_path: Path) -> None:
    rows = zip(EN, DE, strict=True)
    lines = [json.dumps({"en": en, "de": de}) if "jsonl" in name.lower() else f"{en}\t{de}" for en, de in rows]
    data = "".join(f"{line}\n" for line in lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    result = invoke("data", "clean", tmp_path / name, tmp_path / "out", *LANGUAGES)
    assert result.exit_code == 0, result.stderr
    assert kept(tmp_path / "out") == KEPT


def test_the_training_data_of_a_config_are_cleaned(corpus: Path, tmp_path: Path) -> None:
    result = invoke("data", "clean", corpus / "small.yaml", tmp_path / "out", "data.filters.max_repeats=4")
    assert result.exit_code == 0, result.stderr
    sources, targets = (kept(corpus, f"train.{language}") for language in ("en", "de"))
    pairs = set(zip(sources, targets, strict=True))
    found = list(zip(kept(tmp_path / "out"), kept(tmp_path / "out", "kept.de"), strict=True))
    assert set(found) <= pairs
    assert len(found) == len(set(found)) > 500


def test_tokenizers_of_a_run_and_of_a_folder(
    trained: tuple[Path, object], files: tuple[Path, Path], tmp_path: Path
) -> None:
    result = invoke("data", "clean", trained[0], tmp_path / "out", "data.filters.max_tokens=10")
    assert result.exit_code == 0, result.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["left_out"]["too long"] > 0
    assert "source tokens" in result.stderr
    tokenizer = TokenizerPair.load(RunDir(trained[0]).tokenizer).src
    assert report["tokens"]["src"] == sum(map(len, tokenizer.encode(kept(tmp_path / "out"))))
    options = ["--tokenizer", RunDir(trained[0]).tokenizer, "data.filters.max_tokens=1", *LANGUAGES]
    result = invoke("data", "clean", *files, tmp_path / "two", *options)
    assert result.exit_code == 0, result.stderr
    assert kept(tmp_path / "two") == []
    assert f"warning: {tmp_path}/two: the filters kept no pairs; see the reasons in removed.tsv" in result.stderr


@pytest.mark.parametrize(("options", "message"), [
    (
        ["{0}/a.en", *LANGUAGES],
        "too few arguments; give a config, a run directory or files, and after them the folder to write",
    ),
    (["{0}/c.yaml", "{0}/a.de"], "{0}/a.de: is a file, not a folder; give the folder to write as the last argument"),
    (["{0}/a.en", "{0}/a.de", "{0}", *LANGUAGES], "{0}: already exists; choose another folder, or delete it"),
    (["{0}/c.yaml", "{0}/out", "data.train=[]"], "data.train: no training data; name at least one source"),
    (["{0}/c.yaml", "{0}/out", "data.train.0.tgt_lang=fr"], "is en-de, but the first source of data.train is en-fr"),
])  # fmt: skip
def test_user_errors_are_reported_in_one_line(
    options: list[str], message: str, files: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(
        f"data: {{src_lang: en, tgt_lang: de, language_tags: source,\n  train: [{{src: {files[0]}, tgt: {files[1]}}}, "
        f"{{src: {files[0]}, tgt: {files[1]}}}]}}\n"
    )
    result = invoke("data", "clean", *(option.format(tmp_path) for option in options))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("error: ") == 1
    assert message.format(tmp_path) in result.stderr
    assert not (tmp_path / "out").exists()


def test_without_a_terminal_only_the_report_is_printed_and_torch_is_not_imported(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    program = "import sys, mtformer.cli.app as a\ntry: a.main()\nfinally: print('torch' in sys.modules)"
    command = [sys.executable, "-c", program, "data", "clean", *files, tmp_path / "out", *LANGUAGES]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"
    assert report_lines(done.stderr) == [*REPORT, f"written: {tmp_path}/out"]


@pytest.mark.parametrize(
    ("name", "lines", "kept_lines", "invalid"),
    [
        ("a.tsv", [b"a dog\tein Hund", b"caf\xe9\tCaf\xc3\xa9", b"no tab", b"\xff\xfe\t\xed\xa0\x80"], 1, [2, 3, 4]),
        ("a.jsonl", [b'{"en": "a dog", "de": "ein Hund"}', b'{"en": "x', b"[1]", b'{"en": "\xff"}'], 1, [2, 3, 4]),
    ],
)
def test_lines_that_training_refuses_are_removed_and_counted(
    name: str, lines: list[bytes], kept_lines: int, invalid: list[int], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"\n".join(lines) + b"\n")
    result = invoke("data", "clean", tmp_path / name, tmp_path / "out", *LANGUAGES)
    assert result.exit_code == 0, result.stderr
    assert len(kept(tmp_path / "out")) == kept_lines
    rows = [row.split("\t")[:2] for row in kept(tmp_path / "out", "removed.tsv")]
    assert rows == [["invalid line", str(number)] for number in invalid]
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert (report["read"], report["left_out"]) == (4, {"invalid line": 3})


def test_an_undecodable_line_of_parallel_files_is_removed_from_both(files: tuple[Path, Path], tmp_path: Path) -> None:
    lines = files[1].read_bytes().split(b"\n")
    lines[2] = b"das kleine H\xe4us"
    files[1].write_bytes(b"\n".join(lines))
    result = invoke("data", "clean", *files, tmp_path / "out", *LANGUAGES)
    assert result.exit_code == 0, result.stderr
    assert kept(tmp_path / "out") == ["a dog runs", "the small house", "a stone"]
    assert "invalid line\t3\tthe small house\tdas kleine H\ufffdus" in kept(tmp_path / "out", "removed.tsv")

"""Attacks with malformed corpora: commands succeed or report the file in one line, and all pairs are accounted for."""

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from attack_tools import Attacks, Passed, is_calm, is_good_error
from program import invoke

from mtformer.config.data import JsonlFile, TextFiles, TsvFile

SEED = 1
NUM_LINES = 120
KINDS = {TextFiles: "txt", TsvFile: "tsv", JsonlFile: "jsonl"}
"""Suffix of the files of each kind of source."""
LANGUAGES = ("--src-lang", "en", "--tgt-lang", "de")
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress, ".bz2": bz2.compress,
}  # fmt: skip
ODD = [b"", b"\xef\xbb\xbf", b"\x00", b"\r", b"\r\n", b"\n", b"\n\n\n", b"\t", b"\t\t\t\t", b"\xff\xfe",
       b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\x1b[31m", b"a" * 200_000, b"[" * 5000, b'{"en":' * 900,
       b'{"en": ' + b"9" * 5000 + b"}", b'{"en": "\\ud800", "de": "x"}', b"null", b"{}", b'{"en": 1, "de": [2]}',
       b'{"en": "a", "en": "b", "de": "c"}', b"1e999", b"NaN", b'"', b"\\", b"=cmd()", b"<2de>", b"</s>",
       "\u202e".encode(), "\ufeff".encode()]  # fmt: skip


def good(kind: str, corpus: Path) -> list[bytes]:
    """Return the files of an intact corpus of this kind, uncompressed."""
    en, de = ((corpus / f"train.{end}").read_bytes().split(b"\n")[:NUM_LINES] for end in ("en", "de"))
    if kind == "tsv":
        return [b"".join(b"%s\t%s\n" % pair for pair in zip(en, de, strict=True))]
    if kind == "jsonl":
        pairs = [{"en": src.decode(), "de": tgt.decode()} for src, tgt in zip(en, de, strict=True)]
        return ["".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs).encode()]
    return [b"\n".join([*lines, b""]) for lines in (en, de)]


def damage(data: bytes, chance: random.Random) -> bytes:
    """Return the data with one kind of damage at a random position."""
    start, size = chance.randrange(len(data) + 1), chance.choice([1, 10, 1000])
    kind = chance.choice(["cut", "remove", "flip", "random", "odd", "odd", "odd line", "odd line", "repeat", "empty"])
    if kind == "cut":
        return data[:start]
    if kind == "remove":
        return data[:start] + data[start + size :]
    if kind == "flip" and start < len(data):
        return data[:start] + bytes([data[start] ^ (1 << chance.randrange(8))]) + data[start + 1 :]
    if kind == "random":
        return data[:start] + chance.randbytes(size) + data[start:]
    if kind == "odd":
        return data[:start] + chance.choice(ODD) + data[start:]
    if kind == "odd line":
        start = data.find(b"\n", start) + 1
        return data[:start] + chance.choice(ODD) + b"\n" + data[start:]
    return data[:start] + data if kind == "repeat" else b""


def write_damaged(folder: Path, corpus: Path, chance: random.Random) -> list[Path]:
    """Write a corpus of a random kind and compression, damaged in one to three places before or after compression."""
    kind, suffix = chance.choice(list(KINDS.values())), chance.choice(list(COMPRESSIONS))
    files, paths = good(kind, corpus), list[Path]()
    for _ in range(chance.randint(1, 3)):
        number = chance.randrange(len(files))
        files[number] = damage(files[number], chance)
    for number, data in enumerate(files):
        packed = COMPRESSIONS[suffix](data)
        if chance.random() < 0.2:
            packed = damage(packed, chance)
        paths.append(folder / f"{number}.{kind}{suffix}")
        paths[-1].write_bytes(packed)
    return paths


def data_clean(paths: list[Path], out: Path) -> bool:
    """Return True if `data clean` writes a folder that contains each pair once, or fails without writing one."""
    result = invoke("data", "clean", *paths, out, *LANGUAGES, "data.num_workers=1")
    if result.exit_code:
        return is_good_error(result.exit_code, result.stderr) and not out.exists()
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    kept = [(out / f"kept.{end}").read_bytes().decode("utf-8").count("\n") for end in ("en", "de")]
    num_removed = (out / "removed.tsv").read_bytes().count(b"\n")
    return kept == [report["kept"]] * 2 and report["kept"] + num_removed == report["read"]


def data_check(paths: list[Path], out: Path) -> bool:
    """Return True if `data check` writes its counts (exit code 1 if limits are exceeded), or fails without output."""
    result = invoke("data", "check", *paths, *LANGUAGES, "data.num_workers=1", "--json", out)
    if result.exit_code == 2:
        return is_good_error(2, result.stderr) and not out.exists()
    return isinstance(result.exception, SystemExit | None) and is_calm(result.stderr) and out.exists()


def tokenizer_train(paths: list[Path], out: Path) -> bool:
    """Return True if `tokenizer train` writes a tokenizer, or fails without writing one."""
    names = (
        {"src": str(paths[0]), "tgt": str(paths[-1])} if len(paths) == 2 else {paths[0].suffixes[0][1:]: str(paths[0])}
    )
    config = out.with_suffix(".yaml")
    config.write_text(json.dumps({"data": {"src_lang": "en", "tgt_lang": "de", "train": [names]}}), encoding="utf-8")
    result = invoke("tokenizer", "train", config, "--output", out, "tokenizer.vocab_size=200")
    if result.exit_code:
        return is_good_error(result.exit_code, result.stderr) and not out.exists()
    return (out / "joint.model").is_file()


@pytest.mark.parametrize("command", [data_clean, data_check, tokenizer_train])
def test_malformed_corpora(
    command: Callable[[list[Path], Path], bool], corpus: Path, attacks: Attacks, passed: Passed, tmp_path: Path
) -> None:
    total, failures = attacks(25), list[int]()
    for number in range(total):
        folder = tmp_path / str(number)
        folder.mkdir()
        paths = write_damaged(folder, corpus, random.Random(f"{SEED} {number}"))
        if not command(paths, folder / "out"):
            failures.append(number)
    print("numbers of failed attacks:", failures)
    passed(f"malformed corpora: {command.__name__.replace('_', ' ')}", total - len(failures), total)

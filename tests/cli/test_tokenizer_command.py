"""`mtformer tokenizer`: training, encoding and decoding."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mtformer.cli.app import app
from mtformer.config.data import DataConfig, Source
from mtformer.data.corpus.sources import read_pairs
from mtformer.experiment import prepare
from mtformer.text.tokenizer import Tokenizer, TokenizerPair

SYLLABLES = {
    "en": "the green house tree run see under and small wood light stone er ing ed",
    "de": "der grün haus baum läuf seh unter und klein wald licht stein er en te",
}
LINES = ["the green house", "", "  a  tree ", "x\u2028y", "grün\rläuft", "日本 tree", "\x0b", "the tree runs"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with text, a config, and trained tokenizers `joint` and `separate`."""
    folder = tmp_path_factory.mktemp("tokenizers")
    generator = random.Random(1)
    for language, syllables in SYLLABLES.items():
        words = [
            "".join(generator.choices(syllables.split(), k=length)) for length in (1, 2, 2, 3, 3) for _ in range(20)
        ]
        lines = [" ".join(generator.choices(words, k=6)) + "\n" for _ in range(300)]
        (folder / f"train.{language}").write_text("".join(lines), encoding="utf-8")
    (folder / "a.yaml").write_text(
        f"data: {{src_lang: en, tgt_lang: de, train: [{{src: '{folder}/train.en', tgt: '{folder}/train.de'}}]}}\n"
        "tokenizer: {vocab_size: 60, byte_fallback: false}\n"
    )
    separate = ["tokenizer.joint=false", "model.tie_embeddings=none", "tokenizer.vocab_size=50"]
    for name, overrides in (("joint", []), ("separate", separate)):
        result = invoke("tokenizer", "train", str(folder / "a.yaml"), *overrides, "--output", str(folder / name))
        assert result.exit_code == 0, result.stderr
    return folder


def invoke(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


def test_training(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joint, separate = TokenizerPair.load(folder / "joint"), TokenizerPair.load(folder / "separate")
    assert (joint.joint, joint.src.vocab_size) == (True, 60)
    assert (separate.joint, separate.src.vocab_size, separate.tgt.vocab_size) == (False, 50, 50)
    monkeypatch.chdir(tmp_path)
    result = invoke("tokenizer", "train", str(folder / "a.yaml"))
    assert result.exit_code == 0
    sha256 = Tokenizer.load("tokenizers/a/joint.model").sha256
    assert result.stdout == f"tokenizers/a: joint, 60 tokens, sha256 {sha256}\n"


def test_train_does_not_replace_a_folder(folder: Path) -> None:
    result = invoke("tokenizer", "train", str(folder / "a.yaml"), "--output", str(folder / "joint"))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {folder / 'joint'}: already exists; ")
    result = invoke("tokenizer", "train", str(folder / "a.yaml"), "data.train=[]", "--output", str(folder / "new"))
    assert (result.exit_code, result.stderr) == (2, "error: data.train: no training data; name at least one source\n")


def test_a_file_that_changes_during_training_is_an_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.en"
    path.write_bytes((folder / "train.en").read_bytes().swapcase())  # no cached tokenizer for this text

    def change_meanwhile(source: Source, data: DataConfig) -> Iterator[tuple[str, str]]:
        yield from read_pairs(source, data)
        path.write_bytes(path.read_bytes().upper())

    monkeypatch.setattr(prepare, "read_pairs", change_meanwhile)
    source = f"data.train=[{{src: {path}, tgt: {folder}/train.de}}]"
    result = invoke("tokenizer", "train", str(folder / "a.yaml"), source, "--output", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert result.stderr == f"error: {path} changed while it was being read; run the command again\n"
    assert not (tmp_path / "new").exists()


def test_the_verified_model_is_cached(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "a.model"
    checked = (folder / "joint" / "joint.model").read_bytes()
    model.write_bytes(checked)
    monkeypatch.setattr(prepare, "require_tags", lambda *_: model.write_bytes(b"replaced meanwhile"))
    arguments = [str(folder / "a.yaml"), f"tokenizer.src_model={model}", "--output", str(tmp_path / "new")]
    result = invoke("tokenizer", "train", *arguments)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "new" / "joint.model").read_bytes() == checked


@pytest.mark.parametrize("options", [[], ["--ids"]])
def test_encode_and_decode_keep_the_lines(folder: Path, options: list[str]) -> None:
    text = ["the green house", "", "klein tree under"]
    stdin = "".join(line + "\n" for line in text).encode()
    encoded = invoke("tokenizer", "encode", str(folder / "joint"), *options, stdin=stdin)
    tokenizer = TokenizerPair.load(folder / "joint").src
    expected = [map(str, tokenizer.encode([line])[0]) if options else tokenizer.pieces(line) for line in text]
    assert encoded.stdout_bytes.decode() == "".join(" ".join(line) + "\n" for line in expected)
    decoded = invoke("tokenizer", "decode", str(folder / "joint"), *options, stdin=encoded.stdout_bytes)
    assert decoded.stdout_bytes == stdin
    unusual = "\n".join(LINES * 300).encode()
    for command in ("encode", "decode"):
        unusual = invoke("tokenizer", command, str(folder / "joint"), *options, stdin=unusual).stdout_bytes
        assert unusual.count(b"\n") == len(LINES) * 300


def test_side_selects_the_tokenizer(folder: Path) -> None:
    pair = TokenizerPair.load(folder / "separate")
    line = "the green läuft house under klein"
    assert pair.src.encode([line]) != pair.tgt.encode([line])
    for side, tokenizer in (("src", pair.src), ("tgt", pair.tgt)):
        result = invoke("tokenizer", "encode", str(folder / "separate"), "--ids", "--side", side, stdin=line.encode())
        assert result.stdout == " ".join(map(str, tokenizer.encode([line])[0])) + "\n"


def test_tokenizers_of_a_run_and_of_a_model_file(folder: Path, tmp_path: Path) -> None:
    TokenizerPair.load(folder / "joint").save(tmp_path / "run" / "tokenizer")
    outputs = [
        invoke("tokenizer", "encode", str(path), stdin=b"the tree").stdout
        for path in (tmp_path / "run", folder / "joint" / "joint.model", folder / "joint")
    ]
    assert len(set(outputs)) == 1
    assert outputs[0].strip()


@pytest.mark.parametrize(
    ("command", "stdin", "message"),
    [
        ("encode", b"a\n\xff\n", "stdin:2: not UTF-8 (byte 0xff at column 1); "),
        ("decode", b"5 6\n5 x\n", "stdin:2: 'x' is not a token id; ids are 0 to 59"),
        ("decode", b"60\n", "stdin:1: '60' is not a token id; ids are 0 to 59"),
        ("decode", b"-1\n", "stdin:1: '-1' is not a token id; ids are 0 to 59"),
    ],
)
def test_errors_give_the_line_number(folder: Path, command: str, stdin: bytes, message: str) -> None:
    result = invoke("tokenizer", command, str(folder / "joint"), "--ids", stdin=stdin)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1


def test_a_missing_tokenizer_is_reported(tmp_path: Path) -> None:
    result = invoke("tokenizer", "encode", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path}: no tokenizer found")
    assert invoke("tokenizer", "encode", str(tmp_path / "x.model")).exit_code == 2


def test_pipes_in_any_locale(folder: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "mtformer", "tokenizer", "encode", str(folder / "joint")]
    stdin = "grün läuft\n".encode()
    done = subprocess.run(command, input=stdin, capture_output=True, env={**os.environ, **plain}, timeout=60)
    assert done.stderr == b""
    assert "▁".encode() in done.stdout
    command[4] = "decode"
    done = subprocess.run(command, input=done.stdout, capture_output=True, env={**os.environ, **plain}, timeout=60)
    assert done.stdout == stdin

"""Converted models with crafted files beside the weights: each is refused before CTranslate2 uses it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small import Make, write_bundle

from mtformer.decoding.translator import Translator
from mtformer.errors import CheckpointError
from mtformer.export.bundle import export
from mtformer.files import CHECKSUMS, write_checksums
from mtformer.run_dir import RunDir

Change = Callable[[Path], object]
VOCABULARY = "shared_vocabulary.json"


@pytest.fixture
def folder(make_trained: Make, tmp_path: Path) -> Path:
    """Return a converted model."""
    export(write_bundle(tmp_path / "run", *make_trained()), tmp_path / "out", None, "ctranslate2")
    return tmp_path / "out"


def _config(**values: Any) -> Change:
    def change(folder: Path) -> None:
        contents = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**contents, **values}))

    return change


def _pieces(convert: Callable[[list[str]], object]) -> Change:
    def change(folder: Path) -> None:
        pieces = json.loads((folder / VOCABULARY).read_text())
        (folder / VOCABULARY).write_text(json.dumps(convert(pieces)))

    return change


def _write(name: str, contents: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(contents)


CRAFTED: dict[str, tuple[Change, str]] = {
    "start token as a list": (_config(decoder_start_token=[1]), r"config.json: does not fit the tokenizer; export the"),
    "another start token": (_config(decoder_start_token="x"), r"config.json: does not fit the tokenizer"),
    "no end of the source": (_config(add_source_eos=False), r"config.json: does not fit the tokenizer"),
    "config as a list": (_write("config.json", b"[]"), r"config.json: does not fit the tokenizer"),
    "config that is no JSON": (_write("config.json", b"{"), r"config.json: not JSON"),
    "nested config": (_write("config.json", b"[" * 200_000), r"config.json: not JSON \(nested too deeply\)"),
    "other pieces": (_pieces(lambda pieces: ["x", *pieces[1:]]), rf"{VOCABULARY}: does not fit the tokenizer"),
    "pieces in another order": (_pieces(lambda pieces: pieces[::-1]), rf"{VOCABULARY}: does not fit the tokenizer"),
    "fewer pieces": (_pieces(lambda pieces: pieces[:-1]), rf"{VOCABULARY}: does not fit the tokenizer"),
    "pieces as an object": (_pieces(lambda pieces: {}), rf"{VOCABULARY}: does not fit the tokenizer"),
    "pieces that are not UTF-8": (_write(VOCABULARY, b'["\xff"]'), r"(not JSON|cannot be loaded) \('utf-8' codec"),
    "no vocabulary": (lambda folder: (folder / VOCABULARY).unlink(), r"source_vocabulary.json: missing; export the"),
    "empty vocabulary map": (_write("vmap.txt", b""), r"vmap.txt: not a vocabulary map of this model; export it again"),
    "vocabulary map of other pieces": (_write("vmap.txt", b"\tx yz\n"), r"vmap.txt: not a vocabulary map of this"),
    "vocabulary map without common pieces": (
        _write("vmap.txt", b"<unk>\t</s>\n"),
        r"vmap.txt: not a vocabulary map of",
    ),
    "vocabulary map that is not UTF-8": (_write("vmap.txt", b"\t\xff\n"), r"cannot be loaded \('utf-8' codec"),
}
"""Change of a folder, and the line that refuses it."""


@pytest.mark.parametrize(("change", "line"), CRAFTED.values(), ids=CRAFTED)
def test_crafted_models_are_refused_in_one_line(change: Change, line: str, folder: Path) -> None:
    """The checksums are correct, as those of an attacker would be."""
    change(folder)
    (folder / CHECKSUMS).unlink()
    write_checksums(folder)
    with pytest.raises(CheckpointError, match=line) as refused:
        Translator.load(folder)
    assert str(refused.value).isprintable()


def test_a_file_without_a_checksum_is_refused(folder: Path) -> None:
    """The library would read it."""
    (folder / "vmap.txt").write_text("\t</s>\n")
    with pytest.raises(CheckpointError, match=r"vmap.txt: truncated or changed since it was saved"):
        Translator.load(RunDir(folder).path)

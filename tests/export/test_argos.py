"""Packages for Argos Translate; scripts/parity_argos.py compares them with the library itself."""

import json
import logging
import os
import platform
import re
import zipfile
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
import sentencepiece
from program import invoke
from small import Make, config_of, random_lines, train_tokenizer, write_bundle

from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError
from mtformer.export import bundle as module
from mtformer.export.bundle import export
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import TokenizerPair

LINES = random_lines(20, seed=3)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_package_translates(bundle: RunDir, tmp_path: Path, quantization: str | None) -> None:
    """Argos Translate extracts the file, and passes the pieces of each sentence to CTranslate2."""
    export(bundle, tmp_path / "it.argosmodel", None, "argos", quantization)
    with zipfile.ZipFile(tmp_path / "it.argosmodel") as archive:
        archive.extractall(tmp_path / "packages")
    [package] = (tmp_path / "packages").iterdir()
    assert package.name == "translate-de_de"
    assert json.loads((package / "metadata.json").read_text()) == {
        "package_version": "1.0",
        "argos_version": "1.10",
        **{"from_code": "de", "from_name": "German", "to_code": "de", "to_name": "German"},
    }
    assert 'install_from_path("it.argosmodel")' in (package / "README.md").read_text()
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(package / "sentencepiece.model"))
    model = ctranslate2.Translator(str(package / "model"))
    assert model.compute_type == ("int8_float32" if quantization else "float32")
    pieces = [tokenizer.encode(line, out_type=str) for line in LINES]
    results = model.translate_batch(pieces, beam_size=4, max_decoding_length=60)  # the model has 64 positions
    own = Translator.load(bundle.path, precision=quantization, backend="ctranslate2")
    ours = own.translate(LINES, beam_size=4, early_stopping="ended")  # as Argos Translate calls the library
    same = sum(tokenizer.decode(a.hypotheses[0]) == b.text for a, b in zip(results, ours, strict=True))
    assert same == len(LINES) if quantization is None else same >= 0.8 * len(LINES)


def test_what_the_format_cannot_represent_is_refused(make_random: Make, tmp_path: Path) -> None:
    run = write_bundle(tmp_path / "run", *make_random(tie_embeddings="output"))
    with pytest.raises(
        ConfigError, match=r"^tokenizer\.joint false: not supported by Argos Translate; train with true"
    ):
        export(run, tmp_path / "it", None, "argos", None)
    with pytest.raises(ConfigError, match="quantization 'int4': not supported"):
        export(run, tmp_path / "it", None, "argos", "int4")
    for tags in ("source", "target"):
        run.config.write_text(re.sub("language_tags: .*", f"language_tags: {tags}", run.config.read_text()))
        with pytest.raises(ConfigError, match=f"'{tags}': not supported by Argos Translate; train with 'none', or use"):
            export(run, tmp_path / "it", None, "argos", None)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_byte_pieces_are_reported(byte_fallback: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = train_tokenizer(tmp_path, "bytes", 340, byte_fallback=byte_fallback)
    model = Transformer(config_of().model, tokenizer.vocab_size, tokenizer.vocab_size)
    run = write_bundle(tmp_path / "run", model, TokenizerPair(tokenizer, tokenizer))
    with caplog.at_level(logging.WARNING, "mtformer"):
        export(run, tmp_path / "it", None, "argos", None)
    assert ("tokenizer.byte_fallback: Argos Translate shows" in caplog.text) == byte_fallback


def test_a_package_is_written_whole_or_not_at_all(bundle: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before, words = (
        sorted(bundle.path.iterdir()),
        ("export", bundle.path, "--format", "argos", "--quantization", "int8"),
    )
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "copyfileobj", fail)
        result = invoke(*words)
    assert "argos.argosmodel: cannot be written: No space left on device; free some space" in result.stderr
    assert sorted(bundle.path.iterdir()) == before
    # What the command leaves if it is killed. No process has this ID.
    (bundle.path / f".argos.argosmodel@{platform.node()}.999999999.tmpab_12" / "model").mkdir(parents=True)
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (0, f"{bundle.path}/argos.argosmodel\n"), result.stderr
    assert sorted(bundle.path.iterdir()) == sorted([*before, bundle.path / "argos.argosmodel"])


def test_the_same_run_gives_the_same_package(bundle: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = [tmp_path / folder / "it" for folder in ("one", "two")]  # the model card contains the name
    export(bundle, packages[0], None, "argos", None)
    real = module.write_argos

    def with_other_times(folder: Path, *arguments: Any) -> None:
        real(folder, *arguments)
        for path in folder.rglob("*"):
            os.utime(path, (1_000_000_000, 1_000_000_000))

    monkeypatch.setattr("mtformer.export.bundle.write_argos", with_other_times)
    export(bundle, packages[1], None, "argos", None)
    assert packages[0].read_bytes() == packages[1].read_bytes()
    with zipfile.ZipFile(packages[0]) as archive:
        assert archive.testzip() is None
        assert all(info.external_attr >> 16 == 0o644 for info in archive.infolist())

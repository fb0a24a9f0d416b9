"""Packages for Argos Translate; scripts/parity_argos.py compares them with the library itself."""

import json
import re
import zipfile
from pathlib import Path

import ctranslate2
import pytest
import sentencepiece
from program import invoke
from small import Make, random_lines, write_bundle

from mtformer.decoding.translator import Translator
from mtformer.errors import CheckpointError, ConfigError, DataError
from mtformer.export import bundle as module
from mtformer.export.bundle import export_argos
from mtformer.files import write_checksums
from mtformer.run_dir import RunDir

LINES = random_lines(20, seed=3)


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_package_translates(bundle: RunDir, tmp_path: Path, quantization: str | None) -> None:
    """Argos Translate extracts the file, and passes the pieces of each sentence to CTranslate2."""
    export_argos(bundle, tmp_path / "it.argosmodel", None, quantization)
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
    results = model.translate_batch([tokenizer.encode(line, out_type=str) for line in LINES], beam_size=4)
    ours = Translator.load(bundle.path, precision=quantization, backend="ctranslate2").translate(LINES, beam_size=4)
    same = sum(tokenizer.decode(a.hypotheses[0]) == b.text for a, b in zip(results, ours, strict=True))
    assert same == len(LINES) if quantization is None else same >= 0.8 * len(LINES)


@pytest.mark.parametrize("tags", ["source", "target"])
def test_language_tags_are_refused(bundle: RunDir, tmp_path: Path, tags: str) -> None:
    bundle.config.write_text(re.sub("language_tags: .*", f"language_tags: {tags}", bundle.config.read_text()))
    write_checksums(bundle.path)
    with pytest.raises(ConfigError, match=f"'{tags}': not supported by --format argos; train with 'none'$"):
        export_argos(bundle, tmp_path / "it", None, None)


def test_separate_vocabularies_and_other_mistakes_are_refused(make_random: Make, tmp_path: Path) -> None:
    run = write_bundle(tmp_path / "run", *make_random(tie_embeddings="output"))
    with pytest.raises(ConfigError, match=r"^tokenizer\.joint false: not supported by Argos Translate"):
        export_argos(run, tmp_path / "it", None, None)
    with pytest.raises(ConfigError, match="quantization 'int4': not supported"):
        export_argos(run, tmp_path / "it", None, "int4")
    with pytest.raises(CheckpointError, match=f"{tmp_path}/run: already exists"):
        export_argos(run, tmp_path / "run", None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_package_is_written_whole_or_not_at_all(
    bundle: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "copyfile", fail)
        with pytest.raises(DataError, match="it: cannot be written: No space left on device; free some space"):
            export_argos(bundle, tmp_path / "it", None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_from_the_command_line(bundle: RunDir) -> None:
    result = invoke("export", bundle.path, "--format", "argos", "--quantization", "int8")
    assert (result.exit_code, result.stdout) == (0, f"{bundle.path}/argos.argosmodel\n"), result.stderr
    again = invoke("export", bundle.path, "--format", "argos")
    assert (again.exit_code, again.stderr.count("\n")) == (2, 1)
    assert "already exists" in again.stderr

"""A file that is replaced while a command reads it is never used under the checksum of the old one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from program import invoke
from safetensors.torch import load_file, save_file

from mtformer import weights as reading
from mtformer.config.loading import load_config
from mtformer.decoding import translator as translating
from mtformer.decoding.ctranslate2.conversion import cached_model
from mtformer.decoding.translator import Translator
from mtformer.errors import CheckpointError, MtformerError
from mtformer.evaluation.card import EvalSet
from mtformer.evaluation.evaluate import evaluate
from mtformer.experiment import train as training
from mtformer.experiment.prepare import prepare_experiment
from mtformer.files import cache_folder, file_sha256
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.text.tokenizer import TokenizerPair

CHANGED = "changed while it was being read; run the command again"


def other_weights(path: Path) -> Path:
    """Write other weights of the same size next to a file."""
    target = path.with_name("other.safetensors")
    save_file({name: tensor * 1.5 for name, tensor in load_file(path).items()}, target)
    return target


def replaced_after_reading(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a weight file immediately before the library opens it, after it was verified."""
    other = other_weights(path)

    def load(opened: Path) -> Any:
        if Path(opened) == path and other.exists():
            other.replace(path)
        return load_file(opened)

    monkeypatch.setattr(reading, "load_file", load)


COMMANDS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "translate": lambda run, new: ("translate", run),
    "export": lambda run, new: ("export", run, "--output", new),
    "ctranslate2": lambda run, new: ("export", run, "--format", "ctranslate2", "--output", new),
    "fine-tuning": lambda run, new: (
        *("train", RunDir(run).config, f"training.init_from={run}", "data.test={}", "training.max_steps=1"),
        *("--run-dir", new),
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_weights_that_are_replaced_after_their_verification_are_refused(
    command: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = RunDir(run).averaged / WEIGHTS
    replaced_after_reading(path, monkeypatch)
    new = tmp_path / "new"
    result = invoke(*COMMANDS[command](run, new), stdin=b"A dog runs.\n")
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert (result.exit_code, len(errors)) == (2, 1), result.stderr
    assert errors[0] == f"error: {path}: {CHANGED}" or errors[0].startswith(
        f"error: {path}: truncated or changed since"
    )
    assert not new.exists()


def test_a_conversion_of_other_weights_is_not_cached(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path / "cache"))
    opened, path = RunDir(run), RunDir(run).averaged / WEIGHTS
    with monkeypatch.context() as patch:
        replaced_after_reading(path, patch)
        with pytest.raises(CheckpointError, match=CHANGED):
            cached_model([path], load_config(opened.config).config.model, TokenizerPair.load(opened.tokenizer))
    assert not [one for one in (cache_folder() / "ctranslate2").iterdir() if not one.name.startswith(".")]


def test_a_damaged_conversion_is_repeated_whichever_file_is_damaged(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path / "cache"))
    words = ("translate", run, "--backend", "ctranslate2")
    expected = invoke(*words, stdin=b"A dog runs.\n").stdout
    [folder] = (cache_folder() / "ctranslate2").iterdir()
    files = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(files) >= 4
    for path, data in files.items():
        for changed in (
            data[:-1],
            data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
        ):
            path.write_bytes(changed)
            assert invoke(*words, stdin=b"A dog runs.\n").stdout == expected
            assert path.read_bytes() == data


def test_scores_are_recorded_for_the_weights_that_were_loaded(run: Path, tmp_path: Path) -> None:
    path = RunDir(run).averaged / WEIGHTS
    sha256 = file_sha256(path)
    translator = Translator.load(run, device="cpu")
    shutil.move(other_weights(path), path)
    card = evaluate(
        translator,
        EvalSet("set", ["A dog runs."], [["Ein Hund läuft."]]),
        load_config(RunDir(run).config).config.evaluation,
        tmp_path / "scores",
    )
    assert [one.sha256 for one in card.checkpoints] == [sha256]
    assert file_sha256(path) != sha256


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-50] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    ["checkpoints/step-00000012/model.safetensors", "checkpoints/step-00000012/trainer.pt", "tokenizer/joint.model"],
)
def test_files_that_are_damaged_while_the_data_are_prepared_are_refused(
    name: str, run: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were verified before, hours ago if the corpora are large; a tokenizer does not get a new checksum."""

    def prepare(*arguments: Any) -> Any:
        prepared = prepare_experiment(*arguments)
        flip(run / name)
        return prepared

    words = ("train", corpus / "small.yaml", "training.max_steps=13", "--run-dir", run, "--resume")
    expected = f"error: {run / name}: truncated or changed since it was saved"
    with monkeypatch.context() as patch:
        patch.setattr(training, "prepare_experiment", prepare)
        result = invoke(*words)
        assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr
    if name.startswith("tokenizer"):
        result = invoke(*words)
        assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("name", ["config.yaml", "tokenizer/joint.model", "data_report.json"])
def test_files_of_a_run_that_change_while_it_is_loaded_are_refused(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: Any) -> Any:
        flip(run / name)
        return load_config(*arguments)

    monkeypatch.setattr(translating, "load_config", load)
    with pytest.raises(MtformerError) as error:
        Translator.load(run, device="cpu")
    assert str(run / name) in str(error.value)

"""Modified, truncated or missing files of a run or export are refused with one line that names the file."""

import random
import shutil
from pathlib import Path

import pytest
from program import invoke

from mtformer.errors import CheckpointError
from mtformer.run_dir import RunDir

COMMANDS = {
    "run": ["translate", "--checkpoint", "averaged"],
    "bundle": ["translate"],
    "ctranslate2": ["translate", "--backend", "ctranslate2"],
    "huggingface": ["import", "again"],
}
"""Command that reads each kind of folder, with its arguments."""
READ = {"run": ("config.yaml", "checksums.json", "tokenizer/*", "checkpoints/averaged/*")}
FLIPS = 6
"""Number of bits that are flipped in each file."""


@pytest.fixture(params=COMMANDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, run: Path, tmp_path: Path) -> Path:
    """Return a run or an export of it."""
    if kind == "run":
        return run
    result = invoke("export", run, "--format", kind, "--output", tmp_path / kind)
    assert result.exit_code == 0, result.stderr
    return tmp_path / kind


def error_of(*arguments: object) -> str:
    """Return the only line that a failing command prints."""
    result = invoke(*arguments, stdin=b"A dog runs.\n")
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    [line] = result.stderr.splitlines()
    return str(line)


def test_flipped_bits_are_detected(kind: str, folder: Path, tmp_path: Path) -> None:
    command, *options = COMMANDS[kind]
    options = [str(tmp_path / option) if option == "again" else option for option in options]
    result = invoke(command, folder, *options, stdin=b"A dog runs.\n")
    assert kind == "huggingface" or result.exit_code == 0, result.stderr  # pre-norm models cannot be imported
    chance = random.Random(kind)
    files = [path for pattern in READ.get(kind, ("**/*",)) for path in sorted(folder.glob(pattern)) if path.is_file()]
    files = [file for file in files if file.name != "README.md"]  # which users edit
    assert len(files) >= 4
    for file in files:
        data = file.read_bytes()
        for _ in range(FLIPS):
            changed, place = bytearray(data), chance.randrange(len(data))
            changed[place] ^= 1 << chance.randrange(8)
            file.write_bytes(changed)
            line = error_of(command, folder, *options)
            assert line.startswith(f"error: {file}: "), place
            assert "changed since it was saved" in line or "not readable" in line
        file.unlink()
        if file.name != "config.yaml" and (kind, file.name) != ("huggingface", "checksums.json"):
            assert error_of(command, folder, *options).startswith(f"error: {file}: missing; ")
        file.write_bytes(data)


@pytest.mark.parametrize("kind", ["run", "bundle", "ctranslate2"], indirect=True)
def test_a_truncated_config_is_refused(kind: str, folder: Path) -> None:
    config = folder / "config.yaml"
    lines = config.read_bytes().splitlines(keepends=True)
    message = (
        f"{config}: truncated or changed since it was saved; restore it from a copy or export again; pass other "
        "settings on the command line"
    )
    for count in range(len(lines)):
        config.write_bytes(b"".join(lines[:count]))
        with pytest.raises(CheckpointError) as error:
            RunDir.open(folder)
        assert str(error.value) == message
    assert error_of(COMMANDS[kind][0], folder, *COMMANDS[kind][1:]) == f"error: {message}"
    assert invoke("config", "show", folder).exit_code == 0  # `config show` does not verify checksums


@pytest.mark.parametrize("name", ["config.yaml", "tokenizer/joint.model"])
def test_every_command_refuses_a_damaged_run(name: str, run: Path, corpus: Path, tmp_path: Path) -> None:
    data = (run / name).read_bytes()
    (run / name).write_bytes(data[:-1] + b"7")
    small, new = corpus / "small.yaml", tmp_path / "new"
    commands: list[tuple[object, ...]] = [
        *(
            ("export", run, "--format", kind, "--output", new)
            for kind in ("bundle", "ctranslate2", "huggingface", "argos")
        ),
        ("eval", run),
        ("score", run, corpus / "test.en", corpus / "test.de"),
        ("serve", run),
        ("reproduce", run),
        ("tokenizer", "encode", run),
        ("tokenizer", "decode", run),
        ("data", "check", run),
        ("train", run / "config.yaml", "--run-dir", new),
        ("train", small, f"training.init_from={run}", "--run-dir", new),
        ("train", small, "--run-dir", run, "--resume"),
    ]
    for command in commands:
        result = invoke(*command)
        assert (result.exit_code, result.stdout) == (2, ""), command
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, command
        assert f"{run / name}: truncated or changed since it was saved; restore it" in errors[0], command
        assert not new.exists()
    assert invoke("runs", run.parent).exit_code == 0


def test_a_run_or_export_without_checksums_is_refused(run: Path, corpus: Path, tmp_path: Path) -> None:
    assert invoke("export", run, "--output", tmp_path / "bundle").exit_code == 0
    for folder in (run, tmp_path / "bundle"):
        (folder / "checksums.json").unlink()
        message = (
            f"error: {folder / 'checksums.json'}: missing; restore it from a copy, export again, or train again with "
            "--overwrite"
        )
        assert error_of("translate", folder) == message
    assert error_of("train", corpus / "small.yaml", "--run-dir", run, "--resume").endswith(
        "train again with --overwrite"
    )


def test_weights_without_a_checksum_are_refused(run: Path) -> None:
    shutil.copyfile(run / "checkpoints" / "averaged" / "model.safetensors", run / "model.safetensors")
    assert error_of("translate", run).startswith(f"error: {run / 'model.safetensors'}: truncated or changed since")

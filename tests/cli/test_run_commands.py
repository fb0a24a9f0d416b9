"""`translate`, `eval`, `score` and `export` on a run and on a bundle."""

import contextlib
import importlib
import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from program import invoke
from typer.testing import Result

from mtformer.config.loading import load_config
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.weights import read_weights

HARD_LINES = ["The man sleeps.", "", "word " * 2_000, "   ", "日本語 ☃ \U0001f600", "a\u2028b\x0bc", "The man sleeps."]


@pytest.fixture
def bundle(trained: tuple[Path, Result], tmp_path: Path) -> Path:
    result = invoke("export", trained[0], "--format", "bundle", "--output", tmp_path / "bundle")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(tmp_path / "bundle")
    return tmp_path / "bundle"


def test_translate_writes_one_line_per_input_line(trained: tuple[Path, Result]) -> None:
    text = "".join(f"{line}\n" for line in HARD_LINES)
    result = invoke("translate", trained[0], "--min-length-ratio", 2, stdin=text.encode())
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.split("\n")
    assert len(lines) == len(HARD_LINES) + 1
    assert lines[1] == lines[3] == ""
    assert lines[0] == lines[6]
    assert "end at the maximum length" in result.stderr


def test_files_pipes_bundle_and_batch_size_give_equal_translations(
    trained: tuple[Path, Result], bundle: Path, corpus: Path, tmp_path: Path
) -> None:
    source = corpus / "test.en"
    piped = invoke("translate", trained[0], stdin=source.read_bytes()).stdout
    for run, options in ((trained[0], ["--beam-tokens", 30]), (bundle, [])):
        target = tmp_path / "out.de"
        result = invoke("translate", run, "--input", source, "--output", target, *options)
        assert result.exit_code == 0, result.stderr
        assert result.stdout == ""
        assert target.read_text() == piped
    assert (tmp_path / "bundle" / "config.yaml").is_file()
    assert sorted(path.name for path in bundle.iterdir()) == [
        "README.md",
        "checksums.json",
        "config.yaml",
        "data_report.json",
        "model.safetensors",
        "tokenizer",
    ]
    without_paths = {"data.train": [], "data.dev": [], "data.test": {}}
    config = load_config(trained[0] / "config.yaml").config
    assert load_config(bundle / "config.yaml").config == config.with_values(without_paths) != config


def test_checkpoint_and_decoding_options_have_an_effect(trained: tuple[Path, Result], corpus: Path) -> None:
    def first(*options: object) -> str:
        result = invoke("translate", trained[0], *options, stdin=(corpus / "test.en").read_bytes())
        assert result.exit_code == 0, result.stderr
        return result.stdout

    averaged = first("--checkpoint", "averaged")
    assert first() in (averaged, first("--checkpoint", "best"))
    assert averaged != first("--checkpoint", 4)
    assert first("--checkpoint", "last") == first("--checkpoint", 12)
    assert first("--checkpoint", RunDir(trained[0]).checkpoint(4)) == first("--checkpoint", 4)
    assert first("--precision", "bf16").count("\n") == averaged.count("\n")
    short = first("--max-length-ratio", 0.01)
    assert all(len(line.split()) <= 11 for line in short.splitlines())
    assert first("--beam-size", 1) != averaged or first("--beam-size", 5) != averaged


def test_eval_of_two_files_equals_the_test_set_of_the_config(
    trained: tuple[Path, Result], corpus: Path, tmp_path: Path
) -> None:
    result = invoke("eval", trained[0], "--src", corpus / "test.en", "--ref", corpus / "test.de", "--output", tmp_path)
    assert result.exit_code == 0, result.stderr
    of_files = json.loads((tmp_path / "test" / "scores.json").read_text())
    of_config = json.loads((RunDir(trained[0]).evaluation("small") / "scores.json").read_text())
    assert of_files["scores"] == of_config["scores"]
    assert f"{of_files['scores'][0]['value']:.2f}" in result.stdout


def test_every_command_can_average_the_last_checkpoints(run: Path, corpus: Path) -> None:
    source, target = corpus / "test.en", corpus / "test.de"
    averaged = [
        invoke("translate", run, "--checkpoint", name, "--input", source).stdout for name in ("averaged", "last:2")
    ]
    assert averaged[0] == averaged[1]
    for command in (("eval", run, "--src", source, "--ref", target), ("score", run, source, target), ("export", run)):
        result = invoke(*command, "--checkpoint", "last:2")
        assert result.exit_code == 0, result.stderr
    exported = read_weights(RunDir(run / "bundle").bundle_weights)
    for name, weight in read_weights(RunDir(run).averaged / WEIGHTS).items():
        assert torch.equal(exported[name], weight)
    result = invoke("translate", run, "--checkpoint", "last:4")
    assert result.exit_code == 2
    assert "4 checkpoints requested, but only 3 exist" in result.stderr


@pytest.mark.process
def test_translate_in_a_pipe(trained: tuple[Path, Result]) -> None:
    command = f"yes 'The man sleeps.' | head -n 5000 | {sys.executable} -m mtformer translate {trained[0]} | head -n 2"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=900, check=False)
    assert done.stdout.count("\n") == 2
    assert done.stderr == ""


def talk(run: Path, cache: Path, typed: bytes, out: Any) -> bytes:
    """Type at a terminal that also shows stderr, and return its contents."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mtformer", "translate", str(run)]
    environment = {**os.environ, "MTFORMER_CACHE": str(cache), "TERM": "dumb"}
    with subprocess.Popen(command, stdin=theirs, stdout=out or theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while not shown.endswith(b"> "):
            shown += os.read(ours, 1 << 16)
        os.write(ours, typed)
        with contextlib.suppress(OSError):  # end of file on Linux
            while found := os.read(ours, 1 << 16):
                shown += found
        os.close(ours)
    assert process.returncode == 0, shown
    return shown


@pytest.mark.process
def test_translate_is_interactive_at_a_terminal(trained: tuple[Path, Result], tmp_path: Path) -> None:
    """Lines can be edited and recalled; the prompt is not in the output."""
    texts = ["The woman sees a dog.", "The man sleeps."]
    woman, man = (invoke("translate", trained[0], stdin=f"{text}\n".encode()).stdout for text in texts)
    with (tmp_path / "out").open("wb") as out:
        shown = talk(
            trained[0], tmp_path, b"The man sleeps.\nThe dog\x15The woman sees a dog.\n\x1b[A\x1b[A\n\x04", out
        )
    assert b"type a sentence" in shown
    assert shown.count(b"\n> ") == 4
    assert (tmp_path / "out").read_text(encoding="utf-8") == man + woman + man


@pytest.mark.parametrize("kind", ["bundle", "ctranslate2", "huggingface"])
def test_an_export_shows_how_to_load_it(run: Path, kind: str) -> None:
    result = invoke("export", run, "--format", kind)
    assert result.stdout == f"{run}/{kind}\n"
    line = next(line for line in result.stderr.splitlines() if line.startswith("load it with: "))
    command = line.removeprefix("load it with: ")
    if kind == "bundle":
        shown = invoke(*shlex.split(command)[1:], stdin=b"The man sleeps.\n")
        assert shown.exit_code == 0, shown.stderr
        assert shown.stdout.count("\n") == 1
    else:
        module = command.split(".")[0]
        assert type(eval(command, {module: importlib.import_module(module)})).__module__.startswith(module)

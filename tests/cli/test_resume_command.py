"""`--resume`, `--resume auto` and `--verify-resume`."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from program import invoke

from mtformer.cli.train import join_resume
from mtformer.errors import ConfigError
from mtformer.experiment import verify
from mtformer.experiment.verify import Compared, Difference
from mtformer.files import cache_folder
from mtformer.run_dir import RunDir


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        ("c.yaml", "c.yaml"),
        ("c.yaml --resume", "c.yaml --resume=newest"),
        ("--resume c.yaml", "--resume=newest c.yaml"),
        ("--resume config", "--resume=newest config"),
        ("c.yaml --resume auto a.b=1", "c.yaml --resume=auto a.b=1"),
        ("--resume auto c.yaml", "--resume=auto c.yaml"),
        ("c.yaml --resume=auto --run-dir auto", "c.yaml --resume=auto --run-dir auto"),
        ("c.yaml --resume training.seed=3", "c.yaml --resume=newest training.seed=3"),
        ("c.yaml --resume --run-dir x", "c.yaml --resume=newest --run-dir x"),
        ("c.yaml --resume -- auto", "c.yaml --resume=newest -- auto"),
        ("c.yaml -- --resume auto", "c.yaml -- --resume auto"),
    ],
)
def test_resume_accepts_only_the_value_auto(
    words: str, joined: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").write_text("a config may have any name")
    assert join_resume(words.split()) == joined.split()


@pytest.mark.parametrize("words", ["--resume always", "--resume=always", "--resume=newest", "--resume=", "--resume 7"])
def test_other_values_of_resume_are_errors(words: str, corpus: Path) -> None:
    with pytest.raises(ConfigError, match="write --resume or --resume auto"):
        join_resume(["c.yaml", *words.split()])
    result = invoke("train", corpus / "small.yaml", *words.split())
    assert result.exit_code == 2
    assert result.stderr == f"error: {words}: the only value of --resume is auto; write --resume or --resume auto\n"


@pytest.mark.parametrize(
    "words",
    ["--resume auto --overwrite", "--resume --verify-resume", "--dry-run --verify-resume", "--resume --dry-run"],
)
def test_options_that_cannot_be_combined(words: str, corpus: Path) -> None:
    result = invoke("train", corpus / "small.yaml", *words.split())
    assert result.exit_code == 2
    assert "cannot be combined; give only one of them" in result.stderr


def test_resume_auto_starts_resumes_and_detects_finished_runs(corpus: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    settings = ["--run-dir", run.path, "data.test=", "training.average_last=0"]
    first = invoke("train", "--resume", "auto", corpus / "small.yaml", *settings, "training.max_steps=4")
    assert first.exit_code == 0, first.stderr
    assert "done at step 4 of 4" in first.stderr
    second = invoke("train", corpus / "small.yaml", "--resume", "auto", "training.max_steps=6", *settings)
    assert second.exit_code == 0, second.stderr
    assert "resumed at step 4 of 6" in second.stderr
    assert "done at step 6 of 6" in second.stderr
    third = invoke("train", corpus / "small.yaml", *settings, "training.max_steps=6", "--resume=auto")
    assert third.exit_code == 0, third.stderr
    assert "already at step 6 of 6" in third.stderr
    assert run.steps() == [4, 6]


@pytest.mark.process
def test_sigterm_during_tokenizer_training_exits_and_the_same_command_starts_again(
    corpus: Path, tmp_path: Path
) -> None:
    """Training SentencePiece on random words takes seconds, during which Python handles no signals."""
    letters = random.Random(1)
    words = ["".join(letters.choices("abcdefghijklmnop", k=8)) for _ in range(40_000)]
    lines = [" ".join(words[start : start + 10]) for start in range(0, len(words), 10)]
    for side, text in (("en", lines), ("de", lines[::-1])):
        (tmp_path / f"train.{side}").write_text("".join(f"{line}\n" for line in text))
    run = RunDir(tmp_path / "run")
    config = [str(corpus / "small.yaml"), f"data.train.0={{src: {tmp_path}/train.en, tgt: {tmp_path}/train.de}}"]
    settings = [*config, "training.max_steps=2", "data.test=", "data.dev=[]", "--run-dir", str(run.path)]
    command = [sys.executable, "-m", "mtformer", "train", *settings, "--resume", "auto"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not list(cache_folder().glob(".tokenizer-*")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM, errors
    assert not run.tokenizer.exists()
    done = invoke("train", *settings, "--resume", "auto")
    assert done.exit_code == 0, done.stderr
    assert "done at step 2 of 2" in done.stderr
    assert not list(run.path.glob(".*"))


# --verify-resume

NOISY = ("tokenizer.model_type=bpe", "data.noise.typos=0.1", "training.accumulation_steps=2")
"""Noise and 9 steps per epoch, so that the interruption is in the second epoch."""


def start_verifying(corpus: Path, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "mtformer", "train", "--verify-resume", corpus / "small.yaml", *NOISY],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)},
    )


@pytest.mark.process
def test_verify_resume_succeeds(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "small").mkdir(parents=True)
    (tmp_path / "runs" / "small" / "config.yaml").write_text("the user's run")
    process = start_verifying(corpus, tmp_path)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    rows = [line.split() for line in output.splitlines()]
    assert rows[0] == ["compared", "tensors", "numbers", "equal"]
    assert [row[0] for row in rows[1:]] == ["weights", "optimizer", "random", "position", "metrics", "checkpoints"]
    assert {row[-1] for row in rows[1:]} == {"yes"}
    assert int(rows[1][1]) > 10
    assert len(errors.splitlines()) == 3, errors
    assert not list(tmp_path.glob("mtformer-*"))
    assert [path.name for path in (tmp_path / "runs").rglob("*")] == ["small", "config.yaml"]
    assert (tmp_path / "runs" / "small" / "config.yaml").read_text() == "the user's run"


def test_verify_resume_reports_the_first_difference(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = Difference("step 4: train.loss", 1.0, 2.0)
    parts = [Compared("weights", 2, 9, None), Compared("metrics", 0, 3, loss), Compared("x", 0, 1, loss)]
    monkeypatch.setattr(verify, "verify_resume", lambda config: parts)
    result = invoke("train", "--verify-resume", corpus / "small.yaml")
    assert result.exit_code == 1
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["weights", "2", "9", "yes"], ["metrics", "0", "3", "no"], ["x", "0", "1", "no"],
    ]  # fmt: skip
    assert result.stderr.splitlines() == [
        "error: the resumed run differs from the uninterrupted one; first difference: metrics: step 4: train.loss"
    ]


@pytest.mark.process
def test_sigterm_during_verification_deletes_temporary_files(corpus: Path, tmp_path: Path) -> None:
    process = start_verifying(corpus, tmp_path)
    while not list(tmp_path.glob("mtformer-*/whole")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)  # also waits for the subprocess, which shares stderr
    assert process.returncode == 143
    assert not list(tmp_path.glob("mtformer-*"))

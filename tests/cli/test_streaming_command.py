"""`mtformer train` with data.streaming: the whole road without preparing, and a killed run that goes on."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from program import invoke

from mtformer.cli.progress import TrainingProgress
from mtformer.experiment.verify import compare_runs
from mtformer.rundir import WEIGHTS, RunDir

STREAMED = (
    "data.streaming=true", "data.stream_buffer=90", "data.test=", "data.noise.word_dropout=0.1",
    "training.batch_tokens=512", "training.max_steps=60", "training.validate_every=6", "training.average_last=0",
    "training.precision=fp32",
)  # fmt: skip
"""About 4 steps a buffer, and 7 buffers a pass."""


@pytest.fixture(autouse=True)
def _own_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a lock file reaches the user's cache."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hub_cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hub_cache"))


@pytest.fixture(params=["gz", "hub"])
def source(request: pytest.FixtureRequest, corpus: Path, tmp_path: Path) -> str:
    """An override that names the training corpus, packed or as a folder of a data set."""
    lines = {side: (corpus / f"train.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")}
    if request.param == "gz":
        for side, text in lines.items():
            with gzip.open(tmp_path / f"x.{side}.gz", "wt", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in text)
        return f"data.train=[{{src: {tmp_path}/x.en.gz, tgt: {tmp_path}/x.de.gz}}]"
    import datasets

    (tmp_path / "set").mkdir()
    rows = [{"translation": {"en": en, "de": de}} for en, de in zip(lines["en"], lines["de"], strict=True)]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "set" / "train.parquet")
    return f"data.train=[{{dataset: {tmp_path}/set}}]"


def test_a_killed_run_ends_as_the_one_that_never_stopped(
    source: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)  # as in the process that is killed
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path / "cache"))
    whole, killed = RunDir(tmp_path / "whole"), RunDir(tmp_path / "killed")
    settings = [str(corpus / "small.yaml"), source, *STREAMED]
    result = invoke("train", *settings, "--run-dir", whole.path)
    assert result.exit_code == 0, result.stderr
    assert "the tokenizer sees the first 2,000,000 lines of all sources together" in result.stderr
    assert "train: has 600 records, and begins anew; read so far 600, kept " in result.stderr
    report = json.loads(whole.data_report.read_text())
    assert report["read"] >= 13 * 90  # 60 steps of about 4 a buffer
    assert report["read"] == report["kept"] + sum(report["left_out"].values())
    assert len(list((tmp_path / "cache").glob("*/store.json"))) == 1  # dev's

    command = [sys.executable, "-m", "mtformer", "train", *settings, "--run-dir", str(killed.path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    deadline = time.monotonic() + 120
    while 36 not in killed.steps():  # in the second pass
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert 36 <= killed.steps()[-1] < 60

    result = invoke("train", *settings, "--run-dir", killed.path, "--resume")
    assert result.exit_code == 0, result.stderr
    assert "not the same run" not in result.stderr
    assert [part for part in compare_runs(whole, killed) if part.first_difference is not None] == []
    weights = [(run.checkpoint(60) / WEIGHTS).read_bytes() for run in (whole, killed)]
    assert weights[0] == weights[1]


def test_a_run_that_is_stopped_tells_what_it_has_read(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_at_step(self: TrainingProgress, step: int, epoch: int, figures: dict[str, float] | None) -> None:
        if step == 30:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TrainingProgress, "advance", stop_at_step)
    run = RunDir(tmp_path / "run")
    settings = [f"data.train=[{{src: {corpus}/train.en, tgt: {corpus}/train.de}}]", *STREAMED, "data.dev=[]"]
    result = invoke("train", corpus / "small.yaml", *settings, "--run-dir", run.path)
    assert result.exit_code == 128 + signal.SIGTERM, result.stderr
    assert json.loads(run.data_report.read_text())["read"] >= 6 * 90


def test_other_files_are_told_on_resuming(corpus: Path, tmp_path: Path) -> None:
    for side in ("en", "de"):
        (tmp_path / f"x.{side}").write_bytes((corpus / f"train.{side}").read_bytes())
    settings = [corpus / "small.yaml", f"data.train=[{{src: {tmp_path}/x.en, tgt: {tmp_path}/x.de}}]", *STREAMED]
    run = tmp_path / "run"
    assert invoke("train", *settings, "training.max_steps=6", "--run-dir", run).exit_code == 0
    for side in ("en", "de"):
        with open(tmp_path / f"x.{side}", "a", encoding="utf-8") as file:
            file.write("more\n")
    result = invoke("train", *settings, "training.max_steps=12", "--run-dir", run, "--resume")
    assert result.exit_code == 0, result.stderr
    (told,) = [line for line in result.stderr.splitlines() if "resuming with training data" in line]
    assert told.endswith("(from here on not the same run as one that never stopped)")


def test_dry_run_says_what_the_first_buffer_held(
    source: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = invoke("train", corpus / "small.yaml", source, *STREAMED, "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "streamed; 90 of the first 90 kept" in result.stdout
    assert "steps per buffer" in result.stdout
    assert "epoch" not in result.stdout
    assert list(Path().iterdir()) == []


def test_every_source_has_its_part_in_the_tokenizer(corpus: Path, tmp_path: Path) -> None:
    """The first lines are those of all sources in turn: a letter that only the second one has gets its piece."""
    for name, word in (("a", "aba"), ("b", "xyx")):
        for side in ("en", "de"):
            text = "".join(f"{word} {side} {number}\n" for number in range(400))
            (tmp_path / f"{name}.{side}").write_text(text, encoding="utf-8")
    sources = ", ".join(f"{{src: {tmp_path}/{name}.en, tgt: {tmp_path}/{name}.de}}" for name in ("a", "b"))
    run = RunDir(tmp_path / "run")
    settings = ["tokenizer.vocab_size=24", "tokenizer.train_sentences=200", "training.max_steps=2", "data.dev=[]"]
    filters = ["data.filters.drop_different_numbers=false", "data.filters.drop_other_languages=false"]
    result = invoke(
        "train", corpus / "small.yaml", *STREAMED, f"data.train=[{sources}]", *settings, *filters, "--run-dir", run.path
    )
    assert result.exit_code == 0, result.stderr
    assert "the tokenizer sees the first 200 lines of all sources together" in result.stderr
    from mtformer.text.tokenizer import UNK, TokenizerPair

    (ids,) = TokenizerPair.load(run.tokenizer).src.encode(["xyx"])
    assert UNK not in ids


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["data.temperature=2"], "temperature needs the sizes of the corpora, which are not known with streaming"),
        (["training.max_epochs=2"], "training.max_epochs needs the size of the data, which is not known"),
        (["data.train=[{dataset: wmt/wmt14, name: de-en}]"],
         "wmt/wmt14 de-en train: the Hugging Face hub cannot be reached; check the connection, or give a folder"),
        (["data.train=[{tsv: none.tsv}]"], "none.tsv: no such file; check the path"),
        (["data.filters.max_tokens=3"], "pairs are left out (too long "),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_one_line(settings: list[str], told: str, corpus: Path, tmp_path: Path) -> None:
    result = invoke("train", corpus / "small.yaml", *STREAMED, *settings, "--run-dir", tmp_path / "run")
    assert result.exit_code == 2
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert told in result.stderr
    assert not (tmp_path / "run").exists()

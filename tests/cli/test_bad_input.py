"""User errors: each gives exit code 2 and one clear line."""

import errno
import gzip
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from program import invoke

from mtformer.run_dir import RunDir, write_config

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


def error_of(*arguments: object) -> str:
    """Return the only error line of a call that must fail."""
    result = invoke(*arguments)
    assert result.exit_code == 2, (result.exit_code, result.stderr)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, result.stderr
    assert "Traceback" not in result.stderr
    return errors[0]


def cut_line(corpus: Path, folder: Path) -> list[object]:
    (folder / "short.de").write_text("\n".join((corpus / "train.de").read_text().splitlines()[:-1]) + "\n")
    return [f"data.train.0.tgt={folder / 'short.de'}"]


def bad_utf8(corpus: Path, folder: Path) -> list[object]:
    (*_, rest) = (corpus / "train.en").read_bytes().split(b"\n", 3)
    (folder / "bad.en").write_bytes(b"good\ngood\nb\xffd\n" + rest)
    return [f"data.train.0.src={folder / 'bad.en'}"]


def empty(corpus: Path, folder: Path) -> list[object]:
    (folder / "empty").write_text("")
    return [f"data.train=[{{src: {folder / 'empty'}, tgt: {folder / 'empty'}}}]"]


def cut_gz(corpus: Path, folder: Path) -> list[object]:
    (folder / "cut.de.gz").write_bytes(gzip.compress((corpus / "train.de").read_bytes())[:-9])
    return [f"data.train.0.tgt={folder / 'cut.de.gz'}"]


def second_source(ending: str, text: str) -> Callable[[Path, Path], list[object]]:
    """Return a call with an additional bad source."""

    def make(corpus: Path, folder: Path) -> list[object]:
        (folder / f"x.{ending}").write_text(text)
        good = f"{{src: {corpus}/train.en, tgt: {corpus}/train.de}}"
        return [f"data.train=[{good}, {{{ending}: {folder}/x.{ending}}}]"]

    return make


def weighing(weight: float) -> Callable[[Path, Path], list[object]]:
    return lambda c, f: [f"data.corpora={{x: {{sources: [{{src: {c}/dev.en, tgt: {c}/dev.de}}], weight: {weight}}}}}"]


@pytest.mark.parametrize(
    ("make", "fragments"),
    [
        (lambda c, f: ["data.train.0.src=nowhere.en"], ["nowhere.en", "no such file"]),
        (lambda c, f: ["data.dev.0.src=nowhere.en"], ["nowhere.en", "no such file"]),
        (lambda c, f: ["data.test.small.src=nowhere.en"], ["nowhere.en", "no such file"]),
        (cut_line, ["train.en", "600 lines", "short.de", "599"]),
        (cut_gz, ["cut.de.gz: the compressed file is damaged or truncated", "copy it again"]),
        (second_source("tsv", "a\tb\nc\n"), ["x.tsv:2: tgt_column is 2, but the number of columns is 1"]),
        (second_source("jsonl", '{"en": "a", "de": "b"}\n{"en": '), ["x.jsonl:2: not JSON (Expecting value"]),
        (second_source("jsonl", '{"en": "a", "fr": "b"}\n'), ["x.jsonl:1: no field 'de' (found: en, fr)", "tgt_field"]),
        (
            lambda c, f: ["data.train.0={dataset: x/y}"],
            ["x/y train: the Hugging Face Hub cannot be reached", "hf down"],
        ),
        (weighing(0), ["data.corpora.x.weight: must be above 0, not 0"]),
        (bad_utf8, ["bad.en:3", "UTF-8"]),
        (empty, ["empty"]),
        (lambda c, f: ["tokenizer.vocab_size=20000"], ["tokenizer.vocab_size", "20000"]),
        (lambda c, f: ["training.precision=fp16"], ["fp16", "CUDA"]),
        (lambda c, f: ["data.train=[]"], ["data.train"]),
    ],
)
def test_train_errors(
    make: Callable[[Path, Path], list[object]], fragments: list[str], corpus: Path, tmp_path: Path
) -> None:
    message = error_of("train", corpus / "small.yaml", *make(corpus, tmp_path), "--run-dir", tmp_path / "run")
    for fragment in fragments:
        assert fragment in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("override", ["data.test.small.src=nowhere.en", "tokenizer.vocab_size=20000"])
def test_a_dry_run_reports_the_same_errors(override: str, corpus: Path, tmp_path: Path) -> None:
    config = corpus / "small.yaml"
    assert error_of("train", config, override, "--dry-run") == error_of(
        "train", config, override, "--run-dir", tmp_path / "run"
    )


@pytest.mark.parametrize(
    "make",
    [
        second_source("tsv", "a\n"),
        second_source("jsonl", "{"),
        lambda c, f: [f"data.dev=[{{src: {c}/dev.en, tgt: {c}/test.de}}, {{src: {c}/dev.en, tgt: {c}/train.de}}]"],
        lambda c, f: ["data.corpora={x: {sources: [{src: nowhere.en, tgt: nowhere.de}]}}"],
        lambda c, f: ["data.test.small.tgt=nowhere.de"],
    ],
)
def test_cheap_checks_run_before_tokenizer_training(
    make: Callable[[Path, Path], list[object]], corpus: Path, tmp_path: Path
) -> None:
    result = invoke("train", corpus / "small.yaml", *make(corpus, tmp_path), "--run-dir", tmp_path / "run")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_during_tokenizer_training(
    corpus: Path, trained: tuple[Path, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model = tmp_path / "run", trained[0] / "tokenizer" / "joint.model"
    monkeypatch.setattr("mtformer.experiment.prepare.train_tokenizer", full_disk)
    monkeypatch.setattr("pathlib.Path.write_bytes", full_disk)
    for settings in ([], [f"tokenizer.src_model={model}"]):
        message = error_of("train", corpus / "small.yaml", *settings, "--run-dir", run)
        reason = "cannot be written: No space left on device; free some space, or choose another folder"
        assert message == f"error: {run}/tokenizer: the tokenizer {reason}"
        assert not run.exists()
    cache = tmp_path / "cache"
    message = error_of("train", corpus / "small.yaml", f"data.cache_dir={cache}", "--run-dir", run)
    assert message.startswith(f"error: {cache}: the tokenizer cannot be written: No space left on device; free some ")
    assert message.endswith("set data.cache_dir to another folder")


def test_a_full_disk_during_tokenization(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr("mtformer.data.store.prepare.write_shard", full_disk)
    settings = [f"data.cache_dir={cache}", "--run-dir", tmp_path / "run"]
    message = error_of("train", corpus / "small.yaml", *settings)
    assert message.startswith(f"error: {cache}: the tokenized corpus cannot be written: No space left on device; free")
    assert "data.cache_dir" in message
    assert not (tmp_path / "run").exists()
    others = [path for path in cache.iterdir() if path.name != ".locks" and not path.name.startswith("tokenizer-")]
    assert [path.suffix for path in others] == [".building"]


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_store(damage: str, corpus: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    settings = [corpus / "small.yaml", f"data.cache_dir={cache}", "data.dev=[]", "data.test="]
    assert invoke("train", *settings, "--dry-run").exit_code == 0
    (path,) = cache.glob("*/shard-00000.arrow")
    content = path.read_bytes()
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    path.write_bytes(content[:-1] if damage == "cut" else changed)
    message = error_of("train", *settings, "--run-dir", tmp_path / "run")
    assert "damaged or changed" in message
    assert f"delete the folder {path.parent} to prepare the corpus again" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ("train CORPUS/small.yaml --run-dir RUN", ["already exists", "--resume", "--overwrite"]),
        ("train CORPUS/small.yaml --run-dir CORPUS/x --resume", ["nothing to resume"]),
        ("train CORPUS/small.yaml --run-dir CORPUS/x training.patience=2 data.dev=[]", ["patience needs data.dev"]),
        ("translate CORPUS", ["not a run directory"]),
        ("eval CORPUS", ["not a run directory"]),
        ("translate RUN --checkpoint 5", ["no checkpoint '5'", "4, 8, 12"]),
        ("eval RUN --src CORPUS/test.en", ["--ref"]),
        ("translate RUN --device gpu", ["use auto, cpu or cuda"]),
        ("eval RUN --precision int9", ["use auto, fp32, bf16 or fp16"]),
        pytest.param("train CORPUS/small.yaml --run-dir CORPUS/x training.device=cuda", ["'cuda'"], marks=WITHOUT_GPU),
        pytest.param("translate RUN --device cuda", ["'cuda'"], marks=WITHOUT_GPU),
    ],
)
def test_wrong_arguments(words: str, fragments: list[str], trained: tuple[Path, object], corpus: Path) -> None:
    places = {"CORPUS": str(corpus), "RUN": str(trained[0])}
    message = error_of(*(re.sub("CORPUS|RUN", lambda name: places[name[0]], word) for word in words.split()))
    for fragment in fragments:
        assert fragment in message


@pytest.mark.parametrize(
    "words",
    [
        "translate RUN --input IN --output IN",
        "translate RUN --input IN --prefixes OUT --output OUT",
        "translate RUN --input IN --glossary OUT --json-attention --json --output OUT",
        "data check IN OUT --src-lang en --tgt-lang de --json IN",
        "data check IN OUT --src-lang en --tgt-lang de --html ./OUT",
        "exam RUN --src IN --ref OUT --json OUT",
    ],
)
def test_an_output_does_not_replace_an_input(
    words: str, trained: tuple[Path, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("IN", "OUT"):
        Path(name).write_text("The man sleeps.\tDer Mann.\n")
    message = error_of(*words.replace("RUN", str(trained[0])).split())
    assert "is also an input; name another file" in message
    assert {Path(name).read_text() for name in ("IN", "OUT")} == {"The man sleeps.\tDer Mann.\n"}


def test_a_truncated_checkpoint(run: Path, corpus: Path) -> None:
    for weights in (RunDir(run).averaged / "model.safetensors", RunDir(run).checkpoint(8) / "model.safetensors"):
        data = bytearray(weights.read_bytes())
        data[-100] ^= 1
        weights.write_bytes(data)
        for command in ("translate", "eval", "export"):
            message = error_of(command, run, "--checkpoint", weights.parent, *_output(command, run.parent))
            assert message.startswith(f"error: {weights}: truncated or changed since it was saved; use another")
    assert "step-00000008" in error_of("export", run, "--checkpoint", "last:2")
    last = RunDir(run).checkpoint(12) / "trainer.pt"
    last.write_bytes(last.read_bytes()[:-100])
    for step in (4, 8):
        (RunDir(run).checkpoint(step) / "meta.json").write_text("")
    message = error_of("train", corpus / "small.yaml", "training.max_steps=16", "--run-dir", run, "--resume")
    assert "no intact checkpoint; damaged: 3 (step-00000012: trainer.pt is truncated or changed" in message


def _output(command: str, folder: Path) -> list[object]:
    return ["--output", folder / "bundle"] if command == "export" else []


def test_a_checkpoint_of_another_config(run: Path) -> None:
    config = RunDir(run).config
    write_config(RunDir(run), config.read_text().replace("d_ff: 64", "d_ff: 96"))
    message = error_of("translate", run)
    assert "does not fit the config" in message
    assert "64" in message
    assert "96" in message


@pytest.mark.process
def test_a_full_disk_during_saving_keeps_the_last_checkpoint(run: Path, corpus: Path) -> None:
    """A file size limit makes writes fail in the middle of a file, like a full disk."""
    before = {p: p.read_bytes() for p in RunDir(run).checkpoint(12).iterdir()}
    limit = (RunDir(run).checkpoint(12) / "model.safetensors").stat().st_size // 2
    command = [sys.executable, "-m", "mtformer", "train", corpus / "small.yaml", "training.max_steps=16"]
    done = subprocess.run(
        [*command, "--run-dir", run, "--resume"],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    assert "could not be saved" in errors[0]
    assert "the last good checkpoint is step 12" in errors[0]
    assert "Traceback" not in done.stderr
    assert before == {p: p.read_bytes() for p in RunDir(run).checkpoint(12).iterdir()}
    assert RunDir(run).steps() == [4, 8, 12]
    assert not list(RunDir(run).checkpoints.glob(".*"))

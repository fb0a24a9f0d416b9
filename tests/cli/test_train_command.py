"""`mtformer train`: files of the run, scores, resuming and interruption."""

import gzip
import json
import lzma
import re
import signal
import time
from pathlib import Path

import pytest
from forked import Program
from program import invoke
from typer.testing import Result

from mtformer.config.loading import load_config
from mtformer.files import read_meta
from mtformer.run_dir import RunDir


def test_training_ends_with_scores_and_next_steps(trained: tuple[Path, Result], run: Path) -> None:
    copy, run, result = run, RunDir(trained[0]), trained[1]
    assert run.steps() == [4, 8, 12]
    assert run.averaged.is_dir()
    assert f"{run.path}: commands use the " in result.stderr
    scores = json.loads((run.evaluation("small") / "scores.json").read_text())
    assert [score["label"] for score in scores["scores"]] == ["BLEU", "chrF2++", "TER"]
    for score in scores["scores"]:
        assert f"{score['label']}: {score['signature']}" in result.stdout
    assert len((run.evaluation("small") / "hypotheses.txt").read_text().splitlines()) == 20
    assert "tokens/s" in result.stderr
    assert "hypothesis" in result.stderr
    _, _, end = result.stderr.partition(f"run directory: {run.path}\nnext steps:\n")
    commands = [line.partition("  # ")[0].split() for line in end.splitlines()]
    assert [command[:2] for command in commands] == [
        ["mtformer", name] for name in ("translate", "report", "eval", "exam", "export", "runs")
    ]
    assert [command[2:] for command in commands] == [*[[str(run.path)]] * 5, [str(run.path.parent)]]
    for _, *arguments in commands:
        options = ["--lines", "1"] if arguments[0] == "exam" else []
        copied = [argument.replace(str(run.path), str(copy)) for argument in arguments]
        shown = invoke(*copied, *options, stdin=b"The man sleeps.\n")
        assert shown.exit_code == 0, shown.stderr
    assert "  # write a page with curves and sentences" in end
    assert re.search(r"step 12: dev loss .* perplexity .* bleu .* chrf", result.stderr)


def test_a_run_has_its_config_metrics_and_log(trained: tuple[Path, Result], corpus: Path) -> None:
    run = RunDir(trained[0])
    config = load_config(run.config).config
    assert config == load_config(corpus / "small.yaml").config
    report = json.loads(run.data_report.read_text())
    assert report
    kinds = [json.loads(line)["kind"] for line in run.metrics.read_text().splitlines()]
    assert kinds.count("dev") == kinds.count("train") == 3
    assert "dev loss" in run.log.read_text()


def test_the_saved_config_gives_the_same_weights(trained: tuple[Path, Result], tmp_path: Path) -> None:
    result = invoke("train", RunDir(trained[0]).config, "--run-dir", tmp_path / "again")
    assert result.exit_code == 0, result.stderr
    one, other = (RunDir(path).checkpoint(12) / "model.safetensors" for path in (trained[0], tmp_path / "again"))
    assert one.read_bytes() == other.read_bytes()


def test_resume_continues_and_logs_changes(run: Path, corpus: Path) -> None:
    result = invoke("train", corpus / "small.yaml", "training.max_steps=16", "--run-dir", run, "--resume")
    assert result.exit_code == 0, result.stderr
    assert "training.max_steps 12 -> 16" in result.stderr
    precisions = {read_meta(RunDir(run).checkpoint(step))["made_with"]["precision"] for step in RunDir(run).steps()}
    assert len(precisions) == 1
    assert "resumed at step 12 of 16" in result.stderr
    assert RunDir(run).steps()[-1] == 16


@pytest.mark.parametrize(("dev", "loss"), [([], "dev"), (["data.dev=[]"], "training")])
def test_diverged_training_ends_with_one_line_and_no_bad_weights(
    corpus: Path, tmp_path: Path, dev: list[str], loss: str
) -> None:
    path = tmp_path / "run"
    result = invoke("train", corpus / "small.yaml", "training.learning_rate=1e30", *dev, "--run-dir", path)
    assert result.exit_code == 2
    message = f"step 4: the {loss} loss is not finite; there is no earlier checkpoint. Lower training.learning_rate, "
    assert result.stderr.splitlines()[-1].startswith(f"error: {message}")
    assert result.stderr.count("error: ") == 1
    assert RunDir(path).checkpoint_folders() == []
    assert json.loads(RunDir(path).state.read_text())["state"] == "failed"
    result = invoke("translate", path, stdin=b"The man sleeps.\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {path}: it has no checkpoint yet; train it first\n"


def test_overwrite_starts_a_new_run(run: Path, corpus: Path) -> None:
    (run / "eval" / "small" / "hypotheses.txt").write_text("old\n")
    result = invoke("train", corpus / "small.yaml", "training.max_steps=4", "--run-dir", run, "--overwrite")
    assert result.exit_code == 0, result.stderr
    assert RunDir(run).steps() == [4]
    assert (run / "eval" / "small" / "hypotheses.txt").read_text() != "old\n"


def test_dry_run_checks_without_training(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("train", corpus / "small.yaml", "--dry-run")
    assert result.exit_code == 0, result.stderr
    for what in ("vocabulary", "training pairs", "steps per epoch", "parameters, total", "memory", "largest batch"):
        assert what in result.stdout
    assert "test sets                    small\n" in result.stdout
    assert list(tmp_path.iterdir()) == []
    sized = invoke("config", "show", "--recommend", corpus / "small.yaml").stdout
    (corpus / "sized.yaml").write_text(sized)
    assert "no changes\n" in invoke("train", corpus / "sized.yaml", "--dry-run").stdout


@pytest.mark.parametrize(
    ("overrides", "fitting"),
    [
        (["training.max_steps=100000000"], "training.max_minutes=60"),
        (
            ["training.max_steps=100000000", "training.max_epochs=10000000"],
            "training.max_minutes=60 training.max_epochs=null",
        ),
        (["training.max_steps=1"], None),
    ],
)
def test_a_dry_run_says_what_fits_in_an_hour(overrides: list[str], fitting: str | None, corpus: Path) -> None:
    result = invoke("train", corpus / "small.yaml", "--dry-run", *overrides)
    assert result.exit_code == 0, result.stderr
    found = [
        line.split(maxsplit=5)[5] for line in result.stdout.splitlines() if line.startswith("to train for an hour")
    ]
    assert found == ([] if fitting is None else [fitting])


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_dry_run_keeps_tokenizer_and_data_for_training(
    is_damaged: bool, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [corpus / "small.yaml", f"data.cache_dir={tmp_path}/cache", "training.max_steps=1", "data.test={}"]
    result = invoke("train", *settings, "--dry-run")
    assert result.exit_code == 0, result.stderr
    (kept,) = (tmp_path / "cache").glob("tokenizer-*/joint.model")
    model = kept.read_bytes()
    if is_damaged:
        kept.write_bytes(model[:-1])
    else:
        monkeypatch.delattr("mtformer.experiment.prepare.train_tokenizer")
        monkeypatch.delattr("mtformer.data.store.prepare._make")
    result = invoke("train", *settings, "--run-dir", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "run" / "tokenizer" / "joint.model").read_bytes() == kept.read_bytes() == model


@pytest.mark.process
def test_ctrl_c_saves_and_shows_how_to_resume(corpus: Path, tmp_path: Path) -> None:
    """Test Ctrl-C only; test_kill.py tests SIGTERM."""
    run = RunDir(tmp_path / "run")
    endless = ["training.max_steps=100000", "training.log_every=1", "training.validate_every=100000"]
    program = Program(
        "train", corpus / "small.yaml", "--run-dir", run.path, *endless, stderr=tmp_path / "stderr"
    )  # fmt: skip
    while not (run.metrics.is_file() and '"step": 3' in run.metrics.read_text()):
        assert program.exit_code is None, program.stderr.read_text()
        time.sleep(0.01)
    program.signal(signal.SIGINT)
    assert program.wait() == 128 + signal.SIGINT
    step = run.steps()[-1]
    last = program.stderr.read_text().strip().splitlines()[-1]
    assert last.startswith(f"stopped at step {step}, checkpoint saved; resume with: mtformer train")
    assert last.endswith("--resume")
    result = invoke("train", corpus / "small.yaml", f"training.max_steps={step + 1}", "--run-dir", run.path, "--resume")
    assert result.exit_code == 0, result.stderr
    assert run.steps()[-1] == step + 1


def test_training_with_all_kinds_of_sources_and_separate_vocabularies(corpus: Path, tmp_path: Path) -> None:
    """Each kind of source has 100 different lines of a corpus; the data report counts all of them."""
    pairs = list(zip(*((corpus / f"train.{side}").read_text().splitlines() for side in ("en", "de")), strict=True))
    with gzip.open(tmp_path / "a.en.gz", "wt") as en, lzma.open(tmp_path / "a.de.xz", "wt") as de:
        en.writelines(f"{src}\n" for src, _ in pairs[:100])
        de.writelines(f"{tgt}\n" for _, tgt in pairs[:100])
    (tmp_path / "b.tsv").write_text("".join(f"{n}\t{tgt}\t{src}\n" for n, (src, tgt) in enumerate(pairs[100:200])))
    rows = [json.dumps({"id": 1, "text": {"en": src, "de": tgt}}) for src, tgt in pairs[200:300]]
    (tmp_path / "c.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "hub").mkdir()
    rows = [json.dumps({"translation": {"en": src, "de": tgt}}) for src, tgt in pairs[300:400]]
    (tmp_path / "hub" / "train.jsonl").write_text("\n".join(rows) + "\n")
    sources = (
        f"[{{src: {tmp_path}/a.en.gz, tgt: {tmp_path}/a.de.xz}}, "
        f"{{tsv: {tmp_path}/b.tsv, src_column: 3, tgt_column: 2}}, "
        f"{{jsonl: {tmp_path}/c.jsonl, src_field: text.en, tgt_field: text.de}}, {{dataset: {tmp_path}/hub}}]"
    )
    separate = ["tokenizer.joint=false", "model.tie_embeddings=output", "tokenizer.vocab_size=200"]
    noisy = ["tokenizer.model_type=bpe", "data.noise.typos=0.1"]
    run = RunDir(tmp_path / "run")
    result = invoke("train", corpus / "small.yaml", f"data.train={sources}", *separate, *noisy, "--run-dir", run.path)
    assert result.exit_code == 0, result.stderr
    assert json.loads(run.data_report.read_text())["read"] == 400
    assert sorted(path.name for path in run.tokenizer.iterdir()) == ["src.model", "tgt.model"]
    result = invoke("translate", run.path, stdin=b"The man sleeps.\n")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1

"""Tests of training on a small corpus: stopping, resuming, changed data and settings, averaging."""

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from small_experiment import make_config, train, write_corpus

from mtformer.config.schema import Config, EvaluationConfig
from mtformer.decoding.lines.postprocessing import Postprocessor
from mtformer.decoding.loading import from_data_report
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import find_weights
from mtformer.errors import CheckpointError, ConfigError, DeviceError, InterruptedRunError, MtformerError
from mtformer.evaluation import scores
from mtformer.experiment.prepare import prepare_experiment
from mtformer.experiment.resume import INEXACT, describe_environment
from mtformer.experiment.run_state import lock_run, read_state
from mtformer.experiment.runs import RunContents
from mtformer.experiment.train import num_noise_processes
from mtformer.experiment.verify import StopAt
from mtformer.export.bundle import export
from mtformer.files import read_meta
from mtformer.model.transformer import Transformer
from mtformer.run_dir import WEIGHTS, RunDir, write_config
from mtformer.training.checkpoint import load_trainer_state
from mtformer.training.figures import TIMINGS
from mtformer.training.history import read_records
from mtformer.training.step import TrainingStep
from mtformer.training.validation import Validator


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"), train=300, dev=24)


@pytest.fixture
def folder(corpus: Path, tmp_path: Path) -> Path:
    """Return a copy of the corpus that a test may modify."""
    return Path(shutil.copytree(corpus, tmp_path / "corpus"))


def config(folder: Path, **training: object) -> Config:
    return make_config(folder, training=training)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_share_of_multi_sentence_lines_is_saved_with_the_model(folder: Path, tmp_path: Path) -> None:
    for language in ("en", "de"):
        path = folder / f"train.{language}"
        lines = path.read_text(encoding="utf-8").splitlines()
        several = [f"{line.rstrip('.')}. {line}" if number < 100 else line for number, line in enumerate(lines)]
        path.write_text("\n".join(several) + "\n", encoding="utf-8")
    one, again = RunDir(tmp_path / "one"), RunDir(tmp_path / "again")
    assert not train(config(folder), one).was_finished
    train(config(folder), again)  # reads its corpus from the cache
    shares = [json.loads(run.data_report.read_text())["multi_sentence_share"] for run in (one, again)]
    assert shares[0] == shares[1] == pytest.approx(1 / 3, abs=0.03)

    bundle = RunDir(tmp_path / "bundle")
    export(one, bundle.path)
    assert [from_data_report(run, "multi_sentence_share") for run in (one, bundle)] == [shares[0]] * 2
    assert Translator.load(bundle.path).knows_several_sentences
    prepared = prepare_experiment(config(folder), one.tokenizer)
    model = Transformer(config(folder).model, prepared.tokenizers.src.vocab_size, prepared.tokenizers.tgt.vocab_size)
    in_validation, loaded = prepared.translator(config(folder), model), Translator.load(one.path)
    assert in_validation.knows_several_sentences
    assert in_validation.preferred_tokens == loaded.preferred_tokens < loaded.max_tokens

    one.data_report.unlink()
    export(one, tmp_path / "unknown")
    assert not Translator.load(tmp_path / "unknown").knows_several_sentences


def test_dev_bleu_uses_the_tokenizer_of_the_target_language_and_keeps_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target language is Japanese, and MeCab is installed between start and resume."""
    monkeypatch.setattr(scores, "_runnable", lambda tokenizer: tokenizer.replace("ja-mecab", "char"))
    scored: list[str] = []

    def spy(hypotheses: list[str], references: list[str], settings: EvaluationConfig, *rest: Any) -> list[scores.Score]:
        found = scores.score(hypotheses, references, settings, *rest)
        scored.append(found[0].signature)
        return found

    monkeypatch.setattr("mtformer.experiment.train.score", spy)
    filters = {"min_script_share": 0, "drop_other_languages": False, "max_length_difference": None}
    run, base = RunDir(tmp_path / "run"), config(folder).model_dump()
    japanese = Config.model_validate({**base, "data": {**base["data"], "tgt_lang": "ja", "filters": filters}})
    train(japanese, run)
    assert ["|tok:char|" in signature for signature in scored] == [True]
    assert read_meta(run.checkpoint(4))["made_with"]["dev BLEU tokenizers"] == {"ja": "char"}
    assert run.best_steps("bleu") == [4]


@pytest.mark.parametrize(
    "change",
    [
        {"evaluation": {"lowercase": True}},
        {"evaluation": {"bleu_tokenizer": "char"}},
        {"decoding": {"validation_beam_size": 2}},
    ],
)
def test_dev_scores_with_other_settings_are_not_compared(change: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    run, base = RunDir(tmp_path / "run"), config(folder).model_dump()
    base["training"] |= {"keep_last": 3, "average_last": 0}
    train(Config.model_validate(base), run)
    assert run.best_steps("bleu")
    train(Config.model_validate({**base, **change, "training": {**base["training"], "max_steps": 8}}), run, resume=True)
    assert min(run.best_steps("bleu")) > 4


def test_a_finished_run_does_not_take_over_settings_that_it_was_not_trained_with(folder: Path, tmp_path: Path) -> None:
    run, given = RunDir(tmp_path / "run"), config(folder)
    train(given, run)
    before = run.config.read_bytes()
    base = given.model_dump()
    message = r"run: is finished, so training\.label_smoothing would have no effect; raise training\.max_steps"
    with pytest.raises(CheckpointError, match=message):
        train(
            Config.model_validate({**base, "training": {**base["training"], "label_smoothing": 0.3}}), run, resume=True
        )
    assert run.config.read_bytes() == before
    harmless = Config.model_validate({**base, "training": {**base["training"], "log_every": 3}})
    assert train(harmless, run, resume=True).was_finished


def test_a_finished_run_accepts_moved_corpora_but_no_others(folder: Path, tmp_path: Path) -> None:
    def data(name: str, **filters: object) -> Config:
        sources = [{"src": str(folder / f"{name}.en"), "tgt": str(folder / f"{name}.de")}]
        return make_config(folder, data={"corpora": {"more": {"sources": sources}}, "filters": filters})

    for side in ("en", "de"):
        lines = (folder / f"train.{side}").read_text(encoding="utf-8").splitlines(keepends=True)
        for name, part in (("old", lines[:90]), ("moved", lines[:90]), ("other", lines[:80])):
            (folder / f"{name}.{side}").write_text("".join(part), encoding="utf-8")
    run = RunDir(tmp_path / "run")
    train(data("old"), run)
    assert train(data("moved"), run, resume=True).was_finished
    before = run.data_report.read_bytes()
    dev = [{"src": str(folder / "other.en"), "tgt": str(folder / "other.de")}]
    other_dev = data("moved").model_dump()
    other_dev["data"] |= {"dev": dev}
    for given, message in (
        (Config.model_validate(other_dev), r"finished, so data\.dev\.0\.src, data\.dev\.0\.tgt would have no effect"),
        (data("other"), r"finished, so data\.corpora\.more\.sources\.0\.src"),
        (data("moved", max_tokens=40), r"finished, so data\.filters\.max_tokens would have no effect"),
        (
            make_config(folder, data=data("moved").data.model_dump(), training={"ema_decay": 0.9}),
            r"training\.ema_decay",
        ),
    ):
        with pytest.raises(CheckpointError, match=message):
            train(given, run, resume=True)
    assert run.data_report.read_bytes() == before


def test_another_best_metric_removes_the_confidence(folder: Path, tmp_path: Path) -> None:
    """It may be fitted to other weights than those that commands use from now on."""
    run, base = RunDir(tmp_path / "run"), config(folder).model_dump()
    train(Config.model_validate(base), run)
    for changes, is_kept in (({"log_every": 3}, True), ({"log_every": 3, "best_metric": "loss"}, False)):
        run.confidence.write_text("{}")
        changed = Config.model_validate({**base, "training": {**base["training"], **changes}})
        assert train(changed, run, resume=True).was_finished
        assert run.confidence.exists() == is_kept
    run.confidence.write_text("{}")
    refused = {**base["training"], "best_metric": "chrf", "label_smoothing": 0.3}
    with pytest.raises(CheckpointError, match="would have no effect"):
        train(Config.model_validate({**base, "training": refused}), run, resume=True)
    assert run.confidence.exists()


def test_a_refused_resume_changes_nothing(folder: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    train(config(folder, keep_last=3, max_steps=6), run)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert len(run.regular_steps()) > 1
    for changes in ({"max_steps": 5}, {"max_steps": 6, "label_smoothing": 0.3}):
        with pytest.raises(CheckpointError):
            train(config(folder, keep_last=1, **changes), run, resume=True)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_an_impossible_precision_is_refused_before_the_data_is_prepared(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("mtformer.experiment.train.prepare_experiment")
    with pytest.raises(DeviceError, match="fp16"):
        train(config(folder, precision="fp16"), RunDir(tmp_path / "run"))


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio", "mlflow"])
def test_a_missing_package_is_reported_before_the_data_is_prepared(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr("mtformer.experiment.prepare.make_tokenizers")
    with pytest.raises(MtformerError, match=rf"training\.trackers: {name} needs the package {name}: pip install"):
        train(config(folder, trackers=[name]), RunDir(tmp_path / "run"))


def test_a_run_without_a_step_is_an_error(folder: Path, tmp_path: Path) -> None:
    sources = [{"src": str(folder / "train.en"), "tgt": str(folder / "train.de")}]
    corpora = {"few": {"sources": sources, "weight": 0.005}}
    given = make_config(folder, data={"train": [], "corpora": corpora}, training={"max_epochs": 1})
    with pytest.raises(
        MtformerError, match=r"ended before its first step, because the corpus is too small; raise training\.max_epochs"
    ):
        train(given, RunDir(tmp_path / "run"))


def test_a_run_whose_epochs_have_ended_is_finished_too(folder: Path, tmp_path: Path) -> None:
    run, given = RunDir(tmp_path / "run"), config(folder, max_epochs=1, max_steps=1000)
    train(given, run)
    with pytest.raises(CheckpointError, match=r"training\.label_smoothing would have no effect"):
        train(config(folder, max_epochs=1, max_steps=1000, label_smoothing=0.3), run, resume=True)
    with pytest.raises(CheckpointError, match=r"training\.max_steps 2 is below the last checkpoint, of step \d+"):
        train(config(folder, max_epochs=1, max_steps=2), run, resume=True)


def test_log_lines_name_the_epoch_and_the_time_left_ends_with_max_epochs(folder: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    expected: list[int] = []

    class Progress(StopAt):
        def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
            expected.append(num_steps)

    train(config(folder, max_epochs=2, max_steps=100_000, sample_sentences=1), run, progress=Progress(None))
    records = read_records(run.metrics)
    logged, dev = ([one for one in records if one["kind"] == kind] for kind in ("train", "dev"))
    assert expected[0] == pytest.approx(dev[-1]["step"], abs=1)
    assert logged[0]["seconds_left"] >= logged[0]["seconds_per_step"] * (expected[0] - 2)  # and validations
    assert [one["epoch"] for one in (dev[0], dev[-1])] == [0, 1]
    assert [len(record["samples"]) for record in read_records(run.samples)] == [1] * len(dev)


def test_another_thread_can_train(folder: Path, tmp_path: Path) -> None:
    """Python allows signal handlers in the main thread only."""
    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(train, config(folder), RunDir(tmp_path / "run")).result()
    assert outcome.position.step == 4


def test_a_missing_bleu_tokenizer_is_reported_before_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ko_mecab", raising=False)
    monkeypatch.setitem(sys.modules, "mecab_ko", None)
    given = Config.model_validate({**config(folder).model_dump(), "evaluation": {"bleu_tokenizer": "ko-mecab"}})
    with pytest.raises(ConfigError, match="ko-mecab"):
        prepare_experiment(given, tmp_path / "tokenizer")
    assert not (tmp_path / "tokenizer").exists()


def test_a_run_killed_before_its_first_checkpoint_trains_its_tokenizer_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The corpus may have been corrected in between."""
    run, given = RunDir(tmp_path / "run"), config(folder)

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mtformer.experiment.train.make_step", kill)
        patch.setattr("mtformer.experiment.open_run._recreated", lambda path: contextlib.nullcontext(path.mkdir()))
        with pytest.raises(KeyboardInterrupt):
            train(given, run)
    before = (run.tokenizer / "joint.model").read_bytes()
    path = next(folder.glob("train.*"))
    path.write_text(path.read_text(encoding="utf-8").replace("e", "qu"), encoding="utf-8")
    train(given, run, resume=True)
    assert (run.tokenizer / "joint.model").read_bytes() != before
    assert RunDir.open(run.path).steps() == run.steps() != []


def test_a_finished_run_is_recorded_and_two_processes_cannot_train_it(folder: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    with lock_run(run), pytest.raises(CheckpointError, match="another process is training here"):
        train(config(folder), run)
    assert not run.path.exists()
    assert not run.lock.exists()
    train(config(folder), run)
    with pytest.raises(CheckpointError, match="already exists"):
        train(config(folder), run)
    assert read_state(run).state == "finished"
    made_with = read_meta(run.checkpoint(4))["made_with"]
    assert (made_with["torch"], made_with["processes"]) == (str(torch.__version__), 1)
    assert made_with["device"].startswith("cpu, ")
    assert all(len(made_with[name]) >= 32 for name in ("training data", "dev data", "tokenizer"))


def test_dev_sets_that_exchange_their_names_are_other_dev_data(folder: Path, tmp_path: Path) -> None:
    given = config(folder)
    sets = [given.data.dev_sources[0], given.data.sources[0]]
    found = []
    for names in (("a", "b"), ("b", "a")):
        data = given.data.model_copy(update={"dev": dict(zip(names, sets, strict=True))})
        named = given.model_copy(update={"data": data})
        prepared = prepare_experiment(named, tmp_path / "tokenizer")
        found.append(describe_environment(named, prepared, torch.device("cpu"), "fp32", 1)["dev data"])
    assert found[0] != found[1]
    assert sorted(found[0].split()) == sorted(found[1].split())


def test_only_differences_are_logged(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDir(tmp_path / "run")
    train(config(folder), run)
    caplog.clear()
    train(config(folder), run, resume=True)
    assert warnings(caplog) == []
    moved = Path(shutil.move(folder, tmp_path / "moved"))
    train(config(moved, max_steps=6), run, resume=True)
    found = warnings(caplog)
    assert f"resuming with data.train.0.src {str(folder / 'train.en')!r} -> {str(moved / 'train.en')!r}" in found
    assert "resuming with training.max_steps 4 -> 6" in found
    assert not any(line.endswith(INEXACT) for line in found)  # the same pairs in another folder
    caplog.clear()
    for name in ("train.en", "dev.de"):
        (moved / name).write_text((moved / name).read_text().replace("the", "a").replace("der", "ein"))
    train(config(moved, max_steps=6), run, resume=True)
    found = warnings(caplog)
    assert [line.split(" ")[2] for line in found] == ["training", "dev"]
    assert all(" -> " in line and line.endswith(INEXACT) for line in found)


def test_a_jump_of_the_learning_rate_is_logged_and_recorded(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, schedule = RunDir(tmp_path / "run"), {"schedule": "cosine", "warmup_steps": 1, "learning_rate": 1e-3}
    train(config(folder, **schedule), run)
    caplog.clear()
    train(config(folder, **schedule, max_steps=7), run, resume=True)
    rate = 0.5e-3  # half of the cosine: step 4 is in the middle between 1 and 7
    cause = "because training.max_steps changed"
    assert f"step 4: the learning rate jumps from 0.00e+00 to 5.00e-04, {cause}" in warnings(caplog)
    (resumed,) = (one for one in read_records(run.metrics) if one["kind"] == "resume")
    assert resumed["changes"] == {
        "training.max_steps": [4, 7],
        "training.current_learning_rate": [0.0, pytest.approx(rate)],
    }


def test_a_different_tokenizer_is_rejected_without_changes(folder: Path, tmp_path: Path) -> None:
    run, other = RunDir(tmp_path / "run"), RunDir(tmp_path / "other")
    train(config(folder), run)
    shorter = config(folder).model_dump()
    shorter["tokenizer"]["vocab_size"] = 180
    train(Config.model_validate(shorter), other)
    shutil.rmtree(run.tokenizer)
    shutil.copytree(other.tokenizer, run.tokenizer)
    write_config(run, run.config.read_text(encoding="utf-8"))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="restore that tokenizer, or start over with --overwrite"):
        train(config(folder, max_steps=6), run, resume=True)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_interrupted_decoding_of_dev_is_repeated_on_resume(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halves = RunDir(tmp_path / "whole"), RunDir(tmp_path / "halves")
    train(config(folder), whole)
    search, searched = Postprocessor.__call__, []

    def search_and_stop(self: Postprocessor, *rest: object) -> object:
        searched.append(rest)
        if len(searched) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return search(self, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Postprocessor, "__call__", search_and_stop)
        with pytest.raises(InterruptedRunError):
            train(config(folder), halves)
        assert len(searched) == 2
        assert read_meta(halves.checkpoint(4))["is_temporary"]
        searched.clear()
        patch.setattr(Postprocessor, "__call__", lambda *all_: (searched.append(all_), search(*all_))[1])
        train(config(folder), halves, resume=True)
    assert len(searched) > 3
    one, other = (read_meta(run.checkpoint(4)) for run in (whole, halves))
    assert one["metrics"] == other["metrics"]
    assert one["metrics"].keys() >= {"loss", "bleu"}
    assert one["sha256"][WEIGHTS] == other["sha256"][WEIGHTS]
    kinds = [[json.loads(line)["kind"] for line in run.metrics.read_text().splitlines()] for run in (whole, halves)]
    assert kinds == [["train", "train", "dev"], ["train", "train", "resume", "dev"]]


def test_an_outdated_average_is_replaced(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is killed between its last checkpoint and averaging."""
    run = RunDir(tmp_path / "run")
    train(config(folder, average_last=1), run)
    assert read_meta(run.averaged)["steps"] == [4]

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mtformer.experiment.train.average_weights", kill)
        with pytest.raises(KeyboardInterrupt):
            train(config(folder, average_last=1, max_steps=8), run, resume=True)
    outcome = train(config(folder, average_last=1, max_steps=8), run, resume=True)
    assert outcome.was_finished
    assert read_meta(run.averaged)["steps"] == [8]
    made = run.averaged.stat().st_ino
    train(config(folder, average_last=1, max_steps=8), run, resume=True)
    assert run.averaged.stat().st_ino == made
    (run.averaged / WEIGHTS).write_bytes(b"damaged")
    train(config(folder, average_last=1, max_steps=8), run, resume=True)
    assert (run.averaged / WEIGHTS).stat().st_size > 100
    run.confidence.write_text("{}")
    train(config(folder, average_last=2, max_steps=8), run, resume=True)
    assert read_meta(run.averaged)["steps"] == [4, 8]
    assert not run.confidence.exists()  # it was fitted to other weights


def test_the_average_is_validated_and_used_only_if_it_is_better(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An average over the first steps of a run is worse than its last checkpoint."""
    run = RunDir(tmp_path / "run")
    train(config(folder, average_last=3, max_steps=12, best_metric="loss", learning_rate=0.01), run)
    average = read_meta(run.averaged)["metrics"]
    checkpoints = {step: read_meta(run.checkpoint(step))["metrics"]["loss"] for step in (4, 8, 12)}
    best = min(checkpoints, key=checkpoints.__getitem__)
    assert checkpoints[best] < average["loss"] < max(checkpoints.values())
    assert find_weights(run, None, "loss") == [run.checkpoint(best) / WEIGHTS]
    # The scores are those of the averaged weights: they equal those of a run that starts from them and does not learn.
    monkeypatch.setattr("mtformer.experiment.prepare.find_weights", lambda *_: [run.averaged / WEIGHTS])
    again = RunDir(tmp_path / "again")
    train(config(folder, learning_rate=1e-30, init_from=str(run.path)), again)
    assert read_meta(again.checkpoint(4))["metrics"] == pytest.approx(average, rel=1e-6)


def test_an_interrupted_validation_of_the_average_is_repeated(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path / "run")

    def with_signal(validator: Validator, step: TrainingStep, at_step: int) -> dict[str, float]:
        validator.stop._on_signal(signal.SIGTERM, None)
        return evaluate(validator, step, at_step)

    evaluate = Validator.evaluate_average
    with monkeypatch.context() as patch:
        patch.setattr(Validator, "evaluate_average", with_signal)
        with pytest.raises(InterruptedRunError, match="stopped at step 4"):
            train(config(folder, average_last=1), run)
    assert read_state(run).state == "interrupted"
    assert find_weights(run, None, "bleu") == [run.checkpoint(4) / WEIGHTS]
    train(config(folder, average_last=1), run, resume=True)
    assert read_meta(run.averaged)["metrics"] == pytest.approx(read_meta(run.checkpoint(4))["metrics"])
    assert find_weights(run, None, "bleu") == [run.averaged / WEIGHTS]


def test_automatic_precision_is_kept_on_resume_if_the_device_supports_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, seconds = RunDir(tmp_path / "run"), {torch.bfloat16: 1.0, torch.float32: 9.0}
    monkeypatch.setattr("mtformer.device._cpu_product_seconds", lambda dtype: seconds[dtype])
    monkeypatch.setattr("mtformer.device._has_bf16_instructions", lambda: False)

    def precision_after(max_steps: int) -> str:
        train(config(folder, precision="auto", max_steps=max_steps), run, resume=max_steps > 4)
        return str(read_meta(run.checkpoint(max_steps))["made_with"]["precision"])

    assert precision_after(4) == "bf16"
    seconds[torch.bfloat16] = 99.0
    assert precision_after(8) == "bf16"
    monkeypatch.setattr("mtformer.experiment.train.read_meta", lambda folder: _with_fp16(read_meta(folder)))
    caplog.clear()
    assert precision_after(12) == "fp32"
    assert f"resuming with precision fp16 -> fp32{INEXACT}" in warnings(caplog)


def test_training_ends_after_max_minutes(folder: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    limited = config(folder, max_steps=100_000, max_minutes=0.1, validate_every=50, log_every=5)
    outcome = train(limited, run)
    position = outcome.position
    assert outcome.max_steps == position.step < 100_000
    assert position.seconds_before > 0
    contents = RunContents(run.path)
    assert (contents.max_steps, contents.state.state) == (position.step, "finished")
    assert train(limited, run, resume=True).was_finished
    shorter = limited.model_copy(update={"training": limited.training.model_copy(update={"max_minutes": 0.05})})
    assert train(shorter, run, resume=True).was_finished


def _with_fp16(meta: dict[str, dict[str, object]]) -> dict[str, dict[str, object]]:
    return {**meta, "made_with": {**meta["made_with"], "precision": "fp16"}}


# ---- several dev sets -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Corpus with two dev sets of different sizes, a and b."""
    folder = write_corpus(tmp_path_factory.mktemp("halves"), train=300, dev=24)
    for language in ("en", "de"):
        lines = (folder / f"dev.{language}").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / f"a.{language}").write_text("".join(lines[:8]), encoding="utf-8")
        (folder / f"b.{language}").write_text("".join(lines[8:]), encoding="utf-8")
    return folder


def dev_config(folder: Path, *names: str, noise: dict[str, float] | None = None, **training: object) -> Config:
    """Return a config with one dev set (a list), or several (a mapping)."""
    sources = {name: {"src": f"{folder}/{name}.en", "tgt": f"{folder}/{name}.de"} for name in names}
    dev: object = sources if len(names) > 1 else list(sources.values())
    steps = {"max_steps": 6, "validate_every": 2, "learning_rate": 3e-3, "keep_last": 1}
    return make_config(folder, data={"dev": dev, "noise": noise or {}}, training={**steps, **training})


def records(run: RunDir) -> list[dict[str, Any]]:
    """Return the records of metrics.jsonl without times."""
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if name not in TIMINGS} for row in rows if row["kind"] != "resume"
    ]


def test_each_dev_set_has_the_metrics_of_a_run_with_this_set_alone(
    halves: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mtformer")
    runs = {names: RunDir(tmp_path / "-".join(names)) for names in (("a",), ("b",), ("a", "b"))}
    for names, run in runs.items():
        train(dev_config(halves, *names), run)
    a, b, both = ([row for row in records(run) if row["kind"] == "dev"] for run in runs.values())
    assert len(both) == 3
    for alone, other, row in zip(a, b, both, strict=True):
        metrics = {"loss", "perplexity", "bleu", "chrf"}
        assert row.keys() - alone.keys() == {f"{metric} {name}" for metric in metrics for name in ("a", "b")}
        assert {row[f"{metric} a"] == alone[metric] and row[f"{metric} b"] == other[metric] for metric in metrics} == {
            True
        }
        assert [row[key] for key in ("bleu", "chrf")] == [(alone[key] + other[key]) / 2 for key in ("bleu", "chrf")]
        assert min(alone["loss"], other["loss"]) < row["loss"] < max(alone["loss"], other["loss"])
    logged = [line for line in caplog.messages if line.startswith("step 6: dev ")]
    assert [line.split("loss")[0] for line in logged] == [
        "step 6: dev ", "step 6: dev ", "step 6: dev ", "step 6: dev a: ", "step 6: dev b: "
    ]  # fmt: skip
    weights = [read_meta(run.checkpoint(6))["sha256"][WEIGHTS] for run in runs.values()]
    assert weights[0] == weights[1] == weights[2]


@pytest.mark.parametrize("metric", ["loss b", "chrf a"])
def test_the_best_checkpoint_is_that_of_the_named_dev_set(halves: Path, tmp_path: Path, metric: str) -> None:
    run = RunDir(tmp_path / "run")
    train(dev_config(halves, "a", "b", best_metric=metric), run)
    values = {row["step"]: row[metric] for row in records(run) if row["kind"] == "dev"}
    best = (min if metric == "loss b" else max)(values.values())
    assert len(set(values.values())) > 1
    assert load_trainer_state(run.checkpoint(6))["position"]["best"] == best
    [weights] = find_weights(run, "best", metric)
    assert values[int(weights.parent.name[5:])] == best


def test_a_run_with_noise_and_dev_sets_resumes_exactly(halves: Path, tmp_path: Path) -> None:
    noise = {"word_dropout": 0.1, "typos": 0.2, "case": 0.3, "final_stop": 0.3, "copies": 0.2}
    settings = dev_config(halves, "a", "b", noise=noise, best_metric="loss b", log_every=3)
    whole, stopped, plain = (RunDir(tmp_path / name) for name in ("whole", "stopped", "plain"))
    train(settings, whole)
    with pytest.raises(InterruptedRunError):
        train(settings, stopped, progress=StopAt(3))
    train(settings, stopped, resume=True)
    assert records(stopped) == records(whole)
    one, other = (read_meta(run.checkpoint(6))["sha256"][WEIGHTS] for run in (whole, stopped))
    assert one == other
    train(dev_config(halves, "a", "b", log_every=3), plain)
    assert records(plain)[0]["loss"] != records(whole)[0]["loss"]


@pytest.mark.parametrize(
    ("is_on_cuda", "num_workers", "local_processes", "expected"),
    [
        (False, None, 1, 1),
        (False, 8, 1, 1),
        (True, None, 1, 4),
        (True, 2, 1, 2),
        (True, 12, 1, 12),
        (True, 100, 1, 15),
        (True, None, 4, 3),
        (True, None, 8, 2),
        (True, None, 16, 1),
    ],
)
def test_number_of_processes_that_add_noise(
    monkeypatch: pytest.MonkeyPatch, is_on_cuda: bool, num_workers: int | None, local_processes: int, expected: int
) -> None:
    """On a CPU with 16 cores, further processes would compete with those that train."""
    monkeypatch.setattr("mtformer.experiment.train.num_cores", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local_processes))
    assert num_noise_processes(is_on_cuda, num_workers) == expected


def test_a_list_of_dev_data_may_become_several_sets_on_resume(
    halves: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path / "run")
    train(dev_config(halves, "a"), run)
    train(dev_config(halves, "a", "b", max_steps=8, best_metric="bleu b"), run, resume=True)
    assert any(line.startswith("resuming with training.best_metric 'bleu' -> 'bleu b'") for line in warnings(caplog))
    *_, last = records(run)
    assert last.keys() >= {"bleu", "bleu a", "bleu b"}
    position = load_trainer_state(run.checkpoint(8))["position"]
    assert (position["best"], position["validations_since_best"]) == (last["bleu b"], 0)

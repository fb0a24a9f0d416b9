"""`distill`: translations of a teacher as training data of a student."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import invoke
from typer.testing import Result

from mtformer.config.data import DataConfig
from mtformer.config.loading import load_config
from mtformer.decoding.confidence import Calibration
from mtformer.decoding.translation import REPETITION, Translation
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError
from mtformer.evaluation.scores import sentence_chrf
from mtformer.experiment import distill
from mtformer.experiment.distill import best_text
from mtformer.files import CHECKSUMS, file_sha256, read_meta, write_checksums
from mtformer.run_dir import RunDir


@pytest.fixture
def student(corpus: Path, tmp_path: Path) -> Path:
    """The config of a student of half the width, on 60 lines."""
    for side in ("en", "de"):
        lines = (corpus / f"train.{side}").read_text().splitlines(keepends=True)[:60]
        (tmp_path / f"few.{side}").write_text("".join(lines))
    values: dict[str, Any] = {
        "extends": str(corpus / "small.yaml"),
        "data": {
            "train": [{"src": str(tmp_path / "few.en"), "tgt": str(tmp_path / "few.de")}],
            "filters": {"max_repeats": None, "max_filtered_share": 1.0},  # an untrained teacher repeats words
        },
        "tokenizer": {"vocab_size": 100},
        "model": {"d_model": 12},
        "training": {"max_steps": 4},
    }
    (tmp_path / "student.yaml").write_text(yaml.safe_dump(values))
    return tmp_path / "student.yaml"


CALLS: list[tuple[str, int, str | None]] = []
"""Source, number of hypotheses and reference in each call of `best_text`."""


@pytest.fixture(autouse=True)
def _any_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use every translation, since those of an untrained teacher are flagged, and write small shards."""

    def best_text(src: str, n_best: Translation, reference: str | None) -> str:
        CALLS.append((src, 1 + len(n_best.alternatives), reference))
        return n_best.text or "leer"

    CALLS.clear()
    monkeypatch.setattr(distill, "best_text", best_text)
    monkeypatch.setattr(distill, "SHARD_LINES", 25)


def test_a_student_trains_on_the_chosen_translations_and_is_compared(
    trained: tuple[Path, Result], student: Path, tmp_path: Path, fitted: list[Any]
) -> None:
    extra, run = tmp_path / "extra.en", tmp_path / "run"
    extra.write_text("The man sleeps.\nThe dog eats.\n")
    result = invoke("distill", trained[0], "--config", student, "--mono", extra, "--run-dir", run)
    assert result.exit_code == 0, result.stderr
    few = [(tmp_path / f"few.{side}").read_text().splitlines() for side in ("en", "de")]
    given = [*zip(*few, strict=True), ("The man sleeps.", None), ("The dog eats.", None)]
    assert [(src, reference) for src, _, reference in CALLS] == given
    assert {number for _, number, _ in CALLS} == {5}
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[1] for row in rows[1:]] == ["teacher", "student"]
    assert int(rows[1][5].replace(",", "")) > int(rows[2][5].replace(",", ""))
    scored = invoke("eval", trained[0], "--output", tmp_path / "eval").stdout.splitlines()[1].split()
    assert rows[1][2] == scored[2]
    config = load_config(RunDir(run).config).config
    assert list(config.data.corpora) == ["distilled"]
    assert len(config.data.train) == 1
    assert [path for path, *_ in fitted] == [run]
    assert [path.name for path in sorted(RunDir(run).corpus.iterdir())] == ["distilled.tsv", "teacher.json"]


def test_both_models_are_compared_with_the_search_of_the_student(run: Path, student: Path, tmp_path: Path) -> None:
    """`keep`, which needs several beams, would be an error with the student's single beam."""
    path = RunDir(run).config
    path.write_text(path.read_text().replace("keep: null", "keep: numbers"))
    write_checksums(run, {**read_meta(run, CHECKSUMS)["sha256"], path.name: file_sha256(path)})
    student.write_text(student.read_text() + "decoding: {beam_size: 1}\n")
    result = invoke("distill", run, "--config", student, "--run-dir", tmp_path / "new")
    assert result.exit_code == 0, result.stderr


def test_an_interrupted_translation_resumes_with_equal_text(
    trained: tuple[Path, Result], student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(student).config
    teacher = distill.load_teachers([trained[0]], config)
    whole, stopped = RunDir(tmp_path / "whole"), RunDir(tmp_path / "stopped")
    distill.distilled_config(lambda: teacher, config, [], whole, lambda num_lines: None)
    real, calls = type(teacher).translate, []

    def translate(self: Any, lines: list[str], **settings: Any) -> list[Translation]:
        calls.append(len(lines))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(self, lines, **settings)

    monkeypatch.setattr(type(teacher), "translate", translate)
    with pytest.raises(KeyboardInterrupt):
        distill.distilled_config(lambda: teacher, config, [], stopped, lambda num_lines: None)
    assert (stopped.corpus / "00000.tsv").exists()
    distill.distilled_config(lambda: teacher, config, [], stopped, lambda num_lines: None)
    assert calls == [25, 25, 25, 10]
    text = (stopped.corpus / distill.DISTILLED).read_bytes()
    assert text == (whole.corpus / distill.DISTILLED).read_bytes()
    sources = [line.split("\t")[0] for line in text.decode().splitlines()]
    assert set(sources) <= set((tmp_path / "few.en").read_text().splitlines())


def hypothesis(text: str, *flags: str, alternatives: tuple[Translation, ...] = ()) -> Translation:
    return Translation(text, -1.0, [], -1.0, [], [], flags, None, list(alternatives))


def test_the_translation_nearest_to_the_reference_is_used() -> None:
    others = (hypothesis("Ein Hund schläft."), hypothesis("Ein Hund schläft hier.", REPETITION), hypothesis(""))
    n_best = hypothesis("A dog sleeps here.", alternatives=others)
    assert best_text("a dog sleeps here.", n_best, "Ein Hund schläft hier.") == "Ein Hund schläft."
    assert best_text("a dog sleeps here.", n_best, None) == "Ein Hund schläft."
    reference = "Etwas ganz anderes steht in dieser Zeile."
    assert sentence_chrf(["Ein Hund schläft."], [reference])[0] < 30
    assert best_text("a dog sleeps here.", n_best, reference) is None
    assert best_text("x", hypothesis(""), "y") is None
    later = hypothesis("Ein Hund liegt dort.", alternatives=(hypothesis("Ein Hund schläft."), hypothesis("Ein Tier.")))
    assert best_text("A dog sleeps.", later, "Ein Hund schläft.") == "Ein Hund schläft."
    assert best_text("A dog sleeps.", later, None) == "Ein Hund liegt dort."


def test_what_cannot_be_distilled_is_refused_before_translating(
    trained: tuple[Path, Result], student: Path, tmp_path: Path
) -> None:
    def refuse(changes: dict[str, Any], message: str, *words: object, **tokenizer: object) -> None:
        values = yaml.safe_load(student.read_text())
        values["data"] |= changes
        values["tokenizer"] |= tokenizer
        path = tmp_path / "changed.yaml"
        path.write_text(yaml.safe_dump(values))
        result = invoke("distill", trained[0], "--config", path, "--run-dir", tmp_path / "new", *words)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
        assert len([line for line in result.stderr.splitlines() if not line.startswith("converting the model")]) == 1
        assert not (tmp_path / "new").exists()

    refuse({"tgt_lang": "fr"}, "translates en-de, but the student en-fr")
    refuse({"test": None}, "no data.test")
    refuse({"train": [{"src": "missing.en", "tgt": "missing.de"}]}, "missing.en: no such file")
    refuse({"dev": [{"src": "missing.en", "tgt": "missing.de"}]}, "missing.en: no such file")
    refuse({}, "missing.en: no such file", "--mono", "missing.en")
    (tmp_path / "latin.en").write_bytes(b"caf\xe9\n")
    refuse({}, "not UTF-8", "--mono", tmp_path / "latin.en")
    refuse({"corpora": {"distilled": {"sources": [{"tsv": "a.tsv"}]}}}, "choose another")
    refuse({"language_pairs": ["en fr"], "language_tags": "source"}, "one direction")
    refuse({}, "x.model: the tokenizer cannot be read", src_model="x.model")


def test_settings_that_the_engine_of_the_teacher_lacks_are_refused_before_translating(
    trained: tuple[Path, Result], student: Path, tmp_path: Path
) -> None:
    """Otherwise they would be refused when both models are compared, after the training."""
    teacher = tmp_path / "teacher"
    assert invoke("export", trained[0], "--format", "ctranslate2", "--output", teacher).exit_code == 0
    values = {**yaml.safe_load(student.read_text()), "decoding": {"early_stopping": "estimate"}}
    student.write_text(yaml.safe_dump(values))
    result = invoke("distill", teacher, "--config", student, "--run-dir", tmp_path / "new")
    assert (result.exit_code, "CTranslate2 supports only ended" in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "new").exists()


def test_the_teacher_runs_without_ctranslate2_if_it_does_not_support_its_settings(
    run: Path, student: Path, tmp_path: Path
) -> None:
    """An imported OPUS-MT model has `early_stopping: estimate`."""
    config = load_config(student).config
    path = RunDir(run).config
    changes = {"early_stopping: ended": "early_stopping: estimate", "mbr_samples: 0": "mbr_samples: 8"}
    text = path.read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    write_checksums(run, {**read_meta(run, CHECKSUMS)["sha256"], path.name: file_sha256(path)})
    empty = Calibration(good_chrf=50, num_pairs=500, regressions=[])
    RunDir(run).confidence.write_text(empty.model_dump_json())
    teacher = distill.load_teachers([run], config)
    assert teacher.calibration is None  # it would flag only the best translation of a line
    assert (teacher.decoding.early_stopping, len(teacher.models)) == ("estimate", 1)
    assert (teacher.decoding.beam_size, teacher.decoding.draws) == (5, False)


def test_the_direction_of_the_student_must_be_one_of_the_teacher(
    student: Path, monkeypatch: pytest.MonkeyPatch, trained: tuple[Path, Result]
) -> None:
    both = {"src_lang": "en", "tgt_lang": "fr", "language_tags": "source", "language_pairs": ["de es", "es en"]}
    config = load_config(student).config
    teacher = Translator.load(trained[0])
    teacher.data = DataConfig.model_validate(both)
    monkeypatch.setattr(Translator, "load", lambda *_, **__: teacher)
    for src, tgt in (("en", "es"), ("de", "fr")):
        wanted = config.data.model_copy(update={"src_lang": src, "tgt_lang": tgt})
        with pytest.raises(ConfigError, match="translates en-fr, but the student"):
            distill.load_teachers([trained[0], trained[0]], config.model_copy(update={"data": wanted}))


def test_without_a_good_translation_nothing_is_left(
    trained: tuple[Path, Result], student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distill, "best_text", lambda *_: None)
    for _ in range(2):
        result = invoke("distill", trained[0], "--config", student, "--run-dir", tmp_path / "new")
        assert (result.exit_code, "no translation is good enough" in result.stderr) == (2, True), result.stderr
        assert [path.name for path in (tmp_path / "new" / "corpus").iterdir()] == ["teacher.json"]


def test_translations_of_another_teacher_are_not_used(
    trained: tuple[Path, Result], run: Path, student: Path, tmp_path: Path
) -> None:
    config, new = load_config(student).config, RunDir(tmp_path / "new")
    distill.distilled_config(
        lambda: distill.load_teachers([trained[0]], config), config, [], new, lambda num_lines: None
    )
    shutil.rmtree(RunDir(run).averaged)
    result = invoke("distill", run, "--config", student, "--run-dir", new.path)
    assert (result.exit_code, "made with other teachers" in result.stderr) == (2, True), result.stderr
    (new.corpus / "00000.tsv").touch()  # left by a process that was killed when it had joined the shards
    assert invoke("distill", trained[0], "--config", student, "--run-dir", new.path).exit_code == 0
    assert not (new.corpus / "00000.tsv").exists()
    (new.corpus / "teacher.json").write_text("{")
    result = invoke("distill", trained[0], "--config", student, "--run-dir", new.path)
    assert (result.exit_code, "made with other teachers" in result.stderr) == (2, True), result.stderr


def test_the_run_of_an_adaptation_is_refused_before_translating(
    trained: tuple[Path, Result], student: Path, tmp_path: Path
) -> None:
    """Otherwise the teacher would translate everything before the training cannot be resumed."""
    for command, record in (("distill", "made_from.json"), ("adapt", "teacher.json")):
        corpus = tmp_path / command / "corpus"
        corpus.mkdir(parents=True)
        (corpus / record).write_text("{}")
        words = ["--config", student] if command == "distill" else ["--train", student]
        result = invoke(command, trained[0], *words, "--run-dir", corpus.parent)
        assert (result.exit_code, "already exists; choose another folder" in result.stderr) == (2, True), result.stderr
        assert [path.name for path in corpus.iterdir()] == [record]

"""`distill`: translations of a teacher as training data of a student."""

import copy
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import invoke
from typer.testing import Result

from mtformer.cli.distill import stages
from mtformer.config.data import DataConfig
from mtformer.config.loading import load_config
from mtformer.data.corpus import sources
from mtformer.decoding.lines.confidence import Calibration, Feature, Logistic
from mtformer.decoding.lines.translation import Flag, Translation
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError, DataError
from mtformer.evaluation.scores import sentence_chrf
from mtformer.experiment import distill
from mtformer.experiment.distill import best_text
from mtformer.files import CHECKSUMS, file_sha256, read_meta, write_checksums
from mtformer.run_dir import RunDir


@pytest.fixture
def student(corpus: Path, tmp_path: Path) -> Path:
    return write_student(corpus, tmp_path)


def write_student(corpus: Path, tmp_path: Path) -> Path:
    """Write and return the config of a student of half the width, on 60 lines."""
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
    lines = result.stderr.splitlines()
    start = lines.index("distill has three stages; the same command resumes after an interruption:")
    assert lines[start + 1 : start + 4] == [
        "  1. translate 62 lines with the teacher, and keep the good translations",
        "  2. train the student on the translations and its own data for 4 steps",
        "  3. compare both on test sets: small",
    ]
    assert lines.index("translations kept: 62 of 62") > start + 3
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


def test_the_stages_name_the_limit_of_time_and_complete_translations(student: Path) -> None:
    config = load_config(student, ["training.max_minutes=7.5"]).config
    _, translation, training, _ = stages(config, 1_234_567)
    assert translation == "  1. translate 1,234,567 lines with the teacher, and keep the good translations"
    assert training.endswith(" for at most 7.5 minutes (training.max_minutes), without the time of stage 1")
    _, complete, *_ = stages(config, 0)
    assert complete == "  1. translate with the teacher: complete"


def test_both_models_are_compared_with_the_search_of_the_student(
    run: Path, trained: tuple[Path, Result], student: Path, tmp_path: Path
) -> None:
    """`keep`, which needs several beams, would be an error with the student's single beam."""
    path = RunDir(run).config
    path.write_text(path.read_text().replace("keep: null", "keep: numbers"))
    write_checksums(run, {**read_meta(run, CHECKSUMS)["sha256"], path.name: file_sha256(path)})
    student.write_text(student.read_text() + "decoding: {beam_size: 1}\n")
    result = invoke("distill", run, "--config", student, "--run-dir", tmp_path / "new")
    assert result.exit_code == 0, result.stderr
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [row[1] for row in rows] == ["teacher", "student"]
    scored = invoke("eval", trained[0], "--beam-size", 1, "--output", tmp_path / "eval").stdout.splitlines()[1].split()
    assert rows[0][2:4] == scored[2:4]


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


def flip(path: Path, place: int) -> None:
    """Change one bit of a file; a negative place counts from the end."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def exchange(first: Path, second: Path) -> None:
    text = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(text)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda folder: (folder / "00000.tsv").write_bytes(b""),
    "cut": lambda folder: (folder / "00001.tsv").write_bytes((folder / "00001.tsv").read_bytes()[:-30]),
    "without its last line": lambda folder: (folder / "00000.tsv").write_bytes(
        b"".join((folder / "00000.tsv").read_bytes().splitlines(keepends=True)[:-1])
    ),
    "without its first line": lambda folder: (folder / "00000.tsv").write_bytes(
        b"".join((folder / "00000.tsv").read_bytes().splitlines(keepends=True)[1:])
    ),
    "bit of the text": lambda folder: flip(folder / "00000.tsv", -9),
    "bit of the key": lambda folder: flip(folder / "00000.tsv", 12),
    "bit of the checksum": lambda folder: flip(folder / "00000.tsv", 95),
    "exchanged": lambda folder: exchange(folder / "00000.tsv", folder / "00001.tsv"),
    "deleted": lambda folder: (folder / "00000.tsv").unlink(),
    "extra": lambda folder: (folder / "99999.tsv").write_text("A dog.\tEine Katze.\n"),
    "extra copy": lambda folder: (folder / "00003.tsv").write_bytes((folder / "00000.tsv").read_bytes()),
    "of version 0.3": lambda folder: (folder / "00000.tsv").write_text("A dog.\tEine Katze.\n"),
    "record": lambda folder: flip(folder / "teacher.json", 40),
}


@pytest.fixture
def teacher(trained: tuple[Path, Result], student: Path) -> Translator:
    return distill.load_teachers([trained[0]], load_config(student).config)


def distilled(teacher: Translator, student: Path, run: RunDir, monolingual: Sequence[Path] = ()) -> bytes:
    """Return the text of the translations."""
    config = load_config(student).config
    distill.distilled_config(lambda: teacher, config, monolingual, run, lambda num_lines: None)
    assert [path.name for path in sorted(run.corpus.iterdir())] == ["distilled.tsv", "teacher.json"]
    return (run.corpus / distill.DISTILLED).read_bytes()


def interrupt(teacher: Translator, student: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Translate two of three shards."""
    with monkeypatch.context() as patch:
        real = distill._write_shard

        def write(file: Any, kept: Any) -> None:
            if file.path.name == "00002.tsv":
                raise KeyboardInterrupt
            real(file, kept)

        patch.setattr(distill, "_write_shard", write)
        with pytest.raises(KeyboardInterrupt):
            distilled(teacher, student, run)
    assert len(list(run.corpus.glob("*.tsv"))) == 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_shard_is_never_used(
    damage: str,
    teacher: Translator,
    student: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = distilled(teacher, student, RunDir(tmp_path / "whole"))
    stopped = RunDir(tmp_path / "stopped")
    interrupt(teacher, student, stopped, monkeypatch)
    DAMAGES[damage](stopped.corpus)
    assert distilled(teacher, student, stopped) == whole
    warnings = [message for message in caplog.messages if str(stopped.corpus) in message]
    assert bool(warnings) == (damage != "deleted")


def test_a_shard_of_another_teacher_is_not_used_if_the_record_is_lost(
    teacher: Translator, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = distilled(teacher, student, RunDir(tmp_path / "whole"))
    run = RunDir(tmp_path / "stopped")
    other = copy.copy(teacher)
    other.weight_hashes = ["0" * 64]
    interrupt(other, student, run, monkeypatch)
    (run.corpus / "00000.tsv").write_text((run.corpus / "00000.tsv").read_text() + "A dog.\tEine Katze.\n")
    (run.corpus / "teacher.json").unlink()
    CALLS.clear()
    assert distilled(teacher, student, run) == whole
    assert len(CALLS) == 60


@pytest.mark.parametrize("is_same_time", [False, True])
@pytest.mark.parametrize("name", ["few.en", "few.de", "extra.en"])
def test_text_that_is_replaced_while_it_is_translated_is_an_error(
    name: str, is_same_time: bool, teacher: Translator, student: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the size and the time of the file stay the same."""
    extra = tmp_path / "extra.en"
    extra.write_text("The man sleeps.\nThe dog eats.\n")
    whole = distilled(teacher, student, RunDir(tmp_path / "whole"), [extra])
    file, run = tmp_path / name, RunDir(tmp_path / "new")
    text, times = file.read_bytes(), (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    real, calls = type(teacher).translate, []

    def translate(self: Any, lines: list[str], **settings: Any) -> list[Translation]:
        if not calls:
            file.write_bytes(text.swapcase())
            if is_same_time:
                os.utime(file, ns=times)
        calls.append(len(lines))
        return real(self, lines, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(type(teacher), "translate", translate)
        with pytest.raises(DataError, match="changed while it was being read; run the command again"):
            distilled(teacher, student, run, [extra])
    assert not (run.corpus / distill.DISTILLED).exists()
    with pytest.raises(ConfigError, match="made with other teachers or corpora"):
        distilled(teacher, student, run, [extra])
    file.write_bytes(text)
    assert distilled(teacher, student, run, [extra]) == whole


@pytest.fixture(scope="module")
def distilled_run(trained: tuple[Path, Result], corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student that has trained on the translations of a teacher, which tests must not change."""
    folder = tmp_path_factory.mktemp("distilled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setattr(distill, "best_text", lambda src, n_best, reference: n_best.text or "leer")
        config = write_student(corpus, folder)
        result = invoke("distill", trained[0], "--config", config, "--run-dir", folder / "run")
        assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture
def finished(distilled_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished student, whose config names the copy."""
    run = Path(shutil.copytree(distilled_run / "run", tmp_path / "finished"))
    config = RunDir(run).config
    config.write_text(config.read_text().replace(str(distilled_run / "run"), str(run)))
    write_checksums(run, {**read_meta(run, CHECKSUMS)["sha256"], config.name: file_sha256(config)})
    return run


FINISHED_DAMAGES: dict[str, Callable[[Path], object]] = {
    "emptied": lambda folder: (folder / "distilled.tsv").write_bytes(b""),
    "cut": lambda folder: (folder / "distilled.tsv").write_bytes((folder / "distilled.tsv").read_bytes()[:-100]),
    "one line less": lambda folder: (folder / "distilled.tsv").write_bytes(
        b"".join((folder / "distilled.tsv").read_bytes().splitlines(keepends=True)[:-1])
    ),
    "bit": lambda folder: flip(folder / "distilled.tsv", 500),
    "recorded checksum": lambda folder: flip(folder / "teacher.json", -90),
    "cut record": lambda folder: (folder / "teacher.json").write_bytes((folder / "teacher.json").read_bytes()[:-9]),
    "emptied record": lambda folder: (folder / "teacher.json").write_bytes(b""),
}


@pytest.mark.parametrize("damage", FINISHED_DAMAGES)
def test_a_damaged_distilled_text_is_refused(damage: str, finished: Path, distilled_run: Path, trained: Any) -> None:
    FINISHED_DAMAGES[damage](RunDir(finished).corpus)
    config = RunDir(finished).config
    student = distilled_run / "student.yaml"
    for words in (
        ("distill", trained[0], "--config", student, "--run-dir", finished),
        ("train", config, "--run-dir", finished, "--resume"),
        ("train", config, "training.max_steps=6", "--run-dir", finished, "--resume"),
        ("train", config, "--run-dir", finished.with_name("other")),
        ("export", finished, "--format", "ctranslate2", "--vocabulary-map", "--output", finished.with_name("map")),
    ):
        result = invoke(*words)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert (result.exit_code, len(errors)) == (2, 1), result.stderr
        assert str(RunDir(finished).corpus) in errors[0]
        assert "restore it from a copy, or delete distilled.tsv and repeat `mtformer distill`" in errors[0]


def test_deleted_translations_are_made_again(finished: Path, distilled_run: Path, trained: Any) -> None:
    """The remedy that the message names."""
    folder = RunDir(finished).corpus
    text = (folder / "distilled.tsv").read_bytes()
    flip(folder / "teacher.json", 100)
    (folder / "distilled.tsv").unlink()
    words = ("distill", trained[0], "--config", distilled_run / "student.yaml", "--run-dir", finished)
    result = invoke(*words)
    assert result.exit_code == 0, result.stderr
    assert (folder / "distilled.tsv").read_bytes() == text
    (folder / "teacher.json").unlink()
    result = invoke(*words)
    assert (result.exit_code, "teacher.json: missing; restore it" in result.stderr) == (2, True), result.stderr


def test_translations_of_version_0_3_are_used_with_a_warning(finished: Path, distilled_run: Path, trained: Any) -> None:
    record = RunDir(finished).corpus / "teacher.json"
    values = json.loads(record.read_text())
    record.write_text(json.dumps({name: values[name] for name in ("teachers", "corpora", "monolingual")}, indent=2))
    for words in (
        ("train", RunDir(finished).config, "--run-dir", finished, "--resume"),
        ("distill", trained[0], "--config", distilled_run / "student.yaml", "--run-dir", finished),
    ):
        sources._warn_once.cache_clear()
        result = invoke(*words)
        assert result.exit_code == 0, result.stderr
        assert f"{record}: has no checksums, because version 0.3 wrote it" in result.stderr


def hypothesis(text: str, *flags: str, alternatives: tuple[Translation, ...] = ()) -> Translation:
    return Translation(text, -1.0, [], -1.0, [], [], flags, None, list(alternatives))


def test_the_translation_nearest_to_the_reference_is_used() -> None:
    others = (hypothesis("Ein Hund schläft."), hypothesis("Ein Hund schläft hier.", Flag.REPETITION), hypothesis(""))
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
    refuse({"language_pairs": ["en fr"], "language_tags": "source"}, "the student has several directions")
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
    refusal = "decoding.early_stopping 'estimate': not supported by CTranslate2; set 'auto' or 'ended'"
    assert (result.exit_code, refusal in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "new").exists()


def test_the_teacher_runs_without_ctranslate2_if_it_does_not_support_its_settings(
    run: Path, student: Path, tmp_path: Path
) -> None:
    """An imported OPUS-MT model has `early_stopping: estimate`."""
    config = load_config(student).config
    path = RunDir(run).config
    changes = {"early_stopping: auto": "early_stopping: estimate", "mbr_samples: 0": "mbr_samples: 8"}
    text = path.read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)
    write_checksums(run, {**read_meta(run, CHECKSUMS)["sha256"], path.name: file_sha256(path)})
    regression = Logistic(bias=0.0, terms={Feature.PROBABILITY: (0.5, 1.0, 1.0)})
    calibration = Calibration(good_chrf=50, num_pairs=500, regressions=[regression])
    RunDir(run).confidence.write_text(calibration.model_dump_json())
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
        assert (result.exit_code, "no translation is good enough to train on" in result.stderr) == (2, True), (
            result.stderr
        )
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

"""`adapt` and the reading of translation memories."""

import gzip
import json
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from program import invoke
from typer.testing import Result

from mtformer.config.data import DataConfig, JsonlFile, TextFiles
from mtformer.config.loading import dump_config, load_config
from mtformer.config.schema import Config, DecodingConfig
from mtformer.data.corpus.tmx import read_tmx
from mtformer.data.demo import write_demo
from mtformer.decoding.translator import Translator
from mtformer.errors import CheckpointError, ConfigError, DataError
from mtformer.evaluation.scores import Score
from mtformer.experiment import adapt, adaptation_text
from mtformer.experiment.adapt import Point, choose
from mtformer.files import CHECKSUMS, MADE_FROM, META, file_sha256, read_meta, sealed, write_checksums
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.text.tokenizer import TokenizerPair
from mtformer.weights import read_weights

FAST = ("training.max_steps=6", "training.validate_every=3", "training.warmup_steps=1")
UNFILTERED = "data.filters.max_repeats=null"  # an untrained model repeats words


@pytest.fixture(scope="module")
def new_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TSV file with 150 new pairs and one that occurs twice, with extra spaces."""
    folder = tmp_path_factory.mktemp("new")
    paths = write_demo(folder / "demo", seed=7)
    columns = [paths[f"train.{side}"].read_text().splitlines()[:150] for side in ("en", "de")]
    lines = [f"{src}\t {tgt}  \n" for src, tgt in zip(*columns, strict=True)]
    (folder / "new.tsv").write_text("".join([*lines, lines[0]]))
    return folder / "new.tsv"


@pytest.fixture(scope="module")
def adapted(
    trained: tuple[Path, Result], new_text: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Result]:
    """An adapted run, which tests must not change, and the output of the command."""
    run = tmp_path_factory.mktemp("adapted") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        result = invoke("adapt", trained[0], "--train", new_text, "--run-dir", run, "--max-loss", 100, *FAST)
    assert result.exit_code == 0, result.stderr
    return run, result


def adapt_config(base: Path, new_text: Path, new: Path, **changes: object) -> Config:
    """Change sections of the config of a run, and return the config of its adaptation."""
    path = RunDir(base).config
    path.write_text(dump_config(load_config(path).config.model_copy(update=changes)))
    write_checksums(base, {**read_meta(base, CHECKSUMS)["sha256"], path.name: file_sha256(path)})
    return adapt.adaptation_config(base, [str(new_text)], None, None, RunDir(new), [])


def pairs(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_an_epoch_has_five_times_as_many_old_tokens_as_new_and_no_pair_is_in_both_sets(
    adapted: tuple[Path, Result], trained: tuple[Path, Result]
) -> None:
    run = RunDir(adapted[0])
    train, dev = pairs(run.corpus / "train.tsv"), pairs(run.corpus / "dev.tsv")
    assert not {*train} & {*dev}
    assert len({*train} | {*dev}) == 150
    assert not any("  " in line or line != line.strip() for line in [*train, *dev])
    config = load_config(run.config).config
    tokenizer = TokenizerPair.load(run.tokenizer).tgt
    new_tokens = sum(len(ids) for ids in tokenizer.encode([line.split("\t")[1] for line in train]))
    old_tokens = json.loads(RunDir(trained[0]).data_report.read_text())["tokens"]["tgt"]
    assert config.data.corpora["train"].weight * old_tokens == pytest.approx(5 * new_tokens)
    assert config.data.corpora["new"].weight == 1
    assert config.training.init_from == str(trained[0])
    assert list(config.data.dev) == ["new", "old"]


def test_the_chosen_weights_lie_between_old_and_new_and_are_the_default(
    adapted: tuple[Path, Result], trained: tuple[Path, Result], tmp_path: Path
) -> None:
    run, result = adapted
    *table, note = result.stdout.splitlines()
    assert note.startswith(
        "The dev sets also chose the weights, so the scores of the chosen weights are slightly too high"
    )
    rows = [line.split() for line in table]
    share = int(re.findall(r"(\d+)%", result.stdout)[0]) / 100
    opened = RunDir(run)
    old, new = read_weights(RunDir(trained[0]).averaged / WEIGHTS), read_weights(opened.checkpoint(6) / WEIGHTS)
    chosen = read_weights(opened.averaged / WEIGHTS)
    for name, weight in chosen.items():
        torch.testing.assert_close(weight, old[name] + share * (new[name] - old[name]))
    assert [row[:2] for row in rows[1:]] == [["new,", "chrF2++"], ["new,", "BLEU"], ["old,", "BLEU"]]
    assert float(rows[1][4]) >= max(map(float, rows[1][2:4]))
    default = invoke("translate", run, stdin=b"The man sleeps.\n")
    explicit = invoke("translate", run, "--checkpoint", "averaged", stdin=b"The man sleeps.\n")
    assert default.stdout == explicit.stdout
    assert invoke("report", run, "--out", tmp_path / "report.html").exit_code == 0
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "chose on its dev sets, whose scores are therefore slightly too high" in report


def test_weights_are_chosen_with_the_beam_of_translation(
    adapted: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy search, the default of validation, can hide a loss on the old text."""
    run = RunDir(shutil.copytree(adapted[0], tmp_path / "run"))
    beams = list[int]()

    class Recorded(Translator):
        def __init__(self, models: Any, tokenizers: Any, decoding: DecodingConfig, *rest: Any, **options: Any) -> None:
            beams.append(decoding.beam_size)
            super().__init__(models, tokenizers, decoding, *rest, **options)

    monkeypatch.setattr(adapt, "Translator", Recorded)
    config = load_config(run.config).config
    assert (config.decoding.beam_size, config.decoding.for_validation().beam_size) == (2, 1)
    run.confidence.write_text("{}")
    adapt.choose_weights(run, config, 0.3, lambda: None)
    assert set(beams) == {2}
    assert not run.confidence.exists()  # it was fitted to other weights


def test_weights_are_chosen_in_the_precision_of_translation(
    adapted: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, `translate` uses fp16; the chosen weights remain float32."""
    run = RunDir(shutil.copytree(adapted[0], tmp_path / "run"))
    dtypes = list[torch.dtype]()

    class Recorded(Translator):
        def into(self, language: str | None) -> Translator:
            dtypes.append(self.models[0].output.dtype)
            return super().into(language)

    monkeypatch.setattr(adapt, "Translator", Recorded)
    monkeypatch.setattr(adapt, "pick_search_precision", lambda name, device: "bf16")
    adapt.choose_weights(run, load_config(run.config).config, 0.3, lambda: None)
    assert set(dtypes) == {torch.bfloat16}
    assert {weight.dtype for weight in read_weights(run.averaged / WEIGHTS).values()} == {torch.float32}


def test_the_confidence_is_fitted_to_the_new_and_the_old_dev_set(
    trained: tuple[Path, Result], adapted: tuple[Path, Result], new_text: Path, tmp_path: Path, fitted: list[Any]
) -> None:
    assert "no confidence was fitted: confidence needs at least 500 dev pairs, not" in adapted[1].stderr
    run = RunDir(tmp_path / "run")
    result = invoke("adapt", trained[0], "--train", new_text, "--run-dir", run.path, *FAST)
    assert result.exit_code == 0, result.stderr
    [(path, weights, sizes)] = fitted
    assert (path, weights) == (run.path, [run.averaged / WEIGHTS])
    assert sizes[0] == len(pairs(run.corpus / "dev.tsv"))
    assert len(sizes) == 2


def test_both_directions_are_measured(
    adapted: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(shutil.copytree(adapted[0], tmp_path / "run"))
    config = load_config(run.config).config
    both = config.model_copy(update={"data": config.data.model_copy(update={"both_directions": True})})
    targets = list[str | None]()

    class Recorded(Translator):
        def into(self, language: str | None) -> Translator:
            targets.append(language)
            return self

    def score(found: list[str], references: list[str], *_: object) -> list[Score]:
        return [Score(name, name, float(len(targets) % 4), "") for name in ("bleu", "chrf")]

    monkeypatch.setattr(adapt, "Translator", Recorded)
    monkeypatch.setattr(adapt, "score", score)
    points, _ = adapt.choose_weights(run, both, 0.3, lambda: None)
    assert targets == ["de", "en", "de", "en"] * len(adapt.SHARES)
    assert points[0][1:] == (1.5, 1.5, 1.5)


def test_an_interrupted_adaptation_resumes(
    adapted: tuple[Path, Result], trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ["adapt", trained[0], "--train", new_text, "--run-dir", run, "--max-loss", 100]
    shorter = ["training.max_steps=3", *FAST[1:], "training.schedule=constant"]
    assert invoke(*words, *shorter).exit_code == 0
    shutil.rmtree(RunDir(run).averaged)
    resumed = invoke(*words, *FAST, "training.schedule=constant")
    assert resumed.exit_code == 0, resumed.stderr
    whole = tmp_path / "whole"
    words[5] = whole
    assert invoke(*words, *FAST, "training.schedule=constant").exit_code == 0
    one, other = (read_weights(RunDir(path).checkpoint(6) / WEIGHTS) for path in (run, whole))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_an_adaptation_that_was_killed_while_it_wrote_its_corpus_can_be_repeated(
    trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    words = ["adapt", trained[0], "--train", new_text, "--run-dir", tmp_path / "run", "--max-loss", 100, *FAST]
    leftover = tmp_path / "run" / f".corpus@{platform.node()}.4194305.tmp"
    leftover.mkdir(parents=True)
    result = invoke(*words)
    assert result.exit_code == 0, result.stderr
    assert not leftover.exists()


def test_without_old_corpora_the_old_model_translates_the_new_sources(
    run: Path, new_text: Path, tmp_path: Path
) -> None:
    bundle, path = tmp_path / "bundle", RunDir(run).config
    path.write_text(path.read_text().replace("n_best: 1\n", "n_best: 2\n"))  # more than the beam of the replay
    write_checksums(run, {**read_meta(run, CHECKSUMS)["sha256"], path.name: file_sha256(path)})
    assert invoke("export", run, "--output", bundle).exit_code == 0
    run = tmp_path / "new"
    result = invoke("adapt", bundle, "--train", new_text, "--run-dir", run, *FAST, UNFILTERED)
    assert result.exit_code == 0, result.stderr
    assert "no old dev set" in result.stderr
    rows = [line.split("  ")[0] for line in result.stdout.splitlines()[:-1]]
    assert rows == ["dev set, score", "new, chrF2++", "new, BLEU"]
    replay, train = pairs(RunDir(run).corpus / "replay.tsv"), pairs(RunDir(run).corpus / "train.tsv")
    sources = "".join(line.split("\t")[0] + "\n" for line in train)
    expected = invoke("translate", bundle, "--beam-size", 1, "--n-best", 1, stdin=sources.encode()).stdout.splitlines()
    assert [line.split("\t")[1] for line in replay] == expected


@pytest.mark.parametrize(
    ("points", "share"),
    [
        ([(0.0, 10.0, 30.0, 40.0), (0.5, 9.0, 34.0, 39.8), (1.0, 15.0, 35.0, 39.0)], 0.5),
        ([(0.0, 10.0, 30.0, 40.0), (0.5, 14.0, 29.0, 39.8), (1.0, 15.0, 35.0, 39.0)], 0.0),
        ([(0.0, 10.0, 30.0, 40.0), (0.5, 14.0, 34.0, 39.9), (1.0, 15.0, 35.0, 40.0 - 0.3)], 1.0),
        ([(0.0, 10.0, 30.0, None), (0.5, 14.0, 34.0, None), (1.0, 15.0, 35.0, None)], 1.0),
    ],
)
def test_the_best_point_within_the_allowed_loss_is_chosen(points: list[Any], share: float) -> None:
    assert choose([Point(*one) for one in points], 0.3).share == share


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.tsv": "one\teins\n"}, "give at least 50 for training and 1 for dev"),
        ({}, "a.tsv: no such file"),
        ({"a.fr,a.de": "x\n" * 60}, "a.fr: its name ends with .fr, but the model translates en-de"),
        ({"a.en,a.de,a.x": "x\n"}, "too many files"),
        ({"a.tsv,b.tsv": "one\teins\n" * 60}, "too many files; give one TSV, JSONL or TMX file, or two files SRC,TGT"),
        ({"a.tmx": "<tmx><body><tu></body></tmx>"}, "not well-formed XML"),
        ({"a.tmx": '<?xml version="1.0" encoding="gb2312"?><tmx/>'}, "multi-byte encodings are not supported"),
        ({"a.tmx": '<?xml version="1.0" encoding="none"?><tmx/>'}, "unknown encoding"),
        ({"a.tmx": "<x><tu/></x>"}, "a.tmx: no en-de pairs"),
        ({"a.tmx": "<tmx><body/></tmx>"}, "a.tmx: no en-de pairs; languages in the file: none"),
    ],
)
def test_unusable_text_is_refused_and_nothing_is_left(
    files: dict[str, str], message: str, trained: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for names, text in files.items():
        for name in names.split(","):
            Path(name).write_text(text)
    result = invoke("adapt", trained[0], "--train", next(iter(files), "a.tsv"), "--run-dir", "run")
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not Path("run").exists()


@pytest.mark.parametrize("moved", ["data.train=[{{src: {0}, tgt: {1}}}]", "data.train.0={{src: {0}, tgt: {1}}}"])
def test_overrides_change_the_share_of_old_text_and_say_where_it_is_now(
    moved: str, trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    """`data.train=...` must replace the corpora of the run, and not train on them twice."""
    [given] = load_config(RunDir(trained[0]).config).config.data.train
    assert isinstance(given, TextFiles)
    here = [shutil.copy(name, tmp_path) for name in (given.src, given.tgt)]
    overrides = [moved.format(*here), "data.corpora.train.weight=0.5"]
    config = adapt.adaptation_config(trained[0], [str(new_text)], None, None, RunDir(tmp_path / "new"), overrides)
    assert (config.data.train, list(config.data.corpora)) == ([], ["train", "new"])
    [source], weight = config.data.corpora["train"].sources, config.data.corpora["train"].weight
    assert isinstance(source, TextFiles)
    assert ([source.src, source.tgt], weight) == (here, 0.5)


def test_another_language_pair_is_refused_before_anything_is_written(
    trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    result = invoke("adapt", trained[0], "--train", new_text, "--run-dir", new, "data.src_lang=fr")
    assert result.exit_code == 2
    problem = f"{trained[0]}: translates en-de; adapt cannot change its languages"
    assert result.stderr == f"error: {problem}; remove the overrides of languages\n"
    assert not new.exists()


@pytest.mark.parametrize("copies", [30, 90])
def test_a_large_new_text_has_fewer_old_tokens_for_each_new_one(
    copies: int, trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    (tmp_path / "new.tsv").write_text(new_text.read_text() * copies)
    run = RunDir(tmp_path / "new")
    config = adapt.adaptation_config(trained[0], [str(tmp_path / "new.tsv")], None, None, run, [])
    train = pairs(run.corpus / "train.tsv")
    new_tokens = sum(
        map(len, TokenizerPair.load(RunDir(trained[0]).tokenizer).tgt.encode([one.split("\t")[1] for one in train]))
    )
    old_tokens = json.loads(RunDir(trained[0]).data_report.read_text())["tokens"]["tgt"]
    expected = {30: 106 / len(train) ** 0.5, 90: 1.0}[copies]
    assert 1.0 <= expected < 2
    assert config.data.corpora["train"].weight * old_tokens == pytest.approx(expected * new_tokens)


def test_each_dev_set_of_the_old_run_is_an_old_one(run: Path, new_text: Path, tmp_path: Path) -> None:
    """Otherwise the weights would be chosen on a dev set of the old text."""
    data = load_config(RunDir(run).config).config.data
    dev = {"news": data.dev_sources[0], "talks": data.dev_sources[0]}
    changed = adapt_config(run, new_text, tmp_path / "new", data=data.model_copy(update={"dev": dev}))
    assert list(changed.data.dev) == ["new", "old", "old1"]


DAMAGES = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "one line less": lambda data: b"".join(data.splitlines(keepends=True)[:-1]),
    "bit": lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["train.tsv", "dev.tsv", "made_from.json"])
def test_damaged_text_of_an_adaptation_is_refused(
    name: str, damage: str, adapted: tuple[Path, Result], trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    run = RunDir(shutil.copytree(adapted[0], tmp_path / "run"))
    text = run.config.read_text().replace(str(adapted[0]), str(run.path))
    run.config.write_text(text)
    write_checksums(run.path, {**read_meta(run.path, CHECKSUMS)["sha256"], "config.yaml": file_sha256(run.config)})
    file = run.corpus / name
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    for words in (
        ("adapt", trained[0], "--train", new_text, "--run-dir", run.path, "--max-loss", 100, *FAST),
        ("train", run.config, "--run-dir", run.path, "--resume"),
    ):
        result = invoke(*words)
        errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert (result.exit_code, len(errors)) == (2, 1), result.stderr
        assert errors[0].startswith(f"error: {file}: ")
        assert "repeat `mtformer adapt` with another --run-dir" in errors[0]


def test_damaged_text_without_a_checkpoint_is_written_again(
    trained: tuple[Path, Result], new_text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunDir(tmp_path / "run")
    adapt.adaptation_config(trained[0], [str(new_text)], None, None, run, [])
    whole = {path.name: path.read_bytes() for path in run.corpus.iterdir()}
    for name in whole:
        (run.corpus / name).write_bytes(whole[name][:-40])
        adapt.adaptation_config(trained[0], [str(new_text)], None, None, run, [])
        assert {path.name: path.read_bytes() for path in run.corpus.iterdir()} == whole
        assert f"{run.corpus / name}: " in caplog.messages[-1]
        assert "the text is written again" in caplog.messages[-1]


@pytest.mark.parametrize(
    "kept", ["Der Hund", "Der Hund\t", "Der Hund\tThe d\u00f6"], ids=["no tab", "no text", "character"]
)
def test_text_of_version_0_3_that_is_cut_inside_its_last_line_is_refused_in_one_line(
    kept: str, trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    """Version 0.3 recorded no checksums of the text."""
    run = RunDir(tmp_path / "run")
    words = ("adapt", trained[0], "--train", new_text, "--run-dir", run.path, *FAST)
    adapt.adaptation_config(trained[0], [str(new_text)], None, None, run, [])
    made_from = read_meta(run.corpus, MADE_FROM)["made_from"]
    (run.corpus / MADE_FROM).write_text(json.dumps(made_from))
    file = run.corpus / "train.tsv"
    num_lines = len(pairs(file))
    cut = kept.encode()[:-1] if kept.endswith("ö") else kept.encode()
    file.write_bytes(file.read_bytes() + cut)
    result = invoke(*words)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    if kept.endswith("\t"):  # a pair with a blank side, which the filters remove
        assert (result.exit_code, errors) == (0, []), result.stderr
    else:
        assert (result.exit_code, len(errors)) == (2, 1), result.stderr
        assert errors[0].startswith(f"error: {file}:{num_lines + 1}: ")


def test_a_data_report_without_numbers_of_tokens_is_not_used(
    run: Path, new_text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = json.loads(RunDir(run).data_report.read_text())
    del report["checksum"]
    expected = adapt.adaptation_config(run, [str(new_text)], None, None, RunDir(tmp_path / "new"), [])
    for value in ("12", None, -5, [1], 1e400):
        caplog.clear()
        report["tokens"]["tgt"] = value
        RunDir(run).data_report.write_text(json.dumps(sealed(report)))
        new = RunDir(tmp_path / f"new {value}")
        counted = adapt.adaptation_config(run, [str(new_text)], None, None, new, [])
        assert counted.data.corpora.keys() == expected.data.corpora.keys()
        assert sum("the tokens of its corpora are counted again" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("is_same_time", [False, True])
def test_text_that_is_replaced_while_it_is_read_is_an_error(
    is_same_time: bool, trained: tuple[Path, Result], new_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, run = tmp_path / "new.tsv", RunDir(tmp_path / "run")
    text = new_text.read_bytes()
    file.write_bytes(text)
    times, write = (file.stat().st_atime_ns, file.stat().st_mtime_ns), adapt.write_new_text

    def write_after_a_change(*arguments: Any) -> None:
        file.write_bytes(text.swapcase())
        if is_same_time:
            os.utime(file, ns=times)
        write(*arguments)

    monkeypatch.setattr(adapt, "write_new_text", write_after_a_change)
    with pytest.raises(DataError, match=f"{file} changed while it was being read; run the command again"):
        adapt.adaptation_config(trained[0], [str(file)], None, None, run, [])
    assert not run.path.exists()


def test_old_weights_that_changed_since_the_start_are_not_used(
    adapted: tuple[Path, Result], trained: tuple[Path, Result], tmp_path: Path
) -> None:
    run = RunDir(shutil.copytree(adapted[0], tmp_path / "run"))
    base = RunDir(shutil.copytree(trained[0], tmp_path / "base"))
    shutil.rmtree(base.averaged)
    config = load_config(run.config).config
    training = config.training.model_copy(update={"init_from": str(base.path)})
    with pytest.raises(ConfigError, match="changed since the adaptation began"):
        adapt.choose_weights(run, config.model_copy(update={"training": training}), 0.3, lambda: None)


def test_a_damaged_last_checkpoint_is_not_averaged(adapted: tuple[Path, Result], tmp_path: Path) -> None:
    """The average would get a correct checksum."""
    run = RunDir(shutil.copytree(adapted[0], tmp_path / "run"))
    path = run.checkpoint(6) / WEIGHTS
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="truncated or changed since it was saved"):
        adapt.choose_weights(run, load_config(run.config).config, 0.3, lambda: None)


def test_text_of_earlier_adaptations_is_old_text_too(
    adapted: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    run = RunDir(shutil.copytree(adapted[0], tmp_path / "run"))
    again = adapt.adaptation_config(run.path, [str(new_text)], None, None, RunDir(tmp_path / "again"), [])
    corpora, report = again.data.corpora, json.loads(run.data_report.read_text())["corpora"]
    assert list(corpora) == ["train", "old", "new"]
    sizes = {"train": report["train"]["tokens"]["tgt"], "old": report["new"]["tokens"]["tgt"]}
    num_old = sum(size * corpora[name].weight for name, size in sizes.items())
    assert num_old == pytest.approx(5 * sizes["old"], rel=0.01)  # its filters remove some
    report["old"] = report["train"]
    run.data_report.write_text(json.dumps({"corpora": report}))
    data = load_config(run.config).config.data
    earlier = {**data.corpora, "old": data.corpora["train"]}
    third = adapt_config(run.path, new_text, tmp_path / "third", data=data.model_copy(update={"corpora": earlier}))
    assert list(third.data.corpora) == ["train", "old2", "old", "new"]


def test_a_tokenizer_given_to_the_old_run_is_kept(run: Path, new_text: Path, tmp_path: Path) -> None:
    config = load_config(RunDir(run).config).config
    tokenizer = config.tokenizer.model_copy(update={"src_model": str(run / "tokenizer" / "joint.model")})
    changed = adapt_config(run, new_text, tmp_path, tokenizer=tokenizer)
    assert (changed.tokenizer.src_model, changed.training.init_from) == (None, str(run))


def test_pairs_are_held_out_of_all_files_and_blank_ones_left_out(new_text: Path, tmp_path: Path) -> None:
    """Otherwise the weights would be chosen on the first of several corpora."""
    lines = [f"{number} dogs\t{number} Hunde\n" for number in range(9_000)]
    (tmp_path / "a.tsv").write_text("".join([*lines, "\tleer\n", "blank\t \n"]))
    names, data = [str(tmp_path / "a.tsv"), str(new_text)], DataConfig(src_lang="en", tgt_lang="de")
    adaptation_text.write_new_text(tmp_path, names, None, data)
    train, dev = (pairs(tmp_path / f"{name}.tsv") for name in ("train", "dev"))
    own = {" ".join(line.split()) for line in pairs(new_text)}
    shares = [len({" ".join(line.split()) for line in some} & own) / len(some) for some in (train, dev)]
    assert (len(dev), len({*train, *dev})) == (500, 9_150)
    assert 0 < shares[1] < 3 * shares[0]
    assert not any("leer" in line or "blank" in line for line in [*train, *dev])


def test_repeated_pairs_are_held_out_once(tmp_path: Path) -> None:
    """Otherwise a few of them would be the whole dev set."""
    lines = [f"{number} dogs\t{number} Hunde\n" for number in range(1_000)]
    sizes = []
    for copies in (1, 20):
        (tmp_path / "a.tsv").write_text("".join(lines * copies))
        adaptation_text.write_new_text(
            tmp_path, [str(tmp_path / "a.tsv")], None, DataConfig(src_lang="en", tgt_lang="de")
        )
        sizes.append(len(pairs(tmp_path / "dev.tsv")))
    assert sizes[0] == sizes[1] > 50


def test_the_schedule_follows_the_number_of_steps_and_this_the_number_of_pairs(
    adapted: tuple[Path, Result], trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    words = [str(new_text)], None, None
    short = adapt.adaptation_config(trained[0], *words, RunDir(tmp_path / "short"), ["training.max_steps=50"]).training
    assert (short.max_steps, short.warmup_steps, short.validate_every) == (50, 5, 10)
    (tmp_path / "many.tsv").write_text("".join(f"{number} dogs\t{number} Hunde\n" for number in range(2_500)))
    many = [str(tmp_path / "many.tsv")], str(new_text), None
    by_size = adapt.adaptation_config(trained[0], *many, RunDir(tmp_path / "many"), []).training
    assert (by_size.max_steps, by_size.warmup_steps, by_size.validate_every) == (2_500, 250, 500)
    # A model that was adapted before is adapted with the same learning rate.
    again = adapt.adaptation_config(adapted[0], *words, RunDir(tmp_path / "again"), []).training
    bundle = tmp_path / "bundle"
    assert invoke("export", adapted[0], "--output", bundle).exit_code == 0
    of_bundle = adapt.adaptation_config(bundle, *words, RunDir(tmp_path / "bundle_again"), []).training
    records = [
        (trained[0] / "checkpoints" / "averaged", META),
        (RunDir(adapted[0]).averaged, META),
        (bundle, CHECKSUMS),
    ]
    assert [read_meta(*record)["adapted"] for record in records] == [False, True, True]
    rate = load_config(RunDir(adapted[0]).config).config.training.learning_rate
    assert [again.learning_rate, of_bundle.learning_rate] == pytest.approx([rate, rate])


def test_dropout_is_halved_and_consistency_regularization_is_used_in_the_last_steps(
    adapted: tuple[Path, Result], trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    """The model gains more and forgets less in this way (docs/log/adaptation.md)."""
    found = list[object]()
    steps = load_config(RunDir(trained[0]).config).config.training.max_steps
    used, unused = {"consistency_start": steps - 1}, {"consistency_start": steps}
    cases = [(trained, "none", {}), (trained, "rdrop", used), (trained, "simcut", unused), (adapted, "rdrop", {})]
    for number, (base, kind, start) in enumerate(cases):
        copied = shutil.copytree(base[0], tmp_path / f"base_{number}")
        before = load_config(RunDir(copied).config).config
        weight = {} if kind == "none" else {"consistency_weight": 2.0}
        cutoff = {"cutoff": 0.1} if kind == "simcut" else {}
        training = before.training.model_copy(update={"consistency": kind, **weight, **start, **cutoff})
        model = before.model.model_copy(update={"dropout": 0.2})
        new = adapt_config(copied, new_text, tmp_path / str(number), training=training, model=model)
        found.append((new.training.consistency, new.training.consistency_start, new.model.dropout))
    # The third model ended before consistency regularization began; the last one was adapted before.
    assert found == [("none", 0, 0.1), ("rdrop", 600, 0.1), ("none", 0, 0.1), ("rdrop", 600, 0.2)]


def test_a_bundle_replays_its_corpora_if_their_files_are_given(
    adapted: tuple[Path, Result], trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    assert invoke("export", adapted[0], "--output", tmp_path / "bundle").exit_code == 0
    [given] = load_config(RunDir(trained[0]).config).config.data.train
    assert isinstance(given, TextFiles)
    where = [f"data.train=[{{src: {given.src}, tgt: {given.tgt}}}]"]
    config = adapt.adaptation_config(tmp_path / "bundle", [str(new_text)], None, None, RunDir(tmp_path / "new"), where)
    counts = json.loads(RunDir(adapted[0]).data_report.read_text())["corpora"]
    old, new = (counts[name]["tokens"]["tgt"] for name in ("train", "new"))
    assert config.data.corpora["train"].weight * old == pytest.approx(5 * new, rel=0.05)  # filters remove some


def test_text_that_the_filters_refuse_can_be_corrected(
    trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    swapped = ["\t".join(reversed(line.split("\t"))) for line in pairs(new_text)]
    (tmp_path / "swapped.tsv").write_text("\n".join(swapped) + "\n")
    words = ("adapt", trained[0], "--train", tmp_path / "swapped.tsv", "--run-dir", tmp_path / "run", *FAST)
    result = invoke(*words)
    assert (result.exit_code, "max_filtered_share" in result.stderr) == (2, True), result.stderr
    shutil.copy(new_text, tmp_path / "swapped.tsv")
    assert invoke(*words).exit_code == 0


def test_infinite_weights_stay_infinite() -> None:
    """An imported Marian model excludes some tokens by a bias of -inf, of which `lerp` makes NaN."""
    old, new = torch.tensor([-torch.inf, 1.0]), torch.tensor([-torch.inf, 2.0])
    for share in adapt.SHARES:
        assert adapt._mix(old, new, share).tolist() == [-torch.inf, pytest.approx(1 + share)]


def test_a_missing_old_dev_set_is_refused_before_anything_is_written(run: Path, new_text: Path, tmp_path: Path) -> None:
    words = ("adapt", run, "--train", new_text, "--run-dir", tmp_path / "new")
    (tmp_path / "x.de").write_text("Ein Hund.\n")
    (tmp_path / "x.en").write_text("A dog.\n")
    for old, message in (
        (tmp_path / "no.tsv", f"{tmp_path}/no.tsv: "),
        (
            f"{tmp_path}/x.de,{tmp_path}/x.en",
            f"{tmp_path}/x.de: its name ends with .de, but the model translates en-de",
        ),
    ):
        result = invoke(*words, "--old-dev", old)
        assert (result.exit_code, (tmp_path / "new").exists()) == (2, False)
        assert result.stderr.splitlines()[-1].startswith(f"error: {message}")


def test_an_adaptation_is_not_resumed_with_other_text(
    adapted: tuple[Path, Result], trained: tuple[Path, Result], new_text: Path, tmp_path: Path
) -> None:
    """Without a checkpoint, the corpora are written again; with one, a file that changed is refused."""
    (tmp_path / "new.tsv").write_text(new_text.read_text())
    run, words = RunDir(tmp_path / "run"), ([str(tmp_path / "new.tsv")], None, None)
    adapt.adaptation_config(trained[0], *words, run, [])
    (tmp_path / "new.tsv").write_text(new_text.read_text().upper())
    adapt.adaptation_config(trained[0], *words, run, [])
    assert (run.corpus / "train.tsv").read_text().isupper()
    shutil.copytree(adapted[0] / "checkpoints", run.checkpoints)
    (tmp_path / "new.tsv").write_text(new_text.read_text())
    result = invoke("adapt", trained[0], "--train", tmp_path / "new.tsv", "--run-dir", run.path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "made from other files or weights" in result.stderr


def test_runs_that_cannot_be_adapted(trained: tuple[Path, Result], run: Path, new_text: Path, tmp_path: Path) -> None:
    for base, new, message in (
        (tmp_path / "none", tmp_path / "new", "not a run directory"),
        (trained[0], tmp_path, "already exists"),
        (trained[0], tmp_path / "new", "did you mean 'training'?"),
        (trained[0], tmp_path / "new", "data.corpora.other.sources"),
    ):
        words = ["trainign.max_steps=3"] if "did you" in message else []
        words += ["data.corpora.other.weight=2"] if "other" in message else []
        result = invoke("adapt", base, "--train", new_text, "--run-dir", new, *words)
        assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
    shutil.rmtree(run / "tokenizer")
    result = invoke("adapt", run, "--train", new_text, "--run-dir", tmp_path / "new")
    assert (result.exit_code, "tokenizer" in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "new").exists()


TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header/><body>
<tu><tuv xml:lang="en-US"><seg>A <bpt i="1">&lt;b&gt;</bpt>big<ept i="1"/> &amp; <hi>old</hi> dog.</seg></tuv>
<tuv xml:lang="DE"><seg>Ein großer
alter Hund.</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Only English.</seg></tuv><tuv xml:lang="fr"><seg>Non.</seg></tuv></tu>
<tu><tuv lang="de-AT"><seg>Ja.</seg></tuv><tuv lang="de-CH"><seg>Jo.</seg></tuv>
<tuv lang="en"><seg><g id="1">Yes</g>.</seg></tuv></tu>
</body></tmx>"""


@pytest.mark.parametrize(
    ("name", "is_tmx"), [("a.tmx", True), ("A.TMX.GZ", True), ("export.tmx.tsv", False), ("export.tmx.jsonl.xz", False)]
)
def test_the_last_suffix_without_compression_is_the_format(name: str, is_tmx: bool) -> None:
    source = adaptation_text.file_source(name)
    assert adaptation_text.is_tmx(source) == is_tmx
    assert isinstance(source, JsonlFile) == (".jsonl" in name)


def test_translation_memory(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.tmx.gz", "wt", encoding="utf-8") as file:
        file.write(TMX)
    found = [*read_tmx(str(tmp_path / "a.tmx.gz"), "en", "de-AT")]
    assert found == [("A big & old dog.", "Ein großer\nalter Hund."), ("Yes.", "Ja.")]
    (tmp_path / "b.tmx").write_text(TMX.replace("<tmx ", '<tmx xmlns="http://www.lisa.org/tmx14" '))
    assert [*read_tmx(str(tmp_path / "b.tmx"), "en", "de_CH")] == [found[0], ("Yes.", "Jo.")]
    with pytest.raises(DataError, match="no en-it pairs; languages in the file: de, en, fr"):
        [*read_tmx(str(tmp_path / "a.tmx.gz"), "en", "it")]
    with pytest.raises(DataError, match="pt-PT and pt-BR have the same language code in TMX"):
        [*read_tmx(str(tmp_path / "a.tmx.gz"), "pt-PT", "pt-BR")]


def test_a_translation_memory_cannot_expand_entities_or_read_files(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE tmx [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
    outside = '<!DOCTYPE tmx [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
    for start in (bomb, outside):
        path = tmp_path / "a.tmx"
        path.write_text(f"{start}<tmx><body><tu><tuv lang='en'><seg>&a;</seg></tuv></tu></body></tmx>")
        with pytest.raises(DataError, match="entities"):
            [*read_tmx(str(path), "en", "de")]


@pytest.mark.parametrize("depth", [1_200, 100_000])
def test_a_translation_memory_with_deeply_nested_elements_is_read(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    segments = {"en": "A dog.", "de": f"Ein {'<hi>' * depth}alter{'</hi>' * depth} Hund."}
    texts = "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in segments.items())
    path.write_text(f"<tmx><body><tu>{texts}</tu></body></tmx>")
    assert [*read_tmx(str(path), "en", "de")] == [("A dog.", "Ein alter Hund.")]


@pytest.mark.parametrize("code", ["x&#10;error: y", "&#155;31m", "&#8238;de", "x" * 5000])
def test_errors_about_a_translation_memory_are_one_printable_line(code: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    path.write_text(f'<tmx><body><tu><tuv xml:lang="{code}"><seg>a</seg></tuv></tu></body></tmx>', encoding="utf-8")
    with pytest.raises(DataError, match="no en-de pairs; languages in the file: ") as refused:
        [*read_tmx(str(path), "en", "de")]
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < len(str(path)) + 250


def test_other_directions_of_the_old_run_remain(run: Path, new_text: Path, tmp_path: Path) -> None:
    data = load_config(RunDir(run).config).config.data
    tagged = data.model_copy(update={"language_tags": "source", "language_pairs": ["en fr"]})
    config = adapt_config(run, new_text, tmp_path / "new", data=tagged)
    assert config.data.directions == [("en", "de"), ("en", "fr")]

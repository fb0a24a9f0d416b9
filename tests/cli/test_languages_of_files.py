"""Several corpora, languages and directions in one model, through the command line."""

import json
import shutil
from pathlib import Path

import pytest
from program import invoke

from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError
from mtformer.evaluation.card import EvalSet
from mtformer.files import write_checksums
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import TokenizerPair

LONG = ["training.max_steps=8", "training.validate_every=8", "training.log_every=4", "training.average_last=0"]


@pytest.fixture(scope="module", params=["source", "target"])
def both(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return an en-de run in both directions, with a tagged corpus whose weight is halved from step 4."""
    run = RunDir(tmp_path_factory.mktemp("runs") / request.param)
    extra = f"[{{src: {corpus}/dev.en, tgt: {corpus}/dev.de}}]"
    result = invoke(
        "train", corpus / "small.yaml", *LONG, "data.both_directions=true", f"data.language_tags={request.param}",
        f"data.corpora.bt={{sources: {extra}, weight: 4, tag: <bt>}}",
        "--run-dir", run.path,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "test_" not in result.stdout
    assert "small.de-en" in result.stdout
    return run


def test_dev_and_test_have_scores_for_each_direction(both: RunDir) -> None:
    rows = [json.loads(line) for line in both.metrics.read_text().splitlines()]
    (dev,) = [row for row in rows if row["kind"] == "dev"]
    assert dev["chrf en-de"] != dev["chrf de-en"]
    assert dev["chrf"] == pytest.approx((dev["chrf en-de"] + dev["chrf de-en"]) / 2, abs=0.02)
    assert {path.name for path in (both.path / "eval").iterdir()} == {"small", "small.de-en"}


def test_the_log_counts_each_corpus(both: RunDir) -> None:
    rows = [json.loads(line) for line in both.metrics.read_text().splitlines()]
    first = next(row for row in rows if row["kind"] == "train")
    counts = {name: value for name, value in first.items() if name.startswith("pairs ")}
    assert set(counts) == {f"pairs {name}.{way}" for name in ("bt", "train") for way in ("en-de", "de-en")}
    assert counts["pairs train.en-de"] > 0
    report = json.loads(both.data_report.read_text())
    assert report["read"] == 620
    assert report["corpora"]["bt.en-de"]["read"] == 20


def test_the_tokenizer_has_the_tags_as_pieces(both: RunDir) -> None:
    tokenizer = TokenizerPair.load(both.tokenizer).src
    for tag in ("<2de>", "<2en>", "<bt>"):
        assert tokenizer.id_pieces([tokenizer.piece_id(tag)]) == [tag]


def test_to_selects_the_target_language(both: RunDir, tmp_path: Path) -> None:
    found = {}
    for options in ((), ("--to", "de"), ("--to", "en")):
        result = invoke("translate", both.path, *options, "--json", stdin=b"The man sleeps.\nA dog.\n")
        assert result.exit_code == 0, result.stderr
        found[options] = [json.loads(line)["score"] for line in result.stdout.splitlines()]
    assert found[()] == found["--to", "de"] != found["--to", "en"]
    result = invoke("translate", both.path, "--to", "fr", stdin=b"The man sleeps.\n")
    assert (result.exit_code, result.stderr) == (
        2, "error: this model does not translate to 'fr'; it was trained on de, en, so choose one of these\n",
    )  # fmt: skip


def test_translate_and_score_give_equal_scores(both: RunDir, tmp_path: Path) -> None:
    translator = Translator.load(both.path).into("en")
    lines = ["Der Mann schläft.", "Ein Hund."]
    # The model reaches the length limit, so the prefix is nearly the whole translation.
    found = translator.translate(lines, prefixes=["A dog sees.", "A dog."], attention=True, max_length=12)
    scored = translator.score(lines, [one.text for one in found])
    compared = 0
    for one, again in zip(found, scored, strict=True):
        assert again is not None
        assert one.attention is not None
        assert len(one.attention.weights[0]) == len(one.attention.src_pieces)
        if len(again.pieces) == len(one.pieces):
            assert again.log_probability == pytest.approx(one.log_probability, abs=1e-3)
            compared += 1
    assert compared
    for name, line in (("src", lines[0]), ("tgt", found[0].text)):
        (tmp_path / name).write_text(f"{line}\n")
    result = invoke("score", both.path, tmp_path / "src", tmp_path / "tgt", "--to", "en")
    assert result.exit_code == 0, result.stderr
    assert float(result.stdout) == pytest.approx(scored[0].log_probability if scored[0] else None, abs=1e-3)


def test_eval_in_a_direction(both: RunDir, corpus: Path, tmp_path: Path) -> None:
    files = ("--src", corpus / "test.de", "--ref", corpus / "test.en")
    result = invoke("eval", both.path, *files, "--to", "en", "--output", tmp_path)
    assert result.exit_code == 0, result.stderr
    whole = json.loads((both.evaluation("small.de-en") / "scores.json").read_text())["scores"][1]["value"]
    assert whole > 0
    (folder,) = tmp_path.iterdir()
    card = json.loads((folder / "scores.json").read_text())
    assert (card["scores"][1]["value"], card["src_lang"], card["tgt_lang"]) == (whole, "de", "en")


def test_eval_selects_test_sets_by_target_language(both: RunDir, tmp_path: Path) -> None:
    result = invoke("eval", both.path, "--to", "en", "--output", tmp_path)
    assert result.exit_code == 0, result.stderr
    (folder,) = tmp_path.iterdir()
    card = json.loads((folder / "scores.json").read_text())
    assert (folder.name, card["src_lang"], card["tgt_lang"]) == ("small.de-en", "de", "en")
    for command in ("eval", "exam"):
        result = invoke(command, both.path, "--to", "german")
        assert (result.exit_code, result.stderr) == (
            2, "error: this model does not translate to 'german'; it was trained on de, en, so choose one of these\n",
        )  # fmt: skip


def test_a_bundle_has_its_languages(both: RunDir, tmp_path: Path) -> None:
    result = invoke("export", both.path, "--output", tmp_path / "bundle")
    assert result.exit_code == 0, result.stderr
    outputs = [
        invoke("translate", path, "--to", "en", stdin=b"Der Mann.\n").stdout
        for path in (both.path, tmp_path / "bundle")
    ]
    assert outputs[0] == outputs[1] != ""


def test_ctranslate2_supports_source_tags(both: RunDir, tmp_path: Path) -> None:
    result = invoke("export", both.path, "--format", "ctranslate2", "--output", tmp_path / "ct2")
    if both.path.name == "target":
        assert result.exit_code == 2
        assert "language_tags 'target'" in result.stderr
        return
    assert result.exit_code == 0, result.stderr
    ours = invoke("translate", both.path, "--to", "en", "--json", stdin=b"Der Mann.\n")
    theirs = invoke(
        "translate", tmp_path / "ct2", "--backend", "ctranslate2", "--to", "en", "--json", stdin=b"Der Mann.\n"
    )
    assert theirs.exit_code == 0, theirs.stderr
    one, other = json.loads(ours.stdout), json.loads(theirs.stdout)
    assert (one["text"], one["score"]) == (other["text"], pytest.approx(other["score"], abs=1e-4))


def test_runs_with_other_directions_cannot_form_an_ensemble(both: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(both.path, tmp_path / "run"))
    copy.config.write_text(copy.config.read_text().replace("both_directions: true", "both_directions: false"))
    write_checksums(copy.path)
    with pytest.raises(ConfigError, match="translates other languages, or has other tags, than"):
        Translator.load([both.path, copy.path])


def test_changes_to_the_mixture_are_logged_on_resume(both: RunDir, corpus: Path, tmp_path: Path) -> None:
    run = shutil.copytree(both.path, tmp_path / "run")
    overrides = ["data.both_directions=true", f"data.language_tags={both.path.name}", "data.corpora={}"]
    result = invoke(
        "train", corpus / "small.yaml", *LONG, *overrides, "training.max_steps=9", "--run-dir", run, "--resume"
    )
    assert result.exit_code == 0, result.stderr
    assert "the run now differs" in result.stderr


def test_tags_missing_from_the_tokenizer_are_reported(
    trained: tuple[Path, object], corpus: Path, tmp_path: Path
) -> None:
    """One error, raised before tokenization, names the model and all missing tags."""
    model = trained[0] / "tokenizer" / "joint.model"
    tagged = f"data.corpora={{x: {{sources: [{{src: {corpus}/dev.en, tgt: {corpus}/dev.de}}], tag: <bt>}}}}"
    languages = ["data.both_directions=true", "data.language_tags=source"]
    given = f"tokenizer.src_model={model}"
    apart = [
        "model.tie_embeddings=none",
        "tokenizer.joint=false",
        given,
        f"tokenizer.tgt_model={model}",
        "data.language_tags=target",
    ]
    for settings, missing in (
        ([given, tagged], "'<bt>'"),
        ([given, *languages], "'<2de>', '<2en>'"),
        ([given, *languages, tagged], "'<bt>', '<2de>', '<2en>'"),
        ([f"training.init_from={trained[0]}", tagged], "'<bt>'"),
        (apart, "'<2de>'"),
    ):
        result = invoke("train", corpus / "small.yaml", *settings, "--run-dir", tmp_path / "run")
        assert result.exit_code == 2, result.stderr
        assert result.stderr == (
            f"error: {model}: the tokenizer has no piece {missing}; train it with tokenizer.user_symbols: [{missing}], "
            "or let `mtformer train` train one\n"
        )
        assert not (tmp_path / "run").exists()


def test_commands_show_the_named_dev_set(corpus: Path, tmp_path: Path) -> None:
    files = [f"{{src: {corpus}/{name}.en, tgt: {corpus}/{name}.de}}" for name in ("dev", "test")]
    sets = [f"data.dev={{news: {files[0]}, talks: {files[1]}}}", "training.best_metric=loss talks"]
    run = tmp_path / "runs" / "sets"
    result = invoke("train", corpus / "small.yaml", *sets, "--run-dir", run)
    assert result.exit_code == 0, result.stderr
    assert "step 12: dev news: loss" in result.stderr
    assert "(step 12, dev loss talks " in result.stderr
    listed = invoke("runs", run.parent)
    assert "loss talks " in listed.stdout
    assert invoke("report", run, "--out", run / "r.html").exit_code == 0
    refused = invoke(
        "train", corpus / "small.yaml", *sets, "training.best_metric=loss tlks", "--run-dir", tmp_path / "x"
    )
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "dev set (news, talks), not 'loss tlks'; did you mean 'loss talks'?" in refused.stderr
    assert not (tmp_path / "x").exists()


def test_the_confidence_is_fitted_to_both_directions(
    both: RunDir, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[tuple[str, str, int]]()

    def record(run: RunDir, translator: Translator, sets: list[EvalSet], progress: object) -> None:
        found.extend((one.src_lang, one.tgt_lang, len(one.sources)) for one in sets)

    monkeypatch.setattr("mtformer.experiment.calibrate.calibrate_run", record)
    run = shutil.copytree(both.path, tmp_path / "run")
    result = invoke("train", run / "config.yaml", "--run-dir", run, "--resume")
    assert result.exit_code == 0, result.stderr
    assert found == [("en", "de", 20), ("de", "en", 20)]

"""`mtformer eval`: the table, the score card."""

import shutil
from pathlib import Path

import pytest
from program import invoke
from typer.testing import Result

from mtformer.evaluation.card import read_card, read_texts, score_differences
from mtformer.files import file_sha256, write_checksums
from mtformer.run_dir import RunDir


def test_training_writes_a_score_card(trained: tuple[Path, Result], corpus: Path) -> None:
    run = RunDir(trained[0])
    card = read_card(run.evaluation("small"))
    test, _ = read_texts(run.evaluation("small"), card)
    assert test.sources == (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    assert test.references == [(corpus / "test.de").read_text(encoding="utf-8").splitlines()]
    assert (card.src_lang, card.tgt_lang, card.num_sentences) == ("en", "de", 20)
    weights = run.averaged / "model.safetensors"
    assert [(one.file, one.sha256) for one in card.checkpoints] == [(str(weights), file_sha256(weights))]
    assert [one.sha256 for one in card.tokenizers] == [file_sha256(run.tokenizer / "joint.model")]
    assert (card.device, card.dtype, card.decoding["beam_size"]) == ("cpu", "fp32", 2)
    assert f" {card.scores[0].value:.2f} " in trained[1].stdout


def test_the_results_of_a_test_set_are_not_replaced_by_those_of_another(
    trained: tuple[Path, Result], corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "small.en").write_text("A dog.\n")
    (tmp_path / "small.de").write_text("Ein Hund.\n")
    words = ("eval", trained[0], "--src", tmp_path / "small.en", "--ref", tmp_path / "small.de")
    assert invoke(*words, "--output", tmp_path / "out").exit_code == 0
    words = (*words[:3], (tmp_path / "small.en").rename(tmp_path / "small.2.en"), *words[4:])
    assert invoke(*words, "--output", tmp_path / "out").exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"small-file", "small-2"}
    own = ("eval", trained[0], "--src", corpus / "test.en", "--ref", corpus / "test.de", "--output", tmp_path / "own")
    assert invoke(*own).exit_code == 0
    assert {path.name for path in (tmp_path / "own").iterdir()} == {"test"}
    shutil.copytree(trained[0], tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("    small:", "    test:"))
    write_checksums(tmp_path / "run")
    for ref in ("test.de", "test.en"):
        words = ("eval", tmp_path / "run", "--src", corpus / "test.en", "--ref", corpus / ref)
        assert invoke(*words, "--output", tmp_path / ref).exit_code == 0
    names = [path.name for ref in ("test.de", "test.en") for path in (tmp_path / ref).iterdir()]
    assert names == ["test", "test-file"]


def test_the_name_of_a_test_set_must_be_text(trained: tuple[Path, Result], tmp_path: Path) -> None:
    """The score card contains the name of the file; a name that is not UTF-8 would make the card unreadable."""
    words = ("eval", trained[0], "--src", tmp_path / "a\udcff.en", "--ref", tmp_path / "a.de")
    result = invoke(*words, "--output", tmp_path / "out")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("not UTF-8 text; use another value or name\n")
    assert not (tmp_path / "out").exists()


def test_scores_of_other_weights_do_not_replace_those_of_the_run_without_a_warning(
    trained: tuple[Path, Result], tmp_path: Path
) -> None:
    shutil.copytree(trained[0], tmp_path / "run")
    for options, warns in (
        ([], False),
        (["--checkpoint", 4], True),
        (["--checkpoint", 4, "--output", tmp_path], False),
    ):
        result = invoke("eval", tmp_path / "run", *options)
        assert result.exit_code == 0, result.stderr
        assert (
            "show the scores of these weights now, not of the default ones; --output writes them" in result.stderr
        ) == warns


def test_replaced_scores_with_other_settings_are_reported(trained: tuple[Path, Result], tmp_path: Path) -> None:
    words = ("eval", trained[0], "--output", tmp_path)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "scores.json").write_text("{")  # damaged
    for options, changed in (([], None), (["--beam-size", 1], "2 and 1"), (["--beam-size", 1], None), ([], "1 and 2")):
        result = invoke(*words, *options)
        assert result.exit_code == 0, result.stderr
        warning = f"warning: {tmp_path}/small: replaced scores with other settings (decoding.beam_size {changed})\n"
        assert ("warning: " in result.stderr) == (changed is not None)
        assert changed is None or warning in result.stderr


def test_a_folder_that_cannot_be_written_is_reported_before_translating(
    trained: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mtformer.evaluation.evaluate.evaluate", lambda *_, **options: pytest.fail("translated"))
    (tmp_path / "file").write_text("")
    result = invoke("eval", trained[0], "--output", tmp_path / "file" / "new")
    assert result.exit_code == 2
    assert result.stderr == f"error: {tmp_path}/file/new/small: cannot be written; name another folder with --output\n"


def test_decoding_options_are_in_the_score_card(trained: tuple[Path, Result], tmp_path: Path) -> None:
    options = ("--beam-size", 1, "--precision", "bf16", "--checkpoint", 4, "--checkpoint", 8)
    result = invoke("eval", trained[0], "--output", tmp_path, *options)
    assert result.exit_code == 0, result.stderr
    card, before = read_card(tmp_path / "small"), read_card(RunDir(trained[0]).evaluation("small"))
    assert len(card.checkpoints) == 2
    assert score_differences(before, card) == ["decoding.beam_size 2 and 1", "precision fp32 and bf16"]

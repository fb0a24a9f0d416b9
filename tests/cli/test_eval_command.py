"""`mtformer eval`: the table, the score card, COMET on request."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from program import invoke
from typer.testing import Result

from mtformer.evaluation.card import differences, read_card, read_texts
from mtformer.files import file_sha256
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


def test_decoding_options_are_in_the_score_card(trained: tuple[Path, Result], tmp_path: Path) -> None:
    options = ("--beam-size", 1, "--precision", "bf16", "--checkpoint", 4, "--checkpoint", 8)
    result = invoke("eval", trained[0], "--output", tmp_path, *options)
    assert result.exit_code == 0, result.stderr
    card, before = read_card(tmp_path / "small"), read_card(RunDir(trained[0]).evaluation("small"))
    assert len(card.checkpoints) == 2
    assert differences(before, card) == ["decoding.beam_size 2 and 1", "precision fp32 and bf16"]


class FakeComet:
    """Replacement for the package; see tests/evaluation/test_comet.py."""

    __version__ = "0"

    def load_from_checkpoint(self, path: str) -> Any:
        return SimpleNamespace(predict=lambda samples, **options: SimpleNamespace(scores=[0.25] * len(samples)))


def test_comet_on_request(trained: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "comet", FakeComet())  # type: ignore[arg-type]  # it replaces a module
    model = tmp_path / "mine" / "checkpoints" / "model.ckpt"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"x")
    result = invoke("eval", trained[0], "--output", tmp_path, "--comet", model)
    assert result.exit_code == 0, result.stderr
    assert " COMET" in result.stdout
    assert " 0.2500\n" in result.stdout
    assert "COMET: model:mine|sha256:2d711642b726|version:0" in result.stdout  # printf x | sha256sum
    scores = json.loads((tmp_path / "small" / "scores.json").read_text())["scores"]
    assert (scores[-1]["name"], scores[-1]["value"]) == ("comet", 0.25)


def test_missing_comet_is_reported_before_translating(
    trained: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "comet", None)  # type: ignore[arg-type]  # makes the import fail
    result = invoke("eval", trained[0], "--output", tmp_path, "--comet", "Unbabel/wmt22-comet-da")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: --comet requires another package: pip install 'mtformer[comet]'\n"
    assert list(tmp_path.iterdir()) == []
    help_text = " ".join(invoke("eval", "--help").stdout.split())
    assert "source you trust" in help_text.replace("│ │ ", "")

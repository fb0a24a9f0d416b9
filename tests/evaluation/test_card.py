"""Tests of writing, reading and comparing score cards and the text files saved with them."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sacrebleu
from scored import TOKENIZER, save

from mtformer.config.schema import DecodingConfig, EvaluationConfig
from mtformer.errors import DataError
from mtformer.evaluation import card as card_module
from mtformer.evaluation.card import EvalSet, notes, read_card, read_texts, score_differences
from mtformer.files import write_text
from mtformer.run_dir import RunDir

SOURCES = ["the dog runs", "", "a\u2028woman"]
REFERENCES = [["Der Hund läuft heute.", "Niemand.", "Eine Frau."], ["Ein Hund läuft.", "", "Die Frau."]]
HYPOTHESES = ["Der Hund läuft.", "", "Eine\u2028Frau."]
DECODING = DecodingConfig(beam_size=7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    path = RunDir(tmp_path / "run").evaluation("mine")
    save(path, HYPOTHESES, REFERENCES, SOURCES, weights=[weights], decoding=DECODING)
    return path


def test_score_card_contains_settings_and_hashes(folder: Path, tmp_path: Path) -> None:
    card = read_card(folder)
    assert (card.name, card.src_lang, card.tgt_lang, card.num_sentences) == ("mine", "en", "de", 3)
    assert [score.name for score in card.scores] == ["bleu", "chrf", "ter"]
    assert card.scores[0].value == sacrebleu.corpus_bleu(HYPOTHESES, REFERENCES).score
    assert "nrefs:2" in card.scores[0].signature
    assert card.decoding["beam_size"] == 7
    assert DecodingConfig.model_fields.keys() - card.decoding.keys() == {"validation_beam_size"}
    assert card.evaluation == EvaluationConfig()
    assert [(one.file, one.sha256) for one in card.tokenizers] == [(TOKENIZER.name, TOKENIZER.sha256)]
    # printf weights | sha256sum
    assert [(one.file, one.sha256) for one in card.checkpoints] == [
        (str(tmp_path / "model.safetensors"), "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c")
    ]
    assert card.versions.keys() == {"mtformer", "python", "torch", "sentencepiece", "sacrebleu"}
    assert card.hardware["cpu"]
    assert card.hardware["num_threads"] >= 1
    assert card.hardware["gpu"] is None
    assert card.date.endswith("+00:00")


def test_texts_are_saved_with_their_sha256(folder: Path) -> None:
    card = read_card(folder)
    assert read_texts(folder, card) == (EvalSet("mine", SOURCES, REFERENCES, "de", "en"), HYPOTHESES)
    names = ["references.txt", "references.2.txt"]
    assert card.text.references == [hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names]
    assert card.text.hypotheses == hashlib.sha256("".join(f"{line}\n" for line in HYPOTHESES).encode()).hexdigest()


def test_the_hashes_are_those_of_the_scored_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that writes the same files in between does not make its text that of this card."""

    def replaced(path: Path, text: str) -> None:
        write_text(path, "other\n" if path.name == "hypotheses.txt" else text)

    monkeypatch.setattr(card_module, "write_text", replaced)
    save(tmp_path, HYPOTHESES, REFERENCES, SOURCES)
    with pytest.raises(DataError, match=r"hypotheses\.txt.*changed"):
        read_texts(tmp_path, read_card(tmp_path))


@pytest.mark.parametrize("name", ["sources.txt", "hypotheses.txt", "references.txt", "references.2.txt"])
def test_changed_or_missing_texts_raise_data_error(folder: Path, name: str) -> None:
    card = read_card(folder)
    (folder / name).write_text("a\nb\nc\n")
    with pytest.raises(DataError, match=rf"{name}: changed since it was scored; `mtformer eval .*/run` rewrites it"):
        read_texts(folder, card)
    (folder / name).unlink()
    with pytest.raises(DataError, match=rf"{name}: missing; `mtformer eval .*/run` rewrites it"):
        read_texts(folder, card)


@pytest.mark.parametrize(("values", "message"), [
    ({"num_sentences": "many"}, r"damaged \(num_sentences: must be a valid integer"),
    ({"text": {"sources": "a", "references": ["b"]}}, r"damaged \(text.hypotheses: Field required"),
    ({"scores": [{"name": "bleu"}]}, r"damaged \(scores.0.label: "),
    ({"surprise": 1}, r"damaged \(surprise: Extra inputs are not permitted"),
    ("", ""), ("[]", ""), ('{"name": "x"}', ""), ("\x00", ""),
])  # fmt: skip
def test_a_damaged_card_raises_data_error(folder: Path, values: dict[str, Any] | str, message: str) -> None:
    path = folder / "scores.json"
    path.write_text(values if isinstance(values, str) else json.dumps(json.loads(path.read_text()) | values))
    with pytest.raises(DataError, match=rf"scores\.json: {message}.*`mtformer eval .*/run` rewrites it") as caught:
        read_card(folder)
    assert "\n" not in str(caught.value)


def test_a_missing_card_raises_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"scores\.json: missing; `mtformer eval` writes it"):
        read_card(tmp_path)


def test_differences_that_make_scores_incomparable(folder: Path, tmp_path: Path) -> None:
    card = read_card(folder)

    def other(**values: Any) -> list[str]:
        defaults = {"hypotheses": HYPOTHESES, "references": REFERENCES, "sources": SOURCES, "decoding": DECODING}
        save(tmp_path / "other", **{**defaults, **values})
        return score_differences(card, read_card(tmp_path / "other"))

    assert other() == []
    assert other(hypotheses=["a", "b", "c"]) == []
    assert other(sources=["a", "b", "c"]) == ["different sources"]
    assert other(references=[REFERENCES[0], REFERENCES[0]]) == ["different references"]
    found = other(evaluation=EvaluationConfig(lowercase=True))
    assert len(found) == 2
    assert "BLEU with different signatures" in found[0]
    assert "case:mixed" in found[0]
    assert "case:lc" in found[0]
    assert "chrF2++ with different signatures" in found[1]
    assert other(decoding=DecodingConfig(beam_size=2, length_penalty=0.6)) == [
        "decoding.beam_size 7 and 2",
        "decoding.length_penalty 1.0 and 0.6",
    ]
    assert other(engine=SimpleNamespace(device="cpu", dtype="bf16")) == ["precision fp32 and bf16"]
    short = other(hypotheses=HYPOTHESES[:2], references=[one[:2] for one in REFERENCES], sources=SOURCES[:2])
    assert short == ["3 and 2 sentences", "different sources", "different references"]


def test_notes_are_differences_without_effect_on_translations(folder: Path) -> None:
    card = read_card(folder)
    old = card.model_dump()
    old["versions"]["sacrebleu"] = "2.0.0"
    for score in old["scores"]:
        score["signature"] = score["signature"].replace(f"version:{sacrebleu.__version__}", "version:2.0.0")
    old["scores"].append({"name": "comet", "label": "COMET", "value": 0.5, "signature": "model:x"})  # by version 0.3
    del old["decoding"]["beam_tokens"]
    old["decoding"]["batch_tokens"] = 64  # its name in version 0.3
    old["device"] = "cuda"
    (folder / "scores.json").write_text(json.dumps(old), encoding="utf-8")
    assert score_differences(card, read_card(folder)) == []
    assert notes(card, read_card(folder)) == [
        "decoding.beam_tokens None and 64",
        "device cpu and cuda",
        f"sacrebleu {sacrebleu.__version__} and 2.0.0",
    ]
    assert notes(card, card) == []

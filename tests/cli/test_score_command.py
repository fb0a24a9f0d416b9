"""`mtformer score`."""

import json
import math
import re
from pathlib import Path

import pytest
from program import invoke
from typer.testing import Result

from mtformer.decoding.lines.translation import Scored
from mtformer.decoding.translator import Translator


@pytest.fixture
def run(trained: tuple[Path, Result]) -> Path:
    """Return the finished run, which these tests do not change."""
    return trained[0]


@pytest.fixture
def expected(run: Path, corpus: Path) -> list[Scored]:
    """Return the scores of the test set according to `Translator`."""
    src, tgt = ((corpus / f"test.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de"))
    found = Translator.load(run, device="cpu").score(src, tgt)
    return [one for one in found if one is not None]


def score(run: Path, src: Path, tgt: Path, *options: object) -> Result:
    result = invoke("score", run, src, tgt, *options)
    assert result.exit_code == 0, result.stderr
    return result


def test_scores_and_perplexity(run: Path, corpus: Path, expected: list[Scored]) -> None:
    result = score(run, corpus / "test.en", corpus / "test.de")
    assert [float(line) for line in result.stdout.splitlines()] == [
        pytest.approx(one.log_probability, abs=1e-4) for one in expected
    ]
    assert len(expected) == 20
    total, num_tokens = sum(one.log_probability for one in expected), sum(len(one.pieces) for one in expected)
    message = re.fullmatch(
        r"20 lines, (\d+) tokens, log-probability (-\d+\.\d{4}) \(natural\), perplexity (\d+\.\d{4}) per token\n",
        result.stderr,
    )
    assert message is not None, result.stderr
    assert int(message[1]) == num_tokens
    assert float(message[2]) == pytest.approx(total, abs=1e-2)
    assert float(message[3]) == pytest.approx(math.exp(-total / num_tokens), rel=1e-4)


def test_log_probabilities_of_tokens(run: Path, corpus: Path, expected: list[Scored]) -> None:
    result = score(run, corpus / "test.en", corpus / "test.de", "--tokens")
    for line, one in zip(result.stdout.splitlines(), expected, strict=True):
        total, pieces = line.split("\t")
        pairs = [piece.rsplit(":", 1) for piece in pieces.split(" ")]
        assert [piece for piece, _ in pairs] == one.pieces
        assert [float(value) for _, value in pairs] == pytest.approx(one.token_log_probabilities, abs=2e-4)
        assert float(total) == pytest.approx(sum(float(value) for _, value in pairs), abs=1e-2)


def test_json(run: Path, corpus: Path, expected: list[Scored]) -> None:
    result = score(run, corpus / "test.en", corpus / "test.de", "--json")
    for line, one in zip(result.stdout.splitlines(), expected, strict=True):
        found = json.loads(line)
        assert found.keys() == {"log_probability", "pieces", "token_log_probabilities"}
        assert found["log_probability"] == pytest.approx(one.log_probability, abs=1e-4)
        assert found["pieces"] == one.pieces
        assert found["token_log_probabilities"] == pytest.approx(one.token_log_probabilities, abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translate_and_score_give_equal_scores(run: Path, corpus: Path, expected: list[Scored], beam_size: int) -> None:
    # Search with the reference as prefix finds exactly the hypothesis that `score` scores.
    options = ("--json", "--beam-size", beam_size, "--prefixes", corpus / "test.de", "--max-length", 1)
    shown = invoke("translate", run, "--input", corpus / "test.en", *options).stdout.splitlines()
    for line, one in zip(shown, expected, strict=True):
        found = json.loads(line)
        assert found["pieces"] == one.pieces
        assert found["token_log_probabilities"] == pytest.approx(one.token_log_probabilities, abs=1e-4)
        assert found["log_probability"] == pytest.approx(one.log_probability, abs=1e-3)


def test_scores_of_too_long_lines_are_nan(run: Path, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("The man sleeps.\n" + "word " * 2000 + "\n\nThe man sleeps.\n", encoding="utf-8")
    (tmp_path / "tgt").write_text("Der Mann schläft.\na\n\n" + "wort " * 2000, encoding="utf-8")
    result = score(run, tmp_path / "src", tmp_path / "tgt")
    lines = result.stdout.splitlines()
    assert [line == "nan" for line in lines] == [False, True, False, True]
    assert "2 of 4 lines have more tokens than the model has positions; their score is nan" in result.stderr
    shown = score(run, tmp_path / "src", tmp_path / "tgt", "--json").stdout.splitlines()
    assert [json.loads(line)["log_probability"] is None for line in shown] == [False, True, False, True]
    assert json.loads(shown[2])["pieces"] == ["</s>"]


def test_two_checkpoints_are_an_ensemble(run: Path, corpus: Path) -> None:
    def totals(*options: object) -> list[float]:
        result = score(run, corpus / "test.en", corpus / "test.de", *options)
        return [float(line) for line in result.stdout.splitlines()]

    first, last = totals("--checkpoint", 4), totals("--checkpoint", "last")
    both = totals("--checkpoint", 4, "--checkpoint", "last")
    assert first != last
    assert totals("--checkpoint", 4, "--checkpoint", 4) == pytest.approx(first, abs=1e-3)
    assert both not in (first, last)
    assert all(min(a, b) <= c + 1e-3 for a, b, c in zip(first, last, both, strict=True))

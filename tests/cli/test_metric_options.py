"""`eval --metric`, `compare` with the scores of other programs, and `translate --rerank`."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from program import invoke
from typer.testing import Result

from mtformer.evaluation import significance
from mtformer.evaluation.card import read_card, read_line_scores
from mtformer.files import file_sha256, read_json, sealed, write_json
from mtformer.run_dir import RunDir, write_config

TOY = Path(__file__).parents[1] / "evaluation" / "toy_metric.py"


def toy(form: str, reference: str = "ref") -> str:
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(TOY))} {form} {{hyp}} {{{reference}}}"


@pytest.fixture
def run(trained: tuple[Path, Result], tmp_path: Path) -> Path:
    """Return a copy of the finished run."""
    shutil.copytree(trained[0], tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def _few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "NUM_RESAMPLES", 100)
    monkeypatch.setattr(significance, "NUM_TRIALS", 200)


def test_scores_of_other_programs_are_saved_and_compared(run: Path, tmp_path: Path) -> None:
    metrics = ("--metric", f"toy={toy('comet')}", "--metric", f"total={toy('mean')}")
    result = invoke("eval", run, *metrics)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0].split() == ["test", "set", "lines", "BLEU", "chrF2++", "TER", "toy", "total"]

    folder = RunDir(run).evaluation("small")
    card = read_card(folder)
    assert [score.name for score in card.scores] == ["bleu", "chrf", "ter", "toy", "total"]
    of_lines = read_line_scores(folder, card)
    assert of_lines.keys() == {"toy"}
    assert len(of_lines["toy"]) == card.num_sentences == 20
    assert sum(of_lines["toy"]) / 20 == pytest.approx(card.scores[3].value, abs=1e-4)
    assert str(TOY) not in (folder / "scores.json").read_text()

    other = tmp_path / "other"
    shutil.copytree(run, other)
    text = RunDir(other).config.read_text().replace("learning_rate: 0.003", "learning_rate: 0.002")
    write_config(RunDir(other), text)
    assert invoke("eval", other, "--checkpoint", 4, *metrics).exit_code == 0
    result = invoke("compare", run, other, "--json")
    assert result.exit_code == 0, result.stderr
    tables = {table["name"]: table for table in json.loads(result.stdout)["sets"][0]["metrics"]}
    first, second = tables["toy"]["systems"]
    assert first["mean"] == pytest.approx(card.scores[3].value, abs=1e-4)
    assert first["estimate"]["low"] < first["mean"] < first["estimate"]["high"]
    assert 0 < second["tests"]["p_bootstrap"] < 1
    assert second["difference"] == pytest.approx(second["mean"] - first["mean"])
    assert tables["total"]["systems"][1]["tests"] is None
    assert tables["total"]["systems"][1]["estimate"] is None

    text = invoke("compare", run, other).stdout
    assert f"toy  program:{Path(sys.executable).name}|command:" in text
    result = invoke("eval", other, "--checkpoint", 4)
    assert result.exit_code == 0, result.stderr
    assert "no toy for other; `mtformer eval RUN --metric` computes it" in invoke("compare", run, other).stderr
    assert not (RunDir(other).evaluation("small") / "scores.toy.txt").exists()

    scores = folder / "scores.json"
    for text, message in (("1\n", "1 lines for 20 sentences"), ("one\n" * 20, "not one number per line (could not")):
        (folder / "scores.toy.txt").write_text(text)
        assert "scores.toy.txt: changed since it was written" in invoke("compare", run, other).stderr
        values = {key: value for key, value in read_json(scores).items() if key != "checksum"}
        write_json(scores, sealed({**values, "line_scores": {"toy": file_sha256(folder / "scores.toy.txt")}}))
        assert f"scores.toy.txt: {message}" in invoke("compare", run, other).stderr


def test_a_metric_that_fails_leaves_the_other_scores(run: Path) -> None:
    RunDir(run).evaluation("small").joinpath("scores.json").unlink()
    result = invoke("eval", run, "--metric", f"bad={sys.executable} -c 1/0 {{hyp}}", "--metric", f"toy={toy('lines')}")
    assert result.exit_code == 2
    assert "error: small: metric bad: " in result.stderr
    assert "ZeroDivisionError: division by zero; run the command yourself" in result.stderr
    assert [score.name for score in read_card(RunDir(run).evaluation("small")).scores] == ["bleu", "chrf", "ter", "toy"]


def test_nothing_that_is_loaded_is_executed(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a config nor a score card nor a settings file in a run can name a program that is started."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.chdir(run)
    sentinel = tmp_path / "executed"
    command = f"touch {sentinel} {{hyp}}"
    for name in ("settings.yaml", "mtformer/settings.yaml", ".config/mtformer/settings.yaml"):
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"metrics:\n  toy: {command}\n")

    scores = RunDir(run).evaluation("small") / "scores.json"
    card = {key: value for key, value in read_json(scores).items() if key != "checksum"}
    card["scores"].append({"name": "toy", "label": "toy", "value": 1.0, "signature": command})
    write_json(scores, sealed(card))
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for arguments in (
        ("compare", run, copy, "--force"),
        ("report", run),
        ("eval", run, "--metric", "toy"),
        ("translate", run, "--rerank", "toy"),
        ("export", run, "--output", tmp_path / "bundle"),
        ("eval", run),
    ):
        result = invoke(*arguments, stdin=b"a\n")
        assert not sentinel.exists(), arguments
        assert result.exit_code == (2 if "toy" in arguments else 0), result.stderr

    text = RunDir(run).config.read_text()
    for section in ("evaluation:\n", "decoding:\n"):
        text = text.replace(section, f"{section}  metrics: {{toy: '{command}'}}\n")
    write_config(RunDir(run), f"{text}metrics: {{toy: '{command}'}}\n")
    result = invoke("eval", run, "--metric", "toy")
    assert result.exit_code == 2
    assert "config.yaml" in invoke("eval", run).stderr
    assert not sentinel.exists()
    exported = "".join(path.read_text(errors="replace") for path in (tmp_path / "bundle").rglob("*.yaml"))
    assert "metrics" not in exported


def test_the_best_of_several_translations_is_chosen(run: Path, corpus: Path) -> None:
    source = corpus / "test.en"
    words = ("translate", run, "--input", source, "--beam-size", 4)
    lists = [json.loads(line) for line in invoke(*words, "--n-best", 4, "--json").stdout.splitlines()]
    texts = [[row["text"], *(other["text"] for other in row["alternatives"])] for row in lists]
    for name, choose in (("long", max), ("long-", min)):
        result = invoke(*words, "--rerank", f"{name}={toy('length', 'src')}")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.splitlines() == [choose(row, key=len) for row in texts]
    assert [row[0] for row in texts] != [max(row, key=len) for row in texts]

    result = invoke(*words, "--n-best", 4, "--json", "--rerank", f"long={toy('length', 'src')}")
    reranked = [json.loads(line) for line in result.stdout.splitlines()]
    for row, expected in zip(reranked, texts, strict=True):
        found = [row["text"], *(other["text"] for other in row["alternatives"])]
        assert found == sorted(expected, key=len, reverse=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rerank", f"toy={toy('lines')}"], "metric toy: needs references ({ref})"),
        (["--rerank", f"toy={toy('length', 'src')}", "--beam-size", 1], "set --beam-size above 1, or --n-best"),
        (["--rerank", f"toy={toy('length', 'src')}", "--html"], "--rerank cannot be combined with --html or --on"),
        (["--rerank", f"toy={toy('mean', 'src')}"], "wrote one number, but a number for each line is needed"),
    ],
)
def test_reranking_that_cannot_be_done_is_refused(run: Path, options: list[object], message: str) -> None:
    result = invoke("translate", run, *options, stdin=b"a house\n")
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("error:") == 1


def test_blank_lines_are_not_scored(run: Path) -> None:
    result = invoke("translate", run, "--rerank", f"x={sys.executable} -c 1/0 {{hyp}}", stdin=b"\n\n")
    assert (result.exit_code, result.stdout) == (0, "\n\n")

"""`mtformer compare` on runs and on files."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from program import invoke
from typer.testing import Result

from mtformer.evaluation import significance
from mtformer.experiment.runs import summarize
from mtformer.run_dir import RunDir, write_config


@pytest.fixture(autouse=True)
def _few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use few samples and trials; other tests check their number."""
    monkeypatch.setattr(significance, "NUM_RESAMPLES", 100)
    monkeypatch.setattr(significance, "NUM_TRIALS", 200)


@pytest.fixture
def runs(trained: tuple[Path, Result], tmp_path: Path) -> list[Path]:
    """Return the run, a copy, and a run with another config, another seed and worse translations."""
    paths = [tmp_path / name for name in ("base", "copy", "other")]
    for path in paths:
        shutil.copytree(trained[0], path, ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(trained[0] / "checkpoints", tmp_path / "other" / "checkpoints")
    edit(paths[2], "learning_rate: 0.003", "learning_rate: 0.002")
    result = invoke("eval", paths[2], "--checkpoint", 4, "--beam-tokens", 512)
    assert result.exit_code == 0, result.stderr
    return paths


def edit(run: Path, before: str, after: str) -> None:
    config = RunDir(run).config
    text = config.read_text(encoding="utf-8")
    assert before in text
    write_config(RunDir(run), text.replace(before, after))


def compared(*arguments: object) -> Any:
    result = invoke("compare", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_runs_as_json(runs: list[Path]) -> None:
    found = compared(*runs)
    assert [system["name"] for system in found["systems"]] == ["base", "copy", "other"]
    assert found["systems"][0]["runs"] == [{"name": "base", "path": str(runs[0]), "seed": 1}]
    assert found["config_differences"] == [{"key": "training.learning_rate", "values": [0.003, 0.003, 0.002]}]
    (small,) = found["sets"]
    assert (small["name"], small["num_sentences"]) == ("small", 20)
    assert "base and other: decoding.beam_tokens None and 512" in small["notes"]
    old = [note for note in small["notes"] if "other weights" in note]  # `runs` scored another checkpoint
    assert old == ["other: scores of other weights than its current ones; run `mtformer eval`"]
    assert [summarize(path).note for path in runs] == [None, None, "test scores of other weights"]
    for table in small["metrics"]:
        cards = [json.loads((RunDir(run).evaluation("small") / "scores.json").read_text()) for run in runs]
        (signature,) = {one["signature"] for card in cards for one in card["scores"] if one["name"] == table["name"]}
        assert table["signature"] == signature
        values = [one["value"] for card in cards for one in card["scores"] if one["name"] == table["name"]]
        assert [row["mean"] for row in table["systems"]] == pytest.approx(values)
        assert table["systems"][1]["tests"] == {"p_bootstrap": 1.0, "p_randomization": 1.0}
        assert table["systems"][2]["difference"] == pytest.approx(values[2] - values[0])
    assert len(small["sentences"]) == 5
    assert small["sentences"][0]["hypotheses"][0] == small["sentences"][0]["hypotheses"][1]


def test_runs_as_text(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = invoke("compare", *runs, "--sentences", 2)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "configs differ in" in lines[0]
    assert [line.split() for line in lines[1:3]] == [
        ["learning_rate", "0.003:", "base,", "copy"], ["0.002:", "other"]
    ]  # fmt: skip
    assert "small: 20 sentences" in lines
    assert re.search(r"\n  system +steps +tokens seen +minutes\n  base +12 +[\d,]+ +\d+\.\d\n", result.stdout)
    assert re.search(r"\n  other +12 \(\+0\.0%\) +[\d,]+ \(\+0\.0%\)", result.stdout)
    assert "trained for" not in result.stdout
    assert re.search(r"copy +\d+\.\d\d +\d+\.\d\d to \d+\.\d\d +\+0\.00 +1\.0000 +1\.0000\n", result.stdout)
    assert "bs:100|ar:200|seed:12345" in result.stdout
    assert sum(line.startswith("line ") for line in lines) == 2
    assert "differences on small: base and other: decoding.beam_tokens None and 512" in result.stderr


def test_different_amounts_of_training_are_named_as_a_cause(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shutil.rmtree(runs[2] / "checkpoints")
    log = RunDir(runs[2]).metrics
    kept = [line for line in log.read_text().splitlines() if json.loads(line)["step"] <= 8]
    log.write_text("".join(f"{line}\n" for line in kept))

    result = invoke("compare", *runs, "--sentences", 0)
    assert result.exit_code == 0, result.stderr
    assert re.search(r"\n  other +8 \(-33\.3%\) ", result.stdout)
    words = " ".join(result.stdout.split())
    assert re.search(
        r"base and other trained for 12 and 8 steps, [\d,]+ and [\d,]+ tokens(, [\d.]+ and [\d.]+ minutes)?: "
        r"the difference may come from that",
        words,
    )
    assert "base and copy trained" not in words
    amounts = compared(*runs)["training"]
    assert [amount["steps"] for amount in amounts] == [12, 12, 8]
    assert amounts[2]["tokens"] < amounts[0]["tokens"]


def test_a_table_of_many_systems_fits_a_narrow_terminal(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    copies = [Path(shutil.copytree(runs[0], tmp_path / f"a-rather-long-name-of-a-run-{n}")) for n in range(5)]
    edit(copies[1], "dropout: 0.1", "dropout: 0.2")
    monkeypatch.setenv("COLUMNS", "60")
    result = invoke("compare", runs[0], *copies, "--sentences", 0)
    assert result.exit_code == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if "version:" not in line]
    assert max(map(len, rows)) <= 60
    names = "".join(re.findall(r"^  (\S+)", result.stdout, re.MULTILINE))
    assert all(names.count(f"a-rather-long-name-of-a-run-{n}") >= 3 for n in range(5))


def test_names_are_the_shortest_unique_path_suffixes(runs: list[Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(runs[2], tmp_path / "more" / "base"))
    names = [system["name"] for system in compared(runs[0], runs[2], other, "--no-group")["systems"]]
    assert names == [f"{tmp_path.name}/base", f"{tmp_path.name}/other", "more/base"]


def test_runs_that_differ_only_in_seed_form_one_system(runs: list[Path], tmp_path: Path) -> None:
    edit(runs[1], "  seed: 1\n  init_from", "  seed: 2\n  init_from")
    (table, *_) = compared(*runs)["sets"][0]["metrics"]
    assert [len(row["runs"]) for row in table["systems"]] == [2, 1]
    assert [run["seed"] for run in table["systems"][0]["runs"]] == [1, 2]
    assert table["systems"][0]["deviation"] == 0.0
    assert len(compared(*runs, "--no-group")["systems"]) == 3

    last = Path(shutil.copytree(runs[2], tmp_path / "other_s3"))
    edit(last, "  seed: 1\n  init_from", "  seed: 3\n  init_from")
    result = invoke("compare", *runs, last)
    assert result.exit_code == 0, result.stderr
    assert "systems with several seeds\n  base:   base; copy\n  other:  other; other_s3" in result.stdout
    assert "by chrF2++, in the first run of each system" in result.stdout
    assert re.search(r"other +2 +\d+\.\d\d ± 0\.00 ", result.stdout)


def test_different_test_sets_are_reported_and_can_be_forced(runs: list[Path], corpus: Path) -> None:
    edit(runs[2], str(corpus / "test.de"), str(corpus / "test.en"))
    assert invoke("eval", runs[2]).exit_code == 0
    result = invoke("compare", *runs)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(r"error: .*base and .*other on small: different references; --force .*\n", result.stderr)
    result = invoke("compare", *runs, "--force")
    assert result.exit_code == 0
    assert "differences on small:" in result.stderr
    assert "different references" in result.stderr


@pytest.mark.parametrize(("arguments", "message"), [
    (["base"], "base: nothing to compare it with; give at least two runs, or with --ref at least two files"),
    (["base", "copy", "--set", "big"], "no scores on 'big', only on small; run `mtformer eval`"),
    (["base", "nothing"], "not a run directory or bundle"),
    (["base", "copy", "--src", "x"], "--src and --bleu-tokenizer are for hypothesis files; give --ref too"),
    (["base", "copy", "--ref", "x", "--set", "small"], "--set and --force are for runs; remove them, or remove --ref"),
    (["base", "copy", "--ref", "x", "--bleu-tokenizer", "12a"], "--bleu-tokenizer: must be one of auto, 13a, intl, "),
])  # fmt: skip
def test_user_errors_are_reported_in_one_line(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(runs[0].parent)
    result = invoke("compare", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.fixture
def files(tmp_path: Path, corpus: Path) -> Path:
    """Return a folder with a good and a bad translation of the test set."""
    references = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
    for name, step in (("good", 7), ("bad", 2)):
        lines = [" ".join(w for i, w in enumerate(line.split()) if i % step != 1) for line in references]
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


def test_files_of_hypotheses(files: Path, corpus: Path) -> None:
    options = ("--ref", corpus / "test.de", files / "good", files / "bad")
    found = compared(*options)
    assert [system["name"] for system in found["systems"]] == ["good", "bad"]
    (table, *_) = found["sets"][0]["metrics"]
    command = [sys.executable, "-m", "sacrebleu", corpus / "test.de", "-i", files / "good", "-b", "-w", "4"]
    message = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert table["systems"][0]["mean"] == pytest.approx(float(message), abs=6e-5)
    assert table["systems"][1]["tests"]["p_bootstrap"] < 0.05
    assert (found["sets"][0]["buckets"], found["sets"][0]["sentences"][0]["source"]) == ([], None)
    with_sources = compared(*options, "--src", corpus / "test.en")["sets"][0]
    assert sum(bucket["num_sentences"] for bucket in with_sources["buckets"]) == 20
    assert with_sources["sentences"][0]["source"]
    two = compared(*options, "--ref", files / "bad", "--bleu-tokenizer", "char")["sets"][0]["metrics"][0]
    assert two["signature"].startswith("nrefs:2|case:mixed|eff:no|tok:char|")


@pytest.mark.parametrize("arguments", [(), ("--bleu-tokenizer", "auto")])
@pytest.mark.parametrize(
    ("lines", "tokenizer"),
    [
        (["ฉันไปโรงเรียน", "แมวกินปลา"], "char"),
        (["ကျွန်တော် ကျောင်းသွားသည်။", "ကြောင်က ငါးစားသည်။"], "char"),
        (["བོད་ཡིག་སྦྱོང་གི་ཡོད།", "བྱི་ལས་ཉ་བཟའ་གི་འདུག"], "char"),
        (["我去学校。", "猫吃鱼。"], "zh"),
        (["እኔ ወደ ትምህርት ቤት እሄዳለሁ።", "ድመቷ ዓሣ ትበላለች።"], "13a"),
        (["मैं स्कूल जाता हूँ।", "बिल्ली मछली खाती है।"], "13a"),
    ],
)
def test_the_script_of_the_references_chooses_the_tokenizer(
    arguments: tuple[str, ...], lines: list[str], tokenizer: str, tmp_path: Path
) -> None:
    texts = {"ref": lines, "one": [lines[0], lines[1][:-2]], "two": [lines[0][:-1], lines[1]]}
    for name, written in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    found = compared("--ref", tmp_path / "ref", tmp_path / "one", tmp_path / "two", *arguments)
    bleu, _, ter = found["sets"][0]["metrics"]
    assert f"|tok:{tokenizer}" in bleu["signature"]
    assert ("asian:yes" in ter["signature"]) == (tokenizer != "13a")


def test_the_help_explains_the_difference_from_sacrebleu() -> None:
    text = " ".join(invoke("compare", "--help").stdout.split())
    assert "The second p-value also counts trials whose difference equals the observed one" in text

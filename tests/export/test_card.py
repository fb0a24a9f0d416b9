"""Model cards: their contents, and that their commands and Python code run and give the run's translations."""

import contextlib
import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import invoke
from small import Make, write_bundle

from mtformer.decoding.translator import Translator
from mtformer.export.huggingface import export_huggingface
from mtformer.files import file_sha256

TEXT = "Text in English."


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the header and the text of a model card."""
    _, header, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(header), text


def snippets(text: str, language: str) -> list[str]:
    return [part.split("```")[0] for part in text.split(f"```{language}\n")[1:]]


def run_python(code: str, folder: Path) -> str:
    """Run a snippet in a folder, in this process, and return what it prints."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(StringIO()) as out:
        patch.chdir(folder)
        exec(compile(code, "card", "exec"), {})
    return out.getvalue()


@pytest.mark.parametrize(
    ("form", "options"), [("bundle", []), ("ctranslate2", []), ("ctranslate2", ["--vocabulary-map"])]
)
def test_the_snippets_translate(run: Path, tmp_path: Path, form: str, options: list[str]) -> None:
    name = "a 'b' & c"
    result = invoke("export", run, "--format", form, "--output", tmp_path / name, *options)
    assert result.exit_code == 0, result.stderr
    _, text = card_of(tmp_path / name)
    expected = Translator.load(tmp_path / name).translate([TEXT])[0].text + "\n"
    assert expected.strip()
    [code], [command] = snippets(text, "python"), snippets(text, "bash")
    # This model hardly ever ends a translation, and the code for CTranslate2 has the library's limit of 256 tokens.
    assert run_python(code, tmp_path).startswith(expected if form == "bundle" else expected[:-1])
    assert ("use_vmap=True" in code) == bool(options)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert command == f'echo "{TEXT}" | mtformer translate "{name}"\n'
        assert invoke("translate", name, stdin=f"{TEXT}\n".encode()).stdout == expected


def test_the_snippet_for_transformers_translates(make_trained: Make, tmp_path: Path) -> None:
    run = write_bundle(tmp_path / "run", *make_trained(norm_position="post"))
    export_huggingface(run, tmp_path / "out", None)
    header, text = card_of(tmp_path / "out")
    assert (header["library_name"], header["language"]) == ("transformers", ["de"])
    [code] = snippets(text, "python")
    assert run_python(code.replace("Text in German.", "ein hund liest"), tmp_path) == (
        Translator.load(run.path).translate(["ein hund liest"])[0].text + "\n"
    )
    assert "Sentence pairs after filtering: unknown." in text


@pytest.mark.process
def test_the_command_runs_in_a_shell(run: Path, tmp_path: Path) -> None:
    assert invoke("export", run, "--output", tmp_path / "it").exit_code == 0
    [command] = snippets(card_of(tmp_path / "it")[1], "bash")
    program = f'"{sys.executable}" -m mtformer'
    done = subprocess.run(
        command.replace("mtformer", program, 1), shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == Translator.load(run).translate([TEXT])[0].text + "\n"


def test_contents(run: Path, tmp_path: Path, corpus: Path) -> None:
    (run / "exam.json").write_text(json.dumps({"rows": [{"case": "a|b", "passed": 3}, {"case": "c"}]}))
    assert invoke("export", run, "--checkpoint", "averaged", "--output", tmp_path / "it").exit_code == 0
    header, text = card_of(tmp_path / "it")
    assert header["license"] == "unknown"
    assert header["language"] == ["en", "de"]
    kept = json.loads((run / "data_report.json").read_text())["kept"]
    for expected in (
        "English to German",
        "- `train.en`",
        f"Sentence pairs after filtering: {kept}.",
        "| model.d_model | 24 |",
        "| a\\|b | 3 |\n| c |  |\n",
    ):
        assert expected in text
    assert str(corpus) not in text


def test_scores_are_those_of_the_exported_weights(run: Path, tmp_path: Path) -> None:
    card = json.loads((run / "eval" / "small" / "scores.json").read_text())
    bleu = f"| small | 20 | BLEU | {card['scores'][0]['value']:.2f} | beam 2, fp32 | nrefs:1"
    [evaluated] = card["checkpoints"]
    for checkpoint in ("averaged", "best", "last"):
        assert invoke("export", run, "--checkpoint", checkpoint, "--output", tmp_path / checkpoint).exit_code == 0
        is_same = file_sha256(tmp_path / checkpoint / "model.safetensors") == evaluated["sha256"]
        text = card_of(tmp_path / checkpoint)[1]
        assert (bleu in text, "Not evaluated" in text) == (is_same, not is_same)
    found = [path.name for path in tmp_path.iterdir() if path != run and bleu in card_of(path)[1]]
    assert found
    assert len(found) < 3, "no other weights are exported"


def test_an_owner_may_edit_the_card(run: Path, tmp_path: Path) -> None:
    assert invoke("export", run, "--output", tmp_path / "it").exit_code == 0
    (tmp_path / "it" / "README.md").write_text("license: apache-2.0\n")
    assert invoke("translate", tmp_path / "it", stdin=b"The man.\n").exit_code == 0


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *(("exam.json", text) for text in ("{", "{}", "[]", '{"rows": 3}', '{"rows": [3]}')),
        ("eval/small/scores.json", "{}"),
    ],
)
def test_damaged_results_are_an_error(run: Path, tmp_path: Path, file: str, text: str) -> None:
    (run / file).write_text(text)
    for form in ("bundle", "argos"):
        result = invoke("export", run, "--format", form, "--output", tmp_path / "it")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: {run / file}: ")
        assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]

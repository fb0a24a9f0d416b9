"""Model cards: their contents, and that their commands and Python code run and give the run's translations."""

import contextlib
import json
import re
import shlex
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import invoke
from small import Make, write_bundle

from mtformer.decoding.translator import Translator
from mtformer.export.bundle import export
from mtformer.files import file_sha256

TEXT = "Text in English."


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the header and the text of a model card."""
    _, header, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(header), text


def run_python(code: str, folder: Path) -> str:
    """Run a snippet in a folder, in this process, and return what it prints."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(StringIO()) as out:
        patch.chdir(folder)
        exec(compile(code, "card", "exec"), {})
    return out.getvalue()


@pytest.mark.parametrize("words", ["bundle", "ctranslate2", "ctranslate2 --vocabulary-map"])
def test_the_snippets_translate(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    name = "a 'b' & $c"
    result = invoke("export", run, "--output", tmp_path / name, "--format", *words.split())
    assert result.exit_code == 0, result.stderr
    _, text = card_of(tmp_path / name)
    expected = Translator.load(tmp_path / name).translate([TEXT])[0].text + "\n"
    assert expected.strip()
    [code] = re.findall("```python\n(.*?)```", text, re.DOTALL)
    # This model hardly ever ends a translation, and the code for CTranslate2 has the library's limit of 256 tokens.
    assert run_python(code, tmp_path).startswith(expected if words == "bundle" else expected[:-1])
    assert ("use_vmap=True" in code) == ("map" in words)
    [command] = re.findall(f'```bash\necho "{TEXT}" \\| mtformer (.*)\n```', text)
    monkeypatch.chdir(tmp_path)
    assert invoke(*shlex.split(command), stdin=f"{TEXT}\n".encode()).stdout == expected


def test_the_snippet_for_transformers_translates(make_trained: Make, tmp_path: Path) -> None:
    run = write_bundle(tmp_path / "run", *make_trained(norm_position="post"))
    export(run, tmp_path / "out", None, "huggingface")
    header, text = card_of(tmp_path / "out")
    assert (header["library_name"], header["language"]) == ("transformers", ["de"])
    [code] = re.findall("```python\n(.*?)```", text, re.DOTALL)
    assert run_python(code.replace("Text in German.", "ein hund liest"), tmp_path) == (
        Translator.load(run.path).translate(["ein hund liest"])[0].text + "\n"
    )
    assert "Sentence pairs after filtering: unknown." in text


def test_contents(run: Path, tmp_path: Path, corpus: Path) -> None:
    (run / "exam.json").write_text(json.dumps({"exams": [{"rows": {"a|b": {"chrf": 3.14}, "c": {"chrf": None}}}]}))
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
        "| a\\|b | 3.1 |\n| c |  |\n",
    ):
        assert expected in text
    assert "- a joint vocabulary of 300 pieces" in text
    assert str(corpus) not in text
    (tmp_path / "it" / "README.md").write_text("license: apache-2.0\n")  # the owner may edit it
    assert invoke("translate", tmp_path / "it", stdin=b"The man.\n").exit_code == 0


def test_the_exam_is_that_of_the_exported_weights(run: Path, tmp_path: Path) -> None:
    words = ("exam", run, "--lines", 2, "--json", run / "exam.json")
    assert invoke(*words, "--checkpoint", 4).exit_code == 0
    for checkpoint, is_shown in (("4", True), ("last", False)):
        assert invoke("export", run, "--checkpoint", checkpoint, "--output", tmp_path / checkpoint).exit_code == 0
        assert ("## Behavior tests" in card_of(tmp_path / checkpoint)[1]) == is_shown


def test_scores_are_those_of_the_exported_weights(run: Path, tmp_path: Path) -> None:
    card = json.loads((run / "eval" / "small" / "scores.json").read_text())
    bleu = f"| small | 20 | BLEU | {card['scores'][0]['value']:.2f} | beam 2, fp32 | nrefs:1"
    [evaluated], found = card["checkpoints"], []
    for checkpoint in ("averaged", "best", "last"):
        assert invoke("export", run, "--checkpoint", checkpoint, "--output", tmp_path / checkpoint).exit_code == 0
        is_same = file_sha256(tmp_path / checkpoint / "model.safetensors") == evaluated["sha256"]
        text = card_of(tmp_path / checkpoint)[1]
        assert (bleu in text, "Not evaluated" in text) == (is_same, not is_same)
        found.append(is_same)
    assert {True, False} == set(found)


def test_scores_name_their_search(run: Path, tmp_path: Path) -> None:
    path = run / "eval" / "small" / "scores.json"
    card = json.loads(path.read_text())
    for values, search in (({"sampling": True}, "sampling"), ({"mbr_samples": 8}, "MBR")):
        path.write_text(json.dumps({**card, "decoding": {**card["decoding"], **values}}))
        assert invoke("export", run, "--output", tmp_path / search).exit_code == 0
        assert f"| {search}, fp32 | nrefs:1" in card_of(tmp_path / search)[1]


@pytest.mark.parametrize("form", ["bundle", "ctranslate2", "huggingface", "argos"])
def test_bad_runs_are_refused(run: Path, tmp_path: Path, form: str) -> None:
    target, copy = tmp_path / "it", tmp_path / "copy"

    def refuse(message: str) -> None:
        result = invoke("export", run, "--format", form, "--output", target)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert message in result.stderr
        assert [path.name for path in tmp_path.iterdir() if path not in (run, copy)] == ["it"] * target.exists()

    for text in (
        "{",
        "{}",
        "[]",
        '{"exams": 3}',
        '{"exams": [{"rows": [3]}]}',
    ):
        (run / "exam.json").write_text(text)
        refuse(f"{run}/exam.json: not a table with rows")
    (run / "exam.json").unlink()
    for name, message in {"tokenizer": "joint.model: missing; ", "checkpoints": "it has no checkpoint yet"}.items():
        (run / name).rename(copy)
        refuse(message)
        copy.rename(run / name)
    (run / "eval" / "small" / "scores.json").write_text("{}")
    refuse("scores.json: damaged")
    target.write_text("mine")
    refuse(f"{target}: already exists")
    assert target.read_text() == "mine"

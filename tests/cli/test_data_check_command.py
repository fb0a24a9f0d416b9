"""`mtformer data check`: arguments, files written, exit codes, and the last line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from program import invoke


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return two clean parallel files."""
    paths = (tmp_path / "a.en", tmp_path / "a.de")
    for path in paths:
        path.write_text("".join(f"{path.suffix} line {number}\n" for number in range(50)), encoding="utf-8")
    return paths


LANGUAGES = ("--src-lang", "en", "--tgt-lang", "de")


def test_a_config_is_checked(corpus: Path, tmp_path: Path) -> None:
    report, html = tmp_path / "new" / "report.json", tmp_path / "new" / "page.html"
    words = [corpus / "small.yaml", "data.check.max_test_overlap=1", "--json", report, "--html", html]
    result = invoke("data", "check", *words)
    assert result.exit_code == 0, result.stderr
    assert "train: 600 pairs" in result.stdout
    assert "of 20 test.small pairs also occur in train (" in result.stdout
    assert "no tokenizer" in result.stdout
    assert result.stdout.splitlines()[-1] == "ok: no limit exceeded"
    assert [one["pairs"] for one in json.loads(report.read_text(encoding="utf-8"))["sets"]] == [600, 20, 20]
    assert html.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_the_config_and_tokenizer_of_a_run_are_used(trained: tuple[Path, object], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    result = invoke("data", "check", trained[0], "data.check.max_test_overlap=1", "--json", report)
    assert result.exit_code == 0, result.stderr
    values = json.loads(report.read_text(encoding="utf-8"))
    assert values["has_tokenizer"]
    assert values["sets"][0]["src"]["tokens_per_word"] > 1


def test_tokenizers_of_a_config_and_of_a_folder_give_equal_results(
    corpus: Path, trained: tuple[Path, object], tmp_path: Path
) -> None:
    folder = trained[0] / "tokenizer"
    written = []
    for name, words in (
        ("config", [f"tokenizer.src_model={folder / 'joint.model'}"]),
        ("folder", ["--tokenizer", folder]),
    ):
        invoke("data", "check", corpus / "small.yaml", *words, "--json", tmp_path / name)
        written.append((tmp_path / name).read_text(encoding="utf-8"))
    assert written[0] == written[1]
    assert json.loads(written[0])["has_tokenizer"]


def test_an_exceeded_limit_gives_one_line_and_exit_code_1(files: tuple[Path, Path], tmp_path: Path) -> None:
    for path, line in zip(files, (b"\xff\n", b"x\n"), strict=True):
        with path.open("ab") as file:
            file.write(line)
    result = invoke("data", "check", *files, *LANGUAGES, "--json", tmp_path / "r.json")
    assert result.exit_code == 1
    [error] = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert f"data.check.max_invalid_lines 0; fix them (the first: {files[0]}:51)" in error
    assert (tmp_path / "r.json").is_file()
    assert result.stdout.splitlines()[-1] == "failed: 1 limit exceeded: data.check.max_invalid_lines (train)"


def test_files_with_and_without_overrides(files: tuple[Path, Path], tmp_path: Path) -> None:
    tsv, jsonl = tmp_path / "pairs.tsv", tmp_path / "pairs.jsonl"
    tsv.write_text("one\teins\ntwo\tzwei\n", encoding="utf-8")
    jsonl.write_text('{"en": "one", "de": "eins"}\n', encoding="utf-8")
    for words, pairs in ((files, 50), ([tsv], 2), ([jsonl], 1)):
        result = invoke("data", "check", *words, *LANGUAGES)
        assert result.exit_code == 0, result.stderr
        assert f"train: {pairs} pairs" in result.stdout
        figures = [line for line in result.stdout.splitlines() if "mean, median" in line or "source (" in line]
        assert len(figures) > 1
        assert max(map(len, figures)) <= 80
    files[0].write_text("\xa0\n" * 50, encoding="utf-8")
    assert invoke("data", "check", *files, *LANGUAGES).exit_code == 1
    assert invoke("data", "check", *files, *LANGUAGES, "data.filters.max_filtered_share=1").exit_code == 0


def test_a_report_that_cannot_be_written(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = files[0] / "folder" / "r.json"
    result = invoke("data", "check", *files, *LANGUAGES, "--json", path)
    assert result.exit_code == 2
    assert f"error: {path}: cannot be written: Not a directory; name another file\n" in result.stderr


def test_broken_json_is_counted_and_gives_exit_code_1(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"en": "one", "de": "eins"}\n{"en": "two"}\n' * 30, encoding="utf-8")
    result = invoke("data", "check", path, *LANGUAGES)
    assert result.exit_code == 1
    assert "train: 60 pairs" in result.stdout
    message = "no field 'de' (found: en); set the field with tgt_field"
    assert f"30  broken row (50 %)\n             x.jsonl:2  [{message}]\n" in result.stdout
    assert "30 lines cannot be read (broken row 30), more than data.check.max_invalid_lines 0" in result.stderr
    assert f"(the first: {path}:2: {message})" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.en", "a.de"], "a.en: not a config (.yaml), so give its languages with --src-lang and --tgt-lang"),
        (["a.en", "a.de", "a.fr", *LANGUAGES], "a.fr: too many files; give a config, two parallel files"),
        (["missing.en", "missing.de", *LANGUAGES], "missing.en: no such file"),
        (["missing.yaml"], "missing.yaml: no such config file"),
        (["empty.yaml"], "`data` has no corpus"),
        (["empty.yaml", *LANGUAGES], "are for files"),
        ([".", *LANGUAGES[:0]], "not a run directory"),
        (["a.en", "a.de", *LANGUAGES, "--tokenizer", "nowhere"], "nowhere: no tokenizer found"),
        (["data.dev=[]"], "data.dev=[]: overrides need a config"),
        (["empty.yaml", "a.en"], "a.en: give only one config"),
        (["empty.yaml", "seed=3"], "seed: unknown key; did you mean 'training.seed'"),
        (["a.en", "a.de", *LANGUAGES, "data.filters.max_token=3"], "did you mean 'max_tokens'"),
    ],
)
def test_user_errors_are_reported_in_one_line(
    words: list[str], message: str, files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").write_text("data: {src_lang: en, tgt_lang: de}\n", encoding="utf-8")
    result = invoke("data", "check", *words)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr


def test_the_last_line_is_the_verdict(files: tuple[Path, Path]) -> None:
    config = files[0].parent / "c.yaml"
    config.write_text(
        f"data: {{src_lang: en, tgt_lang: de, num_workers: 2, train: [{{src: {files[0]}, tgt: {files[1]}}}]}}\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mtformer", "data", "check", str(config), "data.filters.max_filtered_share=0"]
    files[0].write_text("\n" * 50, encoding="utf-8")
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert result.returncode == 1, result.stdout
    lines = result.stdout.splitlines()
    assert lines[:2] == ["train: 50 pairs read", "train: 50 pairs"]
    assert lines[-2].startswith("error: train: the filters remove 100 % of the pairs, more than data.filters.max_")
    assert lines[-1] == "failed: 1 limit exceeded: data.filters.max_filtered_share (train)"


def test_reports_are_written_before_the_text(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of a pipe may end before the last line of the text."""

    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("mtformer.cli.data.report_lines", closed)
    written = [tmp_path / "report.json", tmp_path / "report.html"]
    assert invoke("data", "check", *files, "--json", written[0], "--html", written[1], *LANGUAGES).exit_code == 141
    assert all(path.stat().st_size for path in written)

"""`mtformer report` and `training.report`; tests/report tests the contents of reports."""

from pathlib import Path

import pytest
from program import invoke


def test_the_report_of_one_run_is_in_its_folder(run: Path) -> None:
    result = invoke("report", run)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"report: {run}/report.html\n")
    text = (run / "report.html").read_text(encoding="utf-8")
    for part in ("curves", "scores", "samples", "sentences", "attention", "speed", "data", "parameters", "config"):
        assert f'<section id="{part}">' in text
    assert "Not shown" not in text


def test_the_report_of_several_runs_is_in_the_working_directory(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("report", run, run).stderr == "report: report.html\n"
    assert "run (2)" in Path("report.html").read_text(encoding="utf-8")


def test_training_writes_the_report(run: Path, corpus: Path) -> None:
    command = ["train", corpus / "small.yaml", "training.max_steps=16", "--run-dir", run, "--resume"]
    assert invoke(*command).exit_code == 0
    assert not (run / "report.html").exists()
    result = invoke(*command[:3], "training.report=true", *command[3:])
    assert result.exit_code == 0, result.stderr
    assert f"\nreport: {run}/report.html\n" in result.stderr
    text = (run / "report.html").read_text(encoding="utf-8")
    assert 'class="state finished"' in text
    assert "step 16 of 16" in text


def test_user_errors_are_reported_in_one_line(run: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path / "none",), f"{tmp_path}/none: not a run directory or bundle"),
        ((run, "--out", tmp_path), f"{tmp_path}: is a folder; give the name of an HTML file"),
    ):
        result = invoke("report", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: {message}")
        assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("no_matplotlib")
def test_a_report_needs_no_matplotlib(run: Path, tmp_path: Path) -> None:
    assert invoke("report", run, "--out", tmp_path / "new" / "page.html").exit_code == 0
    assert (tmp_path / "new" / "page.html").is_file()
    assert not (run / "report.html").exists()

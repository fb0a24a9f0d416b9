"""Metrics of other programs: commands, settings, output and failures."""

import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from mtformer.config.user_settings import read_user_settings, settings_file
from mtformer.errors import ConfigError, DataError
from mtformer.evaluation import external
from mtformer.evaluation.external import ExternalMetric, find_metrics, run_metric, score_lines

TOY = Path(__file__).with_name("toy_metric.py")
TEXTS = {
    "src": ["one", "two", "three"],
    "hyp": ["ein Haus", "日本語の文。", "ภาษาไทย"],
    "ref": ["ein Haus", "日本語", "ไมตรี"],
}


def python(code: str, arguments: str = "{hyp}") -> str:
    """Return a command that runs a program."""
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {arguments}"


def toy(form: str, reference: str = "ref") -> str:
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(TOY))} {form} {{hyp}} {{{reference}}}"


def metric(command: str) -> ExternalMetric:
    [found] = find_metrics([f"toy={command}"])
    return found


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of the user's settings file, which does not exist."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "mtformer").mkdir(parents=True)
    return settings_file()


@pytest.mark.parametrize("form", ["lines", "comet", "mean"])
def test_one_number_or_one_per_line(form: str) -> None:
    result = run_metric(metric(toy(form)), TEXTS)
    expected = [1.0, 1.0, 1 / 5]  # the third line shares one of five characters
    assert result.score.value == pytest.approx(sum(expected) / 3, abs=1e-4)
    assert result.score.text == "0.7333"
    assert result.of_lines == (None if form == "mean" else pytest.approx(expected, abs=1e-4))


@pytest.mark.parametrize(
    ("output", "value", "of_lines"),
    [
        ("0.5", 0.5, None),
        ("loading\nscore: -1.5e1\n\n", -15.0, None),
        ("1\n2\n6", 3.0, [1.0, 2.0, 6.0]),
        ("1 a\n2 a\n6 a", None, None),  # no numbers at the ends
        ("a 1\nb 2\na 6", 6.0, None),  # the lines differ in their words
        ("1\n2\n6\n3.0001", 3.0001, [1.0, 2.0, 6.0]),
        ("1\n2\n6\n7", 7.0, None),  # not the mean of the lines
        ("1\n2", 2.0, None),  # of two lines, although there are three translations
        ("BLEU = 30.1 65/40 (BP = 1.000 ratio = 1.003 hyp_len = 1234 ref_len = 1230)", None, None),
        ("chrF2 = 55.3 1230", None, None),
        ("", None, None),
        ("done", None, None),
        ("score: nan", None, None),
        ("inf", None, None),
        ("1_000", None, None),
    ],
)
def test_output(output: str, value: float | None, of_lines: list[float] | None) -> None:
    subject = metric(python(f"print({output!r})"))
    if value is None:
        with pytest.raises(DataError, match=r"metric toy: wrote \d lines, .*must write one number, or one for each of"):
            run_metric(subject, TEXTS)
    else:
        result = run_metric(subject, TEXTS)
        assert (result.score.value, result.of_lines) == (value, of_lines)


def test_files_have_the_lines_and_no_shell_is_used(tmp_path: Path) -> None:
    code = "import sys; print(sum(open(name, encoding='utf-8').read() == text for name, text in"
    code += f" zip(sys.argv[1:4], {[''.join(f'{line}{chr(10)}' for line in TEXTS[name]) for name in TEXTS]})), end=' ')"
    code += "; print() if sys.argv[4:] == ['$HOME', ';', 'touch', 'x y', '*'] else print('no')"
    arguments = "{src} {hyp} {ref} '$HOME' ; touch 'x y' *"
    assert run_metric(metric(python(code, arguments)), TEXTS).score.value == 3


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; print(1); sys.exit('a\\nno model\\n')", "failed with exit code 1: no model; run the command"),
        ("import os; print('x'); os.kill(os.getpid(), 9)", "failed with exit code -9: x; run the command"),
        ("import sys; sys.exit(3)", "failed with exit code 3: no message; run the command"),
    ],
)
def test_failures_are_one_line(code: str, message: str) -> None:
    with pytest.raises(DataError) as raised:
        run_metric(metric(python(code)), TEXTS)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_program_that_hangs_ends_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "MAX_SECONDS", 3)
    child = tmp_path / "child"
    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])"
    )
    code += f"; open({str(child)!r}, 'w').write(str(child.pid)); time.sleep(99)"
    with pytest.raises(DataError, match="metric toy: has not ended after 3 seconds"):
        run_metric(metric(python(code)), TEXTS)
    pid = int(child.read_text())
    for _ in range(500):  # the kernel ends it soon
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return
        if stat.rpartition(")")[2].split()[0] in "ZX":
            return
        time.sleep(0.01)
    raise AssertionError("the child still runs")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bleu=x {hyp}", "metric bleu: is computed anyway"),
        ("a/b=x {hyp}", "metric a/b: a name has letters, digits"),
        ("=x {hyp}", "a name has letters, digits"),
        ("toy=", r"metric toy: has no place \{hyp\} for the translations; the places are \{src\}, \{hyp\} and \{ref\}"),
        ("toy=true {src}", r"has no place \{hyp\}"),
        ("toy=true {hyp} {mt}", r"metric toy: unknown place \{mt\}"),
        ("toy=true '{hyp}", r"cannot be split into arguments \(No closing quotation\); check the quotes"),
        ("toy=no-such-program {hyp}", "metric toy: no program no-such-program; install it, or give its path"),
        ("toy", r"metric toy: has no command; give toy='COMMAND', or add it to `metrics` in .*settings\.yaml"),
    ],
)
def test_mistakes_are_refused(text: str, message: str, settings: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        find_metrics([text])


def test_commands_in_the_settings_of_the_user(settings: Path) -> None:
    settings.write_text(f"metrics:\n  toy: {toy('lines')}\n  error-: {toy('length')}\n")
    assert read_user_settings().metrics.keys() == {"toy", "error-"}
    toy_metric, error_metric = find_metrics(["toy", "error"])
    assert (toy_metric.name, toy_metric.lower_is_better) == ("toy", False)
    assert (error_metric.name, error_metric.lower_is_better) == ("error", True)
    assert score_lines(error_metric, TEXTS) == [8, 6, 7]
    with pytest.raises(ConfigError, match=r"metric comet: has no command; .*, which has toy, error-"):
        find_metrics(["comet"])
    with pytest.raises(ConfigError, match="metric toy: given twice"):
        find_metrics(["toy", "toy-"])
    settings.write_text("metric: {}\n")
    with pytest.raises(ConfigError, match=r"settings\.yaml:1: metric: unknown key; did you mean 'metrics'\?"):
        find_metrics(["toy"])
    settings.write_text("")
    assert read_user_settings().metrics == {}


def test_settings_are_only_read_from_the_folder_of_the_user(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings.yaml").write_text("metrics: {toy: 'true {hyp}'}\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")  # relative, so it is ignored
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert settings_file() == tmp_path / "home" / ".config" / "mtformer" / "settings.yaml"
    assert read_user_settings().metrics == {}


def test_the_signature_identifies_the_command_without_containing_it() -> None:
    secret = metric(f"{shlex.quote(sys.executable)} {{hyp}} --key secret")
    other = metric(f"{shlex.quote(sys.executable)} {{hyp}} --key other")
    assert secret.signature.startswith(f"program:{os.path.basename(sys.executable)}|command:")
    assert secret.signature != other.signature
    assert "secret" not in secret.signature


def test_a_single_line_has_one_number() -> None:
    texts = {"src": ["a"], "hyp": ["b"]}
    assert score_lines(metric(python("print(0.5)")), texts) == [0.5]
    with pytest.raises(DataError, match="wrote one number, but a number for each line is needed"):
        score_lines(metric(python("print(0.5)")), TEXTS)

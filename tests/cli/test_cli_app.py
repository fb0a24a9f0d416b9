"""Start of the program, exit codes, and the log."""

import errno
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from program import invoke
from typer.testing import CliRunner, Result

from mtformer import __version__
from mtformer.cli import app as program
from mtformer.cli.output import error_lines, log_to_file, set_up_logging, use_utf8
from mtformer.errors import MtformerError

HEAVY = ("torch", "datasets", "sentencepiece", "sacrebleu", "numpy", "yaml", "pyarrow", "mtformer.config.section")


def run_process(*arguments: str, environment: dict[str, str] | None = None, **options: Any) -> Any:
    """`python -m mtformer` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "mtformer", *arguments],
        env={**os.environ, **(environment or {})},
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        timeout=60,
        **options,
    )


@pytest.fixture
def end_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], Result]:
    """Runs a command that ends with an exception."""
    monkeypatch.delenv(program.DEBUG, raising=False)

    def end(error: BaseException) -> Result:
        app = typer.Typer(cls=program._Program, pretty_exceptions_enable=False)

        @app.callback()
        def _callback() -> None:
            pass

        @app.command()
        def fail() -> None:
            raise error

        return CliRunner().invoke(app, ["fail"])

    return end


def imported(*arguments: str) -> set[str]:
    """Return the modules that a command has imported when it ends."""
    code = (
        "import sys; from mtformer.cli.app import app\n"
        f"try: app({list(arguments)!r})\n"
        "except SystemExit as end: assert not end.code\n"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.process
@pytest.mark.parametrize("arguments", [["--help"], ["config", "show", "--help"], ["train", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    assert not imported(*arguments) & {*HEAVY}


@pytest.mark.process
@pytest.mark.parametrize("command", [["runs", "."], ["config", "show"], ["config", "show", "run"]])
def test_commands_that_read_small_files_import_no_torch(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("data: {src_lang: en, tgt_lang: de}\n")
    found = imported(*command)
    assert "mtformer.config.schema" in found
    assert not found & {"torch", "numpy", "datasets", "sacrebleu", "sentencepiece"}


@pytest.mark.parametrize("name", program.COMMANDS)
def test_each_command_has_a_help(name: str) -> None:
    result = invoke(name, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"mtformer {name}" in " ".join(result.stdout.split()) or f" {name} " in result.stdout
    assert "--install-completion" not in result.stdout


def complete(words: str) -> list[str]:
    """Return what bash completes the last word to."""
    count = str(len(words.split()) - 1)
    variables = {"COMP_WORDS": words, "COMP_CWORD": count, "_MTFORMER_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['mtformer']; from mtformer.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.process
def test_completion() -> None:
    assert complete("mtformer tr") == ["train", "translate"]
    assert complete("mtformer train a.yaml training.lea") == ["training.learning_rate="]
    assert complete("mtformer config show a.yaml data.filters.max_t") == ["data.filters.max_tokens="]
    assert complete("mtformer config show --section dec") == ["decoding"]


def test_version() -> None:
    assert invoke("--version").stdout == f"mtformer {__version__}\n"


@pytest.mark.parametrize("arguments", [["nothing"], ["train"], ["--nothing"], ["config", "nothing"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: " in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MtformerError("one\ntwo"), 2, "error: one\nerror: two\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), 2, "error: runs/x: Permission denied\n"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: No space left on device\n"),
        (OSError("two\nlines"), 2, "error: two lines\n"),
    ],
)
def test_errors_and_exit_codes(
    end_with: Callable[[BaseException], Result], error: BaseException, code: int, message: str
) -> None:
    result = end_with(error)
    assert (result.exit_code, result.stderr, result.stdout) == (code, message, "")


@pytest.mark.process
def test_nobody_reads_a_real_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run_process("config", "schema", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_under_stdout() -> None:
    with open("/dev/full", "wb") as full:
        done = run_process("config", "schema", stdout=full)
        short = run_process("--version", stdout=full, environment={"PYTHONUNBUFFERED": ""})
    assert (done.returncode, done.stderr) == (2, b"error: No space left on device\n")
    assert (short.returncode, short.stderr) == (2, b"error: stdout: No space left on device\n")


def test_a_bug_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**_: Any) -> None:
        raise ValueError("odd\nthing")

    monkeypatch.delenv(program.DEBUG, raising=False)
    monkeypatch.setattr(program, "app", fail)
    with pytest.raises(SystemExit) as caught:
        program.main()
    assert caught.value.code == 1
    message = (
        "error: ValueError: odd; this is a bug in mtformer, please report it; MTFORMER_DEBUG=1 shows the traceback\n"
    )
    assert capsys.readouterr().err == message
    monkeypatch.setenv(program.DEBUG, "1")
    with pytest.raises(SystemExit):
        program.main()
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith(message)


def test_debug_option_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(program.DEBUG, "0")
    quiet = invoke("config", "show", "nothing.yaml")
    assert (quiet.exit_code, quiet.stderr) == (2, "error: nothing.yaml: no such config file\n")
    loud = invoke("--debug", "config", "show", "nothing.yaml")
    assert loud.exit_code == 2
    assert loud.stderr.startswith("Traceback")


@pytest.mark.process
def test_output_is_utf8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "é.yaml").write_text("data: {src_lang: 日本, tgt_lang: de}\n", encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = run_process("config", "show", str(tmp_path / "é.yaml"), environment=plain)
    assert "src_lang: 日本" in done.stdout.decode("utf-8")
    assert b"\r" not in done.stdout


@pytest.fixture
def log() -> Any:
    """The package's logger, put back as it was."""
    logger = logging.getLogger("mtformer")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield logger
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_log_lines_go_to_stderr_once(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging()
    set_up_logging()
    log.info("step %d", 1)
    log.warning("odd")
    assert capsys.readouterr() == ("", "step 1\nwarning: odd\n")


def test_log_lines_do_not_break_a_bar(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    from tqdm import tqdm

    set_up_logging()
    with tqdm(total=3, file=sys.stderr) as bar:
        bar.update()
        log.info("a line")
    written = capsys.readouterr().err
    # The bar is wiped before the line, and drawn again after it.
    before, after = written.split("a line\n")
    assert before.endswith("\r")
    assert "1/3" in after


def test_the_runs_log(log: logging.Logger, tmp_path: Path) -> None:
    set_up_logging()
    path = tmp_path / "run" / "train.log"
    with log_to_file(path):
        log.info("before the folder is there")
        path.parent.mkdir()
        log.info("é")
        assert [line[20:] for line in path.read_text("utf-8").splitlines()] == ["before the folder is there", "é"]
        path.unlink()
        log.info("started again")
    log.info("after")
    assert [line[20:] for line in path.read_text(encoding="utf-8").splitlines()] == ["started again"]
    with log_to_file(path):
        log.info("resumed")
    assert [line[20:] for line in path.read_text(encoding="utf-8").splitlines()] == ["started again", "resumed"]


def test_a_log_that_cannot_be_written_stops_nothing(
    log: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging()
    (tmp_path / "train.log").mkdir()
    with log_to_file(tmp_path / "train.log"):
        log.info("one")
        log.info("two")
    written = capsys.readouterr().err.splitlines()
    assert [line for line in written if "cannot be written" not in line] == ["one", "two"]
    assert len(written) == 3


def test_closed_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading and writing fail as in other programs; messages are discarded."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    use_utf8()
    with pytest.raises(OSError, match="Bad file descriptor"):
        sys.stdin.read()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(sys.stdout.fileno(), b"text")
    error_lines("message")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        stream.close()


class FullDisk(io.StringIO):
    """A stream on a full disk."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_messages_on_a_full_disk_stop_nothing(log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    set_up_logging()
    log.info("a line")
    error_lines("another")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory"), ImportError("failed to map segment")],
)
def test_no_memory_is_no_bug(error: Exception, end_with: Callable[[BaseException], Result]) -> None:
    result = end_with(error)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: not enough memory (")
    assert result.stderr.count("\n") == 1

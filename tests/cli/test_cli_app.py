"""Program start, exit codes and logging."""

import errno
import io
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from program import invoke
from typer.testing import CliRunner, Result

from mtformer import __main__ as entry
from mtformer import __version__
from mtformer.cli import app as program
from mtformer.cli import output
from mtformer.cli.output import error_lines, for_terminal, log_to_file, set_up_logging, use_utf8
from mtformer.errors import MtformerError, warn_once
from mtformer.run_dir import RunDir

FULL = "No space left on device; free some space, or write to another disk"
HEAVY = ("torch", "datasets", "sentencepiece", "sacrebleu", "numpy", "yaml", "pyarrow", "mtformer.config.section")


def run_process(*arguments: str, environment: dict[str, str] | None = None, **options: Any) -> Any:
    """Run `python -m mtformer` in a separate process."""
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
    """Return a function that runs a command which raises an exception."""
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
    """Return the modules that a command imports."""
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
def test_commands_that_read_small_files_do_not_import_torch(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("data: {src_lang: en, tgt_lang: de}\n")
    found = imported(*command)
    assert "mtformer.config.schema" in found
    assert not found & {"torch", "numpy", "datasets", "sacrebleu", "sentencepiece"}


@pytest.mark.parametrize("name", program.COMMANDS)
def test_each_command_has_help(name: str) -> None:
    result = invoke(name, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"mtformer {name}" in " ".join(result.stdout.split()) or f" {name} " in result.stdout
    assert "--install-completion" not in result.stdout


def complete(words: str) -> list[str]:
    """Return the bash completions of the last word."""
    count = str(len(words.split()) - 1)
    variables = {"COMP_WORDS": words, "COMP_CWORD": count, "_MTFORMER_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['mtformer']; from mtformer.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.process
def test_completion() -> None:
    assert complete("mtformer tr") == ["train", "translate", "track"]
    assert complete("mtformer train a.yaml training.lea") == ["training.learning_rate="]
    assert complete("mtformer config show a.yaml data.filters.max_t") == ["data.filters.max_tokens="]


def test_version() -> None:
    assert invoke("--version").stdout == f"mtformer {__version__}\n"


@pytest.mark.parametrize("arguments", [["nothing"], ["train"], ["--nothing"], ["config", "nothing"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.fullmatch(r"error: (No such|Missing) .*; see `mtformer( train| config)? --help`\n", result.stderr)


def test_unknown_export_format_names_the_formats() -> None:
    result = invoke("export", "run", "--format", "tflite")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: Invalid value for '--format': 'tflite' is not one of 'bundle', ")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MtformerError("one\ntwo"), 2, "error: one\nerror: two\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
        (PermissionError(errno.EACCES, "Permission denied", "runs/x"), 2, "error: runs/x: Permission denied\n"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 2, f"error: x: {FULL}\n"),
        (OSError("two\nlines"), 2, "error: two lines\n"),
    ],
)
def test_errors_and_exit_codes(
    end_with: Callable[[BaseException], Result], error: BaseException, code: int, message: str
) -> None:
    result = end_with(error)
    assert (result.exit_code, result.stderr, result.stdout) == (code, message, "")


@pytest.mark.process
def test_a_closed_pipe() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run_process("config", "schema", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="requires /dev/full")
def test_stdout_on_a_full_disk_is_reported() -> None:
    with open("/dev/full", "wb") as full:
        done = run_process("config", "schema", stdout=full)
        short = run_process("--version", stdout=full, environment={"PYTHONUNBUFFERED": ""})
    expected = f"error: stdout: {FULL}\n".encode()
    assert (done.returncode, done.stderr) == (2, expected)
    assert (short.returncode, short.stderr) == (2, expected)


def test_an_internal_error_is_reported_as_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert (quiet.exit_code, quiet.stderr) == (2, "error: nothing.yaml: no such config file; check the path\n")
    loud = invoke("--debug", "config", "show", "nothing.yaml")
    assert loud.exit_code == 2
    assert loud.stderr.startswith("Traceback")


@pytest.mark.process
def test_output_is_utf8_in_any_locale(tmp_path: Path) -> None:
    (tmp_path / "é.yaml").write_text("data: {src_lang: en, tgt_lang: de, cache_dir: 日本}\n", encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    done = run_process("config", "show", str(tmp_path / "é.yaml"), environment=plain)
    assert "cache_dir: 日本" in done.stdout.decode("utf-8")
    assert b"\r" not in done.stdout


@pytest.mark.process
def test_the_error_about_a_name_that_is_not_ascii_names_the_locale(tmp_path: Path) -> None:
    """In the locale C without UTF-8 mode, Python cannot decode the name, which is correct UTF-8."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = run_process("translate", str(tmp_path / "कखग"), environment=plain)
    assert done.returncode == 2
    [line] = done.stderr.decode().splitlines()
    assert line.endswith("not text in the encoding of the locale, ascii; set LC_ALL=C.UTF-8, or use another name")


def test_a_deleted_current_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = CliRunner().invoke(program.app, ["config", "schema"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: the current folder was deleted; change to another folder\n"


@pytest.fixture
def log() -> Any:
    """Yield the package's logger and restore it."""
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


def test_log_lines_do_not_break_a_progress_bar(log: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    from tqdm import tqdm

    set_up_logging()
    with tqdm(total=3, file=sys.stderr) as bar:
        bar.update()
        log.info("a line")
    written = capsys.readouterr().err
    # The bar is cleared before the line and redrawn after it.
    before, after = written.split("a line\n")
    assert before.endswith("\r")
    assert "1/3" in after


def test_the_log_of_a_run(log: logging.Logger, tmp_path: Path) -> None:
    set_up_logging()
    path = tmp_path / "run" / "train.log"
    with log_to_file(path):
        log.info("before the folder exists")
        path.parent.mkdir()
        log.info("é")
        assert [line[20:] for line in path.read_text("utf-8").splitlines()] == ["before the folder exists", "é"]
        path.unlink()
        log.info("started again")
    log.info("after")
    assert [line[20:] for line in path.read_text(encoding="utf-8").splitlines()] == ["started again"]
    with log_to_file(path):
        log.info("resumed")
    assert [line[20:] for line in path.read_text(encoding="utf-8").splitlines()] == ["started again", "resumed"]


def test_an_unwritable_log_does_not_stop_the_program(
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


def test_long_lists_of_errors_and_long_errors_are_shortened(tmp_path: Path) -> None:
    config = tmp_path / "bad.yaml"
    keys = [f"key{number}" for number in range(30)] + ["x" * 1000]
    data = "data:\n  src_lang: en\n  tgt_lang: de\n"
    config.write_text(data + "".join(f"  {key}: 1\n" for key in keys), encoding="utf-8")
    *listed, last = invoke("train", config).stderr.splitlines()
    assert [re.search(r"data\.(\w+): unknown key", line)[1] for line in listed] == keys[:20]
    assert last == "error: and 11 more"
    config.write_text(f"{data}  {'x' * 1000}: 1\n", encoding="utf-8")
    (error,) = invoke("train", config).stderr.splitlines()
    assert len(error) <= 500
    assert error.startswith(f"error: {config}:4: data.xxx")
    assert error.endswith("num_workers")


ESCAPES = "\x1b[31mred\x07\x9b2J\r"
SHOWN = r"\u001b[31mred\u0007\u009b2J\u000d"


def test_control_characters_in_names_and_configs_are_escaped(tmp_path: Path) -> None:
    assert (
        invoke("train", f"/no/{ESCAPES}.yaml").stderr
        == f"error: /no/{SHOWN}.yaml: no such config file; check the path\n"
    )
    config = tmp_path / "bad.yaml"
    config.write_text('data: {"a\\e\\x07": 1}', encoding="utf-8")
    assert r"data.a\u001b\u0007: unknown key" in invoke("train", config).stderr
    (tmp_path / ESCAPES).mkdir()
    assert invoke("runs", tmp_path / ESCAPES).stderr == f"{tmp_path}/{SHOWN}: contains no runs\n"


def test_control_characters_in_data_are_escaped_in_tables_and_logs(corpus: Path, tmp_path: Path) -> None:
    for name in ("ref", "one", "two"):
        lines = ["the man sleeps", "the dog sleeps", f"{ESCAPES} {name}"]
        (tmp_path / name).write_bytes("\n".join(lines).encode())
    files = (tmp_path / "one", tmp_path / "two", "--ref", tmp_path / "ref")
    table = invoke("compare", *files, "--sentences", 1).stdout
    assert "\x1b" not in table
    assert r"\u001b[31mred" in table
    (tmp_path / "dev.en").write_bytes(f"The man {ESCAPES} sleeps.\n".encode())
    dev = f"data.dev=[{{src: {tmp_path}/dev.en, tgt: {tmp_path}/dev.en}}]"
    run = tmp_path / "run"
    settings = ("training.max_steps=1", "training.validate_every=1", "data.test={}", dev)
    result = invoke("train", corpus / "small.yaml", *settings, "--run-dir", run)
    assert result.exit_code == 0, result.stderr
    for text in (result.stderr, RunDir(run).log.read_text(encoding="utf-8")):
        assert r"The man \u001b[31mred" in text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)


def test_output_keeps_control_characters_except_on_a_terminal() -> None:
    assert for_terminal(ESCAPES, io.StringIO()) == ESCAPES
    assert for_terminal(f"a\tb{ESCAPES}\n", Terminal()) == f"a\tb{SHOWN}\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), "warning: {ref}: the references look tokenized; their scores are not comparable to published ones; use"),
        (("--bleu-tokenizer", "none"), None),
    ],
)
def test_tokenized_files_are_told_in_our_own_words(
    settings: tuple[str, ...], expected: str | None, tmp_path: Path
) -> None:
    for name in ("one", "two", "ref"):
        (tmp_path / name).write_text("".join(f"the {name} {n} .\n" for n in range(120)), encoding="utf-8")
    result = invoke("compare", tmp_path / "one", tmp_path / "two", "--ref", tmp_path / "ref", *settings)
    lines = result.stderr.splitlines()
    if expected is None:
        assert lines == []
    else:
        [line] = lines
        assert line.startswith(expected.format(ref=tmp_path / "ref"))


def test_tokenized_translations_of_usual_references_are_told(tmp_path: Path) -> None:
    for name, end in {"one": " .", "two": ".", "ref": "."}.items():
        (tmp_path / name).write_text("".join(f"the {name} {n}{end}\n" for n in range(120)), encoding="utf-8")
    [line] = invoke("compare", tmp_path / "one", tmp_path / "two", "--ref", tmp_path / "ref").stderr.splitlines()
    assert line.startswith(f"warning: {tmp_path / 'one'}: the translations look tokenized and the references do not")


def test_warnings_from_packages_are_logged_once_with_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    output._log_once.cache_clear()
    output.set_up_logging()
    for name in ("asyncio", "sacrebleu", "asyncio"):
        logging.getLogger(name).warning("too slow\nsecond line")
    assert capsys.readouterr().err == "warning: asyncio: too slow\n"


@pytest.mark.parametrize(("words", "nearest"), [(["trian"], "train"), (["data", "chek"], "check")])
def test_an_unknown_command_suggests_the_nearest_command(words: list[str], nearest: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert re.search(f"Did you mean .*'{nearest}'", result.stderr)


def test_closed_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading stdin and writing stdout fail as in other programs, and messages to stderr are discarded."""
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

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def write(self, text: str) -> int:
        self.refused.append(text)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_messages_to_a_full_disk_do_not_stop_the_program(
    log: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = FullDisk()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up_logging()
    with log_to_file(tmp_path / "train.log"):
        log.info("a line")
        error_lines("another")
        log.info("a third")
    assert stream.refused == ["a line", "error: another\n", "a third"]
    written = (tmp_path / "train.log").read_text(encoding="utf-8").splitlines()
    assert [line[20:] for line in written] == ["a line", "a third"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        ImportError("failed to map segment"),
    ],
)
def test_out_of_memory_is_a_user_error(error: Exception, end_with: Callable[[BaseException], Result]) -> None:
    result = end_with(error)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: not enough memory (")
    assert result.stderr.count("\n") == 1


SPIN_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@pytest.mark.parametrize("command", ["config schema", "train missing.yaml", "adapt missing", "distill missing"])
@pytest.mark.parametrize(
    ("given", "count"), [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)]
)
def test_all_commands_shorten_the_spin_of_openmp_threads_unless_the_user_sets_it(
    command: str, given: dict[str, str], count: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SPIN_VARIABLES:
        monkeypatch.setenv(name, "")  # so that the value set by the program is undone, too
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    invoke(*command.split())
    assert os.environ.get("GOMP_SPINCOUNT") == count


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="PyTorch uses another OpenMP library")
def test_training_starts_openmp_with_the_short_spin(corpus: Path, tmp_path: Path) -> None:
    """The variable has no effect after torch is imported; OMP_DISPLAY_ENV makes OpenMP print what it has read."""
    environment = {name: value for name, value in os.environ.items() if name not in SPIN_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-m", "mtformer", "train", corpus / "small.yaml", "--run-dir", tmp_path / "run", "--dry-run"],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "GOMP_SPINCOUNT = '3000'" in done.stderr


def test_interruption_while_modules_are_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted_import(name: str) -> Any:
        raise KeyboardInterrupt

    module = ModuleType("mtformer.cli.app")
    monkeypatch.setattr(module, "__getattr__", interrupted_import, raising=False)
    monkeypatch.setitem(sys.modules, "mtformer.cli.app", module)
    with pytest.raises(SystemExit) as exit_:
        entry.main()
    assert exit_.value.code == 130
    assert capsys.readouterr() == ("", "interrupted\n")


@pytest.mark.parametrize("group", [(), ("data",), ("config",), ("tokenizer",)])
def test_a_group_without_a_command_prints_its_help(group: tuple[str, ...]) -> None:
    alone = invoke(*group)
    assert (alone.exit_code, alone.stderr) == (2, "")
    assert alone.stdout == invoke(*group, "--help").stdout
    assert alone.stdout.startswith("Usage: mtformer")


@pytest.mark.parametrize(("arguments", "message"), [
    (("--beam-size", "x"), "'--beam-size': must be a valid integer"),
    (("--length-penalty", "x"), "'--length-penalty': must be a valid number"),
    (("--only-above", "2"), "'--only-above': must be less than or equal to 1"),
])  # fmt: skip
def test_messages_of_pydantic_are_not_shown(arguments: tuple[str, ...], message: str) -> None:
    result = invoke("translate", "run", *arguments)
    assert result.exit_code == 2
    assert "Input should" not in result.stderr
    assert message in result.stderr or "is not a valid" in result.stderr or "is not in the range" in result.stderr


@pytest.mark.parametrize("command", ["translate", "serve", "eval", "exam", "export", "report"])
@pytest.mark.parametrize(("file", "contents", "hint"), [
    ("config.json", '{"model_type": "marian"}', "convert it first: mtformer import opus RUN"),
    ("config.json", '{"model_type": "m2m_100"}', "a Hugging Face model of type m2m_100, not a run; mtformer import "),
    ("config.json", '{"model_type": ', "not a run directory or bundle (it has no config.yaml); check the path"),
    ("model.npz", "", "a model in Marian's own format (.npz), not a run; download the same model from Hugging Face"),
])  # fmt: skip
def test_the_model_of_another_program_is_recognized(
    command: str, file: str, contents: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("opus").mkdir()
    (Path("opus") / file).write_text(contents)
    result = invoke(command, "opus")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: opus: ")
    assert hint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_warning_of_a_kind_is_shown_once_in_each_output(
    log: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # two calls of the program
        set_up_logging()
        with log_to_file(tmp_path / "train.log"):
            warn_once("length", "%d lines of dev", 3)
            warn_once("other", "other lines of %s", "dev")
            warn_once("length", "%d lines of test", 4)
            log.warning("always")
            log.warning("always")
    expected = ["3 lines of dev", "other lines of dev", "always", "always"]
    assert capsys.readouterr().err.splitlines() == [f"warning: {line}" for line in expected] * 2
    logged = (tmp_path / "train.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in logged] == expected * 2


@pytest.mark.process
def test_a_second_interruption_at_exit_shows_no_traceback() -> None:
    """A library that cleans up at exit must not be interrupted with a traceback."""
    code = (
        "import atexit, os, signal, sys\n"
        "from mtformer.cli import app\n"
        "def interrupt(name): raise KeyboardInterrupt\n"
        "app.load_command = interrupt\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['mtformer', 'config']\n"
        "app.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted\n")

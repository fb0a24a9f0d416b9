"""The `mtformer` program: its commands and exit codes.

The module of a command is imported only when the command is named, and torch only when it runs, so `--help` is fast.
"""

import errno
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from mtformer.cli.commands import COMMANDS, load_command
from mtformer.cli.help import Group, examples
from mtformer.cli.output import error_lines, flush_or_discard_stdout, printable, set_up_logging, use_utf8
from mtformer.cluster.cores import limit_spinning
from mtformer.errors import ConfigError, LostProcessError, MtformerError, is_out_of_memory
from mtformer.version import __version__

DEBUG = "MTFORMER_DEBUG"
"""Environment variable that shows tracebacks of errors."""
SECONDS_TO_WAIT = 3.0
"""Time that a process started by `torchrun` waits for another one to report an error."""

INTERNAL_ERROR = 1
"""Exit code for a bug in mtformer."""
USER_ERROR = 2
"""Exit code for an error that the user can act on."""
INTERRUPTED = 130
"""Exit code that a shell reports for a process terminated by SIGINT."""
BROKEN_PIPE = 141
"""Exit code that a shell reports for a process terminated by SIGPIPE."""


class _Program(Group):
    """Group that imports a command only when it runs, and reports user and system errors in one line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = load_command(name)
        return name, command, rest

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _errors_in_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _errors_in_one_line():
            result = super().invoke(ctx)
            sys.stdout.flush()
        return result


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        _show_traceback_if_asked()
        sys.stderr.write("interrupted\n")
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        flush_or_discard_stdout()
        raise typer.Exit(BROKEN_PIPE) from None
    except Exception as error:
        _show_help_without_command(error)
        message = _describe(error)
        if message is None:
            raise
        _show_traceback_if_asked()
        _let_other_process_report(error)
        error_lines(message)
        raise typer.Exit(USER_ERROR) from None


app = typer.Typer(
    name="mtformer",
    cls=_Program,
    help="Train, run and evaluate Transformer translation models.",
    epilog=examples("mtformer init train.en train.de", "mtformer train en_de.yaml"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"mtformer {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help=f"Show tracebacks of errors, like {DEBUG}=1.")] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"
    _require_current_folder()
    limit_spinning()
    set_up_logging()


def _require_current_folder() -> None:
    """Raise ConfigError if the current folder was deleted, because libraries fail there with other messages."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder was deleted; change to another folder") from None


def _placeholder() -> None:
    """Stand for a command that is not imported yet."""


for _name, _entry in COMMANDS.items():
    app.command(_name, help=_entry.summary)(_placeholder)


def main() -> None:
    """Run the command line and exit: 0 success, 1 internal error, 2 user error, 130 interrupted."""
    use_utf8()
    try:
        app(prog_name="mtformer")
    except SystemExit as end:
        if end.code == INTERRUPTED:
            # At a second Ctrl-C, libraries that clean up at exit would show tracebacks.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise
    except Exception as error:
        _show_traceback_if_asked()
        message = _describe(error)  # for example if the output of --help goes to a full disk
        if message is not None:
            error_lines(message)
            sys.exit(USER_ERROR)
        summary = f"{type(error).__name__}: {error}".splitlines()[0]
        error_lines(f"{summary}; this is a bug in mtformer, please report it; {DEBUG}=1 shows the traceback")
        sys.exit(INTERNAL_ERROR)


def _let_other_process_report(error: Exception) -> None:
    """If `torchrun` started several processes, wait in those that should not report the error.

    An error in the config occurs in all processes, and `torchrun` stops all of them when one exits. Process 0, or the
    only process that failed, reports the error; `torchrun` stops the others of this machine while they wait here.
    """
    num_processes = int(os.environ.get("WORLD_SIZE", "1"))
    is_main = os.environ.get("RANK", "0") == "0"
    has_lost_process = isinstance(error, LostProcessError)
    if num_processes == 1 or (is_main and not has_lost_process):
        return

    time.sleep(SECONDS_TO_WAIT)
    if has_lost_process and not is_main:  # on another machine than process 0
        raise typer.Exit(USER_ERROR)


def _show_help_without_command(error: Exception) -> None:
    """Print the help screen and exit if a group, such as `mtformer data`, was called without a command.

    Click raises an error for this. Typer prints nothing, because it expects that its own help screen was printed.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.ctx.get_help())  # type: ignore[attr-defined]  # an error of Click, see `_describe_usage`
        raise typer.Exit(USER_ERROR) from None


def _describe(error: Exception) -> str | None:
    """Return the message of a user or system error, or None for an internal error."""
    if isinstance(error, MtformerError | LostProcessError):
        return str(error)

    usage = _describe_usage(error)
    if usage is not None:
        return usage

    text = " ".join(str(error).split())
    if is_out_of_memory(error):
        return f"not enough memory ({text or 'MemoryError'}); free memory, or use smaller batches or a smaller model"

    if isinstance(error, OSError):
        return _describe_system_error(error, text)
    return None


def _describe_usage(error: Exception) -> str | None:
    """Return the message of an error in the arguments, which Click raises, or None for other errors."""
    if not hasattr(error, "format_message"):  # Typer may include its own copy of Click, so there is no class to test
        return None
    message = str(error.format_message()).replace("Value error, ", "")  # Pydantic's name of the error, in some versions
    if not message:
        return None
    message = re.sub(r", unable to parse.*", "", message).replace("Input should be", "must be")
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "mtformer")
    return f"{message.rstrip('.?')}; see `{command} --help`"


def _describe_system_error(error: OSError, text: str) -> str:
    """Return the message of an error in reading or writing a file; `text` is that of the exception."""
    path = error.filename
    if not flush_or_discard_stdout() and path is None:
        path = "stdout"
    reason = error.strerror or text or type(error).__name__
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason += "; free some space, or write to another disk"
    return reason if path is None else f"{path}: {reason}"


def _show_traceback_if_asked() -> None:
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        sys.stderr.write(printable(traceback.format_exc()))

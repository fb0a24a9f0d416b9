"""The `mtformer` program: its commands and exit codes.

The module of a command is imported only when the command is named, and torch only when it runs, so `--help` is fast.
"""

import inspect
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer

from mtformer.cli.help import DATA, Command, Group, complete_help
from mtformer.cli.output import error_lines, flush_or_discard_stdout, printable, set_up_logging, use_utf8
from mtformer.errors import LostProcessError, MtformerError
from mtformer.version import __version__

DEBUG = "MTFORMER_DEBUG"
SECONDS_TO_WAIT = 3.0
INTERRUPTED = 130
SPIN_COUNT = "3000"
"""How often a waiting OpenMP thread (GNU) checks for work before it sleeps.

A longer spin is at best a little faster, as long as all cores are idle. As soon as another process uses one of them, at
the start or later, threads that spin slow down the thread that they wait for. Threads that sleep at once
(`OMP_WAIT_POLICY=PASSIVE`) are slower on idle cores, because the operations of a small model are short
(docs/log/trials.md).
"""
BROKEN_PIPE = 141  # exit code that a shell reports for a process terminated by SIGPIPE

OUT_OF_MEMORY = re.compile(
    "allocate memory|out of memory|bad_alloc|failed to map segment|size calculation overflowed", re.IGNORECASE
)
"""Messages of PyTorch, C++ and the dynamic linker, which have no exception class for this error."""
COMMANDS = {
    "train": ("train:train", "Train a model: tokenizer, data, training, averaging, test scores."),
    "adapt": ("train:adapt", "Fine-tune a model on new text without forgetting what it knows."),
    "distill": ("train:distill", "Train a small model on the translations of a large one."),
    "translate": ("translate:translate", "Translate lines from stdin (or a file) to stdout (or a file)."),
    "serve": ("serve:serve", "Serve a model: a web page and an API compatible with LibreTranslate."),
    "score": ("eval:score", "Print the log-probability of given translations."),
    "eval": ("eval:evaluate", "Score a model: BLEU, chrF2++ and TER on test sets."),
    "exam": ("eval:exam", "Test a model's behavior on perturbed test lines: capitals, URLs, loops."),
    "compare": ("compare:compare", "Compare runs or hypothesis files: scores, significance, sentences."),
    "sweep": ("sweep:sweep", "Train many runs: a base config with combinations of values."),
    "runs": ("runs:runs", "List the runs in a folder: state, scores, speed, differences."),
    "report": ("runs:report", "Write an HTML report about runs."),
    "reproduce": ("train:reproduce", "Repeat the first steps of a run and compare the losses exactly."),
    "export": ("export:export", "Export a run: bundle, CTranslate2, Hugging Face, Argos Translate."),
    "import": ("export:import_model", "Convert a Marian model from Hugging Face to a bundle."),
    "tokenizer": ("tokenizer:app", "Train and use tokenizers."),
    "data": ("data:app", "Check, clean, prepare and generate corpora; manage the cache."),
    "config": ("config:app", "Show configs and their JSON Schema."),
}
"""Commands by name, in the order of the help screen: `module:attribute` in `mtformer.cli`, and a summary."""


class _Program(Group):
    """Group that imports a command only when it runs, and reports user and system errors in one line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None or name not in COMMANDS else load_command(name), rest

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
        message = _describe(error)
        if message is None:
            raise
        _show_traceback_if_asked()
        _let_others_report(error)
        error_lines(message)
        raise typer.Exit(2) from None


app = typer.Typer(
    name="mtformer",
    cls=_Program,
    help="Train, run and evaluate Transformer translation models.",
    epilog="\n".join(DATA["examples"][:2]),
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
    if os.environ.keys().isdisjoint(("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT  # read when torch is imported
    set_up_logging()


for _name, (_, _summary) in COMMANDS.items():
    app.command(_name, help=_summary)(lambda: None)


def load_command(name: str) -> Any:
    """Return the Click command with this name, including its options, help and examples."""
    module_name, attribute = COMMANDS[name][0].split(":")
    module = import_module(f"mtformer.cli.{module_name}")
    function = getattr(module, attribute)
    if isinstance(function, typer.Typer):
        command: Any = typer.main.get_group(function)
    else:
        if "load" in inspect.signature(function).parameters:
            from mtformer.cli.decoding_options import with_decoding_options

            function = with_decoding_options(function)
        alone = typer.Typer(add_completion=False)
        alone.command(name, cls=getattr(module, "COMMAND_CLASSES", {}).get(name, Command))(function)
        command = typer.main.get_command(alone)
    command.name = name
    complete_help(command, name)
    return command


def main() -> None:
    """Run the command line and exit: 0 success, 1 internal error, 2 user error, 130 interrupted."""
    use_utf8()
    try:
        app(prog_name="mtformer")
    except Exception as error:
        _show_traceback_if_asked()
        message = _describe(error)  # for example if the output of --help goes to a full disk
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        error_lines(message or f"{what}; this is a bug in mtformer, please report it; {DEBUG}=1 shows the traceback")
        sys.exit(1 if message is None else 2)


def _let_others_report(error: Exception) -> None:
    """If `torchrun` started several processes, wait in those that should not report the error.

    An error in the config occurs in all processes, and `torchrun` stops all of them when one exits. Process 0, or the
    only process that failed, reports the error; `torchrun` stops the others of this machine while they wait here.
    """
    is_lost, rank = isinstance(error, LostProcessError), os.environ.get("RANK", "0")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and (is_lost or rank != "0"):
        time.sleep(SECONDS_TO_WAIT)
        if is_lost and rank != "0":  # on another machine than process 0
            raise typer.Exit(2)


def _describe(error: Exception) -> str | None:
    """Return the message of a user or system error, or None for an internal error."""
    if isinstance(error, MtformerError | LostProcessError):
        return str(error)
    usage = error.format_message() if hasattr(error, "format_message") else ""  # of Click, which Typer may include
    if usage and not usage.startswith("Usage: "):  # not the help screen of a group without a command
        return f"{usage.rstrip('.?')}; see `{getattr(getattr(error, 'ctx', None), 'command_path', 'mtformer')} --help`"
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(text):  # PyTorch errors, ImportError and others
        return f"not enough memory ({text or 'MemoryError'}); free memory, or use smaller batches or a smaller model"
    if not isinstance(error, OSError):
        return None
    where = error.filename
    if not flush_or_discard_stdout() and where is None:
        where = "stdout"
    reason = error.strerror or text or type(error).__name__
    return f"{where}: {reason}" if where is not None else reason


def _show_traceback_if_asked() -> None:
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        sys.stderr.write(printable(traceback.format_exc()))

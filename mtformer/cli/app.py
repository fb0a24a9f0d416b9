"""The program `mtformer`: its commands and exit codes.

The module of a command, and what it needs, is imported only when the command runs, so that `--help` is fast.
"""

import inspect
import os
import re
import sys
import time
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mtformer import __version__
from mtformer.cli.output import error_lines, flush_or_discard_stdout, printable, set_up_logging, use_utf8
from mtformer.errors import LostProcessError, MtformerError

DEBUG = "MTFORMER_DEBUG"
SECONDS_OF_SILENCE = 3.0
INTERRUPTED = 130
BROKEN_PIPE = 141
"""The exit code that a shell reports for a filter that SIGPIPE ended."""


OUT_OF_MEMORY = re.compile(
    "allocate memory|out of memory|bad_alloc|failed to map segment|size calculation overflowed", re.IGNORECASE
)
"""Messages of PyTorch, C++ and the dynamic linker, whose errors have no type of their own."""
COMMANDS = {
    "train": ("train:train", "Train a model: tokenizer, data, training, averaging, test scores."),
    "translate": ("translate:translate", "Translate lines from stdin (or a file) to stdout (or a file)."),
    "serve": ("serve:serve", "Serve a model: a page to translate on, and an API as LibreTranslate's."),
    "score": ("score:score", "Print the log-probability of given translations."),
    "eval": ("eval:evaluate", "Score a model: BLEU, chrF2++ and TER on test sets."),
    "compare": ("compare:compare", "Compare runs, or files of hypotheses: scores, significance, sentences."),
    "sweep": ("sweep:sweep", "Train many runs: a base config, and values of its keys multiplied out."),
    "runs": ("runs:runs", "List the runs in a folder: state, step, best dev score, speed, differences."),
    "report": ("report:report", "Write an HTML page about runs, or draw their curves for a paper."),
    "reproduce": ("reproduce:reproduce", "Train the first steps of a run again, and compare losses to the last digit."),
    "export": ("export:export", "Write a run in a form that can be given away."),
    "import": ("export:import_model", "Make a Marian model from Hugging Face a bundle."),
    "tokenizer": ("tokenizer:app", "Train and use tokenizers."),
    "data": ("data:app", "Corpora."),
    "config": ("config:app", "Show configs and their schema."),
}
"""Name: module in `mtformer.cli` with its function or `typer.Typer`, and summary; in the order of the help."""


class _Program(TyperGroup):
    """Loads the command that runs, and reports errors of the user or the system in one line with an exit code."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None or name not in COMMANDS else load_command(name), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
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
            _let_others_speak(error)
            error_lines(message)
            raise typer.Exit(2) from None
        return result


app = typer.Typer(
    cls=_Program,
    help="Train, run and measure Transformer translation models.",
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
    debug: Annotated[bool, typer.Option("--debug", help=f"Show tracebacks, as {DEBUG}=1 does.")] = False,
) -> None:
    if debug:
        os.environ[DEBUG] = "1"
    set_up_logging()


for _name, (_, _summary) in COMMANDS.items():
    app.command(_name, help=_summary)(lambda: None)


def load_command(name: str) -> Any:
    """Return the Click command of this name, with its options."""
    module_name, attribute = COMMANDS[name][0].split(":")
    module = import_module(f"mtformer.cli.{module_name}")
    function = getattr(module, attribute)
    if isinstance(function, typer.Typer):
        command: Any = typer.main.get_group(function)
    else:
        if "settings" in inspect.signature(function).parameters:
            from mtformer.cli.decoding_options import with_decoding_options

            function = with_decoding_options(function)
        alone = typer.Typer(add_completion=False)
        alone.command(name, cls=getattr(module, "COMMAND_CLASS", None))(function)
        command = typer.main.get_command(alone)
    command.name = name
    for one in (command, *getattr(command, "commands", {}).values()):
        # Typer keeps the line ends of a docstring, which is wider than a terminal.
        one.help = re.sub(r"(?<=\S)\n(?=\S)", " ", one.help or "")
    return command


def main() -> None:
    """Run the command line and exit: 0 done, 1 internal error, 2 user error, 130 interrupted."""
    use_utf8()
    try:
        app(prog_name="mtformer")
    except Exception as error:
        _show_traceback_if_asked()
        message = _describe(error)  # such as a full disk under the output of --help
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        error_lines(message or f"{what}; this is a bug in mtformer, please report it; {DEBUG}=1 shows the traceback")
        sys.exit(1 if message is None else 2)


def _let_others_speak(error: Exception) -> None:
    """Wait if `torchrun` started several processes and another one reports the error.

    All processes meet an error in the config, and the end of one ends all. Process 0, or the one that failed by itself,
    reports it; `torchrun` ends the others while they wait here.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and (
        isinstance(error, LostProcessError) or os.environ.get("RANK", "0") != "0"
    ):
        time.sleep(SECONDS_OF_SILENCE)


def _describe(error: Exception) -> str | None:
    """Return the message of an error of the user or the system; None for an internal error."""
    if isinstance(error, MtformerError | LostProcessError):
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or OUT_OF_MEMORY.search(text):  # of PyTorch, ImportError and others
        return f"not enough memory ({text or 'MemoryError'}); free some, or take smaller batches or a smaller model"
    if not isinstance(error, OSError):
        return None
    where = error.filename
    if not flush_or_discard_stdout() and where is None:
        where = "stdout"
    reason = error.strerror or text or type(error).__name__
    return f"{where}: {reason}" if where is not None else reason


def _show_traceback_if_asked() -> None:
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        import traceback

        sys.stderr.write(printable(traceback.format_exc()))

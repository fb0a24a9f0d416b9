"""The program `mtformer`: its commands, and how each of them ends.

Commands import what they need when they run, so that `--help` is instant.
"""

import os
import sys
import time
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mtformer import __version__
from mtformer.cli import config_commands, data_commands, tokenizer_commands
from mtformer.cli.attention_command import attention
from mtformer.cli.compare_command import compare
from mtformer.cli.decoding_options import with_decoding_options
from mtformer.cli.eval_command import evaluate
from mtformer.cli.export_command import export
from mtformer.cli.import_command import import_model
from mtformer.cli.output import error_lines, flush_or_discard_stdout, set_up_logging, use_utf8
from mtformer.cli.plot_command import plot
from mtformer.cli.report_command import report
from mtformer.cli.reproduce_command import reproduce
from mtformer.cli.runs_command import runs
from mtformer.cli.score_command import score
from mtformer.cli.serve_command import serve
from mtformer.cli.sweep_command import sweep
from mtformer.cli.train_command import TrainCommand, train
from mtformer.cli.translate_command import translate
from mtformer.errors import LostProcessError, MtformerError

DEBUG = "MTFORMER_DEBUG"
SECONDS_OF_SILENCE = 3.0
INTERRUPTED = 130
BROKEN_PIPE = 141
"""As a shell reports a filter that SIGPIPE ended."""


class _Program(TyperGroup):
    """Turns what the user or the machine did wrong into one line and an exit code."""

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
        except (MtformerError, LostProcessError) as error:
            _show_traceback_if_asked()
            _let_others_speak(error)
            error_lines(str(error))
            raise typer.Exit(2) from None
        except OSError as error:
            _show_traceback_if_asked()
            _let_others_speak(error)
            error_lines(_describe(error))
            flush_or_discard_stdout()
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


# The commands, in the order of the help.
app.command("train", cls=TrainCommand)(train)
app.command("translate")(with_decoding_options(translate))
app.command("serve")(with_decoding_options(serve))
app.command("score")(score)
app.command("eval")(with_decoding_options(evaluate))
app.command("compare")(compare)
app.command("sweep")(sweep)
app.command("runs")(runs)
app.command("report")(report)
app.command("plot")(plot)
app.command("attention")(attention)
app.command("reproduce")(reproduce)
app.command("export")(export)
app.command("import")(import_model)
app.add_typer(tokenizer_commands.app, name="tokenizer")
app.add_typer(data_commands.app, name="data")
app.add_typer(config_commands.app, name="config")


def main() -> None:
    """Runs the command line and exits: 0 done, 1 a bug, 2 a mistake to mend, 130 interrupted."""
    use_utf8()
    try:
        app(prog_name="mtformer")
    except Exception as error:
        _show_traceback_if_asked()
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        error_lines(f"{what}; this is a bug in mtformer, please report it; {DEBUG}=1 shows the traceback")
        sys.exit(1)


def _let_others_speak(error: Exception) -> None:
    """Waits where `torchrun` has started several processes and another one knows better what is wrong.

    A mistake in the config is met by all of them, and the end of one ends all. Process 0, or the one that failed by
    itself, tells it; `torchrun` ends the others while they wait here.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and (
        isinstance(error, LostProcessError) or os.environ.get("RANK", "0") != "0"
    ):
        time.sleep(SECONDS_OF_SILENCE)


def _describe(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror}" if error.strerror else (str(error) or type(error).__name__).replace("\n", " ")


def _show_traceback_if_asked() -> None:
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        import traceback

        traceback.print_exc()

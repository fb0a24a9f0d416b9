"""Form of the help screens: metavars in upper case, options in panels, examples at the end."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any, TypeVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup

EXAMPLES = Path(__file__).with_name("examples.txt").read_text(encoding="utf-8").splitlines()
PANELS = {
    "Input and output": "source target continues to as_json json_attention attention attention_layer attention_head "
    "targets alignment split replace_unknowns src ref testset output comet host port api_key max_characters queue_size",
    "Search": "beam_size n_best length_penalty coverage_penalty early_stopping max_length_ratio min_length_ratio "
    "max_length min_length beam_groups diversity_penalty",
    "Sampling": "sampling temperature top_k top_p seed mbr_samples mbr_metric",
    "Constraints": "prefixes required forbidden no_repeat_ngram_size repetition_penalty",
    "Device and weights": "device precision backend checkpoint batch_tokens",
}
"""Panels of commands with more than MOST_IN_ONE_PANEL options, with the names of their parameters."""
MOST_IN_ONE_PANEL = 10
METAVARS = {
    "RUN": "run runs paths score_with", "FOLDER": "folder output run_dir tokenizer marian_dir", "CONFIG": "config",
    "SECTION.KEY=VALUE": "overrides", "SWEEP": "file", "MODEL": "model comet", "LANG": "to src_lang tgt_lang",
    "RULE": "early_stopping", "RATIO": "max_length_ratio min_length_ratio", "WHEN": "split", "K": "top_k", "P": "top_p",
    "SHARE": "keep_share", "COLUMN": "sort", "ADDRESS": "host", "KEY": "api_key", "TYPE": "quantization",
}  # fmt: skip
"""Metavars with the names of their parameters; other parameters have the metavar of their type."""
METAVAR_OF = {name: metavar for metavar, names in METAVARS.items() for name in names.split()}
METAVAR_OF_TYPE = {Path: "FILE", int: "N", float: "X", bool: None}
Function = TypeVar("Function", bound=Callable[..., Any])


class _Help:
    """Help screen of a command or group."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the help screen."""
        from rich.console import Console
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        console = Console(highlight=False)
        with console.capture() as captured:
            console.print(Text(f"{self.get_usage(ctx)}\n\n{self.help}\n"))
            for title, rows in _panels(self).items():
                table = Table.grid(padding=(0, 2, 0, 0))
                table.add_column(no_wrap=True, style="bold cyan")
                table.add_column(overflow="fold")
                for row in rows:
                    table.add_row(*map(Text, row))
                console.print(Panel(table, title=title, title_align="left", border_style="dim"))
            console.print(Text(f"\nExamples:\n{indent(self.epilog, '  ')}"))
        formatter.write(captured.get())

    def collect_usage_pieces(self: Any, ctx: Any) -> list[str]:
        """Return the words of the usage line after the name of the command."""
        names = []
        for one in [one for one in self.params if one.param_type_name == "argument"]:
            name = one.metavar if one.required else f"[{one.metavar}]"
            names.append(name + "..." if one.nargs != 1 and "..." not in name else name)
        return ["[OPTIONS]", *names, *(["COMMAND [ARGS]..."] if hasattr(self, "commands") else [])]


class Command(_Help, TyperCommand):
    """A command with this help screen."""


class Group(_Help, TyperGroup):
    """A group of commands with this help screen."""


class Commands(typer.Typer):
    """A group of commands, all with this help screen."""

    def __init__(self, text: str | None = None, **settings: Any) -> None:
        super().__init__(**{"cls": Group, "help": text, "no_args_is_help": True, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Return a decorator that adds a function as a command."""
        return super().command(name, **{"cls": Command, **settings})


def complete_help(command: Any, words: str) -> None:
    """Add metavars, panels and examples to a command, which is called by these words, and to its sub-commands."""
    for name, one in getattr(command, "commands", {}).items():
        complete_help(one, f"{words} {name}".strip())
    # Typer keeps the line ends of a docstring.
    command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", command.help or "")
    start = f"mtformer {words}".strip() + " "
    command.epilog = "\n".join([line for line in EXAMPLES if f"{line} ".startswith(start)][:2])
    kinds = inspect.signature(command.callback).parameters if command.callback else {}
    for one in command.params:
        if one.metavar is None and one.name in kinds:
            kind = kinds[one.name].annotation
            while arguments := get_args(kind):  # of Annotated, unions and lists
                kind = arguments[0]
            one.metavar = METAVAR_OF.get(one.name) or METAVAR_OF_TYPE.get(kind, "NAME")
        is_panel = len(command.params) > MOST_IN_ONE_PANEL and one.param_type_name == "option"
        one.rich_help_panel = next((p for p, names in PANELS.items() if is_panel and one.name in names.split()), None)


def _panels(command: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the rows of each panel."""
    panels: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *PANELS, "Options", "Commands")}
    for one in command.params:
        names, text = one.secondary_opts if one.secondary_opts and one.default is True else one.opts, one.help
        default = one.show_default if isinstance(one.show_default, str) else getattr(one.default, "value", one.default)
        if one.show_default and default not in (None, True, False):
            text = f"{text.rstrip('.')} (default: {default})."
        if one.param_type_name == "argument":
            panels["Arguments"].append((one.metavar, text))
        else:
            first = f"{', '.join(sorted(names, key=len))} {one.metavar or ''}".rstrip()
            panels[one.rich_help_panel or "Options"].append((first, text))
    panels["Commands"] = [(name, one.help.split("\n")[0]) for name, one in getattr(command, "commands", {}).items()]
    return {name: rows for name, rows in panels.items() if rows}

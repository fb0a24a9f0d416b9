"""Form of the help screens: metavars in upper case, options in panels, examples at the end."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

METAVARS = {Path: "FILE", int: "N", float: "X", bool: None}
OTHER = "Options"
PANELS = {
    "Input and output": "source target continues to as_json json_attention attention attention_layer attention_head "
    "targets alignment split replace_unknowns src ref testset output comet host port api_key max_characters queue_size",
    "Search": "beam_size n_best length_penalty coverage_penalty early_stopping max_length_ratio min_length_ratio "
    "max_length min_length beam_groups diversity_penalty",
    "Sampling": "sampling temperature top_k top_p seed mbr_samples mbr_metric",
    "Constraints": "prefixes required forbidden no_repeat_ngram_size repetition_penalty",
    "Device and weights": "device precision backend checkpoint batch_tokens",
}
"""Panels of commands with more than MOST_WITHOUT_PANELS options, with the names of their parameters."""
MOST_WITHOUT_PANELS = 10
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names.split()}
EXAMPLES = "\n\nExamples:\n"


class _Help:
    """Help of a command or group; its examples are the part of the docstring after `Examples:`."""

    params: list[Any]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        text, _, examples = (settings.get("help") or "").partition(EXAMPLES)
        # A docstring has line ends within paragraphs.
        self.help = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
        self.epilog = textwrap.dedent(examples).strip()
        kinds = inspect.signature(settings["callback"]).parameters if settings.get("callback") else {}
        has_panels = len(self.params) > MOST_WITHOUT_PANELS
        for parameter in self.params:
            if parameter.metavar is None and parameter.name in kinds:
                parameter.metavar = _metavar(kinds[parameter.name].annotation)
            if has_panels and parameter.param_type_name == "option":
                parameter.rich_help_panel = PANEL_OF.get(parameter.name, OTHER)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the name of the command."""
        arguments = [_usage(one) for one in self.params if one.param_type_name == "argument"]
        return ["[OPTIONS]", *arguments, *(["COMMAND [ARGS]..."] if hasattr(self, "commands") else [])]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help screen."""
        from rich.console import Console
        from rich.padding import Padding
        from rich.text import Text

        console = Console(highlight=False)
        with console.capture() as captured:
            usage = " ".join([ctx.command_path, *self.collect_usage_pieces(ctx)])
            console.print(Padding(Text.assemble(("Usage: ", "yellow"), usage), (0, 1, 1, 1)))
            console.print(Padding(Text(self.help), (0, 1, 1, 1)))
            for panel in _panels(self, ctx):
                console.print(panel)
            if self.epilog:
                console.print(Padding(Text("Examples:", "yellow"), (1, 1, 0, 1)))
                console.print(Padding(Text(self.epilog), (0, 1, 1, 3)))
        formatter.write(captured.get())


class Command(_Help, TyperCommand):
    """A command with this help."""


class Group(_Help, TyperGroup):
    """A group of commands with this help."""


class Commands(typer.Typer):
    """A group of commands, all with this help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": Group, "no_args_is_help": True, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Any:
        """Return a decorator that adds a function as a command."""
        return super().command(name, **{"cls": Command, **settings})


def _metavar(kind: Any) -> str | None:
    while arguments := get_args(kind):  # of Annotated, unions and lists
        kind = arguments[0]
    return METAVARS.get(kind, "NAME")


def _usage(argument: Any) -> str:
    """Return an argument as the usage line shows it; a metavar with dots is complete."""
    name = str(argument.metavar)
    if "..." in name:
        return name
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs != 1 else "")


def _help(option: Any) -> str:
    """Return the help text of an option with its default."""
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    shown = getattr(shown, "value", shown)  # of an Enum
    is_shown = option.show_default and shown not in (None, True, False)
    return f"{option.help.rstrip('.')} (default: {shown})." if is_shown else option.help or ""


def _panels(command: Any, ctx: Any) -> Iterator[Any]:
    """Yield the panels of arguments, options and commands."""
    from rich.text import Text

    rows: dict[str, list[tuple[Text, Text]]] = {name: [] for name in ("Arguments", *PANELS, OTHER, "Commands")}
    for one in command.get_params(ctx):
        if one.param_type_name == "argument":
            rows["Arguments"].append((Text(one.metavar, "bold cyan"), Text(one.help or "")))
        elif not one.hidden:
            names = one.secondary_opts if one.secondary_opts and one.default is True else one.opts
            name = Text(", ".join(sorted(names, key=len)), "bold cyan")
            if one.metavar is not None:
                name.append(f" {one.metavar}", "bold yellow")
            rows[one.rich_help_panel or OTHER].append((name, Text(_help(one))))
    for name, one in getattr(command, "commands", {}).items():
        rows["Commands"].append((Text(name, "bold cyan"), Text(one.help.partition("\n")[0])))
    if len(rows[OTHER]) == 1 and len(command.params) > 1:  # only --help
        del rows[OTHER]
    width = max((len(name) for panel in (*PANELS, OTHER) for name, _ in rows.get(panel, ())), default=0)
    yield from (_panel(name, some, width if name in (*PANELS, OTHER) else 0) for name, some in rows.items() if some)


def _panel(title: str, rows: list[Any], width: int) -> Any:
    from rich.panel import Panel
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=width)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return Panel(table, title=title, title_align="left", border_style="dim")

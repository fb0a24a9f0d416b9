"""Help screens: usage, description, options in panels, and examples.

The texts stand beside the options and commands, in the parameters of Typer: `help`, `metavar`, `rich_help_panel` and
`epilog`. Only the layout is our own, because Typer's screens import its Markdown and traceback modules, which takes
longer than `mtformer --help` altogether, and add columns for types, which leave too little space for the text at 80
columns.
"""

import re
from collections import defaultdict
from textwrap import indent
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from rich.panel import Panel

ARGUMENTS = "Arguments"
"""Panel of the arguments."""
INPUT_OUTPUT = "Input and output"
"""Panel of the options for files, formats and connections."""
SEARCH = "Search"
"""Panel of the options of beam search."""
SAMPLING = "Sampling"
"""Panel of the options of sampling."""
CONSTRAINTS = "Constraints"
"""Panel of the options that allow or forbid words."""
DEVICE = "Device and weights"
"""Panel of the options that choose the hardware, its precision, and the weights."""
OPTIONS = "Options"
"""Panel of the options that name no panel."""
SUBCOMMANDS = "Commands"
"""Panel of the commands of a group."""
PANELS = (ARGUMENTS, INPUT_OUTPUT, SEARCH, SAMPLING, CONSTRAINTS, DEVICE, OPTIONS, SUBCOMMANDS)
"""All panels, from the top of the screen to the bottom."""

Row = tuple[str, str]
"""A row of a panel: a name, and its help text."""


class _HelpScreen:
    """Mixin for the classes of Typer; Click calls its methods."""

    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the help screen."""
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False)
        with console.capture() as captured:
            console.print(Text(f"{self.get_usage(ctx)}\n\n{_paragraphs(self.help)}\n"))
            for title, rows in _rows_by_panel(self).items():
                console.print(_panel(title, rows))
            console.print(Text(f"\nExamples:\n{indent(self.epilog, '  ')}"))
        formatter.write(captured.get())

    def collect_usage_pieces(self: Any, ctx: Any) -> list[str]:
        """Return the words that follow the command name in the usage line."""
        arguments = [parameter for parameter in self.params if parameter.param_type_name == "argument"]
        words = ["[OPTIONS]", *map(_usage_of, arguments)]
        if hasattr(self, "commands"):
            words.append("COMMAND [ARGS]...")
        return words


class Command(_HelpScreen, TyperCommand):
    """Command with this help screen."""


class Group(_HelpScreen, TyperGroup):
    """Group of commands with this help screen."""


def examples(*lines: str) -> str:
    """Return the epilog of a command: one or two command lines."""
    return "\n".join(lines)


def _usage_of(argument: Any) -> str:
    """Return the name of an argument in the usage line: in brackets if it is optional, with dots if it repeats."""
    word = str(argument.metavar)
    if not argument.required:
        word = f"[{word}]"
    if argument.nargs != 1 and "..." not in word:
        word += "..."
    return word


def _paragraphs(text: str | None) -> str:
    """Return a help text with one line per paragraph; Typer keeps the line ends of a docstring."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text or "")


def _panel(title: str, rows: list[Row]) -> "Panel":
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold cyan")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    return Panel(table, title=title, title_align="left", border_style="dim")


def _rows_by_panel(command: Any) -> dict[str, list[Row]]:
    """Return the rows of each panel that is not empty, in the order of `PANELS`."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for parameter in command.params:
        text = _text_with_default(parameter)
        if parameter.param_type_name == "argument":
            rows[ARGUMENTS].append((parameter.metavar, text))
        else:
            rows[parameter.rich_help_panel or OPTIONS].append((_option_names(parameter), text))
    for name, subcommand in getattr(command, "commands", {}).items():
        summary, *_ = _paragraphs(subcommand.help).splitlines()
        rows[SUBCOMMANDS].append((name, summary))
    return {panel: rows[panel] for panel in PANELS if rows[panel]}


def _option_names(option: Any) -> str:
    """Return the names of an option and its metavar; of a flag that is on by default, the names that turn it off."""
    is_on = option.secondary_opts and option.default is True
    names = option.secondary_opts if is_on else option.opts
    shown = ", ".join(sorted(names, key=len))
    return shown if option.metavar is None else f"{shown} {option.metavar}"


def _text_with_default(parameter: Any) -> str:
    """Return the help text of an option or argument, with its default value."""
    text = str(parameter.help).rstrip(".")
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if parameter.show_default and default is not None and not isinstance(default, bool):
        text += f" (default: {getattr(default, 'value', default)})"  # the value of an enum
    if parameter.required and parameter.param_type_name == "option":
        text += " (required)"
    return f"{text}."

"""Layout of the help screens: metavars in upper case, options in panels, examples at the end."""

import inspect
import json
import re
from collections import defaultdict
from pathlib import Path
from textwrap import indent
from typing import Any, get_args

from typer.core import TyperCommand, TyperGroup

DATA = json.loads(Path(__file__).with_name("help.json").read_text(encoding="utf-8"))
"""Example commands, and the names of the parameters that belong to each panel and each metavar."""
PANEL_OF = {name: panel for panel, names in DATA["panels"].items() for name in names}
METAVAR_OF = {name: metavar for metavar, names in DATA["metavars"].items() for name in names}
METAVAR_OF_TYPE = {Path: "FILE", int: "N", float: "X"}
MOST_IN_ONE_PANEL = 10  # commands with more parameters show their options in several panels


class _Help:
    def format_help(self: Any, ctx: Any, formatter: Any) -> None:
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
        """Return the words that follow the command name in the usage line."""
        names = []
        for one in [one for one in self.params if one.param_type_name == "argument"]:
            name = one.metavar if one.required else f"[{one.metavar}]"
            names.append(name + "..." if one.nargs != 1 and "..." not in name else name)
        return ["[OPTIONS]", *names, *(["COMMAND [ARGS]..."] if hasattr(self, "commands") else [])]


class Command(_Help, TyperCommand):
    """Command that uses this help screen."""


class Group(_Help, TyperGroup):
    """Group of commands that uses this help screen."""


def complete_help(command: Any, words: str) -> None:
    """Add metavars, panels and examples to a command and its subcommands; `words` is the command's full name."""
    for name, one in getattr(command, "commands", {}).items():
        complete_help(one, f"{words} {name}".strip())
    # Typer keeps the line ends of a docstring.
    command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", command.help or "")
    start = f"mtformer {words}".strip() + " "
    command.epilog = "\n".join([line for line in DATA["examples"] if f"{line} ".startswith(start)][:2])
    kinds = inspect.signature(command.callback).parameters if command.callback else {}
    for one in command.params:
        if one.metavar is None and one.name in kinds:
            kind = kinds[one.name].annotation
            while arguments := get_args(kind):  # of Annotated, unions and lists
                kind = arguments[0]
            if kind is not bool:
                one.metavar = METAVAR_OF.get(one.name) or METAVAR_OF_TYPE.get(kind, "NAME")
        is_panel = len(command.params) > MOST_IN_ONE_PANEL and one.param_type_name == "option"
        one.rich_help_panel = PANEL_OF.get(one.name) if is_panel else None


def _panels(command: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the rows of each panel, as pairs (name, help text)."""
    panels: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for one in command.params:
        names, text = one.secondary_opts if one.secondary_opts and one.default is True else one.opts, one.help
        default = one.show_default if isinstance(one.show_default, str) else getattr(one.default, "value", one.default)
        if one.show_default and default is not None and not isinstance(default, bool):
            text = f"{text.rstrip('.')} (default: {default})."
        if one.required and one.param_type_name == "option":
            text = f"{text.rstrip('.')} (required)."
        if one.param_type_name == "argument":
            panels["Arguments"].append((one.metavar, text))
        else:
            first = f"{', '.join(sorted(names, key=len))} {one.metavar or ''}".rstrip()
            panels[one.rich_help_panel or "Options"].append((first, text))
    panels["Commands"] = [(name, one.help.split("\n")[0]) for name, one in getattr(command, "commands", {}).items()]
    order = ("Arguments", *DATA["panels"], "Options", "Commands")
    return {name: panels[name] for name in order if panels[name]}

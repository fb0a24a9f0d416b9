"""Write docs/config.md from the config schema and docs/commands.md from the command line.

python scripts/docs.py             write both pages
python scripts/docs.py --check     exit with code 1 if a page is out of date
"""

import re
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from mtformer.cli.commands import COMMANDS, load_command
from mtformer.config.annotations import fields, is_section, limits, plain
from mtformer.config.data import SOURCES, Source
from mtformer.config.fields import key_metadata
from mtformer.config.schema import Config
from mtformer.config.section import Section

DOCS = Path(__file__).resolve().parents[1] / "docs"
GENERATED = "<!-- Written by `python scripts/docs.py`; do not edit. -->\n"
CONFIG_HEAD = f"""# Config reference
{GENERATED}
One YAML file is one experiment. This page lists all keys with their types, ranges and defaults.
`mtformer config show CONFIG` prints the values of a config and where each one comes from.

- `extends: other.yaml` starts from another file. Sections are merged key by key, and lists are replaced. Test sets and
  corpora are merged by name; `NAME: null` removes one.
- Any key can be set on the command line: `mtformer train en_de.yaml training.seed=2 model.dropout=0.3`.
- An unknown key, a wrong type or a value out of range is reported with its file, line and path.

The column "on resume" says what happens if a value is changed before `mtformer train --resume`:

| on resume | meaning |
|---|---|
| same | Allowed. If the training data, device, precision or schedule change, the log says that the run now differs. |
| warn | Allowed, but the run then differs from one that never stopped, and the log says so. |
| refuse | Refused, because the saved weights or the optimizer state depend on the value. |
"""
COMMANDS_HEAD = f"""# Command reference
{GENERATED}
`mtformer COMMAND --help` prints the same text. Results are written to stdout; progress, logs and errors are written to
stderr. Exit codes: 0 success; 1 internal error, or a failed check; 2 user error, with one line for each error; 130
or 143 stopped by Ctrl-C or SIGTERM; 141 the reader of stdout closed the pipe.
"""
NOT_RUN = {
    "init": "template",
    "distill": "takes hours",
    "serve": "starts a server",
    "import": "needs the internet",
    "push": "needs the internet",
    "data clean": "template",
}
"""Commands whose examples are not run by the tests of the pages, with the reason."""
TYPES = {bool: "true or false", int: "integer", float: "number", str: "string", type(None): "null"}


def escape(text: str) -> str:
    """Return text for a cell of a Markdown table: one line, with `|` escaped, and `<` and `*` outside of code."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", r"\|"))
    return "".join(part if part.startswith("`") else re.sub(r"([<*])", r"\\\1", part) for part in parts)


def plural(name: str) -> str:
    """Return the plural of a word, which may be a link."""
    return re.sub(r"^\[?\w+", r"\g<0>s", name)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table and an empty line."""
    yield from ("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows))
    yield ""


# ---- docs/config.md -----------------------------------------------------------------------------------------------


def type_of(annotation: Any, item: str) -> str:
    """Return the type of a value in words; `item` is a link to the section of the items of a list or mapping."""
    kind, origin, arguments = plain(annotation), get_origin(plain(annotation)), get_args(plain(annotation))
    if annotation == Source:
        return "[source](#sources)"
    if origin in (Union, UnionType):
        return " or ".join(type_of(one, item) for one in arguments)
    if origin is dict:
        return f"mapping of names to {plural(type_of(arguments[1], item))}"
    if origin is list:
        return f"list of {plural(type_of(arguments[0], item))}"
    if origin is tuple:
        return f"list of {len(arguments)} numbers"
    return item if is_section(kind) else one_of(arguments) if origin is Literal else TYPES[kind]


def one_of(values: Sequence[object]) -> str:
    """Return the values of a Literal in words."""
    return ("one of " if len(values) > 1 else "") + ", ".join(map(str, values))


def row_of(section: type[Section], key: str, annotation: Any, item: str = "") -> list[str]:
    """Return key, type, default and description."""
    field = next(field for name, field in section.model_fields.items() if key in (name, field.alias))
    default = "required"
    if not field.is_required():
        value = field.get_default()
        text = yaml.safe_dump([*value] if isinstance(value, tuple) else value, default_flow_style=True)
        default = f"`{text.splitlines()[0]}`"  # a scalar has a second line, the end of its document
    limit = limits(annotation)
    kind = type_of(annotation, item)
    limit = "" if limit.startswith("one of") or limit in kind.split() else limit.removesuffix(" or auto")
    kind += f", {limit}" if limit else ""
    return [f"`{key}`", kind, default, escape(field.description or "")]


def section_lines(title: str, section: type[Section], path: str) -> Iterator[str]:
    """Yield a section of the page, then those of the sections inside it; `path` is a dotted key of this section."""
    heading = f"### {title}" if "." in title else f"## {title}"
    yield from (heading, "", " ".join((section.__doc__ or "").split()), "")
    rows, inner = [], list[tuple[str, type[Section], str]]()
    for key, annotation in fields(section).items():
        if is_section(plain(annotation)):
            inner.append((f"{title}.{key}", plain(annotation), f"{path}.{key}"))
            continue
        item = ""
        for kind in filter(is_section, get_args(plain(annotation))):
            is_mapping = get_origin(plain(annotation)) is dict
            name = f"{title}.{key}" + ".NAME" * is_mapping
            inner.append((name, kind, f"{path}.{key}.{'NAME' if is_mapping else 0}"))
            item = f"[section](#{name.replace('.', '').lower()})"
        row = row_of(section, key, annotation, item)
        rows.append([*row[:3], str(key_metadata(f"{path}.{key}").on_resume), row[3]])
    yield from table(("key", "type", "default", "on resume", "description"), rows)
    for one in inner:
        yield from section_lines(*one)


def config_page() -> str:
    """Return docs/config.md."""
    lines = [CONFIG_HEAD]
    for key, annotation in fields(Config).items():
        lines += section_lines(key, plain(annotation), key)
    lines += ["## Sources", "", "A source is a mapping with the keys of one of these kinds.", ""]
    for key, section in SOURCES.items():
        rows = [row_of(section, name, annotation) for name, annotation in fields(section).items()]
        rows.sort(key=lambda row: row[0] in ("`src_lang`", "`tgt_lang`"))
        lines += [f"### Source with `{key}`", "", " ".join((section.__doc__ or "").split()), ""]
        lines += table(("key", "type", "default", "description"), rows)
    return "\n".join(lines).rstrip() + "\n"


# ---- docs/commands.md ---------------------------------------------------------------------------------------------


def is_argument(parameter: Any) -> bool:
    """Return True for an argument, False for an option."""
    return bool(parameter.param_type_name == "argument")


def value_of(parameter: Any) -> str:
    """Return the name of a parameter's value, as in its help; empty for a flag."""
    if getattr(parameter, "is_flag", False):
        return ""
    name = parameter.name if is_argument(parameter) else max(parameter.opts, key=len).lstrip("-")
    return str(parameter.metavar or name.replace("-", "_").upper())


def usage(name: str, command: Any) -> str:
    """Return the usage line."""
    words = [f"mtformer {name}"]
    for one in filter(is_argument, command.params):
        word = value_of(one) + "..." * (one.nargs == -1 and "..." not in value_of(one))
        words.append(word if one.required or word.startswith("[") else f"[{word}]")
    return " ".join([*words, "COMMAND" if hasattr(command, "commands") else "[OPTIONS]"])


def option_row(option: Any) -> list[str]:
    """Return names and value, default, and help of an option."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    shown, value = option.show_default, option.default
    value = shown if isinstance(shown, str) else value.value if isinstance(value, Enum) else value
    has_default = shown and isinstance(value, str | int | float) and not isinstance(value, bool)
    name = f" `{escape(value_of(option))}`" if value_of(option) else ""
    default = f"`{value}`" if has_default else "required" if option.required else ""
    return [names + name, default, escape(option.help or "")]


def examples(command: Any) -> list[str]:
    """Return the command lines in the epilog."""
    lines = (re.sub(r"^\s*Examples?:", "", line).strip(" \b") for line in (command.epilog or "").splitlines())
    return [line for line in lines if line]


def command_lines(name: str, command: Any) -> Iterator[str]:
    """Yield the section of a command, then those of the commands inside it."""
    yield from (f"{'#' * (name.count(' ') + 2)} mtformer {name}", "")
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        yield from (escape(paragraph), "")
    yield from ("```text", usage(name, command), "```", "")
    for inner, one in getattr(command, "commands", {}).items():
        yield from command_lines(f"{name} {inner}", one)
    panels: dict[str, list[Any]] = {}
    for one in () if hasattr(command, "commands") else command.params:
        if not getattr(one, "hidden", False):
            panel = "Arguments" if is_argument(one) else getattr(one, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append(one)
    for panel, some in panels.items():
        yield from (f"**{panel}**", "")
        if is_argument(some[0]):
            rows = [[f"`{escape(value_of(one))}`", escape(one.help or "")] for one in some]
            yield from table(("argument", "description"), rows)
        else:
            yield from table(("option", "default", "description"), [option_row(one) for one in some])
    found = [] if hasattr(command, "commands") else examples(command)
    if found:
        marker = [f"<!-- not run: {NOT_RUN[name]} -->"] if name in NOT_RUN else []
        yield from ("**Examples**", "", *marker, "```bash", *found, "```", "")


def commands_page() -> str:
    """Return docs/commands.md."""
    rows = [[f"[`mtformer {name}`](#mtformer-{name})", escape(entry.summary)] for name, entry in COMMANDS.items()]
    lines = [COMMANDS_HEAD, *table(("command", "description"), rows)]
    for name in COMMANDS:
        lines += command_lines(name, load_command(name))
    return "\n".join(lines).rstrip() + "\n"


PAGES = {DOCS / "config.md": config_page, DOCS / "commands.md": commands_page}


def main() -> None:
    """Write the pages, or check them."""
    stale = [path for path, page in PAGES.items() if not path.is_file() or path.read_text(encoding="utf-8") != page()]
    for path in stale:
        if "--check" in sys.argv[1:]:
            sys.exit(f"{path.relative_to(DOCS.parent)} is out of date; run: python scripts/docs.py")
        path.write_text(PAGES[path](), encoding="utf-8")


if __name__ == "__main__":
    main()

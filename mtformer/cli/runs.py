"""`mtformer runs` and `mtformer report`, which also runs at the end of training."""

import csv
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mtformer.cli.options import argument, optional, require_at_most_one
from mtformer.cli.output import echo, for_terminal, table_lines
from mtformer.experiment.runs import COLUMNS, RunRow, differing_keys, list_runs, sort_runs, without_folder
from mtformer.experiment.sweep import short_keys
from mtformer.formatting import format_value
from mtformer.run_dir import RunDir

MOST_NAMED = 5
DETAILS = ("at", "weights")  # columns that only `--all` shows


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with runs.")] = Path("runs"),
    sort: Annotated[str, typer.Option(help="Sort by a column or a config key, best first.")] = "name",
    show_all: Annotated[bool, optional("Show all columns, as in output to a pipe or file.", "--all")] = False,
    as_json: Annotated[bool, optional("Print a JSON list with all values.", "--json")] = False,
    as_csv: Annotated[bool, optional("Print CSV.", "--csv")] = False,
) -> None:
    """List the runs in a folder and its subfolders: state, step, scores, speed, time and differing settings.

    Scores are the best on dev and BLEU on the first test set. Speed counts both sides; the time excludes validation.
    """
    require_at_most_one({"--json": as_json, "--csv": as_csv})
    rows = list_runs(folder)
    keys = differing_keys(row.config for row in rows)
    rows = sort_runs(rows, sort, keys)
    if as_json:
        echo(json.dumps([row.to_dict(keys) for row in rows], indent=2, ensure_ascii=False))
    elif as_csv:
        _print_csv(rows, keys)
    elif not rows:
        echo(f"{folder}: contains no runs", err=True)
    else:
        is_whole = show_all or not sys.stdout.isatty()
        lines, left_out = table(rows, keys, None if is_whole else shutil.get_terminal_size().columns)
        echo(*lines)
        echo(*(f"{row.name}: {row.problem}" for row in rows if row.problem is not None), err=True)
        if left_out:
            more = f" and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
            echo(f"columns left out: {', '.join(left_out[:MOST_NAMED])}{more}; --all shows them", err=True)


def table(rows: Sequence[RunRow], keys: Sequence[str], width: int | None) -> tuple[list[str], list[str]]:
    """Return the lines of a table of at most `width` characters (None: all columns), and the columns left out."""
    columns = [list(column) for column in zip(COLUMNS, *map(RunRow.cells, rows), strict=True)]
    left_out = [header for header, *cells in columns if header in DETAILS and any(cells)] if width is not None else []
    shown = [one for one in columns if any(one[1:]) and one[0] not in left_out]
    if width is not None:
        excess = max(map(len, table_lines(list(zip(*shown, strict=True))))) - width
        longest = max(map(len, shown[0]))
        shown[0] = [_wrapped(name, max(longest - excess, len("name"))) for name in shown[0]]
    cells = [list(line) for line in zip(*shown, strict=True)]
    labels = short_keys([*keys, *COLUMNS])  # unique among all columns
    for key in keys:
        column = [labels[key], *(format_value(without_folder(key, row.config.get(key, ""))) for row in rows)]
        wider = [[*line, cell] for line, cell in zip(cells, column, strict=True)]
        if width is None or max(map(len, table_lines(wider))) <= width:
            cells = wider
        else:
            left_out.append(labels[key])
    return table_lines(cells, width), left_out


def _print_csv(rows: Sequence[RunRow], keys: Sequence[str]) -> None:
    plain = [row.to_dict(keys) for row in rows]
    fields = [name for name in plain[0] if name != "config"] if plain else ["name"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*fields, *keys])
    for values, row in zip(plain, rows, strict=True):
        cells = [*(values[name] for name in fields), *(format_value(row.config.get(key, "")) for key in keys)]
        writer.writerow([for_terminal(cell, sys.stdout) if isinstance(cell, str) else cell for cell in cells])


def _wrapped(name: str, width: int) -> str:
    """Return the name with line breaks after `/` and `,`, in lines of at most `width` characters where possible."""
    lines = [""]
    for part in re.split(r"(?<=[/,])", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def report(
    runs: Annotated[list[Path], argument("Run directories or bundles.")],
    out: Annotated[
        Path | None, optional("HTML file to write (default: RUN/report.html, or report.html for several runs).")
    ] = None,
) -> None:
    """Write a self-contained HTML report about runs: curves, scores, sentences, attention and config."""
    from mtformer.report.run_report import write_report

    file = out or (RunDir(runs[0]).report if len(runs) == 1 else Path("report.html"))
    write_report(runs, file)
    echo(f"report: {file}", err=True)

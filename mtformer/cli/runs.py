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
from mtformer.experiment.training_amount import NOTABLE
from mtformer.formatting import format_value
from mtformer.run_dir import RunDir

MAX_COLUMNS_NAMED = 5
"""Number of columns that the note about omitted columns names."""
DETAILS = ("at", "weights")
"""Columns that only --all shows."""
FIGURES = ("time", "tokens seen", "tokens/s")
"""Columns that are shown if there is space beside the settings that differ, the most important first."""

Columns = dict[str, list[str]]
"""Cells of each column of a table by its header, which is the first cell."""


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with runs.", metavar="FOLDER")] = Path("runs"),
    sort: Annotated[str, typer.Option(help="Sort by a column or a config key, best first.", metavar="COLUMN")] = "name",
    show_all: Annotated[bool, optional("Show all columns, as in output to a pipe or file.", "--all")] = False,
    as_json: Annotated[bool, optional("Print a JSON list with all values.", "--json")] = False,
    as_csv: Annotated[bool, optional("Print CSV.", "--csv")] = False,
) -> None:
    """Search the folder and its subfolders, and show the settings that differ between the runs.

    Scores are the best on dev and BLEU on the first test set. Tokens seen and the speed count source and target tokens;
    the time excludes validation. In a narrow terminal, speed and time give way to the settings.
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
        _print_table(rows, keys, show_all)


def _print_table(rows: Sequence[RunRow], keys: Sequence[str], show_all: bool) -> None:
    """Print the table to stdout, and the problems of runs and the omitted columns to stderr."""
    is_complete = show_all or not sys.stdout.isatty()
    width = None if is_complete else shutil.get_terminal_size().columns
    lines, omitted = table(rows, keys, width)
    echo(*lines)
    for row in rows:
        if row.problem is not None:
            echo(f"{row.name}: {row.problem}", err=True)
    if omitted:
        names = ", ".join(omitted[:MAX_COLUMNS_NAMED])
        num_others = len(omitted) - MAX_COLUMNS_NAMED
        more = f" and {num_others} more" if num_others > 0 else ""
        echo(f"columns left out: {names}{more}; --all shows them", err=True)
    note = _unequal_training(rows)
    if note:
        echo(note, err=True)


def _unequal_training(rows: Sequence[RunRow]) -> str | None:
    """Return a note if the runs with scores were trained for different numbers of steps or tokens."""
    scored_rows = [row for row in rows if row.best is not None or row.test is not None]
    ranges = []
    for unit in ("step", "tokens"):
        values = [getattr(row, unit) for row in scored_rows]
        amounts = [value for value in values if value]
        if amounts and max(amounts) > (1 + NOTABLE) * min(amounts):
            name = unit.removesuffix("s") + "s"
            ranges.append(f"{min(amounts):,.0f} to {max(amounts):,.0f} {name}")
    if not ranges:
        return None
    return f"runs trained for {', '.join(ranges)}: differences in scores may come from that"


def table(rows: Sequence[RunRow], keys: Sequence[str], width: int | None) -> tuple[list[str], list[str]]:
    """Return the lines of a table of runs, and the omitted columns.

    Args:
        rows: the runs.
        keys: keys of the settings to show, as far as there is space.
        width: maximum width in characters; None: all columns are shown.
    """
    columns = _figure_columns(rows)
    labels = short_keys([*keys, *COLUMNS])  # unique among all columns
    settings = {labels[key]: _setting_column(labels[key], key, rows) for key in keys}
    columns |= settings
    if width is None:
        return table_lines(rows_of(columns)), []

    # The settings that differ explain the scores, so names are broken to make space for them, but not for speeds.
    secondary = [*settings, *FIGURES, *DETAILS]
    essential = {label: cells for label, cells in columns.items() if label not in secondary}
    shown = with_narrow_names(essential, width)
    for label in settings:
        wider = with_narrow_names({**shown, "name": columns["name"], label: columns[label]}, width)
        if _width_of(wider) <= width:
            shown = wider
    for label in FIGURES:
        wider = {**shown, label: columns[label]} if label in columns else shown
        if _width_of(wider) <= width:
            shown = wider

    in_order = {label: shown[label] for label in columns if label in shown}
    omitted = [label for label in columns if label not in shown]
    return table_lines(rows_of(in_order), width), omitted


def _figure_columns(rows: Sequence[RunRow]) -> Columns:
    """Return the columns of `COLUMNS` that have values."""
    all_cells = [row.cells() for row in rows]
    columns: Columns = {}
    for number, header in enumerate(COLUMNS):
        cells = [row_cells[number] for row_cells in all_cells]
        if any(cells):
            columns[header] = [header, *cells]
    return columns


def _setting_column(label: str, key: str, rows: Sequence[RunRow]) -> list[str]:
    """Return the label of a setting and its value in each run."""
    values = [format_value(without_folder(key, row.config.get(key, ""))) for row in rows]
    return [label, *values]


def rows_of(columns: Columns) -> list[tuple[str, ...]]:
    """Return the rows of a table for `table_lines`."""
    return list(zip(*columns.values(), strict=True))


def _width_of(columns: Columns) -> int:
    """Return the number of characters of the longest line of a table."""
    return max(map(len, table_lines(rows_of(columns))))


def with_narrow_names(columns: Columns, width: int) -> Columns:
    """Return the columns with line breaks in the first one, the names of runs, that let the table fit the width."""
    header, *_ = columns
    names = columns[header]
    excess = _width_of(columns) - width
    name_width = max(max(map(len, names)) - excess, len(header))
    narrow_names = [_wrapped(name, name_width) for name in names]
    return {**columns, header: narrow_names}


def _wrapped(name: str, width: int) -> str:
    """Return the name with line breaks after `/` and `,`, in lines of at most `width` characters where possible."""
    lines = [""]
    for part in re.split(r"(?<=[/,])", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _print_csv(rows: Sequence[RunRow], keys: Sequence[str]) -> None:
    """Print one line per run, with all fields and the settings that differ."""
    all_values = [row.to_dict(keys) for row in rows]
    fields = [name for name in all_values[0] if name != "config"] if all_values else ["name"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*fields, *keys])
    for values, row in zip(all_values, rows, strict=True):
        cells = [values[name] for name in fields]
        cells += [format_value(row.config.get(key, "")) for key in keys]
        writer.writerow([for_terminal(cell, sys.stdout) if isinstance(cell, str) else cell for cell in cells])


def report(
    runs: Annotated[list[Path], argument("Run directories or bundles.", "RUN")],
    out: Annotated[
        Path | None,
        optional("HTML file to write (default: RUN/report.html, or report.html for several runs).", metavar="FILE"),
    ] = None,
) -> None:
    """Show curves, scores, sentences, attention and config on one self-contained page."""
    from mtformer.report.run_report import write_report

    default = RunDir(runs[0]).report if len(runs) == 1 else Path("report.html")
    file = out or default
    write_report(runs, file)
    echo(f"report: {file}", err=True)

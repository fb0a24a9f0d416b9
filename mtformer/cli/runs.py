"""`mtformer runs`."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtformer.cli.options import require_at_most_one
from mtformer.cli.output import echo, for_terminal, table_lines

if TYPE_CHECKING:
    from mtformer.experiment.runs import RunRow

MOST_NAMED = 5


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder with runs.")] = Path("runs"),
    sort: Annotated[
        str,
        typer.Option(metavar="COLUMN", help="Header of the table, or key of the config; the best come first."),
    ] = "name",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list with all values.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """List the runs in a folder and below it: state, step, best dev score, speed, time, differences of their configs.

    The time is that of the steps; the speed counts tokens of both sides.
    """
    from mtformer.experiment.runs import differing_keys, list_runs, sort_runs

    require_at_most_one({"--json": as_json, "--csv": as_csv})
    rows = list_runs(folder)
    keys = differing_keys(rows)
    rows = sort_runs(rows, sort, keys)
    if as_json:
        echo(json.dumps([row.to_dict(keys) for row in rows], indent=2, ensure_ascii=False))
    elif as_csv:
        _print_csv(rows, keys)
    elif not rows:
        echo(f"{folder}: no runs here", err=True)
    else:
        _print_table(rows, keys, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)


def table(rows: "Sequence[RunRow]", keys: Sequence[str], width: int | None) -> tuple[list[str], list[str]]:
    """Return the lines of a table no wider than `width`, and the keys whose columns do not fit."""
    from mtformer.experiment.runs import COLUMNS, format_value, without_folder
    from mtformer.experiment.sweep import short_keys

    cells = [[*COLUMNS], *(_cells(row) for row in rows)]
    if not any(row.weights for row in rows):  # no run has averaged weights
        cells = [[cell for cell, header in zip(line, COLUMNS, strict=True) if header != "weights"] for line in cells]
    left_out = []
    for key, short in short_keys(keys).items():
        column = [short, *(format_value(without_folder(key, row.config.get(key, ""))) for row in rows)]
        wider = [[*line, cell] for line, cell in zip(cells, column, strict=True)]
        if width is None or max(map(len, table_lines(wider))) <= width:
            cells = wider
        else:
            left_out.append(key)
    return table_lines(cells, width), left_out


def _print_table(rows: "Sequence[RunRow]", keys: Sequence[str], width: int | None) -> None:
    lines, left_out = table(rows, keys, width)
    echo(*lines)
    echo(*(f"{row.name}: {row.problem}" for row in rows if row.problem is not None), err=True)
    if left_out:
        more = f" and {len(left_out) - MOST_NAMED} more" if len(left_out) > MOST_NAMED else ""
        echo(f"columns left out: {', '.join(left_out[:MOST_NAMED])}{more}; --csv and --json have them", err=True)


def _print_csv(rows: "Sequence[RunRow]", keys: Sequence[str]) -> None:
    import csv

    from mtformer.experiment.runs import format_value

    plain = [row.to_dict(keys) for row in rows]
    fields = [name for name in plain[0] if name != "config"] if plain else ["name"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*fields, *keys])
    for values, row in zip(plain, rows, strict=True):
        cells = [*(values[name] for name in fields), *(format_value(row.config.get(key, "")) for key in keys)]
        writer.writerow([for_terminal(cell, sys.stdout) if isinstance(cell, str) else cell for cell in cells])


def _cells(row: "RunRow") -> list[str]:
    """Return the cells below the headers."""
    from mtformer.experiment.runs import format_duration

    of = f"/{row.max_steps}" if row.max_steps is not None else ""
    return [
        row.name,
        row.state if row.note is None else f"{row.state}, {row.note}",
        "" if row.step is None else f"{row.step}{of}",
        "" if row.best is None else f"{row.metric} {row.best:.2f}",
        _number(row.best_step),
        row.weights or "",
        _number(row.tokens_per_second),
        "" if row.seconds is None else format_duration(row.seconds),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"

"""`mtformer exam`: the behavior of models on perturbed lines."""

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from mtformer.cli.decoding_options import Load
from mtformer.cli.eval import RefOption, SrcOption, find_sets
from mtformer.cli.help import INPUT_OUTPUT
from mtformer.cli.options import ToOption, argument, optional
from mtformer.cli.output import echo, printable, require_no_input, table_lines
from mtformer.errors import ConfigError, explain_write_errors, log
from mtformer.files import FORMAT, write_json
from mtformer.run_dir import run_names

if TYPE_CHECKING:
    from mtformer.decoding.translator import Translator
    from mtformer.evaluation.card import EvalSet
    from mtformer.evaluation.exam import Limit, Row

DEFAULT_WIDTH = 80
"""Width of the output if there is no terminal."""
HEADERS = {
    "lines": None,
    "chrF": "chrf",
    "change": "chrf_change",
    "loops %": "loops",
    "long %": "long",
    "unaligned %": "unaligned",
    "kept %": None,
}
"""Columns of the table: header, and column of the card; None: the cell is composed of others."""
NUMBERS = ("lines", "chrF", "change", "loops %", "long %", "unaligned %")
"""Headers of right-aligned columns."""
LEAST_IMPORTANT = ("unaligned %", "lines", "long %")
"""Headers of columns that a narrow table lacks, the least important first."""
LEGEND = (
    "chrF: chrF2++ (0 to 100); change: its difference from the plain row on the same lines; loops, long: translations "
    "with a repetition, or that are too long; unaligned: output words that attend to no source word; kept: numbers, "
    "URLs, ... that the translation has too (of the row, or the kind with the lowest share), or lines with an equal "
    "translation in other batches; -: does not apply. --json FILE has all values."
)
"""Explanation of the columns."""


def exam(
    runs: Annotated[list[Path], argument("Run directory or bundle; several are compared.", "RUN")],
    src: SrcOption = None,
    ref: RefOption = None,
    to: ToOption = None,
    lines: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of lines of the test set, from the first.",
            metavar="N",
            rich_help_panel=INPUT_OUTPUT,
        ),
    ] = 200,
    limits: Annotated[
        Path | None, optional("YAML file with limits of the values.", metavar="FILE", panel=INPUT_OUTPUT)
    ] = None,
    json_file: Annotated[
        Path | None, optional("File for the card as JSON.", "--json", metavar="FILE", panel=INPUT_OUTPUT)
    ] = None,
    *,
    load: Load,
) -> None:
    """Translate lines with capitals, typos, URLs, long lines and other changes, and compare with the unchanged lines.

    The lines come from --src and --ref, the first test set of the config, or its dev set. The exit code is 1 if a limit
    is broken and 0 otherwise; see docs/experiments.md.
    """
    from mtformer.evaluation.exam import broken_limits, read_limits
    from mtformer.evaluation.exam_verdict import verdicts

    if json_file is not None and json_file.is_dir():
        raise ConfigError(f"{json_file}: is a folder; name a file")
    require_no_input(json_file, src, ref, limits)
    accepted = read_limits(limits) if limits is not None else []

    runs = list(dict.fromkeys(runs))
    translators = {str(run): load([run], to) for run in runs}
    test = find_sets(runs[0], src, ref, to=to, or_dev=True)[0]
    translators = {run: translator.into(test.tgt_lang) for run, translator in translators.items()}

    cards = {run: _take_exam(run, translator, test, lines) for run, translator in translators.items()}
    broken = {run: broken_limits(accepted, rows) for run, rows in cards.items()}
    for run, rows in cards.items():
        _warn_of_blank_cells(run, rows, accepted)
        for limit in broken[run]:
            message = "{row}.{column} is {value:g}, but its limit is {limit:g}".format(**limit)
            echo(f"{run}: {message}", err=True)

    exams = []
    for run, rows in cards.items():
        weights = translators[run].weight_hashes
        failed = verdicts(rows)
        exams.append({"run": run, "weights": weights, "rows": rows, "broken": broken[run], "failed": failed})
    try:
        if json_file is not None:
            with explain_write_errors(f"{json_file}:", "name another file"):
                write_json(json_file, {"format": FORMAT, "test_set": test.name, "exams": exams}, indent=2)
    finally:  # after the file, because the reader of a pipe may end before the last line
        width = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
        echo(*_table(cards, width))
    if any(broken.values()):
        raise typer.Exit(1)


def _take_exam(run: str, translator: "Translator", test: "EvalSet", num_lines: int) -> "dict[str, Row]":
    """Return the rows of the card of a run, with a progress bar."""
    from mtformer.evaluation.exam import ROWS, take_exam

    # Without languages in the test set, capitals follow those of the model.
    src_lang = test.src_lang or translator.src_lang
    tgt_lang = test.tgt_lang or translator.tgt_lang
    test = replace(test, src_lang=src_lang or None, tgt_lang=tgt_lang or None)
    rows = take_exam(translator, test, num_lines)
    with tqdm(rows, printable(run), len(ROWS), unit="row", disable=None, leave=False) as bar:
        return dict(bar)


def _warn_of_blank_cells(run: str, rows: "Mapping[str, Row]", limits: "Sequence[Limit]") -> None:
    """Log which values of a card are missing."""
    if all(row["unaligned"] is None for row in rows.values()):
        log.warning("%s: the translator returned no attention, so the column unaligned is blank", run)
    for limit in limits:
        if rows[limit.row][limit.column] is None:
            cell = f"{limit.row}.{limit.column}"
            log.warning("%s: the limit %s is not checked, because the cell is blank", run, cell)


def _table(cards: "Mapping[str, Mapping[str, Row]]", width: int) -> list[str]:
    """Return the cards as one table with a legend and verdicts; with several runs, each row has one line per run."""
    from mtformer.evaluation.exam import ROWS

    has_run_column = len(cards) > 1
    names = dict(zip(cards, run_names([Path(run) for run in cards]), strict=True))
    head = ["row", "run", *HEADERS] if has_run_column else ["row", *HEADERS]
    table = [head]
    for row_name in ROWS:
        label = row_name
        for run, rows in cards.items():
            labels = [label, names[run]] if has_run_column else [label]
            table.append([*labels, *_cells(row_name, rows[row_name])])
            label = ""
    legend = textwrap.wrap(LEGEND, width)
    return [*_fitting_lines(table, width), "", *legend, "", *_verdict_lines(cards, names, width)]


def _fitting_lines(table: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines of a table without its least important columns if the width does not suffice for them."""
    columns = {column[0]: column for column in zip(*table, strict=True)}
    for dropped in (None, *LEAST_IMPORTANT):
        if dropped is not None:
            del columns[dropped]
        numbers = [position for position, header in enumerate(columns) if header in NUMBERS]
        rows = list(zip(*columns.values(), strict=True))
        lines = table_lines(rows, right=numbers)
        if max(map(len, lines)) <= width:
            return lines
    return table_lines(rows, width, right=numbers)


def _verdict_lines(cards: "Mapping[str, Mapping[str, Row]]", names: Mapping[str, str], width: int) -> Iterator[str]:
    """Yield what failed in each run and what helps, or that nothing failed."""
    from mtformer.evaluation.exam_verdict import verdicts

    for run, rows in cards.items():
        of_run = f" in {names[run]}" if len(cards) > 1 else ""
        failures = verdicts(rows)
        if failures:
            title = f"failed{of_run} (settings of data and tokenizer need a new training):"
            yield from textwrap.wrap(title, width)
        else:
            yield f"nothing failed{of_run}"
        for failure in failures:
            yield from textwrap.wrap(failure, width, initial_indent="- ", subsequent_indent="  ")


def _cells(name: str, row: "Row") -> list[str]:
    """Return the cells of a row, in the order of `HEADERS`; figures have one decimal."""
    from mtformer.evaluation.exam_verdict import kept_share

    figures = [_figure(row[column]) for column in HEADERS.values() if column is not None]
    num_lines = f"{row['lines']:.0f}"
    kept = kept_share(name, row)
    if kept is None:
        return [num_lines, *figures, "-"]
    kind, share = kept
    return [num_lines, *figures, f"{kind} {_figure(share)}"]


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{round(value, 1) + 0.0:.1f}"  # adding 0.0 turns -0.0, a rounded small negative number, into 0.0

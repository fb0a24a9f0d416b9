"""`mtformer exam`."""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from mtformer.cli.decoding_options import Load
from mtformer.cli.eval import find_sets, require_both_files
from mtformer.cli.options import ToOption, argument, optional
from mtformer.cli.output import echo, printable, table_lines
from mtformer.errors import ConfigError, explain_write_errors
from mtformer.files import FORMAT, write_text

if TYPE_CHECKING:
    from mtformer.evaluation.exam import Row

BROKEN = 1
"""Exit code if a limit is broken."""
log = logging.getLogger("mtformer")


def exam(
    runs: Annotated[list[Path], argument("Run directory or bundle; several are compared.")],
    src: Annotated[Path | None, optional("Source file; requires --ref.")] = None,
    ref: Annotated[Path | None, optional("Reference file; requires --src.")] = None,
    to: ToOption = None,
    lines: Annotated[int, typer.Option(min=1, help="Number of lines of the test set, from the first.")] = 200,
    limits: Annotated[Path | None, optional("YAML file with limits of the values.")] = None,
    json_file: Annotated[Path | None, optional("File for the card as JSON.", "--json")] = None,
    *,
    load: Load,
) -> None:
    """Test the behavior of a model on perturbed lines: capitals, typos, URLs, long lines and others.

    The lines come from --src and --ref, the first test set of the config, or its dev set. The exit code is 1 if a limit
    is broken and 0 otherwise; see docs/experiments.md.
    """
    from mtformer.evaluation.exam import ROWS, broken_limits, read_limits, take_exam

    require_both_files(src, ref)
    if json_file is not None and json_file.is_dir():
        raise ConfigError(f"{json_file}: is a folder; name a file")
    accepted = read_limits(limits) if limits is not None else []
    sets = find_sets(runs[0], src, ref, None, to, or_dev=True)
    test = next((one for one in sets if to in (None, one.tgt_lang)), None)
    if test is None:
        raise ConfigError(f"{runs[0]}: its config has no test set with target language {to}; give --src and --ref")
    translators = [load([run], test.tgt_lang) for run in runs]
    cards = dict[str, dict[str, "Row"]]()
    for run, translator in zip(runs, translators, strict=True):
        of_run = take_exam(translator, test, lines)
        with tqdm(of_run, printable(str(run)), len(ROWS), unit="row", disable=None, leave=False) as bar:
            cards[str(run)] = dict(bar)
    echo(*_table(cards))
    broken = {name: broken_limits(accepted, rows) for name, rows in cards.items()}
    for name, rows in cards.items():
        if not any(row["unaligned"] is not None for row in rows.values()):
            log.warning("%s: the translator returned no attention, so the column unaligned is blank", name)
        for row, column, _ in accepted:
            if rows[row][column] is None:
                log.warning("%s: the limit %s.%s is not checked, because the cell is blank", name, row, column)
        for one in broken[name]:
            echo(f"{name}: {one.row}.{one.column} is {one.value:g}, but its limit is {one.limit:g}", err=True)
    if json_file is not None:
        exams = [
            {"run": name, "rows": rows, "broken": [one._asdict() for one in broken[name]]}
            for name, rows in cards.items()
        ]
        values = {"format": FORMAT, "test_set": test.name, "exams": exams}
        with explain_write_errors(f"{json_file}:", "name another file"):
            write_text(json_file, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    if any(broken.values()):
        raise typer.Exit(BROKEN)


def _table(cards: "dict[str, dict[str, Row]]") -> list[str]:
    """Return the cards as one table; with several runs, each row has one line per run."""
    from mtformer.evaluation.exam import COLUMNS, ROWS

    table = [["row", "run", *COLUMNS]]
    for name in ROWS:
        for run, rows in cards.items():
            values = ["-" if value is None else f"{round(value, 1) + 0.0:.1f}" for value in rows[name].values()]
            table.append([name, run, f"{rows[name]['lines']:.0f}", *values[1:]])
    shown = table if len(cards) > 1 else [[name, *values] for name, _, *values in table]
    return table_lines(shown, right=range(len(shown[0]) - len(COLUMNS), len(shown[0])))

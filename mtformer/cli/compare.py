"""`mtformer compare`: scores and significance of several systems."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from mtformer.cli.options import argument, optional
from mtformer.cli.output import echo, table_lines
from mtformer.config.schema import EvaluationConfig
from mtformer.config.validation import describe_errors
from mtformer.config.yaml_text import Origin
from mtformer.errors import ConfigError
from mtformer.experiment.sweep import short_keys

if TYPE_CHECKING:
    from mtformer.evaluation.compare import Comparison, MetricTable, SentenceRow
    from mtformer.evaluation.systems import System
    from mtformer.experiment.training_amount import TrainingAmount

INDENT = 2
"""Number of spaces before the lines of a table."""
DEFAULT_WIDTH = 100
"""Width of the output if there is no terminal."""
AMOUNTS = "training (tokens of source and target; minutes without validation)"
"""Title of the amounts of training."""
READING = (
    "TER: lower is better. 95% intervals and p-values: variation over test sentences, for these trained models. "
    "p-values: paired bootstrap and approximate randomization against the first system ({tests})."
)
"""Explanation of the figures; `tests` has the settings of the significance tests."""


def compare(
    paths: Annotated[
        list[Path], argument("Run directories, or with --ref files of hypotheses; the first is the baseline.", "RUN")
    ],
    sets: Annotated[
        list[str] | None,
        optional("Test set (default: every test set that all runs have scores for).", "--set", metavar="NAME"),
    ] = None,
    ref: Annotated[
        list[Path] | None,
        optional("Reference file for files of hypotheses; repeat for several references.", metavar="FILE"),
    ] = None,
    src: Annotated[Path | None, optional("Source file; requires --ref.", metavar="FILE")] = None,
    bleu_tokenizer: Annotated[
        str | None,
        optional(
            "With --ref: BLEU tokenizer, as evaluation.bleu_tokenizer (default: auto, by the references' script).",
            metavar="NAME",
        ),
    ] = None,
    group: Annotated[bool, optional("Do not group runs that differ only in their seed.", "--group/--no-group")] = True,
    sentences: Annotated[
        int, typer.Option(min=0, help="Show this many of the sentences that differ most.", metavar="N")
    ] = 5,
    as_json: Annotated[bool, optional("Print everything as JSON.", "--json")] = False,
    force: Annotated[
        bool, optional("Compare even if data, metrics, decoding settings or precision differ.", "--force")
    ] = False,
) -> None:
    """Compute scores from the translations that `eval` saved, and p-values with sacreBLEU.

    The p-values are those of paired bootstrap resampling (1,000 samples) and paired approximate randomization (10,000
    trials); SACREBLEU_SEED is the seed. The second p-value also counts trials whose difference equals the observed one;
    `sacrebleu --paired-ar` counts only larger ones, so its values are too small for TER and small test sets. If a
    system has several runs, its counts are their mean.
    """
    from mtformer.cli.progress import alive
    from mtformer.evaluation.compare import compare as compare_on_set
    from mtformer.evaluation.compare import config_differences
    from mtformer.evaluation.scores import METRICS
    from mtformer.evaluation.systems import common_sets, group_runs, open_runs, read_files, read_material
    from mtformer.experiment.training_amount import training_amount

    if len(paths) < 2:
        raise ConfigError(
            f"{paths[0]}: nothing to compare it with; give at least two runs, or with --ref at least two files"
        )
    if ref and (sets or force):
        raise ConfigError("--set and --force are for runs; remove them, or remove --ref")
    if not ref and (src is not None or bleu_tokenizer is not None):
        raise ConfigError("--src and --bleu-tokenizer are for hypothesis files; give --ref too")

    if ref:
        runs, material = read_files(paths, ref, src, _evaluation(bleu_tokenizer or "auto"))
        systems = group_runs(runs)
        materials = [material]
    else:
        runs = open_runs(paths)
        systems = group_runs(runs, group)
        materials = [read_material(name, runs, force) for name in common_sets(runs, sets or [])]

    num_metrics = [len(METRICS) + material.num_measured for material in materials]
    num_tests = sum(num_metrics) * len(systems)
    with alive("compare", total=num_tests, unit="test") as bar:
        comparisons = [compare_on_set(systems, material, sentences, bar.update) for material in materials]
    differences = config_differences(systems)
    amounts = [] if ref else [training_amount(system) for system in systems]

    if as_json:
        echo(_json(systems, amounts, differences, comparisons))
        return
    width = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
    echo(*_system_lines(systems, differences, width))
    echo(*_amount_lines([system.name for system in systems], amounts, width))
    echo(*_lines(comparisons, width))
    for comparison in comparisons:
        for line in [*comparison.ignored, *comparison.notes]:
            echo(f"differences on {comparison.name}: {line}", err=True)


def _evaluation(bleu_tokenizer: str) -> EvaluationConfig:
    """Return the settings of the metrics for files."""
    try:
        return EvaluationConfig.model_validate({"bleu_tokenizer": bleu_tokenizer})
    except ValidationError as error:
        [line] = describe_errors(error, {(): Origin("file", "--bleu-tokenizer")}, EvaluationConfig).splitlines()
        raise ConfigError(line.replace(": bleu_tokenizer", "")) from error


# ---- output ---------------------------------------------------------------------------------------------------------


def _json(
    systems: "Sequence[System]",
    amounts: "Sequence[TrainingAmount]",
    differences: Mapping[str, list[Any]],
    comparisons: "Sequence[Comparison]",
) -> str:
    """Return systems, amounts of training, differing config values (one per system) and comparisons as JSON."""
    values = {
        "systems": [_system_values(system) for system in systems],
        "training": [asdict(amount) for amount in amounts],
        "config_differences": [{"key": key, "values": values} for key, values in differences.items()],
        "sets": [asdict(comparison) for comparison in comparisons],
    }
    return json.dumps(values, indent=2, ensure_ascii=False)


def _system_values(system: "System") -> dict[str, Any]:
    runs = [{"name": run.name, "path": str(run.path), "seed": run.seed} for run in system.runs]
    return {"name": system.name, "runs": runs}


def _system_lines(systems: "Sequence[System]", differences: Mapping[str, list[Any]], width: int) -> Iterator[str]:
    """Yield lines of at most `width` characters: the systems with several seeds, and the config values that differ."""
    grouped = [system for system in systems if len(system.runs) > 1]
    if grouped:
        rows = [[f"{system.name}:", _run_names(system)] for system in grouped]
        yield from ("systems with several seeds", *table_lines(rows, width, indent=INDENT), "")

    rows = _difference_rows(systems, differences)
    if rows:
        yield from ("configs differ in", *table_lines(rows, width, indent=INDENT), "")


def _amount_lines(names: Sequence[str], amounts: "Sequence[TrainingAmount]", width: int) -> Iterator[str]:
    """Yield the amounts of training, with their differences from the first system, and what follows from these."""
    from mtformer.experiment.training_amount import FORMATS, describe_unequal_training

    columns = {"system": list(names)}
    for unit in FORMATS:
        cells = _amount_cells(amounts, unit)
        if any(cells):
            title = "tokens seen" if unit == "tokens" else unit
            columns[title] = cells
    if len(columns) == 1:
        return

    rows = [list(columns), *zip(*columns.values(), strict=True)]
    yield from textwrap.wrap(AMOUNTS, width)
    yield from table_lines(rows, width, right=range(1, len(columns)), indent=INDENT)
    for sentence in describe_unequal_training(names, amounts):
        yield from textwrap.wrap(sentence, width)
    yield ""


def _amount_cells(amounts: "Sequence[TrainingAmount]", unit: str) -> list[str]:
    """Return the amount of each system, with the difference from the first one in percent; empty if unknown."""
    from mtformer.experiment.training_amount import FORMATS, relative_difference

    values = [getattr(amount, unit) for amount in amounts]
    cells: list[str] = []
    for value in values:
        cell = "" if value is None else FORMATS[unit](value)
        difference = relative_difference(values[0], value)
        if cells and difference is not None:
            cell += f" ({difference:+.1%})"
        cells.append(cell)
    return cells


def _lines(comparisons: "Sequence[Comparison]", width: int) -> Iterator[str]:
    """Yield the lines of all comparisons, of at most `width` characters."""
    for number, comparison in enumerate(comparisons):
        if number:
            yield ""
        yield from _comparison_lines(comparison, width)


def _run_names(system: "System") -> str:
    return "; ".join(run.name for run in system.runs)


def _difference_rows(systems: "Sequence[System]", differences: Mapping[str, list[Any]]) -> list[list[str]]:
    """Return a row for each value of a differing key: the key (once), the value, and the systems that have it."""
    labels = short_keys(differences)
    rows = []
    for key, values in differences.items():
        systems_of_value: dict[str, list[str]] = {}
        for system, value in zip(systems, values, strict=True):
            text = json.dumps(value, ensure_ascii=False)
            systems_of_value.setdefault(text, []).append(system.name)
        label = labels[key]
        for text, names in systems_of_value.items():
            rows.append([label, f"{text}:", ", ".join(names)])
            label = ""
    return rows


def _comparison_lines(comparison: "Comparison", width: int) -> Iterator[str]:
    """Yield the scores, their explanation, the scores by length, and the sentences that differ most."""
    bleu = comparison.metrics[0]
    yield f"{comparison.name}: {comparison.num_sentences:,} sentences"
    for table in comparison.metrics:
        yield from ("", f"{table.label}  {table.signature}")
        yield from table_lines(_metric_rows(table), width, right=range(1, 7), indent=INDENT)

    if len(bleu.systems) > 1:
        yield from ("", *textwrap.wrap(READING.format(tests=bleu.tests), width))

    if comparison.buckets:
        yield from ("", f"{bleu.label} by number of source {comparison.unit}")
        length_rows = _length_rows(comparison)
        num_columns = len(length_rows[0])
        yield from table_lines(length_rows, width, right=range(1, num_columns), indent=INDENT)

    if comparison.sentences:
        has_several_runs = any(len(system.runs) > 1 for system in bleu.systems)
        condition = ", in the first run of each system" if has_several_runs else ""
        yield from ("", f"sentences that differ most, by chrF2++{condition}")
    names = [system.system for system in bleu.systems]
    for sentence in comparison.sentences:
        rows = _sentence_rows(sentence, names)
        yield from ("", f"line {sentence.line}", *table_lines(rows, width, right=[1], indent=INDENT))


def _metric_rows(table: "MetricTable") -> list[Sequence[str]]:
    """Return the rows of a table, without empty columns."""
    from mtformer.evaluation.scores import num_decimals

    systems = table.systems
    decimals = num_decimals(table.name)
    scores = [f"{system.mean:.{decimals}f}" for system in systems]
    columns = {"system": [system.system for system in systems]}
    if any(system.deviation is not None for system in systems):
        columns["runs"] = [str(len(system.runs)) for system in systems]
        columns["mean ± sd"] = [
            score if system.deviation is None else f"{score} ± {system.deviation:.{decimals}f}"
            for system, score in zip(systems, scores, strict=True)
        ]
    else:
        columns["score"] = scores

    estimates = [system.estimate for system in systems if system.estimate is not None]
    if estimates:
        columns["95% interval"] = [f"{row.low:.{decimals}f} to {row.high:.{decimals}f}" for row in estimates]
    if len(systems) > 1:
        differences = [system.difference for system in systems]
        columns["diff"] = ["" if value is None else f"{value:+.{decimals}f}" for value in differences]
    if len(systems) > 1 and estimates:
        tests = [system.tests for system in systems]
        columns["p boot"] = ["" if test is None else f"{test.p_bootstrap:.4f}" for test in tests]
        columns["p rand"] = ["" if test is None else f"{test.p_randomization:.4f}" for test in tests]
    return [list(columns), *zip(*columns.values(), strict=True)]


def _length_rows(comparison: "Comparison") -> list[tuple[str, ...]]:
    """Return the scores by source length, with a row for each system and a column for each range of lengths."""
    bleu = comparison.metrics[0]
    columns = [[comparison.unit, "sentences", *(system.system for system in bleu.systems)]]
    for bucket in comparison.buckets:
        lengths = f"{bucket.low}+" if bucket.high is None else f"{bucket.low}-{bucket.high}"
        scores = [f"{score:.2f}" for score in bucket.scores[bleu.name]]
        columns.append([lengths, f"{bucket.num_sentences:,}", *scores])
    return list(zip(*columns, strict=True))


def _sentence_rows(sentence: "SentenceRow", names: Sequence[str]) -> list[list[str]]:
    """Return the source, the references and the hypotheses of a sentence, with the score of each hypothesis."""
    rows = []
    if sentence.source is not None:
        rows.append(["source", "", sentence.source])
    rows += [["reference", "", reference] for reference in sentence.references]
    for name, chrf, hypothesis in zip(names, sentence.chrf, sentence.hypotheses, strict=True):
        rows.append([name, f"{chrf:.2f}", hypothesis])
    return rows

"""`mtformer compare`."""

import json
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from mtformer.cli.options import argument, optional
from mtformer.cli.output import echo, table_lines
from mtformer.config.schema import EvaluationConfig
from mtformer.errors import ConfigError
from mtformer.experiment.sweep import short_keys

if TYPE_CHECKING:
    from mtformer.evaluation.compare import Comparison, MetricTable
    from mtformer.evaluation.systems import System

INDENT = 2
READING = (
    "95% intervals and p-values: variation over test sentences, for these trained models. p-values: paired bootstrap "
    "and approximate randomization against the first system ({tests})."
)


def compare(
    paths: Annotated[list[Path], argument("Run directories, or hypothesis files; the first is the baseline.")],
    sets: Annotated[
        list[str] | None, optional("Test set (default: every test set that all runs have scores for).", "--set")
    ] = None,
    ref: Annotated[list[Path] | None, optional("Reference file; repeat for several references.")] = None,
    src: Annotated[Path | None, optional("Source file; requires --ref.")] = None,
    bleu_tokenizer: Annotated[str | None, optional("With --ref: BLEU tokenizer (default: 13a).")] = None,
    group: Annotated[bool, optional("Do not group runs that differ only in their seed.", "--group/--no-group")] = True,
    sentences: Annotated[int, typer.Option(min=0, help="Show this many of the sentences that differ most.")] = 5,
    as_json: Annotated[bool, optional("Print everything as JSON.", "--json")] = False,
    force: Annotated[bool, optional("Compare despite different data, metrics or settings.", "--force")] = False,
) -> None:
    """Compare runs or hypothesis files: scores, significance, lengths and sentences.

    Scores are computed from the translations that `eval` saved, p-values with sacreBLEU by paired bootstrap resampling
    (1,000 samples) and paired approximate randomization (10,000 trials); SACREBLEU_SEED is the seed. The second p-value
    also counts trials whose difference equals the observed one; `sacrebleu --paired-ar` counts only larger ones, so its
    values are too small for TER and small test sets. If a system has several runs, its counts are their mean.
    """
    from mtformer.cli.progress import alive
    from mtformer.evaluation.compare import compare as compare_one
    from mtformer.evaluation.compare import config_differences
    from mtformer.evaluation.scores import METRICS
    from mtformer.evaluation.systems import common_sets, group_runs, open_runs, read_files, read_material

    if len(paths) < 2:
        raise ConfigError(f"{paths[0]}: only one system; give at least two to compare")
    if ref and (sets or force):
        raise ConfigError("--set and --force are for runs; remove them, or remove --ref")
    if not ref and (src is not None or bleu_tokenizer is not None):
        raise ConfigError("--src and --bleu-tokenizer are for hypothesis files; give --ref too")
    if ref:
        runs, material = read_files(paths, ref, src, _evaluation(bleu_tokenizer or "13a"))
        systems, materials = group_runs(runs), [material]
    else:
        runs = open_runs(paths)
        systems = group_runs(runs, group)
        materials = [read_material(name, runs, force) for name in common_sets(runs, sets or [])]
    with alive("compare", total=len(materials) * len(METRICS) * len(systems), unit="test") as bar:
        comparisons = [compare_one(systems, material, sentences, bar.update) for material in materials]
    different = config_differences(systems)
    if as_json:
        echo(_json(systems, different, comparisons))
        return
    echo(*_lines(systems, different, comparisons, shutil.get_terminal_size((100, 24)).columns))
    echo(*(f"differences on {one.name}: {line}" for one in comparisons for line in one.ignored + one.notes), err=True)


def _evaluation(bleu_tokenizer: str) -> EvaluationConfig:
    if bleu_tokenizer == "auto":
        raise ConfigError("--bleu-tokenizer auto requires a target language, which files do not have; name a tokenizer")
    try:
        return EvaluationConfig.model_validate({"bleu_tokenizer": bleu_tokenizer})
    except ValidationError as error:
        raise ConfigError(f"--bleu-tokenizer '{bleu_tokenizer}': {error.errors()[0]['msg']}") from error


def _json(systems: "list[System]", different: dict[str, list[Any]], comparisons: "list[Comparison]") -> str:
    runs = [[{"name": run.name, "path": str(run.path), "seed": run.seed} for run in one.runs] for one in systems]
    values = {
        "systems": [{"name": one.name, "runs": some} for one, some in zip(systems, runs, strict=True)],
        "config_differences": [{"key": key, "values": each} for key, each in different.items()],
        "sets": [asdict(comparison) for comparison in comparisons],
    }
    return json.dumps(values, indent=2, ensure_ascii=False)


def _lines(
    systems: "list[System]", different: dict[str, list[Any]], comparisons: "list[Comparison]", width: int
) -> Iterator[str]:
    """Yield lines of at most `width` characters: the systems, then each comparison."""
    grouped = [[f"{system.name}:", "; ".join(run.name for run in system.runs)] for system in systems if system.runs[1:]]
    if grouped:
        yield from ("systems with several seeds", *table_lines(grouped, width, indent=INDENT), "")
    rows, labels = [], short_keys(different)
    for key, values in different.items():
        names: dict[str, list[str]] = {}
        for system, value in zip(systems, values, strict=True):
            names.setdefault(json.dumps(value, ensure_ascii=False), []).append(system.name)
        rows += [[labels[key] if n == 0 else "", f"{value}:", ", ".join(names[value])] for n, value in enumerate(names)]
    if rows:
        yield from ("configs differ in", *table_lines(rows, width, indent=INDENT), "")
    for number, comparison in enumerate(comparisons):
        yield from [""] if number else []
        yield from _comparison_lines(comparison, width)


def _comparison_lines(comparison: "Comparison", width: int) -> Iterator[str]:
    bleu = comparison.metrics[0]
    names = [row.system for row in bleu.systems]
    yield f"{comparison.name}: {comparison.num_sentences:,} sentences"
    for table in comparison.metrics:
        yield from ("", f"{table.label}  {table.signature}")
        yield from table_lines(_metric_rows(table), width, right=range(1, 7), indent=INDENT)
    if len(names) > 1:
        yield from ("", *textwrap.wrap(READING.format(tests=bleu.tests), width))
    if comparison.buckets:
        yield from ("", f"{bleu.label} by number of source {comparison.unit}")
        columns = [[comparison.unit, "sentences", *names]]
        for bucket in comparison.buckets:
            lengths = f"{bucket.low}+" if bucket.high is None else f"{bucket.low}-{bucket.high}"
            scores = [f"{score:.2f}" for score in bucket.scores[bleu.name]]
            columns.append([lengths, f"{bucket.num_sentences:,}", *scores])
        yield from table_lines(list(zip(*columns, strict=True)), width, right=range(1, len(columns)), indent=INDENT)
    if comparison.sentences:
        of_first = ", in the first run of each system" if any(len(row.runs) > 1 for row in bleu.systems) else ""
        yield from ("", f"sentences that differ most, by chrF2++{of_first}")
    for sentence in comparison.sentences:
        rows = [["source", "", sentence.source]] if sentence.source is not None else []
        rows += [["reference", "", reference] for reference in sentence.references]
        scores = [f"{chrf:.2f}" for chrf in sentence.chrf]
        rows += map(list, zip(names, scores, sentence.hypotheses, strict=True))
        yield from ("", f"line {sentence.line}", *table_lines(rows, width, right=[1], indent=INDENT))


def _metric_rows(table: "MetricTable") -> list[Sequence[str]]:
    """Return the rows of a table, without empty columns."""
    rows = table.systems
    scores = [f"{row.mean:.2f}" for row in rows]
    columns = {"system": [row.system for row in rows], "score": scores}
    if any(row.deviation is not None for row in rows):
        spreads = [f" ± {row.deviation:.2f}" if row.deviation is not None else "" for row in rows]
        columns = {"system": columns["system"], "n": [str(len(row.runs)) for row in rows]}
        columns["mean ± sd"] = [score + spread for score, spread in zip(scores, spreads, strict=True)]
    columns["95% interval"] = [f"{row.estimate.low:.2f} to {row.estimate.high:.2f}" for row in rows]
    if len(rows) > 1:
        columns["diff"] = ["" if row.difference is None else f"{row.difference:+.2f}" for row in rows]
        columns["p boot"] = ["" if row.tests is None else f"{row.tests.p_bootstrap:.4f}" for row in rows]
        columns["p rand"] = ["" if row.tests is None else f"{row.tests.p_randomization:.4f}" for row in rows]
    return [list(columns), *zip(*columns.values(), strict=True)]

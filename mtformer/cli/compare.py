"""`mtformer compare`: its options, and a comparison as text that fits the terminal."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtformer.cli.options import CometOption
from mtformer.cli.output import columns, shorten

if TYPE_CHECKING:
    from mtformer.config.schema import EvaluationConfig
    from mtformer.evaluation.compare import Comparison, MetricTable, SentenceRow, SystemScore
    from mtformer.evaluation.systems import Material, System

MOST_NAME, LEAST_NAME = 40, 8
COLUMN = 16
"""Widest column of a system, where each has one."""
INDENT = "  "
READING = (
    "95% interval and p: for other sentences, with these trained models; p by paired bootstrap and by approximate "
    "randomization against the first system ({tests})."
)
SEEDS_READING = "Over seeds: Welch's 95% interval of the difference for other seeds, on these sentences."


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run directories, or with --ref files of hypotheses.", show_default=False
        ),
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="A test set; default: each that all runs have scores on.", show_default=False),
    ] = None,
    ref: Annotated[
        list[Path] | None, typer.Option("--ref", help="File of references; several may be given.", show_default=False)
    ] = None,
    src: Annotated[Path | None, typer.Option("--src", help="File of sources, with --ref.", show_default=False)] = None,
    bleu_tokenizer: Annotated[
        str | None,
        typer.Option(
            "--bleu-tokenizer",
            metavar="NAME",
            help="With --ref: as the key of the `evaluation` section. Runs have their own.",
            show_default="13a",
        ),
    ] = None,
    group: Annotated[
        bool, typer.Option("--group/--no-group", help="Runs that differ in their seed only are one system.")
    ] = True,
    sentences: Annotated[
        int, typer.Option("--sentences", min=0, metavar="N", help="Show the N sentences that differ most.")
    ] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="All of it as JSON.")] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Compare score cards that differ in data, metrics, decoding settings or precision."
        ),
    ] = False,
    comet: CometOption = None,
) -> None:
    """Compare runs, or files of hypotheses: scores, significance, lengths, sentences. The first is the baseline.

    Scores are computed again from the translations that `eval` kept. P-values are sacreBLEU's own, by paired bootstrap
    resampling (1,000 samples) and paired approximate randomization (10,000 trials); SACREBLEU_SEED sets their seed.
    """
    from mtformer.errors import ConfigError
    from mtformer.evaluation.systems import common_sets, group_runs, open_runs, read_files, read_material

    if len(paths) < 2:
        raise ConfigError(f"{paths[0]} alone: give at least two to compare")
    if ref and (sets or force):
        raise ConfigError("--set and --force are for runs; leave them out with --ref")
    if not ref and (src is not None or bleu_tokenizer is not None):
        raise ConfigError("--src and --bleu-tokenizer are for files of hypotheses; give --ref too")
    if ref:
        runs, material = read_files(paths, ref, src, _evaluation(bleu_tokenizer or "13a"))
        systems, materials = group_runs(runs), [material]
        if comet is not None and material.sources is None:
            raise ConfigError("--comet judges by the sources too; give them with --src")
    else:
        runs = open_runs(paths)
        systems = group_runs(runs, group)
        materials = [read_material(name, runs, force) for name in common_sets(runs, sets or [])]
    comparisons = _compare_all(systems, materials, sentences, comet)
    typer.echo(_json(systems, comparisons) if as_json else _text(systems, comparisons))
    for comparison in () if as_json else comparisons:
        for line in [*comparison.ignored, *comparison.notes]:
            typer.echo(f"not alike on {comparison.name}: {line}", err=True)


def _evaluation(bleu_tokenizer: str) -> "EvaluationConfig":
    from pydantic import ValidationError

    from mtformer.config.schema import EvaluationConfig
    from mtformer.errors import ConfigError

    if bleu_tokenizer == "auto":
        raise ConfigError("--bleu-tokenizer auto needs a language, which files do not have; name a tokenizer")
    try:
        return EvaluationConfig.model_validate({"bleu_tokenizer": bleu_tokenizer})
    except ValidationError as error:
        raise ConfigError(f"--bleu-tokenizer '{bleu_tokenizer}': {error.errors()[0]['msg']}") from error


def _compare_all(
    systems: "list[System]", materials: "list[Material]", num_sentences: int, comet_model: str | None
) -> "list[Comparison]":
    from tqdm import tqdm

    from mtformer.evaluation.compare import compare as compare_one
    from mtformer.evaluation.compare import num_units

    comet = None
    if comet_model is not None:
        from mtformer.device import pick_device
        from mtformer.evaluation.comet import Comet

        comet = Comet(comet_model, pick_device("auto").type)
    total = num_units(systems, comet is not None) * len(materials)
    with tqdm(total=total, desc="compare", unit="test", disable=None, leave=False) as bar:
        return [compare_one(systems, material, num_sentences, comet, bar.update) for material in materials]


def _json(systems: "list[System]", comparisons: "list[Comparison]") -> str:
    from mtformer.evaluation.compare import config_differences
    from mtformer.evaluation.systems import seed_of

    values = {
        "systems": [
            {
                "name": system.name,
                "runs": [{"name": run.name, "path": str(run.path), "seed": seed_of(run)} for run in system.runs],
            }
            for system in systems
        ],
        "config_differences": [{"key": key, "values": each} for key, each in config_differences(systems)],
        "sets": [asdict(comparison) for comparison in comparisons],
    }
    return json.dumps(values, indent=2, ensure_ascii=False)


def _text(systems: "list[System]", comparisons: "list[Comparison]") -> str:
    """Return lines that fit the terminal, where the names allow it."""
    width, names = shutil.get_terminal_size((100, 24)).columns, [system.name for system in systems]
    blocks = [_systems_text(systems, names, width)]
    blocks += [_comparison_text(comparison, names, width) for comparison in comparisons]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _systems_text(systems: "Sequence[System]", names: Sequence[str], width: int) -> list[str]:
    """Return which runs are one system, and the keys in which the systems' configs differ."""
    from mtformer.evaluation.compare import config_differences

    lines = []
    grouped = [f"{system.name}: {'; '.join(run.name for run in system.runs)}" for system in systems if system.runs[1:]]
    if grouped:
        lines += ["systems of several seeds"]
        lines += [line for text in grouped for line in _wrapped(text, width, INDENT, INDENT * 2)]
    rows = [[key, *(json.dumps(v, ensure_ascii=False) for v in values)] for key, values in config_differences(systems)]
    if rows:
        lines += ["", "configs differ in"] if lines else ["configs differ in"]
        lines += _by_system(["key", *names], rows, width)
    return lines


def _comparison_text(comparison: "Comparison", names: Sequence[str], width: int) -> list[str]:
    bleu = comparison.metrics[0]
    lines = [f"{comparison.name}: {comparison.num_sentences:,} sentences"]
    for table in comparison.metrics:
        lines += ["", f"{table.label}  {table.signature}", *_metric_table(table, width)]
    if len(names) > 1:
        lines += ["", *_wrapped(READING.format(tests=bleu.tests), width)]
    if any(row.seeds_interval for row in bleu.systems):
        lines += _wrapped(SEEDS_READING, width)
    if comparison.buckets:
        lines += ["", f"{bleu.label} by the source's number of {comparison.unit}"]
        rows = []
        for bucket in comparison.buckets:
            lengths = f"{bucket.low}+" if bucket.high is None else f"{bucket.low}-{bucket.high}"
            rows.append([lengths, f"{bucket.num_sentences:,}", *(f"{score:.2f}" for score in bucket.scores[bleu.name])])
        lines += _by_system([comparison.unit, "sentences", *names], rows, width, num_fixed=2)
    if comparison.sentences:
        of_first = ", in the first run of each" if any(len(row.runs) > 1 for row in bleu.systems) else ""
        lines += ["", f"sentences that differ most, by chrF2++{of_first}"]
        for sentence in comparison.sentences:
            lines += ["", *_sentence(sentence, names, width)]
    return lines


def _metric_table(table: "MetricTable", width: int) -> list[str]:
    digits = 4 if table.name == "comet" else 2
    has_seeds = any(row.deviation is not None for row in table.systems)
    header = ["system", "n", "mean ± sd" if has_seeds else "score", "95% interval"]
    header += ["diff", "p boot", "p rand", "over seeds"] if len(table.systems) > 1 else []
    hidden = set() if has_seeds else {"n"}
    hidden |= set() if any(row.seeds_interval for row in table.systems) else {"over seeds"}
    rows = [header, *(_cells(row, digits) for row in table.systems)]
    cells = [[cell for cell, name in zip(row, header, strict=False) if name not in hidden] for row in rows]
    others = sum(max(map(len, column)) + 2 for column in list(zip(*cells, strict=True))[1:]) + len(INDENT)
    most = min(MOST_NAME, max(LEAST_NAME, width - others))
    return _aligned([[shorten(row[0], most), *row[1:]] for row in cells])


def _cells(row: "SystemScore", digits: int) -> list[str]:
    score = f"{row.mean:.{digits}f}" + (f" ± {row.deviation:.{digits}f}" if row.deviation is not None else "")
    found = [row.system, str(len(row.runs)), score, _interval((row.estimate.low, row.estimate.high), digits)]
    if row.difference is None or row.tests is None:
        return [*found, "", "", "", ""]
    tests = [f"{p:.4f}" for p in (row.tests.p_bootstrap, row.tests.p_randomisation)]
    over_seeds = _interval(row.seeds_interval, digits, "+") if row.seeds_interval else ""
    return [*found, f"{row.difference:+.{digits}f}", *tests, over_seeds]


def _interval(bounds: tuple[float, float], digits: int, sign: str = "") -> str:
    low, high = (f"{bound:{sign}.{digits}f}" for bound in bounds)
    return f"{low} to {high}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in rows]
    return [INDENT + line for line in columns(right)]


def _by_system(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, num_fixed: int = 1) -> list[str]:
    """Return a table with a column for each system, cut into several that repeat the first `num_fixed` columns."""
    cells = [[row[0], *(shorten(cell, COLUMN) for cell in row[1:])] for row in (header, *rows)]
    fixed = len(INDENT) + max(len(row[0]) for row in cells) + sum(len(name) + 2 for name in header[1:num_fixed])
    most = max(1, (width - fixed) // (COLUMN + 2))
    lines: list[str] = []
    for start in range(num_fixed, len(header), most):
        lines += ([""] if lines else []) + _aligned([row[:num_fixed] + row[start : start + most] for row in cells])
    return lines


def _sentence(row: "SentenceRow", names: Sequence[str], width: int) -> list[str]:
    most = max(len("reference"), *(min(len(name), COLUMN) for name in names)) + 7
    texts = [("source", row.source)] if row.source is not None else []
    texts += [("reference", reference) for reference in row.references]
    texts += [
        (f"{shorten(name, COLUMN):<{most - 7}} {chrf:6.2f}", text)
        for name, chrf, text in zip(names, row.chrf, row.hypotheses, strict=True)
    ]
    lines = [f"line {row.line}"]
    for label, text in texts:
        lines += _wrapped(text, width, f"{INDENT}{label:<{most}}  ", " " * (len(INDENT) + most + 2))
    return lines


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    room = max(width, len(first) + 20)
    return textwrap.wrap(text, room, initial_indent=first, subsequent_indent=others) or [first.rstrip()]

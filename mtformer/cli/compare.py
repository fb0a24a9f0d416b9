"""`mtformer compare`: its options, and a comparison as text that fits the terminal."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtformer.cli.options import CometOption
from mtformer.cli.output import columns, shorten

if TYPE_CHECKING:
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

    Scores are made anew from the translations that `eval` kept. P-values are sacreBLEU's own, by paired bootstrap
    resampling (1,000 samples) and paired approximate randomization (10,000 trials); SACREBLEU_SEED sets their seed.
    """
    from mtformer.errors import ConfigError
    from mtformer.evaluation.systems import common_sets, group_runs, open_runs, read_material

    _check_options(paths, sets, ref, src, bleu_tokenizer, force)
    if ref:
        systems, materials = _files(paths, ref, src, bleu_tokenizer)
    else:
        runs = open_runs(paths)
        systems = group_runs(runs, group)
        materials = [read_material(name, runs, force) for name in common_sets(runs, sets or [])]
    if comet is not None and materials[0].sources is None:
        raise ConfigError("--comet judges by the sources too; give them with --src")
    _show(systems, _compare_all(systems, materials, sentences, comet), as_json)


def _check_options(
    paths: list[Path],
    sets: list[str] | None,
    ref: list[Path] | None,
    src: Path | None,
    bleu_tokenizer: str | None,
    force: bool,
) -> None:
    from mtformer.errors import ConfigError

    if len(paths) < 2:
        raise ConfigError(f"{paths[0]} alone: give at least two to compare")
    if ref and (sets or force):
        raise ConfigError("--set and --force are for runs; leave them out with --ref")
    if not ref and (src is not None or bleu_tokenizer is not None):
        raise ConfigError("--src and --bleu-tokenizer are for files of hypotheses; give --ref too")


def _files(
    paths: list[Path], ref: list[Path], src: Path | None, bleu_tokenizer: str | None
) -> "tuple[list[System], list[Material]]":
    from pydantic import ValidationError

    from mtformer.config.schema import EvaluationConfig
    from mtformer.errors import ConfigError
    from mtformer.evaluation.systems import group_runs, read_files

    if bleu_tokenizer == "auto":
        raise ConfigError("--bleu-tokenizer auto needs a language, which files do not have; name a tokenizer")
    try:
        evaluation = EvaluationConfig.model_validate({"bleu_tokenizer": bleu_tokenizer or "13a"})
    except ValidationError as error:
        raise ConfigError(f"--bleu-tokenizer '{bleu_tokenizer}': {error.errors()[0]['msg']}") from error
    runs, material = read_files(paths, ref, src, evaluation)
    return group_runs(runs), [material]


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


def _show(systems: "list[System]", comparisons: "list[Comparison]", as_json: bool) -> None:
    from mtformer.evaluation.compare import config_differences
    from mtformer.evaluation.systems import seed_of

    differences = config_differences(systems)
    if as_json:
        described: list[dict[str, Any]] = [
            {
                "name": system.name,
                "runs": [{"name": run.name, "path": str(run.path), "seed": seed_of(run)} for run in system.runs],
            }
            for system in systems
        ]
        values = {
            "systems": described,
            "config_differences": [{"key": key, "values": each} for key, each in differences],
            "sets": [asdict(comparison) for comparison in comparisons],
        }
        typer.echo(json.dumps(values, indent=2, ensure_ascii=False))
        return
    width = shutil.get_terminal_size((100, 24)).columns
    blocks = [_systems_text(systems, differences, width)]
    blocks += [_comparison_text(comparison, [system.name for system in systems], width) for comparison in comparisons]
    typer.echo("\n\n".join("\n".join(block) for block in blocks if block))
    for comparison in comparisons:
        for line in [*comparison.ignored, *comparison.notes]:
            typer.echo(f"not alike on {comparison.name}: {line}", err=True)


def _systems_text(systems: "Sequence[System]", differences: Sequence[tuple[str, list[Any]]], width: int) -> list[str]:
    """Return which runs are one system, and the keys in which the systems' configs differ."""
    lines = []
    grouped = [system for system in systems if len(system.runs) > 1]
    if grouped:
        lines.append("systems of several seeds")
        told = [f"{system.name}: {'; '.join(run.name for run in system.runs)}" for system in grouped]
        lines += [line for text in told for line in _wrapped(text, width, INDENT, INDENT * 2)]
    if differences:
        lines += ["", "configs differ in"] if lines else ["configs differ in"]
        rows = [(key, [json.dumps(value, ensure_ascii=False) for value in values]) for key, values in differences]
        lines += _by_system("key", rows, [system.name for system in systems], width)
    return lines


def _comparison_text(comparison: "Comparison", names: Sequence[str], width: int) -> list[str]:
    """Return lines of at most `width` characters, where the names allow it."""
    lines = [f"{comparison.name}: {comparison.num_sentences:,} sentences"]
    for table in comparison.metrics:
        lines += ["", f"{table.label}  {table.signature}", *_metric_table(table, width)]
    if len(names) > 1:
        lines += ["", *_wrapped(READING.format(tests=comparison.metrics[0].tests), width)]
    if any(row.seeds_interval for row in comparison.metrics[0].systems):
        lines += _wrapped(SEEDS_READING, width)
    if comparison.buckets:
        bleu = comparison.metrics[0]
        lines += ["", f"{bleu.label} by the source's number of {comparison.unit}"]
        rows = [
            (
                f"{bucket.low}+" if bucket.high is None else f"{bucket.low}-{bucket.high}",
                [f"{bucket.num_sentences:,}", *(f"{score:.2f}" for score in bucket.scores[bleu.name])],
            )
            for bucket in comparison.buckets
        ]
        lines += _by_system(comparison.unit, rows, ["sentences", *names], width, num_fixed=1)
    if comparison.sentences:
        has_seeds = any(len(row.runs) > 1 for row in comparison.metrics[0].systems)
        lines += ["", f"sentences that differ most, by chrF2++{', in the first run of each' if has_seeds else ''}"]
        for sentence in comparison.sentences:
            lines += ["", *_sentence(sentence, names, width)]
    return lines


def _metric_table(table: "MetricTable", width: int) -> list[str]:
    digits = 4 if table.name == "comet" else 2
    has_seeds = any(row.deviation is not None for row in table.systems)
    has_interval = any(row.seeds_interval for row in table.systems)
    header = ["system", "n", "mean ± sd" if has_seeds else "score", "95% interval"]
    header += ["diff", "p boot", "p rand", "over seeds"] if len(table.systems) > 1 else []
    cells = [header, *(_cells(row, digits)[: len(header)] for row in table.systems)]
    kept = [i for i, name in enumerate(header) if has_seeds or name != "n"]
    kept = [i for i in kept if has_interval or header[i] != "over seeds"]
    cells = [[row[i] for i in kept] for row in cells]
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


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Align the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in cells]
    return [INDENT + line for line in columns(rows)]


def _interval(bounds: tuple[float, float], digits: int, sign: str = "") -> str:
    low, high = (f"{bound:{sign}.{digits}f}" for bound in bounds)
    return f"{low} to {high}"


def _by_system(
    what: str, rows: Sequence[tuple[str, list[str]]], names: Sequence[str], width: int, num_fixed: int = 0
) -> list[str]:
    """Return a table with a column for each system, cut into several if they do not fit beside each other.

    Args:
        what: the head of the first column.
        rows: its cells, and those of the other columns.
        names: heads of those.
        width: of the terminal.
        num_fixed: how many of the other columns come again in each table.
    """
    first = max(len(what), *(len(name) for name, _ in rows))
    fixed = first + num_fixed * (2 + max(map(len, names[:num_fixed]), default=0)) + len(INDENT)
    most = max(1, (width - fixed) // (COLUMN + 2))
    lines: list[str] = []
    for start in range(num_fixed, len(names), most):
        chosen = [*range(num_fixed), *range(start, min(start + most, len(names)))]
        cells = [[what, *(shorten(names[i], COLUMN) for i in chosen)]]
        cells += [[name, *(shorten(values[i], COLUMN) for i in chosen)] for name, values in rows]
        lines += ([""] if lines else []) + _aligned(cells)
    return lines


def _sentence(row: "SentenceRow", names: Sequence[str], width: int) -> list[str]:
    texts = [("source", row.source)] if row.source is not None else []
    texts += [("reference", reference) for reference in row.references]
    most = max(len("reference"), *(min(len(name), COLUMN) for name in names)) + 7
    texts += [
        (f"{shorten(name, COLUMN):<{most - 7}} {chrf:6.2f}", text)
        for name, chrf, text in zip(names, row.chrf, row.hypotheses, strict=True)
    ]
    lines = [f"line {row.line}"]
    for label, text in texts:
        lines += _wrapped(text or "", width, f"{INDENT}{label:<{most}}  ", " " * (len(INDENT) + most + 2))
    return lines


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    room = max(width, len(first) + 20)
    return textwrap.wrap(text, room, initial_indent=first, subsequent_indent=others) or [first.rstrip()]

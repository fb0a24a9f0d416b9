"""A comparison as text that fits the terminal."""

import json
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mtformer.cli.output import columns

if TYPE_CHECKING:
    from mtformer.evaluation.compare import Comparison, MetricTable, SentenceRow, SystemScore
    from mtformer.evaluation.systems import System

MOST_NAME, LEAST_NAME = 40, 8
COLUMN = 16
"""Widest column of a system, where each has one."""
INDENT = "  "
READING = (
    "95% interval and p: for other sentences, with these trained models; p by paired bootstrap and by approximate "
    "randomisation against the first system ({tests})."
)
SEEDS_READING = "Over seeds: Welch's 95% interval of the difference for other seeds, on these sentences."


def systems_text(systems: "Sequence[System]", differences: Sequence[tuple[str, list[Any]]], width: int) -> list[str]:
    """Which runs are one system, and in which keys the systems' configs differ."""
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


def comparison_text(comparison: "Comparison", names: Sequence[str], width: int) -> list[str]:
    """All of it as lines of at most `width` characters, where the names allow it."""
    lines = [f"{comparison.name}: {comparison.num_sentences:,} sentences"]
    for table in comparison.metrics:
        lines += ["", f"{table.label}  {table.signature}", *_table(table, width)]
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


def _table(table: "MetricTable", width: int) -> list[str]:
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
    return _aligned([[_clipped(row[0], most), *row[1:]] for row in cells])


def _cells(row: "SystemScore", digits: int) -> list[str]:
    score = f"{row.mean:.{digits}f}" + (f" ± {row.deviation:.{digits}f}" if row.deviation is not None else "")
    found = [row.system, str(len(row.runs)), score, _interval((row.estimate.low, row.estimate.high), digits)]
    if row.difference is None or row.tests is None:
        return [*found, "", "", "", ""]
    tests = [f"{p:.4f}" for p in (row.tests.p_bootstrap, row.tests.p_randomisation)]
    over_seeds = _interval(row.seeds_interval, digits, "+") if row.seeds_interval else ""
    return [*found, f"{row.difference:+.{digits}f}", *tests, over_seeds]


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rows = [[row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in cells]
    return [INDENT + line for line in columns(rows)]


def _interval(bounds: tuple[float, float], digits: int, sign: str = "") -> str:
    low, high = (f"{bound:{sign}.{digits}f}" for bound in bounds)
    return f"{low} to {high}"


def _by_system(
    what: str, rows: Sequence[tuple[str, list[str]]], names: Sequence[str], width: int, num_fixed: int = 0
) -> list[str]:
    """A table with a column for each system, cut into several when they do not fit beside each other.

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
        cells = [[what, *(_clipped(names[i], COLUMN) for i in chosen)]]
        cells += [[name, *(_clipped(values[i], COLUMN) for i in chosen)] for name, values in rows]
        lines += ([""] if lines else []) + _aligned(cells)
    return lines


def _sentence(row: "SentenceRow", names: Sequence[str], width: int) -> list[str]:
    texts = [("source", row.source)] if row.source is not None else []
    texts += [("reference", reference) for reference in row.references]
    most = max(len("reference"), *(min(len(name), COLUMN) for name in names)) + 7
    texts += [
        (f"{_clipped(name, COLUMN):<{most - 7}} {chrf:6.2f}", text)
        for name, chrf, text in zip(names, row.chrf, row.hypotheses, strict=True)
    ]
    lines = [f"line {row.line}"]
    for label, text in texts:
        lines += _wrapped(text or "", width, f"{INDENT}{label:<{most}}  ", " " * (len(INDENT) + most + 2))
    return lines


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    room = max(width, len(first) + 20)
    return textwrap.wrap(text, room, initial_indent=first, subsequent_indent=others) or [first.rstrip()]


def _clipped(text: str, most: int) -> str:
    """With the middle left out: names of runs differ at their ends."""
    if len(text) <= most:
        return text
    front = (most - 1) // 2
    return f"{text[:front]}…{text[front + 1 - most :]}"

"""Report on checked corpora: lines for the terminal, an HTML page, and the exceeded limits."""

import os
from collections.abc import Sequence
from typing import NamedTuple

from mtformer.config.data import DataConfig
from mtformer.data.check.check import TEXT_LENGTH
from mtformer.data.check.result import (
    NORMALIZED,
    SIDES,
    UNITS,
    CorpusCheck,
    Example,
    Finding,
    Lengths,
    SetCheck,
    percentile,
)
from mtformer.data.corpus.readers import FaultKind
from mtformer.templating import render

SIDE_NAMES = {"src": "source", "tgt": "target", "pair": ""}
EXCERPT = 60  # maximum number of characters of an example in the terminal
RATES = {"tokens_per_word": "tokens per word", "tokens_per_character": "tokens per character"}


class Excess(NamedTuple):
    """An exceeded limit: its config key, the set, and a message."""

    limit: str
    name: str
    message: str


def exceeded_limits(check: CorpusCheck, data: DataConfig) -> list[Excess]:
    """Return exceeded limits of `data.check` and `data.filters`, with empty sets."""
    exceeded = list[Excess]()

    def test(name: str, key: str, value: float, what: str, remedy: str) -> None:
        section, _, field = key.rpartition(".")
        limit: float = getattr(data.filters if section else data.check, field)
        if value > limit:
            key = f"data.{section or 'check'}.{field}"
            exceeded.append(Excess(key, name, f"{name}: {what}, more than {key} {limit:g}; {remedy}"))

    for one in check.sets:
        if not one.pairs:
            exceeded.append(Excess("no pairs", one.name, f"{one.name}: no pairs found; give sources that contain text"))
        if invalid := [
            finding
            for finding in one.findings.values()
            if finding.kind in (FaultKind.INVALID, FaultKind.SHORT, FaultKind.BROKEN)
        ]:
            count, first = sum(finding.count for finding in invalid), invalid[0].examples[0]
            kinds = ", ".join(f"{title(finding)} {finding.count:,}" for finding in invalid)
            remedy = f"fix them (the first: {first.file}:{first.line}" + (f": {first.note})" if first.note else ")")
            test(one.name, "max_invalid_lines", count, f"{count:,} lines cannot be read ({kinds})", remedy)
        for side in SIDES:
            counts, where = one.side(side), SIDE_NAMES[side]
            what = f"{counts.faulty_lines:,} {where} lines contain characters that break lines or indicate damage"
            test(one.name, "max_faulty_share", counts.faulty_lines / max(1, one.pairs), what, "fix them")
            if (unknown := counts.rates()["unknown_rate"]) is not None and not one.name.startswith("test."):
                what, remedy = f"{percent(unknown)} of the {where} tokens are unknown", "use tokenizer.byte_fallback"
                test(one.name, "max_unknown_rate", unknown, what, f"{remedy}, or a tokenizer trained on this text")
        removed = one.num_removed() / max(1, one.pairs)
        what = f"the filters remove {percent(removed)} of the pairs"
        test(one.name, "filters.max_filtered_share", removed, what, "fix the files, or change the filters")
    for overlap in check.overlaps:
        if overlap.within == "train":
            count = overlap.found["pair"].count
            what = f"{count:,} of {overlap.size:,} pairs also occur in train"
            test(overlap.of, "max_test_overlap", count / max(1, overlap.size), what, "remove them from train")
    return exceeded


def verdict(exceeded: Sequence[Excess]) -> str:
    """Return the last line of the report: "ok" or the exceeded limits."""
    if not exceeded:
        return "ok: no limit exceeded"
    names = ", ".join(f"{one.limit} ({one.name})" for one in exceeded)
    return f"failed: {len(exceeded)} limit{'s' * (len(exceeded) > 1)} exceeded: {names}"


def report_lines(check: CorpusCheck) -> list[str]:
    """Return the report for the terminal."""
    lines = [line for one in check.sets for line in _set_lines(one)]
    for overlap in check.overlaps:
        counts = [overlap.found[side].count for side in ("pair", *SIDES)]
        sides = f"{counts[1]:,} sources, {counts[2]:,} targets"
        lines.append(f"{counts[0]:,} of {overlap.size:,} {overlap.of} pairs also occur in {overlap.within} ({sides})")
        lines += [line for finding in overlap.found.values() for line in _example_lines(finding)]
    if not check.has_tokenizer:
        lines.append("no tokenizer given: tokens are not counted, and length filters are not applied")
    return lines


def _set_lines(one: SetCheck) -> list[str]:
    lines = [f"{one.name}: {one.pairs:,} pairs", *(f"  {count.name}: {count.pairs:,} pairs" for count in one.sources)]
    rows = [("", *(f"{SIDE_NAMES[side]} ({one.side(side).language})" for side in SIDES)), *figures(one)]
    lines += [f"  {name:<36}  {src:>24}  {tgt:>24}" for name, src, tgt in rows]
    for finding in one.findings.values():
        lines += [f"  {finding.count:>9,}  {title(finding)} ({percent(finding.count / one.pairs)})"]
        lines[-1] += f"; {finding.rule}" if finding.rule else ""
        lines += _example_lines(finding)
    if one.removed is not None:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in one.removed.items())
        share = percent(one.num_removed() / max(1, one.pairs))
        lines += ["", f"  the filters remove {one.num_removed():,} pairs ({share})"]
        lines[-1] += f": {reasons}" if reasons else ""
    return [*lines, ""]


def _example_lines(finding: Finding) -> list[str]:
    """Return a line with the worst example; two examples if the line is not faulty in itself."""
    lines = []
    for one in finding.examples[: 2 if finding.kind == NORMALIZED else 1]:
        texts = {"src": [one.src], "tgt": [one.tgt]}.get(finding.side, [one.src, one.tgt])
        excerpt = " | ".join(printable(text, EXCERPT // len(texts)) for text in texts) if any(texts) else ""
        note = f"[{one.note}]" if one.note else ""
        lines.append("  ".join(filter(None, (f"             {os.path.basename(one.file)}:{one.line}", note, excerpt))))
    return lines


def figures(one: SetCheck) -> list[tuple[str, ...]]:
    """Return the name, source value and target value of each statistic of a set."""
    rows = []
    for unit in UNITS:
        sides = [one.side(side).lengths.get(unit) for side in SIDES]
        if any(sides):
            rows.append((unit, *("-" if lengths is None else f"{lengths.sum():,}" for lengths in sides)))
            rows.append(("  per line: mean, median, 99 %, longest", *map(_summary, sides)))
    rates = [one.side(side).rates() for side in SIDES]
    for key, name in RATES.items():
        rows.append((name, *("-" if (value := rate[key]) is None else f"{value:.2f}" for rate in rates)))
    rows.append(("unknown tokens", *(percent(rate["unknown_rate"]) for rate in rates)))
    return [row for row in rows if row[1:] != ("-", "-")]


def _summary(lengths: Lengths | None) -> str:
    if lengths is None:
        return "-"
    mean, median, most = lengths.sum() / max(1, lengths.total()), percentile(lengths, 50), percentile(lengths, 99)
    return f"{mean:.1f}, {median:,}, {most:,}, {max(lengths, default=0):,}"


def title(finding: Finding) -> str:
    """Return the title of a finding: side and kind."""
    return f"{SIDE_NAMES[finding.side]}: {finding.kind}".removeprefix(": ")


def printable(text: str, length: int | None = None) -> str:
    """Truncate text to `length` characters and escape nonprintable characters."""
    cut = text if length is None or len(text) <= length else text[: length - 1] + "…"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in cut)


def percent(share: float | None) -> str:
    """Format a share as a percentage."""
    return "-" if share is None else f"{100 * share:.3g} %"


def random_pairs(one: SetCheck) -> list[tuple[str, Example]]:
    """Return (reason, pair) of all samples in random order; the first ones are a random sample of all pairs."""
    pairs = [(reason, example) for reason, sample in one.sample.items() for example in sample]
    return sorted(pairs, key=lambda pair: pair[1].rank)


def page(check: CorpusCheck, exceeded: Sequence[Excess]) -> str:
    """Return the HTML page, which loads nothing from the network."""
    heading = f"Corpus check, {check.src_lang}-{check.tgt_lang}"
    values = {"check": check, "exceeded": exceeded, "units": UNITS, "sides": SIDE_NAMES, "max_text": TEXT_LENGTH}
    functions = {"figures": figures, "random_pairs": random_pairs, "finding_title": title, "percentile": percentile}
    return render("check.html", title=heading, **values, **functions, printable=printable, percent=percent)

"""Report on checked corpora: lines for the terminal, an HTML page, and the exceeded limits."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mtformer.config.data import DataConfig
from mtformer.data.check.check import TEXT_LENGTH
from mtformer.data.check.layout import STYLES
from mtformer.data.check.result import (
    SIDE_NAMES,
    SIDES,
    UNITS,
    CorpusCheck,
    Example,
    Finding,
    FindingKind,
    Lengths,
    Overlap,
    SetCheck,
    percentile,
)
from mtformer.data.corpus.readers import FaultKind
from mtformer.formatting import printable
from mtformer.templating import render

EXCERPT = 60
"""Maximum number of characters of an example in the terminal."""
NAME_WIDTH = 39
"""Width of the names of figures; with the values, a line has at most 80 characters."""
VALUE_WIDTH = 18
"""Width of the values of each side."""

RATES = {"tokens_per_word": "tokens per word", "tokens_per_character": "tokens per character"}
"""Names of the rates of `SideCounts.rates` in the report, except for that of unknown tokens."""

UNREADABLE = (FaultKind.INVALID, FaultKind.SHORT, FaultKind.BROKEN)
"""Faults of lines that cannot be read."""


class Excess(NamedTuple):
    """An exceeded limit: its config key, the set, and a message."""

    limit: str
    name: str
    message: str


class _Measure(NamedTuple):
    """A value that has a limit in the config."""

    set_name: str
    key: str
    """Key of the limit in `data`."""
    value: float
    description: str
    """The value in words."""
    remedy: str


def exceeded_limits(check: CorpusCheck, data: DataConfig) -> list[Excess]:
    """Return exceeded limits of `data.check` and `data.filters`, with empty sets and lines in wrong places."""
    exceeded: list[Excess] = []
    for set_check in check.sets:
        name = set_check.name
        if not set_check.pairs:
            exceeded.append(Excess("no pairs", name, f"{name}: no pairs found; give sources that contain text"))
        else:
            exceeded += _empty_sources(set_check)
            exceeded += _misplaced_lines(set_check)
        exceeded += _over_limit(_set_measures(set_check), data)
    return exceeded + _over_limit(_overlap_measures(check.overlaps), data)


def _empty_sources(set_check: SetCheck) -> Iterator[Excess]:
    """Yield an excess for each source without pairs in a set that has pairs."""
    for source in set_check.sources:
        if not source.pairs:
            message = f"{set_check.name}: {source.name}: no pairs found; give a file that contains text"
            yield Excess("no pairs", set_check.name, message)


def _misplaced_lines(set_check: SetCheck) -> Iterator[Excess]:
    """Yield an excess for shifted or swapped lines, of which a model learns nothing."""
    for kind in (FindingKind.SHIFTED, FindingKind.SWAPPED):
        finding = set_check.findings.get((kind, "pair"))
        if finding is not None:
            message = f"{set_check.name}: {finding.kind} in {finding.count:,} pairs; {finding.rule}"
            yield Excess(finding.kind, set_check.name, message)


def _over_limit(measures: Iterator[_Measure], data: DataConfig) -> list[Excess]:
    exceeded: list[Excess] = []
    for measure in measures:
        section, field = measure.key.split(".")
        limit: float = getattr(getattr(data, section), field)
        if measure.value > limit:
            key = f"data.{measure.key}"
            excess = f"{measure.description}, more than {key} {limit:g}"
            message = f"{measure.set_name}: {excess}; {measure.remedy}"
            exceeded.append(Excess(key, measure.set_name, message))
    return exceeded


def _set_measures(set_check: SetCheck) -> Iterator[_Measure]:
    """Yield the values of a set that have a limit."""
    name = set_check.name
    num_pairs = max(1, set_check.pairs)
    findings = set_check.findings.values()
    unreadable = [finding for finding in findings if finding.kind in UNREADABLE]
    if unreadable:
        yield _unreadable_lines(name, unreadable)

    for side in SIDES:
        side_name = SIDE_NAMES[side]
        counts = set_check.side(side)
        description = (
            f"{counts.faulty_lines:,} {side_name} lines contain characters that break lines or indicate damage"
        )
        yield _Measure(name, "check.max_faulty_share", counts.faulty_lines / num_pairs, description, "fix them")

        unknown_rate = counts.rates()["unknown_rate"]
        if unknown_rate is not None and not name.startswith("test."):
            description = f"{percent(unknown_rate)} of the {side_name} tokens are unknown"
            remedy = "use tokenizer.byte_fallback, or a tokenizer trained on this text"
            yield _Measure(name, "check.max_unknown_rate", unknown_rate, description, remedy)

    removed_share = set_check.num_removed() / num_pairs
    description = f"the filters remove {percent(removed_share)} of the pairs"
    remedy = "fix the files, or change the filters"
    yield _Measure(name, "filters.max_filtered_share", removed_share, description, remedy)


def _unreadable_lines(set_name: str, findings: Sequence[Finding]) -> _Measure:
    """Return the number of lines that cannot be read, with the place of the first one."""
    count = sum(finding.count for finding in findings)
    kinds = [f"{finding.title} {finding.count:,}" for finding in findings]
    description = f"{count:,} lines cannot be read ({', '.join(kinds)})"

    example = findings[0].examples[0]
    place = f"{example.file}:{example.line}"
    if example.note:
        place += f": {example.note}"
    remedy = f"fix them (the first: {place})"
    return _Measure(set_name, "check.max_invalid_lines", count, description, remedy)


def _overlap_measures(overlaps: Sequence[Overlap]) -> Iterator[_Measure]:
    """Yield the share of each dev or test set that also occurs in train."""
    for overlap in overlaps:
        if overlap.within == "train":
            count = overlap.found["pair"].count
            share = count / max(1, overlap.size)
            description = f"{count:,} of {overlap.size:,} pairs also occur in train"
            yield _Measure(overlap.of, "check.max_test_overlap", share, description, "remove them from train")


def unusual_styles(check: CorpusCheck) -> list[str]:
    """Return the sets and sides with tokenized text or text in one case, such as `source: tokenized text (train)`."""
    styles: list[str] = []
    for set_check in check.sets:
        for finding in set_check.findings.values():
            if finding.kind in STYLES:
                styles.append(f"{finding.title} ({set_check.name})")
    return styles


def verdict(exceeded: Sequence[Excess], styles: Sequence[str] = ()) -> str:
    """Return the last line of the report: the exceeded limits, or "ok", with styles that a user must know."""
    if not exceeded and styles:
        return f"ok: no limit exceeded, but this is not usual text: {', '.join(styles)}; see above what follows"
    if not exceeded:
        return "ok: no limit exceeded"
    limits = "1 limit" if len(exceeded) == 1 else f"{len(exceeded)} limits"
    names = [f"{excess.limit} ({excess.name})" for excess in exceeded]
    return f"failed: {limits} exceeded: {', '.join(names)}"


def report_lines(check: CorpusCheck) -> list[str]:
    """Return the report for the terminal."""
    lines: list[str] = []
    for set_check in check.sets:
        lines += _set_lines(set_check)
    for overlap in check.overlaps:
        lines += _overlap_lines(overlap)
    if not check.has_tokenizer:
        lines.append("no tokenizer given: tokens are not counted, and length filters are not applied")
    return lines


def _set_lines(set_check: SetCheck) -> list[str]:
    num_pairs = set_check.pairs
    lines = [f"{set_check.name}: {num_pairs:,} pairs"]
    for source in set_check.sources:
        lines.append(f"  {source.name}: {source.pairs:,} pairs")

    src_title = f"{SIDE_NAMES['src']} ({set_check.src.language})"
    tgt_title = f"{SIDE_NAMES['tgt']} ({set_check.tgt.language})"
    rows = [("", src_title, tgt_title), *figures(set_check)]
    for name, src_value, tgt_value in rows:
        lines.append(f"  {name:<{NAME_WIDTH}} {src_value:>{VALUE_WIDTH}} {tgt_value:>{VALUE_WIDTH}}")

    for finding in set_check.findings.values():
        share = percent(finding.count / num_pairs)
        description = f"{finding.title} ({share})"
        if finding.rule:
            description += f"; {finding.rule}"
        lines.append(f"  {finding.count:>9,}  {description}")
        lines += _example_lines(finding)

    if set_check.removed is not None:
        lines += ["", _removal_line(set_check, set_check.removed)]
    return [*lines, ""]


def _removal_line(set_check: SetCheck, removed: Mapping[str, int]) -> str:
    """Return the line about the pairs that the filters remove; `removed` is their number by reason."""
    num_removed = set_check.num_removed()
    share = percent(num_removed / max(1, set_check.pairs))
    line = f"  the filters remove {num_removed:,} pairs ({share})"
    if not removed:
        return line
    counts = [f"{reason} {count:,}" for reason, count in removed.items()]
    return f"{line}: {', '.join(counts)}"


def _overlap_lines(overlap: Overlap) -> list[str]:
    pairs = overlap.found["pair"].count
    sources = overlap.found["src"].count
    targets = overlap.found["tgt"].count
    total = f"{overlap.size:,} {overlap.of} pairs"
    sides = f"{sources:,} sources, {targets:,} targets"
    lines = [f"{pairs:,} of {total} also occur in {overlap.within} ({sides})"]
    for finding in overlap.found.values():
        lines += _example_lines(finding)
    return lines


def _example_lines(finding: Finding) -> list[str]:
    """Return a line with the worst example; two examples if the line is not faulty in itself."""
    num_examples = 2 if finding.kind == FindingKind.NORMALIZED else 1
    lines: list[str] = []
    for example in finding.examples[:num_examples]:
        file = os.path.basename(example.file)
        parts = [f"             {file}:{example.line}"]
        if example.note:
            parts.append(f"[{example.note}]")
        excerpt = _excerpt(example, finding.side)
        if excerpt:
            parts.append(excerpt)
        lines.append("  ".join(parts))
    return lines


def _excerpt(example: Example, side: str) -> str:
    """Return the start of the text of a side, or of both sides of a pair; empty if there is no text."""
    if side == "src":
        return printable(example.src, EXCERPT)
    if side == "tgt":
        return printable(example.tgt, EXCERPT)
    if not example.src and not example.tgt:
        return ""
    src = printable(example.src, EXCERPT // 2)
    tgt = printable(example.tgt, EXCERPT // 2)
    return f"{src} | {tgt}"


def figures(set_check: SetCheck) -> list[tuple[str, str, str]]:
    """Return the name, source value and target value of each statistic of a set."""
    src = set_check.src
    tgt = set_check.tgt
    rows: list[tuple[str, str, str]] = []
    for unit in UNITS:
        src_lengths = src.lengths.get(unit)
        tgt_lengths = tgt.lengths.get(unit)
        if src_lengths or tgt_lengths:
            rows.append((unit, _total(src_lengths), _total(tgt_lengths)))
            src_summary = _summary(src_lengths)
            tgt_summary = _summary(tgt_lengths)
            rows.append(("  per line: mean, median, 99 %, longest", src_summary, tgt_summary))

    src_rates = src.rates()
    tgt_rates = tgt.rates()
    for key, name in RATES.items():
        src_rate = _rate(src_rates[key])
        tgt_rate = _rate(tgt_rates[key])
        rows.append((name, src_rate, tgt_rate))
    src_unknown = percent(src_rates["unknown_rate"])
    tgt_unknown = percent(tgt_rates["unknown_rate"])
    rows.append(("unknown tokens", src_unknown, tgt_unknown))
    return [row for row in rows if row[1:] != ("-", "-")]


def _total(lengths: Lengths | None) -> str:
    return "-" if lengths is None else f"{lengths.sum():,}"


def _summary(lengths: Lengths | None) -> str:
    if lengths is None:
        return "-"
    median = percentile(lengths, 50)
    high = percentile(lengths, 99)
    longest = max(lengths, default=0)
    mean = lengths.mean()
    return f"{mean:.1f}, {median:,}, {high:,}, {longest:,}"


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.2f}"


def percent(share: float | None) -> str:
    """Format a share as a percentage."""
    return "-" if share is None else f"{100 * share:.3g} %"


def random_pairs(set_check: SetCheck) -> list[tuple[str, Example]]:
    """Return (reason, pair) of all samples in random order; the first ones are a random sample of all pairs."""
    pairs: list[tuple[str, Example]] = []
    for reason, sample in set_check.sample.items():
        pairs += [(reason, example) for example in sample]
    return sorted(pairs, key=lambda pair: pair[1].rank)


def page(check: CorpusCheck, exceeded: Sequence[Excess]) -> str:
    """Return the HTML page, which loads nothing from the network."""
    return render(
        "check.html",
        title=f"Corpus check, {check.src_lang}-{check.tgt_lang}",
        check=check,
        exceeded=exceeded,
        units=UNITS,
        sides=SIDE_NAMES,
        max_text=TEXT_LENGTH,
        figures=figures,
        random_pairs=random_pairs,
        percentile=percentile,
        printable=printable,
        percent=percent,
    )

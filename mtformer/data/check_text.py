"""What a look at the corpora found, as lines for a person, and which limits of the config it breaks."""

import os

from mtformer.config.data import DataConfig
from mtformer.data.check_lines import BROKEN, INVALID, SHORT
from mtformer.data.check_report import CorpusReport, ExampleReport, FindingReport, LengthReport, SetReport

SIDE_NAMES = {"src": "source", "tgt": "target", "pair": "pairs"}
EXCERPT = 60
"""Characters of an example that are shown."""


def broken_limits(report: CorpusReport, data: DataConfig) -> list[str]:
    """One line for each limit of `data.check` and `data.filters` that is broken, and for files of unequal length."""
    broken = []
    for one in report.sets:
        for source in one.sources:
            if len(set(source.lines)) > 1:
                told = " and ".join(f"{lines:,}" for lines in source.lines)
                broken.append(f"{one.name}: {source.name} have {told} lines; parallel files need as many lines")
        broken += _broken_by_lines(one, data)
        if one.name in ("train", "dev"):
            broken += _broken_by_unknown(one, data)
        filters = data.filters
        if one.left_out is not None and one.left_out.share > filters.max_filtered_share:
            broken.append(
                f"{one.name}: the filters leave out {_percent(one.left_out.share)} of the pairs, more than "
                f"data.filters.max_filtered_share {filters.max_filtered_share:g}; mend the files, or change the filters"
            )
    for overlap in report.overlaps:
        share = overlap.pairs / max(1, overlap.size)
        if overlap.within == "train" and share > data.check.max_test_overlap:
            broken.append(
                f"{overlap.of}: {overlap.pairs:,} of {overlap.size:,} pairs stand in train too, more than "
                f"data.check.max_test_overlap {data.check.max_test_overlap:g}; take them out of train"
            )
    return broken


def _broken_by_lines(one: SetReport, data: DataConfig) -> list[str]:
    broken, limits = [], data.check
    kinds = ((INVALID, "are not UTF-8"), (SHORT, "lack a column"), (BROKEN, "are no JSON object with both texts"))
    for kind, what in kinds:
        count = one.count(kind)
        if count > limits.max_invalid_lines:
            first = next(found.examples[0] for found in one.findings if found.kind == kind)
            told = f"{first.file}:{first.line}" + (f": {first.note}" if first.note else "")
            broken.append(
                f"{one.name}: {count:,} lines {what}, more than data.check.max_invalid_lines "
                f"{limits.max_invalid_lines}; mend them (the first: {told})"
            )
    for side in ("src", "tgt"):
        faulty = one.side(side).faulty_lines
        if faulty > limits.max_faulty_share * one.pairs:
            broken.append(
                f"{one.name}: {faulty:,} {SIDE_NAMES[side]} lines hold characters that break lines or tell of damage, "
                f"more than data.check.max_faulty_share {limits.max_faulty_share:g}; mend them"
            )
    return broken


def _broken_by_unknown(one: SetReport, data: DataConfig) -> list[str]:
    limit, broken = data.check.max_unknown_rate, []
    for side in ("src", "tgt"):
        rate = one.side(side).unknown_rate
        if rate is not None and rate > limit:
            broken.append(
                f"{one.name}: {_percent(rate)} of the {SIDE_NAMES[side]} tokens are unknown, more than "
                f"data.check.max_unknown_rate {limit:g}; use tokenizer.byte_fallback, or a tokenizer of this text"
            )
    return broken


def report_lines(report: CorpusReport) -> list[str]:
    """All that a person wants to see first: one or two screens."""
    lines = []
    for one in report.sets:
        lines += [*_set_lines(one), ""]
    lines += _overlap_lines(report)
    if not report.has_tokenizer:
        lines.append("no tokenizer: nothing is counted in tokens, and the filters of length do not judge")
    return lines


def _set_lines(one: SetReport) -> list[str]:
    lines = [f"{one.name}: {one.pairs:,} pairs"]
    is_one = len(one.sources) == 1
    lines += [f"  {source.name}" + ("" if is_one else f": {source.pairs:,} pairs") for source in one.sources]
    rows: list[tuple[str, ...]] = [("", f"source ({one.src.language})", f"target ({one.tgt.language})")]
    for unit in ("characters", "words", "tokens"):
        sides = [getattr(side, unit) for side in (one.src, one.tgt)]
        if any(sides):
            rows.append((unit, *(f"{side.total:,}" if side else "-" for side in sides)))
            rows.append(("  a line: mean, median, 99 %, longest", *map(_lengths, sides)))
        if any(sides) and unit == "words":
            rows.append(("  lines over 40, 80 words", *map(_above, sides)))
    rates = [
        ("tokens per word", [_number(side.tokens_per_word) for side in (one.src, one.tgt)]),
        ("tokens per character", [_number(side.tokens_per_character) for side in (one.src, one.tgt)]),
        ("unknown tokens", [_percent(side.unknown_rate) for side in (one.src, one.tgt)]),
    ]
    rows += [(name, *values) for name, values in rates if values != ["-", "-"]]
    lines += [f"  {name:<36}  {src:>24}  {tgt:>24}" for name, src, tgt in rows]
    lines += [""] if one.findings else []
    for finding in one.findings:
        lines.append(f"  {finding.count:>9,}  {_kind(finding)}")
        lines += [f"             {_place(example)}  {_excerpt(finding, example)}" for example in finding.examples[:1]]
    if one.left_out is not None:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in one.left_out.reasons.items())
        lines += [
            "",
            f"  the filters would leave out {one.left_out.count:,} pairs, {_percent(one.left_out.share)}"
            + (f": {reasons}" if reasons else ""),
        ]
    return lines


def _overlap_lines(report: CorpusReport) -> list[str]:
    lines = []
    for overlap in report.overlaps:
        lines.append(
            f"{overlap.of} in {overlap.within}: of {overlap.size:,} pairs {overlap.pairs:,} stand there too, "
            f"{overlap.sources:,} sources, {overlap.targets:,} targets"
        )
        for name, examples in overlap.examples.items():
            lines += [
                f"    {_place(one)} = {one.note}: {shown(one.tgt if name == 'targets' else one.src, EXCERPT)}"
                for one in examples[:1]
            ]
    return lines


def _kind(finding: FindingReport) -> str:
    side = "" if finding.side == "pair" else f"{SIDE_NAMES[finding.side]}: "
    return f"{side}{finding.kind} ({_percent(finding.share)})" + (f"; {finding.rule}" if finding.rule else "")


def _place(example: ExampleReport) -> str:
    return f"{os.path.basename(example.file)}:{example.line}"


def _excerpt(finding: FindingReport, example: ExampleReport) -> str:
    note = f"[{example.note}] " if example.note else ""
    if finding.side == "pair" and not example.src + example.tgt:
        return note.rstrip()
    if finding.side == "pair":
        return f"{note}{shown(example.src, EXCERPT // 2)} | {shown(example.tgt, EXCERPT // 2)}"
    return note + shown(example.src if finding.side == "src" else example.tgt, EXCERPT)


def shown(text: str, most: int | None = None) -> str:
    """A line of a corpus so that it can be seen and breaks nothing: what is not printable is spelt out."""
    cut = text if most is None or len(text) <= most else text[: most - 1] + "…"
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in cut)


def _lengths(lengths: LengthReport | None) -> str:
    if lengths is None:
        return "-"
    percentiles = lengths.percentiles
    return f"{lengths.mean:.1f}, {percentiles[50]:,}, {percentiles[99]:,}, {lengths.longest:,}"


def _above(lengths: LengthReport | None) -> str:
    return "-" if lengths is None else f"{lengths.above[40]:,}, {lengths.above[80]:,}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.3g} %"

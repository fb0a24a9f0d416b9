"""From what was counted to what is told: rates, outliers, and where the examples stand."""

import math
from collections.abc import Iterable, Sequence

from mtformer.data.check import CorpusCheck, SetCheck
from mtformer.data.check_findings import (
    Example,
    Finding,
    Findings,
    Lengths,
    LogRatios,
    outlier_limits,
)
from mtformer.data.check_lines import (
    BROKEN,
    COMPOSED,
    COPY,
    DECOMPOSED,
    EMPTY,
    FAULTS,
    FOREIGN,
    HIGH_RATIO,
    INVALID,
    LEFT_OUT,
    LONG,
    LOW_RATIO,
    OTHER_SCRIPT,
    SHORT,
    SIDES,
    UNKNOWN,
    WINDOWS,
)
from mtformer.data.check_repeats import DUPLICATE, MANY, NEAR, Overlap
from mtformer.data.check_report import (
    CorpusReport,
    ExampleReport,
    FindingReport,
    HistogramReport,
    LeftOutReport,
    LengthReport,
    OverlapReport,
    SetReport,
    SideReport,
    SourceReport,
)

MIXED = "mixed normalisation (NFC and NFD)"
PERCENTILES = (1, 5, 25, 50, 75, 95, 99)
THRESHOLDS = (40, 80, 128, 256)
RATIO_BINS, STEPS_A_BIN = 40, 6
ORDER = (
    INVALID, SHORT, BROKEN, WINDOWS, *FAULTS, MIXED, EMPTY, COPY, DUPLICATE, NEAR, MANY, LONG, LOW_RATIO, HIGH_RATIO,
    FOREIGN, OTHER_SCRIPT, UNKNOWN,
)  # fmt: skip
"""Of the findings."""

Key = tuple[str, str]
"""Kind and side."""


def make_report(check: CorpusCheck) -> CorpusReport:
    """What was found, worked out: rates, outliers, and where the examples stand."""
    sets = {one.name: one for one in check.sets}
    return CorpusReport(
        src_lang=check.data.src_lang,
        tgt_lang=check.data.tgt_lang,
        has_tokenizer=check.has_tokenizer,
        sets=[_set_report(one) for one in check.sets],
        overlaps=[_overlap_report(one, sets[one.within]) for one in check.overlaps],
    )


def _set_report(one: SetCheck) -> SetReport:
    sources = [SourceReport(name=r.name, pairs=r.num_pairs, lines=r.num_lines) for r in one.readers]
    findings = []
    for (kind, side), finding, rule in sorted(_judged(one), key=lambda told: ORDER.index(told[0][0])):
        share = finding.count / max(1, one.totals.pairs)
        examples = _examples(finding.examples, one, side)
        findings.append(
            FindingReport(kind=kind, side=side, count=finding.count, share=share, rule=rule, examples=examples)
        )
    return SetReport(
        name=one.name,
        pairs=one.totals.pairs,
        sources=sources,
        src=_side_report(one, "src"),
        tgt=_side_report(one, "tgt"),
        ratio=_ratio_histogram(one.totals.ratios),
        findings=findings,
        left_out=_left_out_report(one),
    )


def _judged(one: SetCheck) -> Iterable[tuple[Key, Finding, str]]:
    """The findings that stay: outliers by the whole set's limits, and forms of Unicode only where they are mixed."""
    found = one.totals.findings
    for side in SIDES:
        yield from _mixed(found, side)
        lengths = Lengths(one.totals.lengths.get(("characters", side)))
        del lengths[0]
        limit = outlier_limits(lengths)[1]
        rule = f"over {limit:,.0f} characters"
        yield from _outliers(found, (LONG, side), lengths.above(limit), limit, rule)
    ratios = one.totals.ratios.ratios()
    low, high = outlier_limits(ratios)
    num_low, num_high = (
        sum(n for ratio, n in ratios.items() if is_out(ratio)) for is_out in (lambda r: r < low, lambda r: r > high)
    )
    yield from _outliers(found, (LOW_RATIO, "pair"), num_low, 1 / low, f"below {low:.3g} characters for one")
    yield from _outliers(found, (HIGH_RATIO, "pair"), num_high, high, f"above {high:.3g} characters for one")
    special = (COMPOSED, DECOMPOSED, LONG, LOW_RATIO, HIGH_RATIO)
    for key, finding in sorted(found.items()):  # src comes before tgt
        if key[0] not in special and not key[0].startswith(LEFT_OUT):
            yield key, finding, ""


def _mixed(found: Findings, side: str) -> Iterable[tuple[Key, Finding, str]]:
    both = [found[kind, side] for kind in (DECOMPOSED, COMPOSED) if (kind, side) in found]
    if len(both) == 2:
        rarer = min(both, key=lambda finding: finding.count)
        form = "decomposed (NFD)" if rarer is both[0] else "composed (NFC)"
        yield (MIXED, side), rarer, f"the rarer: {form}"


def _outliers(found: Findings, key: Key, count: int, limit: float, rule: str) -> Iterable[tuple[Key, Finding, str]]:
    if count:
        yield key, Finding(count, [example for example in found[key].examples if example.rank > limit]), rule


def _examples(examples: Sequence[Example], one: SetCheck, side: str) -> list[ExampleReport]:
    reports = []
    for example in examples:
        file, line = one.place(example.index, side)
        reports.append(ExampleReport(file=file, line=line, src=example.src, tgt=example.tgt, note=example.note))
    return reports


def _side_report(one: SetCheck, side: str) -> SideReport:
    totals = one.totals
    characters, words, tokens = (totals.lengths.get((unit, side)) for unit in ("characters", "words", "tokens"))
    characters = characters or Lengths()
    num_tokens, num_words = tokens.sum() if tokens else 0, words.sum() if words else 0
    return SideReport(
        language=one.languages[side == "tgt"],
        characters=_length_report(characters),
        words=_length_report(words) if words is not None else None,
        tokens=_length_report(tokens) if tokens is not None else None,
        tokens_per_word=totals.tokens_in_words[side] / num_words if num_words and tokens else None,
        tokens_per_character=num_tokens / max(1, characters.sum()) if tokens else None,
        unknown_rate=totals.unknown[side] / max(1, num_tokens) if tokens else None,
        faulty_lines=totals.faulty[side],
    )


def _length_report(lengths: Lengths) -> LengthReport:
    edges, counts = lengths.histogram()
    return LengthReport(
        total=lengths.sum(),
        mean=lengths.sum() / max(1, lengths.total()),
        longest=max(lengths, default=0),
        percentiles={percent: lengths.percentile(percent) for percent in PERCENTILES},
        above={limit: lengths.above(limit) for limit in THRESHOLDS},
        histogram=HistogramReport(edges=edges, counts=counts),
    )


def _ratio_histogram(ratios: LogRatios) -> HistogramReport:
    """Bins of equal ratio, to some eleven times the median; the outer ones hold all that is beyond."""
    if not ratios:
        return HistogramReport(edges=[], counts=[])
    first = Lengths(ratios).percentile(50) - RATIO_BINS * STEPS_A_BIN // 2
    counts = [0] * RATIO_BINS
    for key, count in ratios.items():
        counts[min(RATIO_BINS - 1, max(0, (key - first) // STEPS_A_BIN))] += count
    # A step reaches from half a step before its key to half a step behind.
    ends = (first - 0.5 + STEPS_A_BIN * number for number in range(RATIO_BINS + 1))
    return HistogramReport(edges=[math.exp(end * LogRatios.STEP) for end in ends], counts=counts)


def _left_out_report(one: SetCheck) -> LeftOutReport | None:
    if one.left_out is None:
        return None
    count = sum(one.left_out.values())
    found = one.totals.findings
    examples = {
        reason: _examples(found[LEFT_OUT + reason, "pair"].examples, one, "pair")
        for reason in one.left_out
        if (LEFT_OUT + reason, "pair") in found
    }
    return LeftOutReport(
        count=count,
        share=count / max(1, one.totals.pairs),
        reasons=one.left_out,
        examples=examples,
    )


def _overlap_report(overlap: Overlap, within: SetCheck) -> OverlapReport:
    sides = {"pairs": (overlap.pairs, "pair"), "sources": (overlap.sources, "src"), "targets": (overlap.targets, "tgt")}
    return OverlapReport(
        of=overlap.of,
        within=overlap.within,
        size=overlap.size,
        pairs=overlap.pairs.count,
        sources=overlap.sources.count,
        targets=overlap.targets.count,
        examples={name: _examples(finding.examples, within, side) for name, (finding, side) in sides.items()},
    )

"""What a look at the corpora found, as one page that works without a network: figures, histograms, examples."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise

from mtformer.data.check_findings import OUTLIER_DEVIATIONS
from mtformer.data.check_lines import RATIO_FROM_CHARACTERS
from mtformer.data.check_report import CorpusReport, ExampleReport, HistogramReport, LengthReport, SetReport
from mtformer.data.check_text import SIDE_NAMES, shown
from mtformer.page import BAR, drawing, svg, table
from mtformer.page import page as whole_page
from mtformer.page import require_matplotlib as needed_for_drawing

NOTHING = "–"
STYLE = """
.example { margin: .5rem 0 .8rem 1rem; font-size: .9rem; } .example p { margin: 0; }
"""


def require_matplotlib() -> None:
    """Raises MtformerError when the package that draws the histograms is not there."""
    needed_for_drawing("the page with its histograms")


def page(report: CorpusReport, broken: Sequence[str]) -> str:
    """The HTML text.

    Args:
        report: what was found.
        broken: lines about limits of the config.

    Raises:
        MtformerError: without matplotlib.
    """
    require_matplotlib()
    title = f"Corpora {report.src_lang} to {report.tgt_lang}"
    parts = [f"<h1>{escape(title)}</h1>"]
    if broken:
        parts += ["<ul>", *(f'<li class="bad">{escape(line)}</li>' for line in broken), "</ul>"]
    else:
        parts.append("<p>No limit of the config is broken.</p>")
    if not report.has_tokenizer:
        parts.append('<p class="faint">Without a tokenizer: nothing is counted in tokens, and the filters of length do '
                     "not judge.</p>")  # fmt: skip
    for one in report.sets:
        parts += _set(one)
    parts += _overlaps(report)
    return whole_page(title, "\n".join(parts), style=STYLE)


def _set(one: SetReport) -> Iterable[str]:
    yield f"<h2>{escape(one.name)}: {one.pairs:,} pairs</h2>"
    for source in one.sources:
        yield f'<p class="faint">{escape(shown(source.name))}: {source.pairs:,} pairs</p>'
    yield _figures(one)
    yield '<div class="charts">'
    for unit in ("characters", "words", "tokens"):
        for side in ("src", "tgt"):
            lengths: LengthReport | None = getattr(one.side(side), unit)
            if lengths is not None and lengths.total:
                # The last bin holds all that is longer, so it is drawn as wide as the others.
                edges = [*lengths.histogram.edges[:-1], 2 * lengths.histogram.edges[-2] - lengths.histogram.edges[-3]]
                caption = f"{SIDE_NAMES[side]}: {unit} of a line; the last bar holds all longer ones"
                drawn = HistogramReport(edges=edges, counts=lengths.histogram.counts)
                yield _chart(f"{one.name}-{unit}-{side}", drawn, caption)
    if one.ratio.counts:
        yield _chart(f"{one.name}-ratio", one.ratio, "target characters per source character", is_log=True)
    yield "</div>"
    if one.findings:
        yield "<h3>Found</h3>"
        yield (
            f'<p class="faint">Lengths and ratios are outliers when they are {OUTLIER_DEVIATIONS} robust standard '
            "deviations of the logarithms away from the median, and at least twice or half it. Ratios are those of "
            f"pairs with a side above {RATIO_FROM_CHARACTERS} characters.</p>"
        )
    for finding in one.findings:
        side = "" if finding.side == "pair" else f"{SIDE_NAMES[finding.side]}: "
        told = escape(f"{side}{finding.kind}") + (f' <span class="faint">{escape(finding.rule)}</span>')
        yield _details(f"{finding.count:,} · {100 * finding.share:.3g} % · {told}", finding.examples, finding.side)
    if one.left_out is not None:
        yield "<h3>What the filters would leave out</h3>"
        yield f"<p>{one.left_out.count:,} pairs, {100 * one.left_out.share:.3g} %</p>"
        for reason, count in one.left_out.reasons.items():
            yield _details(f"{count:,} · {escape(reason)}", one.left_out.examples.get(reason, []), "pair")


def _figures(one: SetReport) -> str:
    sides = (one.src, one.tgt)
    rows: list[tuple[str, ...]] = []
    for unit in ("characters", "words", "tokens"):
        names = (f"<strong>{unit}</strong>", "mean of a line", "median", "99 % have at most", "longest")
        rows += zip(names, *(_figures_of(getattr(side, unit)) for side in sides), strict=True)
    rows.append(("tokens per word", *(_number(side.tokens_per_word, ".2f") for side in sides)))
    rows.append(("tokens per character", *(_number(side.tokens_per_character, ".2f") for side in sides)))
    rows.append(("unknown tokens", *(_number(side.unknown_rate, ".3%") for side in sides)))
    known = [row for row in rows if row[1:] != (NOTHING, NOTHING)]
    head = ("", f"source ({escape(one.src.language)})", f"target ({escape(one.tgt.language)})")
    return table(head, known, numbers=(1, 2))


def _figures_of(lengths: LengthReport | None) -> list[str]:
    if lengths is None:
        return [NOTHING] * 5
    counts = (lengths.percentiles[50], lengths.percentiles[99], lengths.longest)
    return [f"{lengths.total:,}", f"{lengths.mean:.1f}", *(f"{count:,}" for count in counts)]


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _overlaps(report: CorpusReport) -> Iterable[str]:
    if report.overlaps:
        yield "<h2>Overlap</h2>"
    for overlap in report.overlaps:
        yield f"<h3>{escape(overlap.of)} in {escape(overlap.within)}, of {overlap.size:,} pairs</h3>"
        counts = {"pairs": overlap.pairs, "sources": overlap.sources, "targets": overlap.targets}
        for (what, count), side in zip(counts.items(), ("pair", "src", "tgt"), strict=True):
            yield _details(f"{count:,} {what} stand there too", overlap.examples[what], side)


def _details(summary: str, examples: Sequence[ExampleReport], side: str) -> str:
    """A line that opens; `summary` is HTML."""
    if not examples:
        return f"<p>{summary}</p>"
    shown_examples = "\n".join(_example(one, side) for one in examples)
    return f"<details><summary>{summary}</summary>\n{shown_examples}\n</details>"


def _example(one: ExampleReport, side: str) -> str:
    place = escape(shown(f"{one.file}:{one.line}")) + (f" · {escape(one.note)}" if one.note else "")
    texts = {"src": [one.src], "tgt": [one.tgt]}.get(side, [one.src, one.tgt])
    lines = "".join(f'<p dir="auto">{escape(shown(text)) or "∅"}</p>' for text in texts)
    return f'<div class="example"><p class="faint">{place}</p>{lines}</div>'


def _chart(prefix: str, histogram: HistogramReport, caption: str, is_log: bool = False) -> str:
    return f"<figure>{_svg(prefix, histogram, is_log)}<figcaption>{escape(caption)}</figcaption></figure>"


def _svg(prefix: str, histogram: HistogramReport, is_log: bool) -> str:
    """Bars that take the page's colours; `prefix` keeps the names inside apart from those of other charts."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, NullFormatter

    with drawing():
        figure = Figure(figsize=(4, 2.2), layout="constrained")
        axes = figure.add_subplot()
        edges = histogram.edges
        widths = [after - before for before, after in pairwise(edges)]
        axes.bar(edges[:-1], histogram.counts, widths, align="edge", color=BAR)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        if is_log:
            axes.set_xscale("log")
            ticks = [tick for tick in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if edges[0] <= tick <= edges[-1]]
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.xaxis.set_minor_formatter(NullFormatter())
        return svg(figure, prefix)

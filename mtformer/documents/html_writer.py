"""Writing of HTML with translations instead of its texts."""

from collections.abc import Sequence

from mtformer.decoding.lines.translation import Translation
from mtformer.documents.document import Mark, Written
from mtformer.documents.html_reader import HtmlPage, Run
from mtformer.documents.html_tree import Copied, escaped, html_of
from mtformer.documents.inline import PlacedMarks, place_marks

LINE_BREAKS = {ord("\n"): "&#10;", ord("\r"): "&#13;"}
"""Character references of line breaks, for HTML that is written on one line."""


def write_html(page: HtmlPage, translations: Sequence[Translation]) -> Written:
    """Return HTML with translations, which have attention, instead of its texts.

    The result has line breaks only if the source has some.
    """
    remaining = iter(translations)
    has_lost_marks = False
    parts = []
    for part in page.parts:
        if isinstance(part, str):
            parts.append(part)
            continue
        placed = place_marks(part.text, next(remaining))
        parts.append(_html_of_run(part, placed))
        has_lost_marks = has_lost_marks or placed.has_lost_marks or part.is_flattened

    html = "".join(parts)
    if not page.has_line_breaks:
        html = html.translate(LINE_BREAKS)
    return Written(html, has_lost_marks)


def _html_of_run(run: Run, placed: PlacedMarks) -> str:
    """Return the HTML of the translation of a run, with the white space around the source."""
    html_of_mark: dict[Mark, str] = {}
    # Inner marks are after the marks around them.
    for mark in reversed(run.text.marks):
        node = run.nodes[mark]
        if isinstance(node, Copied):
            html_of_mark[mark] = node.html
        elif mark in placed.contents:
            content = _html_of_content(mark, placed, html_of_mark)
            html_of_mark[mark] = f"{node.start_tag}{content}{node.end_tag}"
        elif mark.parent in placed.contents:
            html_of_mark[mark] = html_of([node])
    content = _html_of_content(run.text.root, placed, html_of_mark)
    return f"{run.space_before}{content}{run.space_after}"


def _html_of_content(mark: Mark, placed: PlacedMarks, html_of_mark: dict[Mark, str]) -> str:
    """Return the HTML of what is in a mark, in which the inner marks have the given HTML."""
    return "".join(escaped(part) if isinstance(part, str) else html_of_mark[part] for part in placed.contents[mark])

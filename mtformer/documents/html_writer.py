"""Writing of HTML with translations instead of its texts."""

from collections.abc import Sequence

from mtformer.decoding.lines.translation import Translation
from mtformer.documents.document import Mark, Written
from mtformer.documents.html_reader import HtmlPage, Run
from mtformer.documents.html_tree import Element, escaped, html_of
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
    # Inner elements are after the elements around them.
    for mark, content in reversed(placed.contents.items()):
        for inner in mark.marks:
            if inner not in placed.contents:
                html_of_mark[inner] = html_of([run.nodes[inner]])
        html = "".join(escaped(part) if isinstance(part, str) else html_of_mark[part] for part in content)
        node = run.nodes.get(mark)
        html_of_mark[mark] = f"{node.start_tag}{html}{node.end_tag}" if isinstance(node, Element) else html
    return f"{run.space_before}{html_of_mark[run.text.root]}{run.space_after}"

"""Writing of HTML with translations instead of its texts."""

from collections.abc import Sequence

from bs4 import Tag

from mtformer.decoding.lines.translation import Translation
from mtformer.documents.html_reader import HtmlRun, HtmlTree, text_of
from mtformer.documents.inline import place_marks

LINE_BREAKS = {ord("\n"): "&#10;", ord("\r"): "&#13;"}
"""Character references of line breaks, for HTML that is written on one line."""


def write_html(tree: HtmlTree, translations: Sequence[Translation]) -> str:
    """Return HTML with translations, which have attention, instead of its texts.

    The tree is changed, so it can be written only once. The result has line breaks only if the source has some.
    """
    for run, translation in zip(tree.runs, translations, strict=True):
        _write_run(run, translation)
    html = tree.soup.decode(formatter=tree.formatter)
    return html if "\n" in tree.text else html.translate(LINE_BREAKS)


def _write_run(run: HtmlRun, translation: Translation) -> None:
    """Replace the text of a run, except for the white space around it, and remove its temporary element."""
    element = run.element
    first_text = text_of(element.contents[0])
    last_text = text_of(element.contents[-1])
    num_spaces_before = len(first_text) - len(first_text.lstrip())
    space_before = first_text[:num_spaces_before]
    end_of_text = len(last_text.rstrip())
    space_after = last_text[end_of_text:]

    for mark, content in place_marks(run.text, translation).items():
        tag = run.nodes.get(mark, element)
        assert isinstance(tag, Tag)
        tag.clear()
        for part in content:
            node = part if isinstance(part, str) else run.nodes[part]
            tag.append(node)

    element.insert(0, space_before)
    element.append(space_after)
    element.unwrap()

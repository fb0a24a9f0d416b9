"""Reading of HTML: the texts of a page or fragment, with the tags in them as marks.

Beautiful Soup with html.parser keeps tags as they are written; html5lib and lxml add, move and copy tags.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from bs4 import BeautifulSoup, Tag, UnusualUsageWarning
from bs4.builder import HTMLTreeBuilder
from bs4.dammit import EntitySubstitution
from bs4.element import Declaration, Doctype, NavigableString, PageElement, PreformattedString
from bs4.exceptions import ParserRejectedMarkup
from bs4.formatter import HTMLFormatter

from mtformer.documents.document import PART_OF_WORD, WORD, Mark, MarkedText, Word, words_in

BLOCKS = [
    *("body", "button", "caption", "colgroup", "details", "dialog", "head", "html", "legend", "optgroup", "option"),
    *("search", "select", "summary", "tbody", "td", "textarea", "th", "thead", "title", "tr"),
    *HTMLTreeBuilder.DEFAULT_BLOCK_ELEMENTS,
]
"""Elements that separate texts; all others are inline."""
WITHOUT_TEXT = ("math", "pre", "script", "style", "svg", "template", "textarea")
"""Elements that are not translated: they have no text, or line breaks matter in it."""
RUN = "run"
"""Name of the temporary element around the nodes of a text."""

AMPERSAND = re.compile(r"(<(script|style)\b.*?</\2|<!--.*?-->)|&(?=\w+=)", re.IGNORECASE | re.DOTALL)
"""Text without character references, or & before a name and =, as in URLs, which is not a character reference."""
UNCLOSED = re.compile(r"<(script|style)\b(?:(?!</\1).)*\Z", re.IGNORECASE | re.DOTALL)
"""A script or style sheet without its end tag."""
CUT = re.compile(r"<!--|<[a-z/][^<>]*\Z", re.IGNORECASE)
"""An unclosed comment or a tag without its end, outside scripts; both remain as text."""
ENCODING = re.compile(r"""(<\?xml[^>]*?encoding=["'])[\w-]+""")
"""An XML declaration up to the name of its encoding."""
LONG_NUMBER = re.compile(r"(?<=&#)\d{8,}")
"""Number of a character reference that is too large for a character, or even for `int`."""
INVALID_NUMBER = "9999999"
"""Number that replaces one that is too large; html.parser reads it as U+FFFD."""

warnings.filterwarnings("ignore", category=UnusualUsageWarning)  # about text that looks like a URL


@dataclass(frozen=True)
class HtmlRun:
    """Adjacent inline nodes, whose text is translated as one line."""

    element: Tag
    """Temporary element around the nodes."""
    text: MarkedText
    nodes: dict[Mark, PageElement]
    """The node of each mark."""


@dataclass(frozen=True)
class HtmlTree:
    """HTML that was read."""

    text: str
    """The HTML after corrections that change no tags."""
    soup: BeautifulSoup
    runs: Sequence[HtmlRun]
    formatter: HTMLFormatter
    is_repaired: bool
    """True if tags were unclosed or wrongly nested."""


class _Soup(BeautifulSoup):
    """Parser that counts the tags that are closed."""

    ASCII_SPACES = ""  # all white space is kept
    num_closed = 0.0
    """Number of tags closed by their end tags; negative if there are other end tags."""

    def handle_starttag(self, name: str, *arguments: Any, **options: Any) -> Tag | None:
        if name == "p" and self.currentTag is not None and self.currentTag.name == "p":
            self.handle_endtag("p")  # which is optional
        return super().handle_starttag(name, *arguments, **options)

    def handle_endtag(self, name: str, nsprefix: str | None = None) -> None:
        closes_current_tag = self.currentTag is not None and self.currentTag.name == name
        self.num_closed += 1 if closes_current_tag else -1e9
        super().handle_endtag(name, nsprefix)


class _Tag(Tag):
    """A tag that is equal only to itself; `Tag` compares contents, recursively."""

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


class _Declaration(Declaration):
    """A declaration such as `<![if !vml]>`."""

    PREFIX = "<!["
    SUFFIX = "]>"


class _Doctype(Doctype):
    """A document type without the line end that `Doctype` adds."""

    SUFFIX = ">"


class _Untranslated(PreformattedString):
    """An element that is not translated, as it is written."""

    is_block = False
    """True if it separates texts."""
    words = ""
    """Its text, which is a part of the sentence around it."""


class _Formatter(HTMLFormatter):
    """Output with the attributes of each tag in their order."""

    def __init__(self, end_of_void_tags: str) -> None:
        super().__init__(EntitySubstitution.substitute_xml, end_of_void_tags)

    def attributes(self, tag: Tag) -> Iterable[tuple[str, Any]]:
        return tag.attrs.items()


CLASSES = {Tag: _Tag, Declaration: _Declaration, Doctype: _Doctype}
HTML_FORMATTER = _Formatter(end_of_void_tags="")  # <br>
XHTML_FORMATTER = _Formatter(end_of_void_tags="/")  # <br/>


def read_html(html: str) -> HtmlTree:
    """Return the texts of HTML, in the order of the page, and the tree that they are part of."""
    text = _corrected(html)
    unclosed = UNCLOSED.search(text)
    if unclosed:  # html.parser may drop its text
        text += f"</{unclosed[1]}>"
    is_xhtml = text.lstrip("\ufeff \t\r\n").startswith("<?xml")
    formatter = XHTML_FORMATTER if is_xhtml else HTML_FORMATTER

    soup = _parse(text)
    without_scripts = AMPERSAND.sub("", text)
    is_cut = CUT.search(without_scripts) is not None
    are_all_closed = soup.num_closed == len(soup.find_all())
    is_repaired = unclosed is not None or is_cut or not are_all_closed

    blocks = _blocks(soup)
    _replace_untranslated(soup, blocks, formatter)
    return HtmlTree(text, soup, _runs(soup, blocks), formatter, is_repaired)


def text_of(node: PageElement | None) -> str:
    """Return the text of a text node; an empty string for other nodes, also for comments."""
    return str(node) if type(node) is NavigableString else ""


def _corrected(html: str) -> str:
    """Return HTML in which surrogates, encodings and character references have no unexpected effects."""
    text = html.encode("utf-8", "replace").decode("utf-8")
    text = LONG_NUMBER.sub(INVALID_NUMBER, text)
    text = ENCODING.sub(r"\1utf-8", text, count=1)
    return AMPERSAND.sub(lambda match: match[1] or "&amp;", text)


def _parse(text: str) -> _Soup:
    parse = partial(_Soup, features="html.parser", on_duplicate_attribute="ignore", element_classes=CLASSES)
    try:
        return parse(text, multi_valued_attributes=None)
    except ParserRejectedMarkup:  # a declaration such as <![x
        return parse(text.replace("<![", "&lt;!["), multi_valued_attributes=None)


def _blocks(soup: BeautifulSoup) -> set[Tag]:
    """Return the elements that separate texts, and those around them."""
    blocks: set[Tag] = set()
    for block in soup.find_all(BLOCKS):
        tag: Tag | None = block
        while tag is not None and tag is not soup and tag not in blocks:
            blocks.add(tag)
            tag = tag.parent
    return blocks


def _replace_untranslated(soup: BeautifulSoup, blocks: set[Tag], formatter: HTMLFormatter) -> None:
    """Replace elements that are not translated by nodes with their HTML."""
    for tag in soup.find_all(_is_untranslated):
        html = tag.decode(formatter=formatter)
        node = _Untranslated(html)
        node.is_block = tag in blocks
        node.words = "" if tag.name in WITHOUT_TEXT else tag.get_text()
        tag.replace_with(node)


def _is_untranslated(tag: Tag) -> bool:
    if tag.name in WITHOUT_TEXT:
        return True
    classes = str(tag.get("class")).split()
    value_of_translate = str(tag.get("translate"))
    return value_of_translate.lower() == "no" or "notranslate" in classes


def _runs(soup: BeautifulSoup, blocks: set[Tag]) -> list[HtmlRun]:
    """Put the nodes of each text into a temporary element, and return those with letters, in the order of the page."""

    def is_block(node: PageElement) -> bool:
        if isinstance(node, _Untranslated):
            return node.is_block
        return isinstance(node, Tag) and node in blocks

    # Inside each block, put adjacent inline nodes into an element.
    elements: set[Tag] = set()
    remaining: list[Tag] = [soup]
    while remaining:
        block = remaining.pop()
        children = list(block.contents)
        for are_blocks, nodes in groupby(children, key=is_block):
            if are_blocks:
                remaining += [node for node in nodes if isinstance(node, Tag)]
            else:
                first_node, *further_nodes = nodes
                element = first_node.wrap(soup.new_tag(RUN))
                element.extend(further_nodes)
                elements.add(element)

    # Keep the elements with letters.
    runs = []
    for element in soup.find_all(RUN):
        if element not in elements:  # of the page
            continue
        text = "".join(map(text_of, element.descendants))
        if any(map(str.isalpha, text)):
            runs.append(_read_run(element))
        else:
            element.unwrap()
    return runs


def _read_run(element: Tag) -> HtmlRun:
    """Return the text of a temporary element, with its words and marks."""
    has_untranslated_words = any(isinstance(node, _Untranslated) and node.words for node in element.descendants)
    pattern = PART_OF_WORD if has_untranslated_words else WORD
    root = Mark(parent=None, first_word=0, is_element=True)
    marks = {element: root}
    nodes: dict[Mark, PageElement] = {}
    texts: list[str] = []
    words: list[Word] = []

    for node in element.descendants:
        assert node.parent is not None
        parent = marks[node.parent]
        holder = parent
        if type(node) is not NavigableString:
            text_before = text_of(node.previous_sibling)
            text_after = text_of(node.next_sibling)
            holder = Mark(parent, first_word=len(words), is_element=isinstance(node, Tag))
            holder.follows_space = text_before[-1:].isspace()
            holder.precedes_space = text_after[:1].isspace()
            parent.marks.append(holder)
            nodes[holder] = node
        if isinstance(node, Tag):
            marks[node] = holder
        text = _translated_text(node)
        texts.append(text)
        words += words_in(text, pattern)
        holder.end_word = len(words)

    # An element ends after the last word in it. An inner mark comes after the marks around it.
    for mark in reversed(nodes):
        assert mark.parent is not None
        mark.parent.end_word = max(mark.parent.end_word, mark.end_word)

    line = " ".join("".join(texts).split())
    text_of_run = MarkedText(line, words, root, list(nodes), pattern)
    return HtmlRun(element, text_of_run, nodes)


def _translated_text(node: PageElement) -> str:
    """Return what a node itself contributes to the text for the translation."""
    if isinstance(node, _Untranslated):
        return node.words
    if isinstance(node, Tag) and node.name == "br":
        return " "
    return text_of(node)

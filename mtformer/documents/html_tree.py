"""Reading of HTML, second step: the tree of elements, whose tags are written as they were read.

Parsers that follow the HTML standard add, move and copy tags; this one only closes elements. Nothing is recursive, so
elements may be nested in any depth.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mtformer.documents.html_tokens import EndTag, StartTag, Text, Verbatim, tokenize

BLOCKS = frozenset((
    *("address", "article", "aside", "blockquote", "body", "button", "canvas", "caption", "colgroup", "dd", "details"),
    *("dialog", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5"),
    *("h6", "head", "header", "hr", "html", "legend", "li", "main", "nav", "noscript", "ol", "optgroup", "option"),
    *("output", "p", "pre", "search", "section", "select", "summary", "table", "tbody", "td", "textarea", "tfoot"),
    *("th", "thead", "title", "tr", "ul", "video"),
))  # fmt: skip
"""Elements that separate texts; all others are inline."""
VOID = frozenset((
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "keygen", "link", "menuitem", "meta", "param"),
    *("source", "track", "wbr", "basefont", "bgsound", "command", "frame", "image", "isindex", "nextid", "spacer"),
))  # fmt: skip
"""Elements without content and end tag, in any version of HTML."""
WITHOUT_TEXT = frozenset(("math", "pre", "script", "style", "svg", "template", "textarea"))
"""Elements that are not translated: they have no text, or line breaks matter in it."""
WITH_OTHER_TEXT = frozenset(("rp", "rt", "template"))
"""Elements whose text is no part of the text around them: annotations of pronunciation, and parts of other pages."""

CHARSET = re.compile(r"(?<![^;])(\s*charset=)[^;]*")
"""Name of the encoding in the content of a `meta` element."""
ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
"""Character references of the characters that have a meaning in HTML, for `str.translate`."""


@dataclass(eq=False, slots=True)
class Copied:
    """A part of a page that is written as it is: a comment, or an element that is not translated."""

    html: str
    is_block: bool = False
    """True if it separates texts."""
    words: str = ""
    """Its text, if that is a part of the sentence around it."""


@dataclass(eq=False, slots=True)
class Element:
    """An element with its tags as they are written."""

    name: str
    start_tag: str
    end_tag: str
    is_block: bool
    """True if it separates texts, or an element in it does."""
    is_translated: bool
    children: list["Node"] = field(default_factory=list)


Node = Text | Copied | Element


@dataclass(frozen=True)
class Tree:
    """A page or fragment."""

    root: Element
    """Element without tags that contains all others."""
    is_repaired: bool
    """True if tags were unclosed or wrongly nested."""
    has_copied_words: bool
    """True if elements that are not translated have text that is a part of a sentence."""


def parse_html(html: str) -> Tree:
    """Return the tree of a page or fragment."""
    tokens = tokenize(html)
    is_xhtml = html.lstrip("\ufeff \t\r\n").startswith("<?xml")
    builder = _TreeBuilder(end_of_void_tags="/>" if is_xhtml else ">")
    for token in tokens.tokens:
        if isinstance(token, StartTag):
            builder.open(token)
        elif isinstance(token, EndTag):
            builder.close(token.name)
        else:
            builder.add(token)
    builder.close_all()
    is_repaired = builder.is_repaired or tokens.has_cut_markup
    return Tree(builder.root, is_repaired, builder.has_copied_words)


def walk(nodes: Iterable[Node]) -> Iterator[tuple[Node, bool]]:
    """Yield all nodes in their order, elements twice: at their starts, with True, and at their ends, with False."""
    remaining: list[tuple[Element | None, Iterator[Node]]] = [(None, iter(nodes))]
    while remaining:
        element, children = remaining[-1]
        node = next(children, None)
        if node is not None:
            yield node, True
            if isinstance(node, Element):
                remaining.append((node, iter(node.children)))
            continue
        if element is not None:
            yield element, False
        remaining.pop()


def html_of(nodes: Iterable[Node]) -> str:
    """Return the HTML of nodes."""
    return "".join(html_of_event(node, is_start) for node, is_start in walk(nodes))


def html_of_event(node: Node, is_start: bool) -> str:
    """Return the HTML of a text or copied part, or one of the tags of an element; see `walk`."""
    if isinstance(node, Text):
        return escaped(node.text)
    if isinstance(node, Copied):
        return node.html
    return node.start_tag if is_start else node.end_tag


def escaped(text: str) -> str:
    """Return the HTML of a text."""
    return text.translate(ESCAPED)


class _TreeBuilder:
    """The tree of the tokens that were read, and its open elements."""

    def __init__(self, end_of_void_tags: str) -> None:
        self.root = Element("", "", "", is_block=False, is_translated=True)
        self.is_repaired = False
        self.has_copied_words = False
        self._end_of_void_tags = end_of_void_tags
        self._open = [self.root]
        self._num_open: Counter[str] = Counter()
        """Number of open elements by name."""
        self._num_void: Counter[str] = Counter()
        """Number of elements without content by name, each of which may have an end tag."""
        self._num_with_other_text = 0
        """Number of open elements in `WITH_OTHER_TEXT`."""
        self._num_untranslated = 0
        """Number of open elements that are not translated."""

    def add(self, token: Text | Verbatim) -> None:
        """Add a text, or a part that is written as it is."""
        node: Node
        if isinstance(token, Verbatim):
            node = Copied(token.html)
        elif self._num_with_other_text > 0:
            node = Copied(escaped(token.text))
        else:
            node = token
        self._open[-1].children.append(node)

    def open(self, tag: StartTag) -> None:
        """Add an element, which is open unless it has no content."""
        name = tag.name
        if name == "p" == self._open[-1].name:  # the end tag is optional
            self._close_last()

        is_void = name in VOID
        element = Element(
            name,
            start_tag=_start_tag(name, tag.attributes, self._end_of_void_tags if is_void else ">"),
            end_tag="" if is_void else f"</{name}>",
            is_block=False,
            is_translated=_is_translated(name, tag.attributes),
        )
        self._open[-1].children.append(element)
        self._open.append(element)
        self._num_open[name] += 1
        self._num_with_other_text += name in WITH_OTHER_TEXT
        self._num_untranslated += not element.is_translated
        if name in BLOCKS:
            self._mark_blocks()
        if is_void or tag.is_closed:
            self._close_last()
        if is_void and not tag.is_closed:
            self._num_void[name] += 1

    def close(self, name: str) -> None:
        """Close an element, and those in it that are still open; ignore the end tag of an element that is not open."""
        if self._num_void[name] > 0:
            self._num_void[name] -= 1
            return
        if self._open[-1].name == name:
            self._close_last()
            return
        self.is_repaired = True
        if self._num_open[name] > 0:
            while self._open[-1].name != name:
                self._close_last()
            self._close_last()

    def close_all(self) -> None:
        """Close all elements at the end of the page."""
        if len(self._open) > 1:
            self.is_repaired = True
        while len(self._open) > 1:
            self._close_last()

    def _close_last(self) -> None:
        element = self._open.pop()
        self._num_open[element.name] -= 1
        self._num_with_other_text -= element.name in WITH_OTHER_TEXT
        if element.is_translated:
            return
        self._num_untranslated -= 1
        if self._num_untranslated == 0:  # the outermost one, in which nothing is translated
            words = "" if element.name in WITHOUT_TEXT else _text_of(element)
            self._open[-1].children[-1] = Copied(html_of([element]), element.is_block, words)
            self.has_copied_words = self.has_copied_words or words != ""

    def _mark_blocks(self) -> None:
        """Mark the last open element and those around it as blocks."""
        for element in reversed(self._open):
            if element.is_block or element is self.root:
                return
            element.is_block = True


def _is_translated(name: str, attributes: Mapping[str, str]) -> bool:
    classes = attributes.get("class", "").split()
    is_excluded = attributes.get("translate", "").lower() == "no" or "notranslate" in classes
    return name not in WITHOUT_TEXT and not is_excluded


def _text_of(element: Element) -> str:
    """Return the text of an element and those in it."""
    return "".join(node.text for node, _ in walk(element.children) if isinstance(node, Text))


def _start_tag(name: str, attributes: Mapping[str, str], end: str) -> str:
    """Return a start tag; encodings that it declares become UTF-8, as which the page will be written."""
    parts = [f"<{name}"]
    for key, value in attributes.items():
        if name == "meta" and key == "charset":
            value = "utf-8"
        if name == "meta" and key == "content" and attributes.get("http-equiv", "").lower() == "content-type":
            value = CHARSET.sub(r"\1utf-8", value)
        parts.append(f" {key}={_quoted(value)}")
    return "".join(parts) + end


def _quoted(value: str) -> str:
    """Return the value of an attribute in HTML."""
    html = escaped(value)
    if '"' not in html:
        return f'"{html}"'
    if "'" not in html:
        return f"'{html}'"
    return '"{}"'.format(html.replace('"', "&quot;"))

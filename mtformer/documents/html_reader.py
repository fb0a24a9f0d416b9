"""Reading of HTML, third step: the texts of a page or fragment, with the tags in them as marks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mtformer.documents.document import PART_OF_WORD, WORD, Mark, MarkedText, Word, words_in
from mtformer.documents.html_tokens import Text
from mtformer.documents.html_tree import Copied, Element, Node, Tree, html_of, parse_html, walk

MAX_NESTED = 20
"""Maximum number of inline elements around a word that are marks; see `_RunReader`."""


class Run(NamedTuple):
    """Adjacent inline nodes, whose text is translated as one line."""

    text: MarkedText
    nodes: dict[Mark, Element | Copied]
    """The node of each mark."""
    space_before: str
    """White space at the start of the nodes."""
    space_after: str
    """White space at the end of the nodes."""
    is_flattened: bool
    """True if elements are nested in more than `MAX_NESTED` others."""


@dataclass(frozen=True)
class HtmlPage:
    """HTML that was read."""

    parts: Sequence[str | Run]
    """The page in order: its texts, and the HTML between them."""
    has_line_breaks: bool
    is_repaired: bool
    """True if tags were unclosed or wrongly nested."""

    @property
    def runs(self) -> list[Run]:
        """The texts."""
        return [part for part in self.parts if isinstance(part, Run)]

    @property
    def lines(self) -> list[str]:
        """The texts as lines for the translation."""
        return [run.text.line for run in self.runs]


def read_html(html: str) -> HtmlPage:
    """Return the texts of HTML, in the order of the page, and what is between them."""
    without_surrogates = html.encode("utf-8", "replace").decode("utf-8")
    tree = parse_html(without_surrogates)
    has_line_breaks = "\n" in without_surrogates
    return HtmlPage(_parts(tree), has_line_breaks, tree.is_repaired)


def _parts(tree: Tree) -> list[str | Run]:
    """Return the texts with letters, each for adjacent inline nodes, and the HTML of everything else."""
    parts: list[str | Run] = []
    open_blocks = [(tree.root, _groups(tree.root))]
    while open_blocks:
        block, groups = open_blocks[-1]
        nodes = next(groups, None)
        if nodes is None:
            parts.append(block.end_tag)
            open_blocks.pop()
        elif len(nodes) == 1 and isinstance(nodes[0], Text):
            parts.append(_run_or_html(nodes[0]))
        elif _has_letters(nodes):
            parts.append(_RunReader(nodes, tree.has_copied_words).read())
        elif isinstance(nodes[0], Element) and nodes[0].is_block:
            parts.append(nodes[0].start_tag)
            open_blocks.append((nodes[0], _groups(nodes[0])))
        else:
            parts.append(html_of(nodes))
    return parts


def _run_or_html(node: Text) -> Run | str:
    """Return a text without marks, for which no words are needed; HTML if it has no letters."""
    if not any(map(str.isalpha, node.text)):
        return html_of([node])
    root = Mark(first_word=0, is_element=True)
    text = MarkedText(" ".join(node.text.split()), words=(), root=root, marks=(), word_pattern=WORD)
    return _run(text, {}, node, node, is_flattened=False)


def _run(
    text: MarkedText, nodes: dict[Mark, Element | Copied], first_node: Node, last_node: Node, *, is_flattened: bool
) -> Run:
    """Return a run with the white space around it in the first and the last node."""
    first_text = _text_of(first_node)
    last_text = _text_of(last_node)
    space_before = first_text[: len(first_text) - len(first_text.lstrip())]
    space_after = last_text[len(last_text.rstrip()) :]
    return Run(text, nodes, space_before, space_after, is_flattened)


def _groups(block: Element) -> Iterator[list[Node]]:
    """Yield the nodes in a block: blocks alone, and adjacent inline nodes together."""
    inline: list[Node] = []
    for node in block.children:
        if not _is_block(node):
            inline.append(node)
            continue
        if inline:
            yield inline
        yield [node]
        inline = []
    if inline:
        yield inline


def _is_block(node: Node) -> bool:
    return not isinstance(node, Text) and node.is_block


def _has_letters(nodes: Sequence[Node]) -> bool:
    """Return True if nodes are inline and have text with letters."""
    if _is_block(nodes[0]):
        return False
    return any(isinstance(node, Text) and any(map(str.isalpha, node.text)) for node, _ in walk(nodes))


class _RunReader:
    """Reading of the text of adjacent inline nodes, with its words and marks.

    An element inside of `MAX_NESTED` others is no mark, but its tags are, adjacent ones together. In the element around
    them, all marks keep their order, so that the tags stay nested.
    """

    def __init__(self, nodes: Sequence[Node], may_have_copied_words: bool) -> None:
        self._source = nodes
        has_copied_words = may_have_copied_words and any(
            isinstance(node, Copied) and node.words for node, _ in walk(nodes)
        )
        self._word_pattern = PART_OF_WORD if has_copied_words else WORD
        self._root = Mark(first_word=0, is_element=True)
        self._open = [self._root]
        """Marks of the elements around the current node."""
        self._num_flat = 0
        """Number of further elements around it."""
        self._flat_tags: list[str] = []
        """Tags of such elements directly before the current node, which become one mark."""
        self._texts: list[str] = []
        self._words: list[Word] = []
        self._nodes: dict[Mark, Element | Copied] = {}
        self._previous: Mark | Text | None = None
        """The mark or text that ends directly before the current node."""

    def read(self) -> Run:
        """Return the text with its words and marks."""
        for node, is_start in walk(self._source):
            if isinstance(node, Text):
                self._read_text(node)
            elif isinstance(node, Copied):
                self._read_copied(node)
            elif is_start:
                self._open_element(node)
            else:
                self._close_element(node)
        self._add_flat_tags()
        self._root.end_word = len(self._words)

        line = " ".join("".join(self._texts).split())
        text = MarkedText(line, self._words, self._root, list(self._nodes), self._word_pattern)
        is_flattened = any(mark.keeps_order and mark.has_words for mark in self._nodes)
        return _run(text, self._nodes, self._source[0], self._source[-1], is_flattened=is_flattened)

    def _read_text(self, node: Text) -> None:
        self._add_flat_tags()
        if isinstance(self._previous, Mark):
            self._previous.precedes_space = node.text[:1].isspace()
        self._add_text(node.text)
        self._previous = node

    def _read_copied(self, node: Copied) -> None:
        self._add_flat_tags()
        self._copy(node)

    def _add_flat_tags(self) -> None:
        if self._flat_tags:
            tags = "".join(self._flat_tags)
            self._flat_tags = []
            self._copy(Copied(tags))

    def _copy(self, node: Copied) -> None:
        mark = self._add_mark(node)
        self._add_text(node.words)
        mark.end_word = len(self._words)
        self._previous = mark

    def _open_element(self, element: Element) -> None:
        if len(self._open) <= MAX_NESTED:
            self._open.append(self._add_mark(element))
            self._previous = None
        else:
            self._open[-1].keeps_order = True
            self._num_flat += 1
            self._flat_tags.append(element.start_tag)
        if element.name == "br":
            self._add_flat_tags()
            self._add_text(" ")

    def _close_element(self, element: Element) -> None:
        if self._num_flat > 0:
            self._num_flat -= 1
            self._flat_tags.append(element.end_tag)
            return
        self._add_flat_tags()
        mark = self._open.pop()
        mark.end_word = len(self._words)
        self._previous = mark

    def _add_mark(self, node: Element | Copied) -> Mark:
        mark = Mark(first_word=len(self._words), is_element=isinstance(node, Element))
        mark.end_word = mark.first_word
        mark.follows_space = isinstance(self._previous, Text) and self._previous.text[-1:].isspace()
        self._open[-1].marks.append(mark)
        self._nodes[mark] = node
        return mark

    def _add_text(self, text: str) -> None:
        if text:
            self._texts.append(text)
            self._words += words_in(text, self._word_pattern)


def _text_of(node: Node) -> str:
    return node.text if isinstance(node, Text) else ""

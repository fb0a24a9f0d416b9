"""Reading of HTML, first step: the tags, texts and comments of a page, in order, in linear time.

The parser of the standard library needs quadratic time for several kinds of damaged pages, and reads some of them
differently in each version of Python. Here each character is read a fixed number of times: `_Scanner` remembers which
ends are missing in the rest of the page, and which attributes belong to a tag without an end.

Attributes are separated as in the parser of the standard library, which accepts everything that browsers do. Markup
without an end remains as text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape

RAW_TEXT = frozenset(("script", "style"))
"""Elements in which nothing is markup, except for their end tags."""

MARKUP = re.compile("<[a-zA-Z/!?]")
"""Start of a tag, comment, declaration or processing instruction."""
TAG_NAME = re.compile(r"<([a-zA-Z][^\t\n\r\f />\x00]*)(?:\s|/(?!>))*")
"""Start of a start tag, up to its first attribute or its end."""
ATTRIBUTE = re.compile(
    r"""(?<=['"\s/])([^\s/>][^\s/=>]*)(?:\s*=+\s*('[^']*'|"[^"]*"|(?!['"])[^>\s]*))?(?:\s|/(?!>))*"""
)
"""An attribute with or without a value, up to the next one or the end of the tag."""
TAG_END = re.compile("/?>")
END_TAG_NAME = re.compile(r"</([a-zA-Z][^\t\n\r\f />\x00]*)")
CLOSE = re.compile(">")
"""End of an end tag, declaration or processing instruction."""
EMPTY_COMMENT = re.compile("<!--(?:-?>|-->)")
COMMENT_END = re.compile("--!?>")
DOCTYPE = re.compile("<!doctype", re.IGNORECASE)
SECTION = re.compile(r"<!\[(?:(cdata|temp|ignore|include|rcdata)|if|else|endif)\b", re.IGNORECASE)
"""Start of a marked section, or of a condition such as `<![if !vml]>`."""
SECTION_END = re.compile("]]>")
CONDITION_END = re.compile(r"]\s*>")
RAW_TEXT_ENDS = {name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in RAW_TEXT}
"""Start of the end tag of each element of `RAW_TEXT`."""

AMPERSAND = re.compile(r"&(?=\w+=)")
"""& before a name and =, as in URLs, which is not a character reference."""
LONG_NUMBER = re.compile(r"(?<=&#)\d{8,}")
"""Number of a character reference that is too large for a character, or even for `int`."""
INVALID_NUMBER = "9999999"
"""Number that replaces one that is too large; it is read as U+FFFD."""
ENCODING = re.compile(r"""(?<=encoding=["'])[\w-]+""")
"""Name of the encoding in an XML declaration."""


@dataclass(eq=False, slots=True)
class Text:
    """Text, without character references."""

    text: str


@dataclass(eq=False, slots=True)
class StartTag:
    """A start tag; the first of several attributes with the same name counts."""

    name: str
    attributes: dict[str, str]
    is_closed: bool
    """True if it ends with `/>`."""


@dataclass(eq=False, slots=True)
class EndTag:
    """An end tag."""

    name: str


@dataclass(eq=False, slots=True)
class Verbatim:
    """A comment, declaration or processing instruction, or the content of a script, which is written as it is."""

    html: str


Token = Text | StartTag | EndTag | Verbatim


@dataclass(frozen=True)
class Tokens:
    """HTML that was divided."""

    tokens: list[Token]
    has_cut_markup: bool
    """True if markup has no end, and remains as text."""


def tokenize(html: str) -> Tokens:
    """Divide HTML into tags, texts and other parts, in order."""
    scanner = _Scanner(html)
    tokens = list(scanner.tokens())
    return Tokens(tokens, scanner.has_cut_markup)


class _Scanner:
    """Reading of a text from its start to its end, with what is known about the rest of it."""

    def __init__(self, html: str) -> None:
        self._html = html
        self._absent: set[re.Pattern[str]] = set()
        """Patterns that do not match after the positions that were read."""
        self._endless: set[int] = set()
        """Positions of attributes after which a tag has no end."""
        self.has_cut_markup = False

    def tokens(self) -> Iterator[Token]:
        """Yield all tokens."""
        text_start = 0
        markup = MARKUP.search(self._html)
        while markup is not None:
            start = markup.start()
            found = self._markup(start)
            if found is None:  # text
                markup = MARKUP.search(self._html, start + 1)
                continue

            token, end = found
            if text_start < start:
                yield _text(self._html[text_start:start])
            yield token
            if isinstance(token, StartTag) and token.name in RAW_TEXT and not token.is_closed:
                raw_end = self._end_of_raw_text(token.name, end)
                if end < raw_end:
                    yield Verbatim(self._html[end:raw_end])
                end = raw_end
            text_start = end
            markup = MARKUP.search(self._html, end)
        if text_start < len(self._html):
            yield _text(self._html[text_start:])

    def _markup(self, start: int) -> tuple[Token, int] | None:
        """Return the markup at a position, and its end; None if there is only text."""
        character = self._html[start + 1]
        if character == "/":
            return self._end_tag(start)
        if character == "?":
            return self._verbatim(start, CLOSE)
        if character == "!":
            return self._declaration(start)
        return self._start_tag(start)

    def _start_tag(self, start: int) -> tuple[Token, int] | None:
        name_match = TAG_NAME.match(self._html, start)
        assert name_match is not None
        attributes: dict[str, str] = {}
        attribute_starts = []
        position = name_match.end()
        end_match = TAG_END.match(self._html, position)
        while end_match is None:
            attribute_starts.append(position)
            attribute = None if position in self._endless else ATTRIBUTE.match(self._html, position)
            if attribute is None:
                # Later tags may contain the same attributes, which need not be read again.
                self._endless.update(attribute_starts)
                self.has_cut_markup = True
                return None
            name, value = attribute.groups("")
            attributes.setdefault(name.lower(), _value(value))
            position = attribute.end()
            end_match = TAG_END.match(self._html, position)

        name = name_match[1].lower()
        is_closed = len(end_match[0]) > 1
        return StartTag(name, attributes, is_closed), end_match.end()

    def _end_tag(self, start: int) -> tuple[Token, int] | None:
        name_match = END_TAG_NAME.match(self._html, start)
        if name_match is None:  # a comment for browsers
            return self._verbatim(start, CLOSE)
        end = self._end_of(CLOSE, name_match.end())
        if end is None:
            self.has_cut_markup = True
            return None
        return EndTag(name_match[1].lower()), end

    def _declaration(self, start: int) -> tuple[Token, int] | None:
        """Read what starts with `<!`."""
        html = self._html
        if html.startswith("<!--", start):
            empty_comment = EMPTY_COMMENT.match(html, start)
            if empty_comment is not None:
                return Verbatim(empty_comment[0]), empty_comment.end()
            return self._verbatim(start, COMMENT_END, num_read=len("<!--"))

        if html.startswith("<![", start):
            section = SECTION.match(html, start)
            if section is None:
                return None
            return self._verbatim(start, CONDITION_END if section[1] is None else SECTION_END)

        declaration = self._verbatim(start, CLOSE)
        doctype = DOCTYPE.match(html, start)
        if declaration is None or doctype is None:
            return declaration
        end = declaration[1]
        return Verbatim(f"<!DOCTYPE{html[doctype.end() : end]}"), end

    def _verbatim(self, start: int, end_pattern: re.Pattern[str], num_read: int = 2) -> tuple[Token, int] | None:
        """Return the part of the text up to the next match of a pattern.

        Args:
            start: start of the part.
            end_pattern: pattern of its end.
            num_read: number of its characters in which there is no end.
        """
        end = self._end_of(end_pattern, start + num_read)
        if end is None:
            self.has_cut_markup = True
            return None
        html = self._html[start:end]
        if html.startswith("<?xml"):
            html = ENCODING.sub("utf-8", html)
        return Verbatim(html), end

    def _end_of_raw_text(self, name: str, start: int) -> int:
        """Return the position of the end tag of a script or style sheet; that of the end of the text without one."""
        end_tag = RAW_TEXT_ENDS[name].search(self._html, start)
        is_closed = end_tag is not None and self._end_of(CLOSE, end_tag.end()) is not None
        return end_tag.start() if end_tag is not None and is_closed else len(self._html)

    def _end_of(self, pattern: re.Pattern[str], position: int) -> int | None:
        """Return the end of the next match of a pattern; None if there is none."""
        if pattern in self._absent:
            return None
        match = pattern.search(self._html, position)
        if match is None:
            self._absent.add(pattern)
            return None
        return match.end()


def _text(html: str) -> Text:
    return Text(_without_references(html))


def _value(html: str) -> str:
    """Return the value of an attribute, which may be in quotation marks."""
    if html[:1] in ("'", '"'):
        html = html[1:-1]
    return _without_references(html)


def _without_references(html: str) -> str:
    """Return a text with characters instead of references to them, such as `&amp;`."""
    if "&" not in html:
        return html
    with_short_numbers = LONG_NUMBER.sub(INVALID_NUMBER, html)
    return unescape(AMPERSAND.sub("&amp;", with_short_numbers))

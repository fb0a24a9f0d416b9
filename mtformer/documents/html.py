"""Translation of HTML: the texts of a fragment, and the same tags around their translations.

Beautiful Soup with html.parser keeps tags as they are written; html5lib and lxml add, move and copy tags.
"""

import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby, pairwise
from typing import Any

from bs4 import BeautifulSoup, Tag, UnusualUsageWarning
from bs4.builder import HTMLTreeBuilder
from bs4.dammit import EntitySubstitution
from bs4.element import Declaration, Doctype, NavigableString, PageElement, PreformattedString
from bs4.exceptions import ParserRejectedMarkup
from bs4.formatter import HTMLFormatter

from mtformer.decoding.lines.inputs import check_lines
from mtformer.decoding.lines.sentences import UNSPACED
from mtformer.decoding.lines.translation import REPAIRED, Attention, Translation, join_n_best
from mtformer.decoding.translator import Translator
from mtformer.text.tokenizer import SPACE

BLOCKS = [
    *("body", "button", "caption", "colgroup", "details", "dialog", "head", "html", "legend", "optgroup", "option"),
    *("search", "select", "summary", "tbody", "td", "textarea", "th", "thead", "title", "tr"),
    *HTMLTreeBuilder.DEFAULT_BLOCK_ELEMENTS,
]
"""Elements that separate texts; all others are inline."""
WITHOUT_TEXT = ("math", "pre", "script", "style", "svg", "template", "textarea")  # or with line breaks that matter
MARK = r"[!-/:-@\[-`{-~¡-¿‐-⁞،؛؟۔।॥։።፣។၊။]"
LETTER = rf"(?!{UNSPACED.pattern}|{MARK})\S"
WORD = re.compile(rf"{UNSPACED.pattern}|(?:{LETTER})+(?:{MARK}+(?:{LETTER})+)*|(?P<marks>{MARK}+)")
"""A word with punctuation inside it, a character of a script without spaces, or other punctuation."""
CLOSING = {*",.;:!?)"}
"""Punctuation before which no space is added."""
PART = re.compile(rf"{UNSPACED.pattern}|(?:{LETTER})+|(?P<marks>{MARK}+)")
"""Like `WORD`, but without punctuation inside: text that is kept may be a part of a word, as in T-Shirt."""
AMPERSAND = re.compile(r"(<(script|style)\b.*?</\2|<!--.*?-->)|&(?=\w+=)", re.IGNORECASE | re.DOTALL)
"""Text without character references, or & before a name and =, as in URLs, which is not a character reference."""
START_BYTE, BYTE = re.compile("<0x[0-7C-F][0-9A-F]>"), re.compile("<0x[89AB][0-9A-F]>")
"""Tokens for the first byte and for the other bytes of a character, with `tokenizer.byte_fallback`."""
UNCLOSED = re.compile(r"<(script|style)\b(?:(?!</\1).)*\Z", re.IGNORECASE | re.DOTALL)
CUT = re.compile(r"<!--|<[a-z/][^<>]*\Z", re.IGNORECASE)
"""An unclosed comment or a tag without its end, outside scripts; both remain as text."""
ENCODING = re.compile(r"""(<\?xml[^>]*?encoding=["'])[\w-]+""")
LONG_NUMBER = re.compile(r"(?<=&#)\d{8,}")
"""Number of a character reference that is too large for a character, or even for `int`."""
warnings.filterwarnings("ignore", category=UnusualUsageWarning)  # about text that looks like a URL


def translate_html(translator: Translator, fragments: Sequence[str], **arguments: Any) -> list[Translation]:
    """Translate HTML fragments, such as lines of a file, with other arguments of `Translator.translate`.

    Line ends are kept. Arguments that have a value for each line, and `n_best`, are not supported.
    """
    lines = check_lines(fragments)
    parsed = [Fragment(one if "\n" in one else line) for one, line in zip(fragments, lines, strict=True)]
    texts = [line for one in parsed for line in one.lines]
    found, translations = iter(translator.translate(texts, **{**arguments, "attention": True})), []
    for one in parsed:
        parts = [next(found) for _ in one.lines]
        [whole] = join_n_best([[part] for part in parts], translator.decoding.length_penalty)
        flags = (*whole.flags, *[REPAIRED] * one.is_repaired)
        translations.append(replace(whole, text=one.join(parts), flags=flags, attention=None))
    return translations


class Fragment:
    """HTML and the texts in it, `lines`; `is_repaired` is True if tags were unclosed or wrongly nested."""

    def __init__(self, html: str) -> None:
        self.text = LONG_NUMBER.sub("9999999", html.encode("utf-8", "replace").decode("utf-8"))
        self.text = ENCODING.sub(r"\1utf-8", self.text, count=1)
        self.text = AMPERSAND.sub(lambda match: match[1] or "&amp;", self.text)
        if unclosed := UNCLOSED.search(self.text):  # html.parser may drop its text
            self.text += f"</{unclosed[1]}>"
        self.formatter = FORMATTERS[self.text.lstrip("\ufeff \t\r\n").startswith("<?xml")]
        parse = partial(_Soup, features="html.parser", on_duplicate_attribute="ignore", element_classes=CLASSES)
        try:
            soup = parse(self.text, multi_valued_attributes=None)
        except ParserRejectedMarkup:  # a declaration such as <![x
            soup = parse(self.text.replace("<![", "&lt;!["), multi_valued_attributes=None)
        is_cut = CUT.search(AMPERSAND.sub("", self.text)) is not None
        self.is_repaired = unclosed is not None or is_cut or soup.num_closed != len(soup.find_all())
        blocks = {id(one) for tag in soup.find_all(BLOCKS) for one in (tag, *tag.parents)}
        words_of: dict[int, str] = {}  # of tags that are not translated, in the sentences around them
        for tag in soup.find_all(_is_kept):
            kept = PreformattedString(tag.decode(formatter=self.formatter))
            words_of[id(kept)] = "" if tag.name in WITHOUT_TEXT else tag.get_text()
            blocks.update([id(kept)] * (id(tag) in blocks))
            tag.replace_with(kept)
        stack, runs = list[Tag]([soup]), dict[int, _Run]()
        while stack:
            for is_block, nodes in groupby(list(stack.pop().contents), key=lambda node: id(node) in blocks):
                if is_block:
                    stack += [node for node in nodes if isinstance(node, Tag)]
                else:
                    first, *others = nodes
                    root = first.wrap(soup.new_tag("run"))
                    root.extend(others)
                    runs[id(root)] = _Run(root, words_of)
        in_order = [runs[id(tag)] for tag in soup.find_all("run") if id(tag) in runs]
        self.soup, self.runs = soup, [run for run in in_order if run.text or not run.root.unwrap()]
        self.lines = [run.text for run in self.runs]

    def join(self, translations: Sequence[Translation]) -> str:
        """Return the HTML with translations, which need attention, instead of `lines`; to be called once."""
        for run, translation in zip(self.runs, translations, strict=True):
            run.fill(translation)
        html = self.soup.decode(formatter=self.formatter)
        return html if "\n" in self.text else html.translate({10: "&#10;", 13: "&#13;"})


class _Soup(BeautifulSoup):
    ASCII_SPACES = ""  # all white space is kept
    num_closed = 0.0  # tags closed by their end tags; negative if there are other end tags

    def handle_starttag(self, name: str, *arguments: Any, **others: Any) -> Tag | None:
        if name == "p" and self.currentTag is not None and self.currentTag.name == "p":
            self.handle_endtag("p")  # which is optional
        return super().handle_starttag(name, *arguments, **others)

    def handle_endtag(self, name: str, nsprefix: str | None = None) -> None:
        self.num_closed += 1 if self.currentTag is not None and self.currentTag.name == name else -1e9
        super().handle_endtag(name, nsprefix)


class _Tag(Tag):
    # Tag compares contents, recursively.
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__


class _Declaration(Declaration):
    PREFIX, SUFFIX = "<![", "]>"  # as in <![if !vml]>


class _Doctype(Doctype):
    SUFFIX = ">"  # without the line end that Doctype adds


CLASSES = {Tag: _Tag, Declaration: _Declaration, Doctype: _Doctype}

FORMATTERS = [HTMLFormatter(EntitySubstitution.substitute_xml, end) for end in ("", "/")]  # HTML: <br>, XHTML: <br/>
for _formatter in FORMATTERS:
    _formatter.attributes = lambda tag: tag.attrs.items()  # type: ignore[method-assign]  # in order


def _is_kept(tag: Tag) -> bool:
    is_marked = str(tag.get("translate")).lower() == "no" or "notranslate" in str(tag.get("class")).split()
    return is_marked or tag.name in WITHOUT_TEXT


def _text(node: PageElement | None) -> str:
    return str(node) if type(node) is NavigableString else ""


class _Run:
    """Adjacent inline nodes in a temporary tag, whose text is translated as one line."""

    def __init__(self, root: Tag, words_of: Mapping[int, str]) -> None:
        self.root, self.text, self.words = root, "", list[re.Match[str]]()
        self.ranges: dict[int, range] = {}  # words in each node, by id
        self.word = PART if any(words_of.get(id(node)) for node in root.descendants) else WORD
        for node in root.descendants:
            is_break = isinstance(node, Tag) and node.name == "br"
            text, start = words_of.get(id(node), " " if is_break else _text(node)), len(self.words)
            self.text += text
            self.words += self.word.finditer(text)
            for one in (node, *node.parents):
                self.ranges[id(one)] = range(self.ranges.get(id(one), range(start, start)).start, len(self.words))
        has_letters = any(map(str.isalpha, "".join(map(_text, root.descendants))))
        self.text = " ".join(self.text.split()) if has_letters else ""

    def fill(self, translation: Translation) -> None:
        """Replace the text with a translation; tags get the aligned words, others cross the fewest alignments."""
        text, ranges, weights = translation.text, self.ranges, self._attended(translation)
        spans = [match.span() for match in self.word.finditer(text)]
        values = [1.0 + text[start].isalnum() for start, _ in spans]  # punctuation counts less
        labels = [max(some, key=some.__getitem__, default=-1) for some in weights]
        nodes = [node for node in self.root.descendants if type(node) is not NavigableString]
        innermost = {word: id(node) for node in (self.root, *nodes) for word in ranges[id(node)]}
        places, homes = {id(self.root): (0, len(spans))}, [id(self.root)] * len(spans)
        for node in sorted(nodes, key=lambda node: not ranges[id(node)]):
            words, outer = ranges[id(node)], id(node.parent)
            low, high = places[outer]
            free = {i for i in range(low, high) if homes[i] == outer and innermost.get(labels[i], outer) == outer}
            own = {i for i in range(low, high) if labels[i] in words or words == ranges[outer]}
            if free and words and not own and isinstance(node, Tag):  # the word that attends to it most
                own = {max(free, key=lambda i: sum(weights[i].get(word, 0.0) for word in words))}
            scores = (values[i] if i in own else -1.0 if i in free else -1e9 for i in range(low, high))
            sums = dict(enumerate(accumulate(scores, initial=0.0), start=low))
            crossed = ((label >= words.start) - (0 <= label < words.start) for label in labels[low:high])
            costs = dict(enumerate(accumulate(crossed, initial=0), start=low))
            ends = {words.stop == ranges[outer].stop: high, words.start == ranges[outer].start: low}
            start = ends.get(True, min(costs, key=costs.__getitem__))
            best, i = (0.0, 0, 0, (start, start)), -1
            for j in sorted(own):  # i: the best start of a span that ends with j (Kadane's algorithm)
                i = j if i < 0 or sums[j] <= sums[i] else i
                best = max(best, (sums[j + 1] - sums[i], i - j, -i, (i, j + 1)))
            first, last = best[-1]
            places[id(node)], homes[first:last] = (first, last), [id(node)] * (last - first)
        before, after = _text(self.root.contents[0]), _text(self.root.contents[-1])
        for tag in [self.root, *(node for node in nodes if isinstance(node, Tag) and ranges[id(node)])]:
            low, high = places[id(tag)]
            position, end = (spans[low][0], spans[high - 1][1]) if low < high else (0, 0)
            children = [NavigableString(""), *tag.contents, NavigableString("")]
            order = sorted((*places[id(child)], n) for n, child in enumerate(children) if id(child) in places)
            tag.clear()
            for first, last, n in order:
                right = spans[first][0] if first < high else end
                gap = text[position:right]
                if first == last:  # with spaces as in the source
                    has_space = _text(children[n - 1])[-1:].isspace() and first > low and not gap.endswith(" ")
                    gap += " " * (has_space and text[right : right + 1] not in CLOSING)
                tag.extend([gap, children[n]])
                position = max(position, spans[last - 1][1] if first < last else right)
                if first == last < high and _text(children[n + 1])[:1].isspace() and text[right] not in CLOSING:
                    tag.append(" ")
            tag.append(text[position:end])
        self.root.insert(0, before[: len(before) - len(before.lstrip())])
        self.root.append(after[len(after.rstrip()) :])
        self.root.unwrap()

    def _attended(self, translation: Translation) -> list[dict[int, float]]:
        """Return the attention of each target word to source words: the geometric mean of both directions."""
        attention = translation.attention or Attention([], [], [], [])  # None if the tokenizer removed all characters
        words, received = list(self.word.finditer(translation.text)), defaultdict[int, float](float)
        found = [defaultdict[int, float](float) for _ in words]
        src_words = _overlaps(attention.src_pieces, [match[0] for match in self.words])
        rows_of = _overlaps([match[0] for match in words], attention.tgt_pieces)
        for sums, match, rows in zip(found, words, rows_of, strict=True):
            for row in rows:
                for piece, weight in enumerate(attention.weights[row], start=attention.src_starts[row]):
                    for word in src_words[piece]:  # punctuation attends only to punctuation
                        if weight > 0 and bool(self.words[word]["marks"]) == bool(match["marks"]):
                            sums[word] += weight
                            received[word] += weight
        return [{word: weight / received[word] ** 0.5 for word, weight in sums.items()} for sums in found]


def _overlaps(ours: Sequence[str], others: Sequence[str]) -> list[set[int]]:
    """Return which of `others` each of `ours` overlaps in a text that both form, up to spaces and normalization."""
    ours, others = ([BYTE.sub("", START_BYTE.sub("x", one)) for one in some] for some in (ours, others))
    of_character = [number for number, other in enumerate(others) for _ in other.replace(SPACE, "")]
    ends = list(accumulate((len(one.replace(SPACE, "")) for one in ours), initial=0))
    scale = len(of_character) / max(1, ends[-1])
    return [{of_character[int((i + 0.5) * scale)] for i in range(*span) if of_character} for span in pairwise(ends)]

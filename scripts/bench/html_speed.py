"""Time of reading and writing HTML of many kinds, whole and damaged, with an identity translator.

A table of seconds for documents of 125 KB to 1 MB, in which growth is visible; the exit code is 1 if one of 1 MB takes
more than 5 seconds. Usage: python scripts/bench/html_speed.py [KIND ...]
"""

import re
import sys
import time
from collections.abc import Sequence

from mtformer.decoding.lines.translation import Attention, Translation
from mtformer.documents.html import Fragment
from mtformer.text.tokenizer import SPACE

SIZES = (125_000, 250_000, 500_000, 1_000_000)
"""Sizes of the documents in bytes of UTF-8."""
PIECE = re.compile(f"{SPACE}?[^{SPACE}]{{1,8}}")
"""A part of a word, with the space before it."""
MAX_SECONDS = 5.0
"""Maximum time for the largest document."""

REPEATED = {
    "unclosed b": "<b>x ",
    "unclosed a": "<a href='y'>x ",
    "unclosed br in b": "<b>x<br>",
    "unclosed custom": "<x-y>x z ",
    "wrongly nested": "<b>x<i>y</b>z</i> ",
    "wrongly closed": "<b>x</i> ",
    "only end tags": "x</b> ",
    "small elements": "<b>x</b> ",
    "two levels": "<b><i>x</i> y</b> ",
    "without words": "x <i></i> ",
    "line breaks": "x<br>",
    "images": "x <img src=y> z ",
    "comments": "x <!-- y --> ",
    "references": "&amp;x &#65; ",
    "ampersands": "&",
    "unknown references": "&x=&y ",
    "long reference numbers": "&#0123456789",
    "paragraphs": "<p>x y ",
    "closed paragraphs": "<p>x</p>",
    "attributes": "<b a='1' b=2 c>x</b> ",
    "CDATA": "x <![CDATA[y]]> ",
    "processing instructions": "x <?y z?> ",
    "XML declarations": "<?xml ",
    "less-than signs": "<",
    "words and less-than signs": "x < y ",
    "unclosed declarations": "<!",
    "unclosed sections": "<![",
    "unclosed CDATA": "<![CDATA[",
    "unclosed conditions": "<![if ",
    "unclosed comments": "<!--",
    "unclosed comments with words": "<!-- x ",
    "almost comments": "<!-- x --",
    "unclosed end tags": "</b ",
    "unclosed double quotes": '<a b="x>',
    "unclosed single quotes": "<a b='x>",
    "both quotes": "<a b=\"<a c='",
    "both quotes and ends": "<a b=\"<a c='>",
    "unclosed tags": "<a b ",
    "unclosed scripts": "<script>x ",
    "almost closed scripts": "<script></script ",
    "scripts": "<script>x</script>y ",
    "style sheets": "<style>x</style><p>y",
    "not translated": "x <kbd translate=no>y</kbd> ",
    "unclosed pre": "<pre>x ",
    "unclosed notranslate": "<b translate=no>x ",
    "ruby": "<ruby>x<rt>y</rt></ruby>",
    "unclosed rt": "<rt>x ",
    "Chinese": "<b>猫</b>犬",
    "Thai": "<b>แมว</b>หมา ",
    "punctuation": "<b>x</b>!? ",
    "svg": "x<svg><title>y</title></svg> ",
}
"""A part of a document by the name of its kind; the document repeats it."""
NESTED = {
    "nested div": ("<div>x ", " y</div>"),
    "nested span": ("<span>x ", " y</span>"),
    "nested lists": ("<ul><li>x", "</li></ul>"),
    "nested tables": ("<table><tr><td>x", "</td></tr></table>"),
    "nested i without words": ("<i>", "</i>"),
    "nested pre": ("<pre>x", "</pre>"),
    "nested div in b": ("<b><div>x", "</div></b>"),
}
"""Start and end of an element by the name of its kind; the document nests it in itself."""
AROUND = {
    "one line": ("", "x y ", ""),
    "one word": ("", "x", ""),
    "punctuation in a word": ("", "x'", ""),
    "spaces": ("<b>", " ", "x</b>"),
    "long attribute": ("<b a='", "x y ", "'>z</b>"),
    "long attribute without an end": ("<b a='", "x y ", ">z</b>"),
    "many attributes": ("<b ", "x=y z='1' ", ">z</b>"),
    "long tag name": ("<b", "x", ">z"),
    "slashes in a tag": ("<b ", "/", ">z"),
    "equals signs in a tag": ("<b a", "=", ">z"),
    "spaces in a tag": ("<b a", " ", "=>z"),
    "long comment": ("x <!-- ", "- ", "--> y"),
    "long script": ("x <script>", "</ ", "</script> y"),
    "meta": ("<meta http-equiv=content-type content='", ";\n", "'>x"),
}
"""Start, middle and end of a document by the name of its kind; it repeats the middle."""


def document(kind: str, size: int) -> str:
    """Return a document of a kind."""
    if kind in REPEATED:
        two_parts = 2 * REPEATED[kind]  # an even number, so that quotation marks form pairs in all sizes
        return two_parts * (size // len(two_parts.encode()))
    if kind in NESTED:
        start, end = NESTED[kind]
        depth = size // len((start + end).encode())
        return f"{start * depth}x{end * depth}"
    start, middle, end = AROUND[kind]
    return start + middle * (size // len(middle.encode())) + end


def identity(line: str) -> Translation:
    """Return a line as its own translation, with attention from each word to itself."""
    return copy_of(line, PIECE.findall(line.replace(" ", SPACE)))


def copy_of(line: str, pieces: list[str]) -> Translation:
    """Return a line as its own translation, with attention from each of its pieces to itself."""
    weights = [[1.0]] * len(pieces)
    attention = Attention(pieces, pieces, weights, list(range(len(pieces))))
    return Translation(line, 0.0, [], attention=attention)


def seconds(html: str) -> float:
    """Return the time for reading HTML and writing it with identical texts."""
    start = time.perf_counter()
    fragment = Fragment(html)
    translations = [identity(line) for line in fragment.lines]
    fragment.write(translations)
    return time.perf_counter() - start


def main(kinds: Sequence[str]) -> int:
    """Print the table; return 1 if a large document takes too much time."""
    print(f"{'seconds':32}" + "".join(f"{size // 1000:>8} KB" for size in SIZES))
    is_slow = False
    for kind in kinds or [*REPEATED, *NESTED, *AROUND]:
        times = [seconds(document(kind, size)) for size in SIZES]
        is_slow = is_slow or times[-1] > MAX_SECONDS
        print(f"{kind:32}" + "".join(f"{value:11.2f}" for value in times), flush=True)
    return 1 if is_slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

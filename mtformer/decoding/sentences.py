"""Lines longer than the model was made for: split at sentence ends, and joined again."""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

CLOSING = "[\"'«»“”’)\\]」』）】]*"
SENTENCE_END = re.compile(rf"(?<=[.!?…।॥؟۔]){CLOSING}\s+|(?:[。！？｡]|．(?!\d))+{CLOSING}\s*")
CLAUSE_END = re.compile(r"[,;:،؛]\s+|[、，；：､]\s*")
SPACE = re.compile(r"\s+")
ABBREVIATION = re.compile(r"(?<![^\s(])(?:\w|\d\d)\.\s+$")
"""An initial or an ordinal number, as in `J. Smith` and `21. März`."""
FEWEST_TOKENS = 4
"""What is shorter goes with the sentence after it: more often than not it is a title, such as `Dr.`"""
UNSPACED = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
"""Chinese characters, kana, and their punctuation: no space comes before or after them."""


def split_line(line: str, num_tokens: Callable[[Sequence[str]], list[int]], wanted: int, most: int) -> list[str]:
    """The line in parts of at most `most` tokens, in order; most often it is one part, the line itself.

    A line of more than `wanted` tokens is cut into its sentences, each of them a part, since models are mostly trained
    on sentences and leave out much of several at once. A sentence stays whole as long as it has at most `most` tokens;
    one above that is cut at the ends of its clauses, a clause above that between words (into parts of up to `wanted`),
    and a word above that anywhere. Put together again the parts are the line.

    Args:
        num_tokens: tokens of each of some texts.
        wanted: what the model has seen in training.
        most: what it can take.
    """
    if num_tokens([line])[0] <= min(wanted, most):
        return [line]
    parts = _sentences(line, num_tokens, wanted)
    for border in (CLAUSE_END, SPACE):
        lengths = num_tokens(parts)
        pieces = [_cut(part, border) if n > most else [part] for part, n in zip(parts, lengths, strict=True)]
        parts = [packed for some in pieces for packed in _pack(some, num_tokens(some), wanted)]
    return [half for part in parts for half in _halves(part, num_tokens, most)]


def join_lines(parts: Iterable[str]) -> str:
    """The translations of the parts as one line, with a space between them where the script has spaces."""
    joined = ""
    for part in filter(None, (part.strip() for part in parts)):
        joined += f" {part}" if joined and needs_space(joined, part) else part
    return joined


def needs_space(before: str, after: str) -> bool:
    """Whether a space belongs between two texts, neither of them empty."""
    return not (UNSPACED.match(before[-1]) or UNSPACED.match(after[0]))


def _cut(text: str, border: re.Pattern[str]) -> list[str]:
    """The text cut behind each border; put together again it is the text."""
    ends = [0, *(match.end() for match in border.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(ends) if end > start]


def _sentences(line: str, num_tokens: Callable[[Sequence[str]], list[int]], limit: int) -> list[str]:
    """The line in sentences; what may only look like the end of one is none, as long as they stay within the limit."""
    pieces, has_capitals = _cut(line, SENTENCE_END), not line.islower()
    sentences: list[str] = []
    size = 0
    for piece, length in zip(pieces, num_tokens(pieces), strict=True):
        before = sentences[-1] if sentences else ""
        goes_on = size < FEWEST_TOKENS or ABBREVIATION.search(before) or (has_capitals and piece[0].islower())
        if sentences and goes_on and size + length <= limit:
            sentences[-1] += piece
            size += length
        else:
            sentences.append(piece)
            size = length
    return sentences


def _pack(pieces: list[str], lengths: list[int], limit: int) -> list[str]:
    """Neighbours put together while their tokens stay within the limit."""
    packed: list[str] = []
    room = 0
    for piece, length in zip(pieces, lengths, strict=True):
        if packed and length <= room:
            packed[-1] += piece
            room -= length
        else:
            packed.append(piece)
            room = limit - length
    return packed


def _halves(text: str, num_tokens: Callable[[Sequence[str]], list[int]], most: int) -> list[str]:
    """The text, cut in halves until each is short enough."""
    if len(text) < 2 or num_tokens([text])[0] <= most:
        return [text]
    middle = len(text) // 2
    return [*_halves(text[:middle], num_tokens, most), *_halves(text[middle:], num_tokens, most)]

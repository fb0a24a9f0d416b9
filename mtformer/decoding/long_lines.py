"""Lines longer than the model was made for: split at sentence ends, and joined again."""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence

CLOSING = "[\"'»”’)\\]」』）】]*"
SENTENCE_END = re.compile(rf"(?<=[.!?…]){CLOSING}\s+|[。！？]{CLOSING}\s*")
CLAUSE_END = re.compile(r"[,;:]\s+|[、，；：]\s*")
SPACE = re.compile(r"\s+")


def split_line(line: str, num_tokens: Callable[[Sequence[str]], list[int]], wanted: int, most: int) -> list[str]:
    """The line in parts of at most `most` tokens, in order; most often it is one part, the line itself.

    A line of more than `wanted` tokens is cut at sentence ends into parts of up to that many. A sentence above `most`
    is cut at the ends of its clauses, then between words, then anywhere.

    Args:
        num_tokens: tokens of each of some texts.
        wanted: what the model has seen in training.
        most: what it can take.
    """
    if num_tokens([line])[0] <= min(wanted, most):
        return [line]
    parts = [line]
    for limit, border in ((wanted, SENTENCE_END), (most, CLAUSE_END), (most, SPACE)):
        lengths = num_tokens(parts)
        # Clauses and words are looked into only where a whole sentence cannot be taken.
        pieces = [_cut(part, border) if n > limit else [part] for part, n in zip(parts, lengths, strict=True)]
        parts = [packed for some in pieces for packed in _pack(some, num_tokens(some), limit)]
    return [half for part in parts for half in _halves(part, num_tokens, most)]


def join_lines(parts: Iterable[str]) -> str:
    """The translations of the parts as one line, with a space between them where the script has spaces."""
    joined = ""
    for part in filter(None, (part.strip() for part in parts)):
        is_spaced = joined and unicodedata.east_asian_width(joined[-1]) not in "WF"
        joined += f" {part}" if is_spaced else part
    return joined


def _cut(text: str, border: re.Pattern[str]) -> list[str]:
    """The text cut behind each border; put together again it is the text."""
    ends = [0, *(match.end() for match in border.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(ends) if end > start]


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
    if num_tokens([text])[0] <= most or len(text) < 2:
        return [text]
    middle = len(text) // 2
    return [*_halves(text[:middle], num_tokens, most), *_halves(text[middle:], num_tokens, most)]

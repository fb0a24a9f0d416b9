"""Splitting lines into sentences, and joining their translations."""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial

UNSPACED = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
"""Chinese characters, kana and their punctuation, which are not separated by spaces."""
CLOSING = "[\"'«»“”’)\\]」』）】]*"
SENTENCE_END = re.compile(
    rf"(?:(?<=[.!?…।॥؟۔։።។။፧\u037e])|(?<=[\u0370-\u03ff\u1f00-\u1fff];))(?:\s»)?{CLOSING}\s+"
    rf"|(?:[。！？｡]|．(?!\d)|(?<={UNSPACED.pattern})[!?]+)+{CLOSING.replace('“', '')}\s*"  # in Chinese, “ opens
)
AFTER_END = re.compile(rf"(?:{SENTENCE_END.pattern})\w")
CLAUSE_END = re.compile(r"[,;:،؛]\s+|[、，；：､]\s*")
SPACE = re.compile(r"\s+")
TITLES = (
    "adm|bzw|ca|capt|col|dhr|dott|dra?|evtl|fr|ft|gen|gov|hon|hr|inkl|lt|maj|mevr|mlle|mme|mrs?|ms|mt|prof|rev|sen|sgt|"
    "sig|sog|sra?|srta|st|uds?|vgl|vs"
)
"""Abbreviations in several languages that are nearly always followed by another word."""
ABBREVIATION = re.compile(rf"(?<![^\s(])(?:(?![ap]\.m\.)(?:\w\.)+|\d\d\.|(?:{TITLES})\.)\s+$", re.IGNORECASE)
"""Initials, an ordinal number or a title, as in `J. R. Smith`, `21. März` and `Dr. Smith`."""
SHORT_WORD = re.compile(r"(?<!\w)\w{1,4}\.\s+$")
"""Short word that ends with a period; usually an abbreviation if a number follows, as in `Nr. 5`."""
OPENING, CLOSING_BRACKETS = "(（「『【｢", ")）」』】｣"
CountTokens = Callable[[Sequence[str]], list[int]]


def split_line(line: str, num_tokens: CountTokens, preferred: int, max_tokens: int) -> list[str]:
    """Split a line into sentences of at most `max_tokens` tokens; the concatenation of the parts is the line.

    A longer sentence is split at the ends of clauses, a longer clause between words (into parts of up to `preferred`
    tokens), and a longer word at any character. Only text of more than `preferred` tokens, the length of the longest
    training source, is split at uncertain sentence ends.
    """
    parts = split_sentences(line, num_tokens, preferred)
    for border in (CLAUSE_END, SPACE):
        lengths = num_tokens(parts)
        pieces = [_cut(part, border) if n > max_tokens else [part] for part, n in zip(parts, lengths, strict=True)]
        parts = [packed for some in pieces for packed in _pack(some, num_tokens(some), preferred)]
    return [half for part in parts for half in _halves(part, num_tokens, max_tokens)]


def join_lines(parts: Iterable[str]) -> str:
    """Join the translations of the parts of a line, with spaces between them if the script uses spaces."""
    joined = ""
    for part in filter(None, (part.strip() for part in parts)):
        joined += f" {part}" if joined and needs_space(joined, part) else part
    return joined


def needs_space(before: str, after: str) -> bool:
    """Return True if a space belongs between two nonempty strings."""
    return not (UNSPACED.search(before.rstrip("\"'’”")[-1:]) or UNSPACED.match(after.lstrip("\"'‘“")))


def _cut(text: str, border: re.Pattern[str]) -> list[str]:
    ends = [0, *(match.end() for match in border.finditer(text)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(ends) if end > start]


def split_sentences(line: str, num_tokens: CountTokens | None = None, limit: int = 0) -> list[str]:
    """Split a line into sentences; with `num_tokens`, split at uncertain ends only if needed to stay within `limit`."""
    pieces = _cut(line, SENTENCE_END)
    lengths = num_tokens(pieces) if num_tokens else [0] * len(pieces)
    return _pack(pieces, lengths, limit, partial(_is_continued, has_capitals=not line.islower()))


def with_capitals(line: str) -> str:
    """Return the line with a capital letter after each final punctuation mark, where a sentence may begin."""
    return AFTER_END.sub(lambda match: match[0].upper(), line)


def _is_continued(before: str, after: str, has_capitals: bool) -> bool:
    """Return True if it is uncertain whether a sentence ends between two adjacent parts of a line."""
    end = before[-64:]  # enough for an abbreviation; `before` may be long
    return bool(
        ABBREVIATION.search(end)
        or (has_capitals and after[0].islower())
        or (after[0].isdigit() and SHORT_WORD.search(end))
        or not any(map(str.isalnum, after))
        or (before[-1] in CLOSING_BRACKETS + "”" and after[0] not in OPENING + "“")
        or sum(map(before.count, OPENING)) > sum(map(before.count, CLOSING_BRACKETS))
    )


def _pack(
    pieces: list[str], lengths: list[int], limit: int, belong: Callable[[str, str], bool] = lambda before, after: True
) -> list[str]:
    """Join adjacent pieces that belong together as long as their total number of tokens is within the limit."""
    packed: list[str] = []
    num_left = 0
    for piece, length in zip(pieces, lengths, strict=True):
        if packed and length <= num_left and belong(packed[-1], piece):
            packed[-1] += piece
            num_left -= length
        else:
            packed.append(piece)
            num_left = limit - length
    return packed


def _halves(text: str, num_tokens: CountTokens, limit: int) -> list[str]:
    """Split the text in half repeatedly until each part is short enough."""
    if len(text) < 2 or num_tokens([text])[0] <= limit:
        return [text]
    middle = len(text) // 2
    return [*_halves(text[:middle], num_tokens, limit), *_halves(text[middle:], num_tokens, limit)]

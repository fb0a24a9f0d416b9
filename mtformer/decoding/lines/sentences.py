"""Splitting lines into sentences, and joining their translations."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise

UNSPACED = re.compile("[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
"""Chinese characters, kana and their punctuation, which are not separated by spaces."""
CLOSING = "[\"'«»“”’)\\]」』）】]*"
"""Quotation marks and brackets after the end of a sentence."""
SENTENCE_END = re.compile(
    rf"(?:(?<=[.!?…।॥؟۔։።។။፧\u037e])|(?<=[\u0370-\u03ff\u1f00-\u1fff];))(?:\s»)?{CLOSING}\s+"
    rf"|(?:[。！？｡]|．(?!\d)|(?<={UNSPACED.pattern})[!?]+)+{CLOSING.replace('“', '')}\s*"  # in Chinese, “ opens
)
"""Final punctuation, which in scripts with spaces is followed by one. In Greek, a semicolon is a question mark."""
AFTER_END = re.compile(rf"(?:{SENTENCE_END.pattern})\w")
"""Final punctuation and the letter after it."""
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
MAX_ABBREVIATION = 64
"""Number of characters before a possible sentence end in which an abbreviation is searched; a line may be long."""
OPENING_BRACKETS = "(（「『【｢"
CLOSING_BRACKETS = ")）」』】｣"
OPENING_QUOTE = "“"
CLOSING_QUOTE = "”"
CountTokens = Callable[[Sequence[str]], list[int]]
"""Function that returns the number of tokens of each text."""


def split_line(line: str, num_tokens: CountTokens, preferred: int, max_tokens: int) -> list[str]:
    """Split a line into sentences of at most `max_tokens` tokens; the concatenation of the parts is the line.

    A longer sentence is split at the ends of clauses, a longer clause between words (into parts of up to `preferred`
    tokens), and a longer word at any character.

    Args:
        line: a line of text.
        num_tokens: function that returns the number of tokens of each text.
        preferred: length of the longest training source; only longer text is split at uncertain sentence ends.
        max_tokens: length of the longest source that the model supports.
    """
    parts = split_sentences(line, num_tokens, preferred)
    for border in (CLAUSE_END, SPACE):
        shorter_parts = []
        lengths = num_tokens(parts)
        for part, length in zip(parts, lengths, strict=True):
            pieces = _cut(part, border) if length > max_tokens else [part]
            shorter_parts += _pack(pieces, num_tokens(pieces), preferred)
        parts = shorter_parts

    # Only a word can still be too long.
    short_parts = []
    for part in parts:
        short_parts += _halves(part, num_tokens, max_tokens)
    return short_parts


def join_lines(parts: Iterable[str]) -> str:
    """Join the translations of the parts of a line, with spaces between them if the script uses spaces."""
    joined = ""
    for part in parts:
        text = part.strip()
        if joined and text and needs_space(joined, text):
            joined += " "
        joined += text
    return joined


def needs_space(before: str, after: str) -> bool:
    """Return True if a space belongs between two nonempty strings."""
    last_character = before.rstrip("\"'’”")[-1:]
    first_character = after.lstrip("\"'‘“")[:1]
    is_unspaced = UNSPACED.match(last_character) or UNSPACED.match(first_character)
    return not is_unspaced


def _cut(text: str, border: re.Pattern[str]) -> list[str]:
    """Split a text after each match of a pattern."""
    ends = [match.end() for match in border.finditer(text)]
    borders = [0, *ends, len(text)]
    return [text[start:end] for start, end in pairwise(borders) if end > start]


def split_sentences(line: str, num_tokens: CountTokens | None = None, limit: int = 0) -> list[str]:
    """Split a line into sentences.

    Args:
        line: a line of text.
        num_tokens: function that returns the number of tokens of each text; None: never split at uncertain ends.
        limit: number of tokens above which a sentence is split at uncertain ends; not used without `num_tokens`.
    """
    pieces = _cut(line, SENTENCE_END)
    lengths = num_tokens(pieces) if num_tokens else [0] * len(pieces)
    is_continued = partial(_is_continued, has_capitals=not line.islower())
    return _pack(pieces, lengths, limit, is_continued)


def with_capitals(line: str) -> str:
    """Return the line with a capital letter after each final punctuation mark, where a sentence may begin."""
    return AFTER_END.sub(lambda match: match[0].upper(), line)


def _is_continued(before: str, after: str, has_capitals: bool) -> bool:
    """Return True if it is uncertain whether a sentence ends between two adjacent parts of a line."""
    end = before[-MAX_ABBREVIATION:]
    first_character = after[0]
    if ABBREVIATION.search(end) is not None:
        return True
    if first_character.isdigit() and SHORT_WORD.search(end) is not None:
        return True
    if has_capitals and first_character.islower():
        return True
    if not any(map(str.isalnum, after)):
        return True

    closes_brackets = before[-1] in CLOSING_BRACKETS + CLOSING_QUOTE
    opens_brackets = first_character in OPENING_BRACKETS + OPENING_QUOTE
    if closes_brackets and not opens_brackets:
        return True
    num_opened = sum(map(before.count, OPENING_BRACKETS))
    num_closed = sum(map(before.count, CLOSING_BRACKETS))
    return num_opened > num_closed


def _always(before: str, after: str) -> bool:
    return True


def _pack(
    pieces: list[str], lengths: list[int], limit: int, belong_together: Callable[[str, str], bool] = _always
) -> list[str]:
    """Join adjacent pieces that belong together as long as their total number of tokens is within the limit."""
    packed: list[str] = []
    num_left = 0
    for piece, length in zip(pieces, lengths, strict=True):
        if packed and length <= num_left and belong_together(packed[-1], piece):
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
    first_parts = _halves(text[:middle], num_tokens, limit)
    second_parts = _halves(text[middle:], num_tokens, limit)
    return first_parts + second_parts

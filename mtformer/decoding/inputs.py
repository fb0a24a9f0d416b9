"""Checks of what a user wants translated: lines, prefixes, required and forbidden phrases."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mtformer.decoding.constraints import Phrase
from mtformer.errors import DataError
from mtformer.text.tokenizer import UNK, Tokenizer

# Every character that some program takes for the end of a line, and NUL: inside a line each becomes a space.
LINE_BREAKS = re.compile("[\x00\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True)
class Line:
    """A checked line.

    Args:
        text: the line.
        prefix, prefix_ids: what its translation begins with.
        required: phrases that its translation must contain, as the tokenizer writes them.
        required_ids: those whose letters the tokenizer knows; only these can be searched for.
    """

    text: str
    prefix: str
    prefix_ids: list[int]
    required: list[str]
    required_ids: list[Phrase]


def check_inputs(
    lines: Sequence[str],
    prefixes: Sequence[str] | None,
    required: Sequence[Sequence[str]] | None,
    tokenizer: Tokenizer,
    most_tokens: int,
    first_line: int,
) -> list[Line]:
    """Return the lines that `Translator.translate` was given.

    Args:
        tokenizer: of the target language.
        most_tokens: the longest prefix, and the longest phrases of a line together.

    Raises:
        DataError: prefixes or phrases that are not one a line, phrases that are blank, or what is too long.
    """
    _refuse_text("prefixes", prefixes)
    _refuse_text("required", required)
    texts = check_lines(lines)
    if prefixes is not None and len(prefixes) != len(texts):
        raise DataError(f"{len(prefixes)} prefixes for {len(texts)} lines; give one a line, a blank one for none")
    if required is not None and len(required) != len(texts):
        raise DataError(f"{len(required)} lists of required phrases for {len(texts)} lines; give one a line")
    checked = []
    given = zip(texts, check_lines(prefixes or [""] * len(texts)), required or [[]] * len(texts), strict=True)
    for number, (text, prefix, phrases) in enumerate(given, start=first_line + 1):
        prefix_ids = tokenizer.encode([prefix])[0] if prefix else []
        _check_length(f"the prefix of line {number} has", len(prefix_ids), most_tokens)
        required_ids = tokenizer.encode(check_lines(phrases, f"the required phrases of line {number}"))
        if not all(required_ids):
            raise DataError(f"a required phrase of line {number} is blank; leave it out")
        _check_length(f"the required phrases of line {number} have", sum(map(len, required_ids)), most_tokens)
        known = [tuple(ids) for ids in required_ids if UNK not in ids]
        checked.append(Line(text, prefix, prefix_ids, as_written(phrases, tokenizer), known))
    return checked


def check_forbidden(forbidden: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return the phrases as the tokenizer writes them; raise DataError if one is blank."""
    phrases = as_written(check_lines(forbidden, "forbidden"), tokenizer)
    if not all(phrases):
        raise DataError("a forbidden phrase is blank; leave it out")
    return phrases


def check_lines(lines: Sequence[str], name: str = "lines") -> list[str]:
    """Return lines as they are translated; raise DataError if they are one string."""
    _refuse_text(name, lines)
    return [one_line(line) for line in lines]


def one_line(text: str) -> str:
    """Return the text without line breaks, NUL and lone surrogates, which no tokenizer takes."""
    return LINE_BREAKS.sub(" ", text.encode("utf-8", "replace").decode("utf-8"))


def as_written(phrases: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return phrases as the tokenizer writes them: Unicode normalized, spaces single."""
    return [tokenizer.decode_pieces(tokenizer.pieces(one_line(phrase))).strip() for phrase in phrases]


def _refuse_text(name: str, value: object) -> None:
    """Raise DataError for a string, which is a sequence of strings too."""
    if isinstance(value, str):
        raise DataError(f"{name}: a list is wanted, not one string; put it into brackets")


def _check_length(what: str, num_tokens: int, most: int) -> None:
    if num_tokens > most:
        raise DataError(f"{what} {num_tokens} tokens; the model has positions for {most}")

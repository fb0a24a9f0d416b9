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
class Inputs:
    """Checked lines, with the prefix and the required phrases of each.

    Args:
        lines: the text.
        prefixes: one a line, as text; empty for none.
        required: phrases of each line, as the tokenizer writes them.
        required_ids: the phrases whose letters the tokenizer knows; only these can be searched for.
        forbidden: phrases of all lines, as the tokenizer writes them.
        first_line: the number of the first line in the user's input.
    """

    lines: list[str]
    prefixes: list[str]
    required: list[list[str]]
    required_ids: list[list[Phrase]]
    forbidden: list[str]
    first_line: int

    @property
    def is_constrained(self) -> bool:
        return bool(any(self.prefixes) or any(self.required) or self.forbidden)


def check_inputs(
    lines: Sequence[str],
    prefixes: Sequence[str] | None,
    required: Sequence[Sequence[str]] | None,
    forbidden: Sequence[str],
    tokenizer: Tokenizer,
    most_tokens: int,
    first_line: int,
) -> Inputs:
    """Check the arguments of `Translator.translate`.

    Args:
        tokenizer: of the target language.
        most_tokens: the longest prefix, and the longest phrases of a line together.

    Raises:
        DataError: prefixes or phrases that are not one a line, phrases that are blank, or what is too long.
    """
    lines = check_lines(lines)
    checked_prefixes = _check_prefixes(prefixes, len(lines), tokenizer, most_tokens, first_line)
    phrases, ids = _check_required(required, len(lines), tokenizer, most_tokens, first_line)
    return Inputs(lines, checked_prefixes, phrases, ids, _check_forbidden(forbidden, tokenizer), first_line)


def check_lines(lines: Sequence[str]) -> list[str]:
    """Return lines as they are translated; raise DataError if they are one string."""
    _refuse_text("lines", lines)
    return [one_line(line) for line in lines]


def one_line(text: str) -> str:
    """Return the text without line breaks, NUL and lone surrogates, which no tokenizer takes."""
    return LINE_BREAKS.sub(" ", text.encode("utf-8", "replace").decode("utf-8"))


def as_written(phrases: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Return phrases as the tokenizer writes them: Unicode normalized, spaces single."""
    return [tokenizer.decode_pieces(tokenizer.pieces(one_line(phrase))).strip() for phrase in phrases]


def _check_prefixes(
    prefixes: Sequence[str] | None, num_lines: int, tokenizer: Tokenizer, most_tokens: int, first_line: int
) -> list[str]:
    if prefixes is None:
        return [""] * num_lines
    _refuse_text("prefixes", prefixes)
    if len(prefixes) != num_lines:
        raise DataError(f"{len(prefixes)} prefixes for {num_lines} lines; give one a line, a blank one for none")
    checked = [one_line(prefix) for prefix in prefixes]
    for number, ids in enumerate(tokenizer.encode(checked), start=first_line + 1):
        if len(ids) > most_tokens:
            raise DataError(
                f"the prefix of line {number} has {len(ids)} tokens; the model has positions for {most_tokens}"
            )
    return checked


def _check_required(
    required: Sequence[Sequence[str]] | None, num_lines: int, tokenizer: Tokenizer, most_tokens: int, first_line: int
) -> tuple[list[list[str]], list[list[Phrase]]]:
    """Return the phrases of each line as written, and the ids of those that can be searched for."""
    if required is None:
        return [[]] * num_lines, [[]] * num_lines
    _refuse_text("required", required)
    if len(required) != num_lines:
        raise DataError(f"{len(required)} lists of required phrases for {num_lines} lines; give one a line")
    found = []
    for number, of_line in enumerate(required, start=first_line + 1):
        _refuse_text(f"the required phrases of line {number}", of_line)
        phrases = [tuple(ids) for ids in tokenizer.encode([one_line(phrase) for phrase in of_line])]
        if not all(phrases):
            raise DataError(f"a required phrase of line {number} is blank; leave it out")
        num_tokens = sum(map(len, phrases))
        if num_tokens > most_tokens:
            raise DataError(
                f"the required phrases of line {number} have {num_tokens} tokens; "
                f"the model has positions for {most_tokens}"
            )
        found.append([phrase for phrase in phrases if UNK not in phrase])
    return [as_written(of_line, tokenizer) for of_line in required], found


def _check_forbidden(forbidden: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    _refuse_text("forbidden", forbidden)
    phrases = as_written(forbidden, tokenizer)
    if not all(phrases):
        raise DataError("a forbidden phrase is blank; leave it out")
    return phrases


def _refuse_text(name: str, value: object) -> None:
    """Raise DataError for a string, which is a sequence of strings too."""
    if isinstance(value, str):
        raise DataError(f"{name}: a list is wanted, not one string; put it into brackets")

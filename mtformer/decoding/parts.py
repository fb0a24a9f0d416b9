"""From lines to what is searched for: sentences in ids, with the prefixes and phrases that were asked for."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mtformer.decoding.constraints import Phrase
from mtformer.decoding.engine import Request
from mtformer.decoding.long_lines import join_lines, split_line
from mtformer.errors import DataError
from mtformer.text.tokenizer import EOS, UNK, Tokenizer, TokenizerPair

# Whatever some program takes for the end of a line, and NUL: inside a line each is a space.
LINE_BREAKS = re.compile("[\x00\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True)
class Part:
    """A line, or a part of one that was too long.

    Args:
        line: its number in the call.
        text: what it says.
        request: what is searched for.
        prefix: pieces that its translation begins with.
        goes_on: whether no space stands between it and the part before it.
    """

    line: int
    text: str
    request: Request
    prefix: Sequence[str] = ()
    goes_on: bool = False


def one_line(text: str) -> str:
    """The text without line breaks, NUL and halves of characters, which no tokenizer takes."""
    return LINE_BREAKS.sub(" ", text.encode("utf-8", "replace").decode("utf-8"))


def make_parts(
    lines: Sequence[str],
    prefixes: Sequence[str],
    phrases: Sequence[Sequence[Phrase]],
    tokenizers: TokenizerPair,
    wanted: int,
    most: int,
    first_line: int,
) -> list[Part]:
    """What is to be searched for: nothing for a blank line, several parts for one that is too long.

    Args:
        lines: the text.
        prefixes, phrases: one, and one list, a line.
        tokenizers: of the model.
        wanted, most: tokens of a source, see `split_line`.
        first_line: the number of the first line in the user's input.
    """

    def num_tokens(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizers.src.encode(texts)]

    parts = []
    for number, (line, ids) in enumerate(zip(lines, tokenizers.src.encode(lines), strict=True)):
        texts, sources = [line], [ids]
        if len(ids) > wanted:
            texts = split_line(line, num_tokens, wanted, most)
            sources = tokenizers.src.encode(texts)
        # Nothing tells in which part a phrase belongs; of a line that is split they are only checked.
        required = phrases[number] if len(texts) == 1 else ()
        prefix = tokenizers.tgt.pieces(prefixes[number]) if prefixes[number] else []
        prefix_ids = tokenizers.tgt.encode([prefixes[number]])[0] if prefix else []
        is_first, before = True, " "
        for text, source in zip(texts, sources, strict=True):
            if source:
                begin: tuple[list[int], list[str]] = (prefix_ids, prefix) if is_first else ([], [])
                request = Request([*source, EOS], first_line + number, begin[0], required)
                goes_on = not (before[-1].isspace() or text[0].isspace())
                parts.append(Part(number, text, request, begin[1], goes_on))
                is_first = False
            before = text
    return parts


def watched(parts: Sequence[Part], watch: Sequence[Callable[[str], object] | None], tokenizer: Tokenizer) -> list[Part]:
    """The parts; search tells of each to the watcher of its line, which is called with all that the line has so far."""
    so_far: dict[int, list[str]] = {}

    def watching(part: Part) -> Part:
        tell = watch[part.line]
        if tell is None:
            return part
        texts = so_far.setdefault(part.line, [])
        place = len(texts)
        texts.append("")

        def told(tokens: list[int]) -> None:
            texts[place] = one_line(tokenizer.decode([tokens])[0])
            tell(join_lines(texts))

        return replace(part, request=replace(part.request, watch=told))

    return [watching(part) for part in parts]


def check_prefixes(
    prefixes: Sequence[str] | None, num_lines: int, tokenizer: Tokenizer, most: int, first_line: int
) -> list[str]:
    """The prefix of each line, as one line; raises DataError when they are not one a line, or one is too long."""
    if prefixes is None:
        return [""] * num_lines
    _refuse_text("prefixes", prefixes)
    if len(prefixes) != num_lines:
        raise DataError(f"{len(prefixes)} prefixes for {num_lines} lines; give one a line, a blank one for none")
    written = [one_line(prefix) for prefix in prefixes]
    for number, ids in enumerate(tokenizer.encode(written), start=first_line + 1):
        if len(ids) > most:
            raise DataError(f"the prefix of line {number} has {len(ids)} tokens; the model has positions for {most}")
    return written


def encode_required(
    required: Sequence[Sequence[str]] | None, num_lines: int, tokenizer: Tokenizer, most: int, first_line: int
) -> list[list[Phrase]]:
    """The ids of each line's phrases; those with letters that the tokenizer does not know cannot be searched for.

    Raises:
        DataError: when there is not one list a line, or a phrase is blank, or they are too long.
    """
    if required is None:
        return [[] for _ in range(num_lines)]
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
        if num_tokens > most:
            raise DataError(
                f"the required phrases of line {number} have {num_tokens} tokens; the model has positions for {most}"
            )
        found.append([phrase for phrase in phrases if UNK not in phrase])
    return found


def as_written(phrases: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """Phrases as the tokenizer writes them: Unicode normalised, spaces single."""
    return [tokenizer.decode_pieces(tokenizer.pieces(one_line(phrase))).strip() for phrase in phrases]


def forbidden_phrases(forbidden: Sequence[str], tokenizer: Tokenizer) -> list[str]:
    """The same of phrases that are forbidden; raises DataError when one is blank."""
    _refuse_text("forbidden", forbidden)
    phrases = as_written(forbidden, tokenizer)
    if not all(phrases):
        raise DataError("a forbidden phrase is blank; leave it out")
    return phrases


def check_lines(lines: Sequence[str]) -> list[str]:
    """Lines as they are translated; raises DataError when they are one string."""
    _refuse_text("lines", lines)
    return [one_line(line) for line in lines]


def _refuse_text(name: str, value: object) -> None:
    """A string is a sequence of strings too, but nobody means its letters."""
    if isinstance(value, str):
        raise DataError(f"{name}: a list is wanted, not one string; put it into brackets")

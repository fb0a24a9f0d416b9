"""Translator input: checking lines, prefixes and phrases, and converting them to segments."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import regex

from mtformer.decoding.lines.glossary import Glossary
from mtformer.decoding.lines.sentences import split_line, split_sentences
from mtformer.decoding.search.segments import Phrase, Segment
from mtformer.errors import DataError
from mtformer.text.case import capitalize, case_of
from mtformer.text.characters import WITHOUT_SPACES
from mtformer.text.tokenizer import EOS, UNK, Tokenizer
from mtformer.text.words import is_blank

LINE_BREAKS = re.compile("[\x00\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")
"""All characters that some program treats as a line break, and NUL. Inside a line, a run of them becomes a space."""
BEGINS_UNSPACED = regex.compile(rf"\W*{WITHOUT_SPACES}")
"""Matches a text whose first letter belongs to a script without spaces."""
MIN_SAVED = 0.2
"""Minimum share of the tokens of a line in capitals or title case that lower case must save; see `without_case`."""


@dataclass(frozen=True)
class TargetText:
    """How text of the target language becomes tokens."""

    tokenizer: Tokenizer
    max_tokens: int
    """Maximum length of a translation that the model supports."""
    has_spaces: bool = True
    """False if the target language has no spaces between words."""

    def phrase_ids(self, phrases: Sequence[str]) -> list[Phrase]:
        """Return the ids of phrases, without a space before those that follow other text directly.

        These are the phrases in scripts without spaces and, if the target language has no spaces between words, all
        others: a Japanese sentence has no space before a word in Latin letters. A blank phrase has no ids.
        """
        ids_of_phrases: list[Phrase] = []
        for phrase in phrases:
            if is_blank(phrase):
                ids = []
            elif self.has_spaces and not BEGINS_UNSPACED.match(phrase):
                [ids] = self.tokenizer.encode([phrase])
            else:
                ids = self.tokenizer.encode_within(phrase)
            ids_of_phrases.append(tuple(ids))
        return ids_of_phrases

    def normalized(self, text: str) -> str:
        """Return a text as the tokenizer writes it."""
        pieces = self.tokenizer.pieces(text)
        return self.tokenizer.decode_pieces(pieces).strip(" ")


@dataclass(frozen=True)
class Requirements:
    """Text that translations must contain."""

    prefixes: Sequence[str] | None = None
    """Beginning of each translation."""
    phrases: Sequence[Sequence[str]] | None = None
    """Phrases in each translation."""
    glossary: Glossary = field(default_factory=Glossary)


@dataclass(frozen=True)
class Splitting:
    """Rules by which lines become segments; see `split_line`."""

    preferred_tokens: int
    """Length of the longest training source; longer lines are split."""
    max_tokens: int
    """Length of the longest source that the model supports."""
    splits_sentences: bool
    """True if shorter lines of several sentences are split too."""


@dataclass(frozen=True)
class Line:
    """A checked line of input."""

    text: str
    prefix: str
    """Required beginning of its translation, as normalized by the tokenizer."""
    prefix_ids: list[int]
    prefix_pieces: list[str]
    required: list[str]
    """Phrases that its translation must contain, as normalized by the tokenizer."""
    required_ids: list[Phrase]
    """Ids of those phrases that have no unknown pieces; the search supports only these."""


def check_inputs(lines: Sequence[str], requirements: Requirements, target: TargetText, first_line: int) -> list[Line]:
    """Check the arguments of `Translator.translate`, and return the lines with what their translations must contain.

    Args:
        lines: source lines.
        requirements: what the translations must contain. A prefix, and all phrases of a line together, have at most
            `target.max_tokens` tokens.
        target: how target text becomes tokens.
        first_line: number of the first line in the user's input, from 0, for messages.

    Raise DataError if the number of prefixes or phrase lists is wrong, a phrase is blank, or text exceeds the limit.
    """
    texts = check_lines(lines)
    prefixes = [""] * len(texts)
    phrases: Sequence[Sequence[str]] = [[]] * len(texts)
    if requirements.prefixes is not None:
        prefixes = check_lines(requirements.prefixes, "prefixes")
        _require_one_per_line("prefixes", len(prefixes), len(texts))
    if requirements.phrases is not None:
        phrases = requirements.phrases
        _require_one_per_line("lists of required phrases", len(phrases), len(texts))

    checked = []
    rows = zip(texts, prefixes, phrases, strict=True)
    for number, (text, prefix, phrases_of_line) in enumerate(rows, start=first_line + 1):
        terms = requirements.glossary.required_terms(text)
        line = _checked_line(text, prefix, phrases_of_line, terms, target, number)
        checked.append(line)
    return checked


def _require_one_per_line(name: str, count: int, num_lines: int) -> None:
    if count != num_lines:
        raise DataError(f"{count} {name} for {num_lines} lines; give one per line")


def _checked_line(
    text: str, prefix: str, phrases: Sequence[str], terms: Sequence[str], target: TargetText, number: int
) -> Line:
    """Return a line with what its translation must contain; `number` is that of the line, for messages.

    The ids of glossary terms are those of the segments with their source terms; see `make_segments`.
    """
    tokenizer = target.tokenizer
    [prefix_ids] = tokenizer.encode([prefix])
    check_length(f"the prefix of line {number} has", len(prefix_ids), target.max_tokens)

    checked_phrases = check_lines(phrases, f"the required phrases of line {number}")
    phrase_ids = target.phrase_ids(checked_phrases)
    if not all(phrase_ids):
        raise DataError(f"a required phrase of line {number} is blank; leave it out")
    num_tokens = sum(map(len, phrase_ids))
    check_length(f"the required phrases of line {number} have", num_tokens, target.max_tokens)

    required_texts = [*checked_phrases, *map(one_line, terms)]
    known_ids = [ids for ids in phrase_ids if UNK not in ids]
    return Line(
        text=text,
        prefix=target.normalized(prefix),
        prefix_ids=prefix_ids,
        prefix_pieces=tokenizer.pieces(prefix),
        required=list(map(target.normalized, required_texts)),
        required_ids=known_ids,
    )


def check_lines(lines: Sequence[str], name: str = "lines") -> list[str]:
    """Return the lines without line breaks; raise DataError for a string, which would be a sequence of strings."""
    if isinstance(lines, str):
        raise DataError(f"{name}: must be a list of strings, not a string; put it in brackets")
    return [one_line(line) for line in lines]


def one_line(text: str) -> str:
    """Return the text without line breaks, NUL or lone surrogates, which tokenizers reject."""
    without_surrogates = text.encode("utf-8", "replace").decode("utf-8")
    return LINE_BREAKS.sub(" ", without_surrogates)


def sentence_case(text: str, language: str = "") -> str:
    """Return the text in lower case, except for the first letter of each sentence.

    Args:
        text: a line of text.
        language: its language code, which may be unknown (empty).
    """
    return "".join(capitalize(sentence, language) for sentence in split_sentences(text))


def without_case(lines: Sequence[Line], tokenizer: Tokenizer, language: str = "") -> list[Line]:
    """Return the lines, of which those in capital letters or in title case are in sentence case.

    A tokenizer trained on normal text splits capitals into many short pieces, which models translate badly. A line
    stays the same if lower case neither avoids unknown tokens nor saves `MIN_SAVED` of the tokens, or if its
    translation must contain a prefix or phrases.

    Args:
        lines: checked lines.
        tokenizer: source tokenizer.
        language: code of the source language, which may be unknown (empty).
    """
    return [_without_case(line, tokenizer, language) for line in lines]


def _without_case(line: Line, tokenizer: Tokenizer, language: str) -> Line:
    if case_of(line.text, language) is None or line.prefix or line.required:
        return line

    new_text = sentence_case(line.text, language)
    ids, new_ids = tokenizer.encode([line.text, new_text])
    has_fewer_unknown = new_ids.count(UNK) < ids.count(UNK)
    saves_tokens = len(new_ids) <= (1 - MIN_SAVED) * len(ids)
    if has_fewer_unknown or saves_tokens:
        return replace(line, text=new_text)
    return line


def make_segments(
    lines: Sequence[Line],
    src_tokenizer: Tokenizer,
    target: TargetText,
    glossary: Glossary,
    splitting: Splitting,
    first_line: int,
) -> list[Segment]:
    """Return the segments of all lines: none for a blank line, several for a line that is split.

    Lines with more tokens than the training sources are split into sentences. With `Splitting.splits_sentences`, all
    lines are split, except those with a prefix or required phrases, because it is unknown to which sentence these
    belong.

    Args:
        lines: checked lines.
        src_tokenizer: source tokenizer.
        target: how target text becomes tokens.
        glossary: its terms are required in the segments that have their source terms.
        splitting: which lines are split, and where.
        first_line: number of the first line in the user's input, from 0; see `Segment.line`.
    """

    def num_tokens(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in src_tokenizer.encode(texts)]

    segments = []
    encoded_lines = src_tokenizer.encode([line.text for line in lines])
    pairs = zip(lines, encoded_lines, strict=True)
    for number, (line, ids) in enumerate(pairs, start=first_line):
        parts = [(line.text, ids)]
        if _is_split(line, len(ids), splitting):
            texts = split_line(line.text, num_tokens, splitting.preferred_tokens, splitting.max_tokens)
            ids_of_texts = src_tokenizer.encode(texts)
            parts = list(zip(texts, ids_of_texts, strict=True))
        segments += _segments_of_line(line, number, parts, target, glossary)
    return segments


def _is_split(line: Line, num_tokens: int, splitting: Splitting) -> bool:
    if num_tokens > splitting.preferred_tokens:
        return True
    is_constrained = line.prefix_ids or line.required_ids
    if is_constrained or not splitting.splits_sentences:
        return False
    return len(split_sentences(line.text)) > 1


def _segments_of_line(
    line: Line, number: int, parts: Sequence[tuple[str, Sequence[int]]], target: TargetText, glossary: Glossary
) -> list[Segment]:
    """Return the segments of a line whose parts are given as text and source ids."""
    # It is unknown which part a required phrase belongs to, so the phrases of a split line are only checked.
    phrases = line.required_ids if len(parts) == 1 else []
    terms_of_line = glossary.required_terms(line.text)

    segments: list[Segment] = []
    text_before = " "
    for text, ids in parts:
        has_space_before = text_before[-1:].isspace() or text[:1].isspace()
        text_before = text
        if not ids or is_blank(text):
            continue

        is_first = not segments
        terms = [term for term in glossary.required_terms(text) if term in terms_of_line]
        known_terms = [term_ids for term_ids in target.phrase_ids(terms) if UNK not in term_ids]
        segment = Segment(
            source=[*ids, EOS],
            line=number,
            prefix=line.prefix_ids if is_first else [],
            prefix_pieces=line.prefix_pieces if is_first else [],
            required=[*phrases, *known_terms],
            text=text,
            continues_word=not has_space_before,
        )
        segments.append(segment)
    return segments


def check_length(description: str, num_tokens: int, limit: int) -> None:
    """Raise DataError if a text has too many tokens.

    Args:
        description: beginning of the message, such as "the source has".
        num_tokens: number of tokens of the text.
        limit: maximum number of tokens.
    """
    if num_tokens > limit:
        raise DataError(f"{description} {num_tokens} tokens; the model supports at most {limit}; shorten it")

"""Translator input: checking lines, prefixes and phrases, and converting them to segments."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

import regex

from mtformer.decoding.lines.sentences import split_line, split_sentences
from mtformer.decoding.search.segments import Phrase, Segment
from mtformer.errors import DataError
from mtformer.text.case import case_of
from mtformer.text.tokenizer import EOS, UNK, Tokenizer, TokenizerPair
from mtformer.text.words import UNSPACED, is_blank, whole_words

# Every character that some program treats as a line break, and NUL. Inside a line, each run of them becomes a space.
LINE_BREAKS = re.compile("[\x00\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")

BEGINS_UNSPACED = regex.compile(rf"\W*{UNSPACED}")
"""Matches a text whose first letter belongs to a script without spaces."""
SAME_I = str.maketrans("ı", "i", "\u0307")
"""For `str.translate` of casefolded text: i, ı, I and İ become equal, as in `re.IGNORECASE`."""

MIN_SAVED = 0.2
"""Minimum share of the tokens of a line in capitals or title case that lower case must save; see `without_case`."""


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


def required_terms(glossary: Sequence[tuple[str, str]], text: str) -> list[str]:
    """Return the target terms for the source terms in a text; `glossary` is sorted, longest source terms first.

    Terms match whole words (see `mtformer.text.words`); case matters only for terms with capitals. A term inside a
    longer one does not count.
    """
    text, found = unicodedata.normalize("NFC", " ".join(text.split())), []
    folded = text.casefold().translate(SAME_I)
    for src, tgt in glossary:
        if src.casefold().translate(SAME_I) in folded:
            pattern = whole_words(src, ignore_case=src == src.lower())
            text, count = pattern.subn("\n", text)
            found += [tgt] * (count > 0)
    return found


def check_inputs(
    lines: Sequence[str],
    prefixes: Sequence[str] | None,
    required: Sequence[Sequence[str]] | None,
    tokenizer: Tokenizer,
    max_tokens: int,
    first_line: int,
    glossary: Sequence[tuple[str, str]],
    has_spaces: bool = True,
) -> list[Line]:
    """Check the arguments of `Translator.translate`.

    For `glossary` see `required_terms`, for `has_spaces` see `_phrase_ids`. A prefix, and all phrases of a line
    together, have at most `max_tokens` tokens of the target `tokenizer`. Raise DataError if the number of prefixes or
    phrase lists is wrong, a phrase is blank, or text exceeds the limit.
    """
    texts = check_lines(lines)
    prefixes = [""] * len(texts) if prefixes is None else check_lines(prefixes, "prefixes")
    required = [[]] * len(texts) if required is None else required
    for name, given in (("prefixes", prefixes), ("lists of required phrases", required)):
        if len(given) != len(texts):
            raise DataError(f"{len(given)} {name} for {len(texts)} lines; give one per line")
    checked = []
    each = zip(texts, prefixes, required, strict=True)
    for number, (text, prefix, phrases) in enumerate(each, start=first_line + 1):
        [prefix_ids], prefix_pieces = tokenizer.encode([prefix]), tokenizer.pieces(prefix)
        check_length(f"the prefix of line {number} has", len(prefix_ids), max_tokens)
        checked_phrases = check_lines(phrases, f"the required phrases of line {number}")
        required_ids = _phrase_ids(checked_phrases, tokenizer, has_spaces)
        if not all(required_ids):
            raise DataError(f"a required phrase of line {number} is blank; leave it out")
        check_length(f"the required phrases of line {number} have", sum(map(len, required_ids)), max_tokens)
        known = [ids for ids in required_ids if UNK not in ids]
        written = [one_line(one) for one in (prefix, *phrases, *required_terms(glossary, text))]
        prefix, *phrases = (tokenizer.decode_pieces(tokenizer.pieces(one)).strip(" ") for one in written)
        checked.append(Line(text, prefix, prefix_ids, prefix_pieces, phrases, known))
    return checked


def _phrase_ids(phrases: Sequence[str], tokenizer: Tokenizer, has_spaces: bool = True) -> list[Phrase]:
    """Return the ids of phrases, without a space before those that follow other text directly.

    These are the phrases in scripts without spaces and, if the target language has no spaces between words
    (`has_spaces`), all others: a Japanese sentence has no space before a word in Latin letters.
    """
    found = []
    for phrase in phrases:
        if is_blank(phrase):
            ids = []
        elif has_spaces and not BEGINS_UNSPACED.match(phrase):
            ids = tokenizer.encode([phrase])[0]
        else:
            ids = tokenizer.encode_within(phrase)
        found.append(tuple(ids))
    return found


def check_lines(lines: Sequence[str], name: str = "lines") -> list[str]:
    """Return the lines without line breaks; raise DataError for a string, which would be a sequence of strings."""
    if isinstance(lines, str):
        raise DataError(f"{name}: must be a list of strings, not a string; put it in brackets")
    return [one_line(line) for line in lines]


def one_line(text: str) -> str:
    """Return the text without line breaks, NUL or lone surrogates, which tokenizers reject."""
    return LINE_BREAKS.sub(" ", text.encode("utf-8", "replace").decode("utf-8"))


def sentence_case(text: str) -> str:
    """Return the text in lower case, except for the first letter of each sentence."""
    return "".join(sentence.capitalize() for sentence in split_sentences(text))


def without_case(lines: Sequence[Line], tokenizer: Tokenizer) -> list[Line]:
    """Return the lines, of which those in capital letters or in title case are in sentence case.

    A tokenizer trained on normal text splits capitals into many short pieces, which models translate badly. A line
    stays the same if lower case neither avoids unknown tokens nor saves `MIN_SAVED` of the tokens, or if its
    translation must contain a prefix or phrases.
    """
    found = list(lines)
    for number, line in enumerate(lines):
        if case_of(line.text) is not None and not line.prefix and not line.required:
            text = sentence_case(line.text)
            before, after = tokenizer.encode([line.text, text])
            if after.count(UNK) < before.count(UNK) or len(after) <= (1 - MIN_SAVED) * len(before):
                found[number] = replace(line, text=text)
    return found


def make_segments(
    lines: Sequence[Line],
    tokenizers: TokenizerPair,
    preferred: int,
    max_tokens: int,
    first_line: int,
    splits_sentences: bool,
    glossary: Sequence[tuple[str, str]],
    has_spaces: bool = True,
) -> list[Segment]:
    """Return the segments of all lines: none for a blank line, several for a line that is split.

    Lines of more than `preferred` tokens are split into sentences. With `splits_sentences`, all lines are split, except
    those with a prefix or required phrases, because it is unknown to which sentence these belong. For `preferred` and
    `max_tokens` see `split_line`; for `first_line` see `Translator.translate`; for `has_spaces` see `_phrase_ids`.
    """

    def num_tokens(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in tokenizers.src.encode(texts)]

    segments = []
    encoded = tokenizers.src.encode([line.text for line in lines])
    for number, (line, ids) in enumerate(zip(lines, encoded, strict=True), start=first_line):
        texts, sources = [line.text], [ids]
        is_free = not (line.prefix_ids or line.required_ids)
        if len(ids) > preferred or (splits_sentences and is_free and len(split_sentences(line.text)) > 1):
            texts = split_line(line.text, num_tokens, preferred, max_tokens)
            sources = tokenizers.src.encode(texts)
        prefix, prefix_pieces = line.prefix_ids, line.prefix_pieces
        # It is unknown which segment a phrase belongs to, so the phrases of a split line are only checked.
        required, whole_terms = line.required_ids if len(texts) == 1 else [], required_terms(glossary, line.text)
        before = " "
        for text, source in zip(texts, sources, strict=True):
            if source and not is_blank(text):
                own = [term for term in required_terms(glossary, text) if term in whole_terms]
                terms = [ids for ids in _phrase_ids(own, tokenizers.tgt, has_spaces) if UNK not in ids]
                phrases, continues_word = [*required, *terms], not (before[-1].isspace() or text[0].isspace())
                one = Segment([*source, EOS], number, prefix, prefix_pieces, phrases, text, continues_word)
                segments.append(one)
                prefix, prefix_pieces = [], []  # they belong to the first segment only
            before = text
    return segments


def check_length(what: str, num_tokens: int, limit: int) -> None:
    """Raise DataError if a text has too many tokens; `what` is the beginning of the message."""
    if num_tokens > limit:
        raise DataError(f"{what} {num_tokens} tokens; the model supports at most {limit}")

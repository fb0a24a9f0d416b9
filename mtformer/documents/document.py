"""Documents: texts with inline marks, such as tags, around which the rest of a file stays the same.

Each format has a reader, which finds the texts of a file, and a writer, which writes the file with other texts. Between
them, `mtformer.documents.inline` places the marks of each text around the words of its translation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import regex

from mtformer.decoding.lines.translation import Translation
from mtformer.text.characters import LETTER_OR_DIGIT, PUNCTUATION, SEPARATOR, UNSPACED, WITHOUT_SPACES

UNSPACED_WORD = rf"(?={UNSPACED})\X\p{{M}}*|[\p{{Tibetan}}&&{LETTER_OR_DIGIT}]+[་༌]*"
"""A character of a script without spaces, with its vowel signs, or a Tibetan syllable with the mark after it."""
LETTERS = rf"[^\s{PUNCTUATION}{WITHOUT_SPACES}]+"
MARKS = rf"{PUNCTUATION}[{PUNCTUATION}--\p{{Open_Punctuation}}]*"
"""Consecutive punctuation, which an opening bracket ends."""
INNER_PUNCTUATION = rf"[{PUNCTUATION}--{SEPARATOR}]+"

WORD = regex.compile(
    rf"{UNSPACED_WORD}|{LETTERS}(?:{INNER_PUNCTUATION}{LETTERS})*|(?P<punctuation>{MARKS})|\S", regex.V1
)
"""A word with punctuation inside it, a character of a script without spaces, or other punctuation."""

PART_OF_WORD = regex.compile(rf"{UNSPACED_WORD}|{LETTERS}|(?P<punctuation>{MARKS})|\S", regex.V1)
"""Like `WORD`, but without punctuation inside: text that is kept may be a part of a word, as in T-Shirt."""


class Word(NamedTuple):
    """A word or punctuation mark, and its position in a text."""

    text: str
    start: int
    end: int
    is_punctuation: bool


def words_in(text: str, pattern: regex.Pattern[str]) -> list[Word]:
    """Return the matches of `WORD` or `PART_OF_WORD` in a text."""
    words = []
    for match in pattern.finditer(text):
        start, end = match.span()
        is_punctuation = match.lastgroup is not None  # the only group of the pattern
        words.append(Word(match[0], start, end, is_punctuation))
    return words


@dataclass(eq=False, slots=True)
class Mark:
    """A part of a text that its translation keeps: an element with words in it, a comment, or untranslated text.

    The marks of a text form a tree. Its root is no part of the file and contains all words of the text. A mark does not
    refer to the one around it, so that the memory of a page is free without the garbage collector.
    """

    first_word: int
    """Index of the first word in it."""
    is_element: bool
    """True if it has translated words in it; False if it is written as it is."""
    follows_space: bool = False
    """True if the source has a space directly before it."""
    precedes_space: bool = False
    """True if the source has a space directly after it."""
    keeps_order: bool = False
    """True if the marks directly inside it keep their order, because some of them are single tags of elements."""
    end_word: int = 0
    """Index after that of the last word in it."""
    marks: list["Mark"] = field(default_factory=list)
    """The marks directly inside it, in the order of the source."""

    @property
    def has_words(self) -> bool:
        """True if it contains source words."""
        return self.first_word < self.end_word

    @property
    def words(self) -> range:
        """Indices of the source words in it."""
        return range(self.first_word, self.end_word)


class MarkedText(NamedTuple):
    """A text of a document, which is translated as one line, and its marks."""

    line: str
    """The text for the translation: without marks, and without line breaks."""
    words: Sequence[Word]
    """Words of the source; their positions are those in the text between two marks."""
    root: Mark
    marks: Sequence[Mark]
    """All marks except the root, in the order of the source."""
    word_pattern: regex.Pattern[str]
    """`WORD`, or `PART_OF_WORD` if a part of the text is not translated."""


@dataclass(frozen=True)
class Written:
    """A document with translations."""

    text: str
    has_lost_marks: bool
    """True if the place of some marks is uncertain, because no words of the translation belong to them."""


class Document(Protocol):
    """A document of any format."""

    lines: list[str]
    """Its texts, each of which is translated as one line."""
    is_repaired: bool
    """True if it was damaged, and its translation is not."""

    def write(self, translations: Sequence[Translation]) -> Written:
        """Return the document with translations of `lines`, which have attention."""

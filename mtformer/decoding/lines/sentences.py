"""Splitting lines into sentences, and joining their translations.

Which marks end a sentence follows Unicode's property Sentence_Terminal. Whether a space must follow a mark depends on
its script and its property Line_Break. Three choices are not Unicode's:

- The Tibetan shad, which is not Sentence_Terminal, ends sentences and clauses alike, and nothing distinguishes them. A
  line is split at each, because a model that was trained on single sentences would omit the others.
- In some scripts, Sentence_Terminal includes a mark that is used like a comma; see `mtformer.text.characters.COMMAS`.
- Thai and Lao separate sentences only by a space, as they do clauses. Their lines are split at `!` and `?`, those in
  Lao also at a period.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import regex

from mtformer.text.characters import (
    AFTER_WITHOUT_SPACES,
    BREAKING_STOPS,
    CLAUSE_MARKS,
    CLOSING,
    COMMAS,
    GREEK_QUESTION,
    IS_HANGUL,
    IS_JOINED,
    JOINED,
    LOW_QUOTES,
    OPENING,
    SHADS,
    STOPS,
    TWO_WORDSPACES,
    TYPED_STOPS,
    UNSPACED_STOPS,
    WIDE,
    WORD_END,
)

CLOSING_MARKS = rf"[{CLOSING}\p{{Initial_Punctuation}}]*"
"""Quotation marks and brackets after the end of a sentence; in German, “ and « close."""
CLOSING_DIRECTLY = f"[{CLOSING}]*"
"""The same if no space follows: “ and « belong to the next sentence."""

IMPLIED_SHAD = r"[\u0f40\u0f42]\s+"
"""Letters ཀ and ག, after which there is a space instead of a shad (`tibetan_impliedshad` of that document)."""
ET_CETERA = r"។\s?ល\s?។"
"""The Khmer `etc.`, a letter between two full stops."""

UNSPACED_END = (
    rf"(?:(?![．﹒]\d|{ET_CETERA}){UNSPACED_STOPS}|(?=[!?‼⁇-⁉]){AFTER_WITHOUT_SPACES}[!?‼⁇-⁉]+)+{CLOSING_DIRECTLY}\s*"
)
"""End of a sentence in a script without spaces between words; `3．5` contains none."""
TIBETAN_END = rf"{SHADS}(?:\s*{SHADS})*{CLOSING_DIRECTLY}\s*|{IMPLIED_SHAD}(?=\p{{Tibetan}})(?:{SHADS}\s*)*"
"""End of a sentence in Tibetan; two shads, with or without a space between them, end a section."""
END_BEFORE_LETTER = rf"(?:(?!{ET_CETERA}){BREAKING_STOPS}|{TWO_WORDSPACES}){CLOSING_DIRECTLY}(?=\p{{L}})"
"""End of a sentence without a space, in a script with spaces."""
OTHER_STOPS = f"{TWO_WORDSPACES}|{GREEK_QUESTION}|{TYPED_STOPS}"
"""Marks that end sentences only in one script."""
END_BEFORE_SPACE = rf"(?:(?!{ET_CETERA}){STOPS}|{OTHER_STOPS})(?:\s\p{{Final_Punctuation}})?{CLOSING_MARKS}\s+"
"""End of a sentence before a space; in French, there is also one before a quotation mark."""
SENTENCE_END = regex.compile(f"{UNSPACED_END}|{TIBETAN_END}|{END_BEFORE_LETTER}|{END_BEFORE_SPACE}", regex.V1)
"""Final punctuation, with the quotation marks, brackets and spaces after it."""
AFTER_END = regex.compile(rf"(?:{SENTENCE_END.pattern})\w", regex.V1)
"""Final punctuation and the letter after it."""

CLAUSE_END = regex.compile(rf"[{CLAUSE_MARKS}&&[{WIDE}{COMMAS}]]\s*|{CLAUSE_MARKS}\s+", regex.V1)
SPACE = regex.compile(rf"\s+|{WORD_END}")
"""White space, or the end of a Tibetan syllable or an Ethiopic word."""

TITLES = (
    "adm|bzw|ca|capt|col|dhr|dott|dra?|evtl|fr|ft|gen|gov|hon|hr|inkl|lt|maj|mevr|mlle|mme|mrs?|ms|mt|prof|rev|sen|sgt|"
    "sig|sog|sra?|srta|st|uds?|vgl|vs"
)
"""Abbreviations in several languages that are nearly always followed by another word."""
VIRAMA = r"\p{Canonical_Combining_Class=9}"
"""A sign that takes the vowel from a letter of an Indic script."""
SYLLABLE = rf"\w\p{{M}}*(?:(?<={VIRAMA})\p{{L}}\p{{M}}*)*(?:\p{{L}}{VIRAMA})?"
"""A letter or, in Indic scripts, a syllable, which initials and titles have in place of a letter."""
INITIALS = rf"(?![ap]\.m\.)(?:{SYLLABLE}\.)+"
THAI_ABBREVIATION = r"\p{Thai}\p{M}*\.\s+$"
"""In Thai, a period only ends abbreviations."""
ABBREVIATION = regex.compile(
    rf"(?<![^\s(])(?:{INITIALS}|\d\d\.|(?:{TITLES})\.)\s+$|{THAI_ABBREVIATION}|{ET_CETERA}\s*$", regex.IGNORECASE
)
"""Initials, an ordinal number or a title, as in `J. R. Smith`, `डॉ. शर्मा`, `21. März` and `Dr. Smith`."""
SHORT_WORD = regex.compile(r"(?<!\w)\w{1,4}\.\s+$")
"""Short word that ends with a period; usually an abbreviation if a number follows, as in `Nr. 5`."""
MAX_ABBREVIATION = 64
"""Number of characters before a possible sentence end in which an abbreviation is searched; a line may be long."""
CASED = rf"[[\p{{scx=Common}}\p{{scx=Adlam}}\p{{Armenian}}\p{{Coptic}}\p{{Medefaidrin}}]--{WIDE}]"
"""Characters of scripts with capitals that have stops of their own, or of many scripts."""
CASED_END = regex.compile(rf"[[{STOPS}&&{CASED}];\u037e:](?:\s\p{{Final_Punctuation}})?{CLOSING_MARKS}\s*$", regex.V1)
"""A mark of a script with capitals, or of several scripts, at the end of a text."""
VERSE_NUMBER = regex.compile(r"\p{Nd}+\s*॥[^\p{Alphabetic}\p{N}]*")
"""Number of a verse, as in `॥ १२ ॥`."""
BRACKET = regex.compile(
    rf"(?P<opening>[\p{{Open_Punctuation}}--[{LOW_QUOTES}]])|[\p{{Close_Punctuation}}--[{LOW_QUOTES}]]", regex.V1
)
OPENING_QUOTE = regex.compile(r"\p{Initial_Punctuation}")
CLOSING_QUOTE = regex.compile(r"\p{Final_Punctuation}")
LAST_OF_SENTENCE = regex.compile(rf"(?r)[[^{CLOSING}\p{{Initial_Punctuation}}]{JOINED}]", regex.V1)
"""The last character of a text before quotation marks and brackets that allow a space."""
FIRST_OF_SENTENCE = regex.compile(rf"[[^{OPENING}\p{{Final_Punctuation}}]{JOINED}]", regex.V1)
"""The first character of a text after such marks."""
ENDS_INSIDE_SENTENCE = regex.compile(rf"(?<!፡\s?){WORD_END}\Z")
"""The end of a word without a space after it; two Ethiopic wordspaces end a sentence."""
MAX_WORD_END = 3
"""Number of characters that show whether a text ends inside a sentence."""
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
            shorter_parts += _pack(pieces, num_tokens(pieces), preferred, [True] * len(pieces))
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
    """Return True if a space belongs between two nonempty strings.

    Chinese, Japanese and Yi have none. In Tibetan, none follows a tsheg, which ends a syllable inside a sentence.
    """
    if ENDS_INSIDE_SENTENCE.search(before[-MAX_WORD_END:]):
        return False
    last = LAST_OF_SENTENCE.search(before)
    first = FIRST_OF_SENTENCE.search(after)
    neighbors = [match[0] for match in (last, first) if match is not None]

    # Korean has spaces, also next to punctuation of the same form as in Chinese.
    has_hangul = any(map(IS_HANGUL.match, neighbors))
    return has_hangul or not any(map(IS_JOINED.match, neighbors))


def _cut(text: str, border: regex.Pattern[str]) -> list[str]:
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
    pieces = _with_wordless_pieces(_cut(line, SENTENCE_END))
    lengths = num_tokens(pieces) if num_tokens else [0] * len(pieces)
    has_capitals = not line.islower()

    is_inside_brackets = _are_inside_brackets(line, pieces)
    is_continued = [False]
    for (before, after), is_inside in zip(pairwise(pieces), is_inside_brackets, strict=True):
        is_continued.append(is_inside or _is_continued(before, after, has_capitals))
    return _pack(pieces, lengths, limit, is_continued[: len(pieces)])


def with_capitals(line: str) -> str:
    """Return the line with a capital letter after each final punctuation mark, where a sentence may begin."""
    return AFTER_END.sub(lambda match: match[0][:-1] + match[0][-1].title(), line)


def _with_wordless_pieces(pieces: Sequence[str]) -> list[str]:
    """Join each piece without words, such as `... ` or `॥ १ ॥`, to the piece before it, the first ones to the next."""
    groups: list[list[str]] = []
    has_word = False
    """True if the last group has words."""
    for piece in pieces:
        is_wordless = not any(map(str.isalnum, piece)) or VERSE_NUMBER.fullmatch(piece.lstrip()) is not None
        if groups and (is_wordless or not has_word):
            groups[-1].append(piece)
        else:
            groups.append([piece])
            has_word = False
        has_word = has_word or not is_wordless
    return ["".join(group) for group in groups]


def _are_inside_brackets(line: str, pieces: Sequence[str]) -> list[bool]:
    """Return True for each border between two pieces that is inside a pair of brackets."""
    pairs = _outer_brackets(line)
    are_inside = []
    border = 0
    number = 0
    for piece in pieces[:-1]:
        border += len(piece)
        while number < len(pairs) and pairs[number][1] < border:
            number += 1
        are_inside.append(number < len(pairs) and pairs[number][0] < border)
    return are_inside


def _outer_brackets(line: str) -> list[tuple[int, int]]:
    """Return the positions of all pairs of brackets that are not inside another pair, in order."""
    open_brackets: list[int] = []
    pairs: list[tuple[int, int]] = []
    for match in BRACKET.finditer(line):
        if match["opening"]:
            open_brackets.append(match.start())
        elif open_brackets:
            start = open_brackets.pop()
            while pairs and pairs[-1][0] > start:
                pairs.pop()
            pairs.append((start, match.start()))
    return pairs


def _is_continued(before: str, after: str, has_capitals: bool) -> bool:
    """Return True if it is uncertain whether a sentence ends between two adjacent pieces of a line.

    Args:
        before: the piece before the possible end.
        after: the piece after it.
        has_capitals: True if the line has letters that are not in lower case.
    """
    end = before[-MAX_ABBREVIATION:]
    first_character = after[0]
    if ABBREVIATION.search(end) is not None:
        return True
    if first_character.isdigit() and SHORT_WORD.search(end) is not None:
        return True

    # In Georgian, which has lower case according to Unicode, sentences do not begin with capitals.
    begins_in_lower_case = first_character.islower() and first_character.title() != first_character
    if has_capitals and begins_in_lower_case and CASED_END.search(end) is not None:
        return True

    return _closes(before[-1]) and not _opens(first_character)


def _closes(character: str) -> bool:
    """Return True for a closing bracket or quotation mark."""
    bracket = BRACKET.match(character)
    if bracket is not None:
        return not bracket["opening"]
    return CLOSING_QUOTE.match(character) is not None


def _opens(character: str) -> bool:
    """Return True for an opening bracket or quotation mark."""
    bracket = BRACKET.match(character)
    if bracket is not None:
        return bracket["opening"] is not None
    return OPENING_QUOTE.match(character) is not None


def _pack(pieces: Sequence[str], lengths: Sequence[int], limit: int, belongs_to_previous: Sequence[bool]) -> list[str]:
    """Join adjacent pieces that belong together as long as their total number of tokens is within the limit.

    Args:
        pieces: parts of a line.
        lengths: number of tokens of each piece.
        limit: maximum number of tokens of joined pieces.
        belongs_to_previous: True for each piece that belongs to the piece before it.
    """
    groups: list[list[str]] = []
    num_left = 0
    for piece, length, belongs in zip(pieces, lengths, belongs_to_previous, strict=True):
        if groups and belongs and length <= num_left:
            groups[-1].append(piece)
            num_left -= length
        else:
            groups.append([piece])
            num_left = limit - length
    return ["".join(group) for group in groups]


def _halves(text: str, num_tokens: CountTokens, limit: int) -> list[str]:
    """Split the text in half repeatedly until each part is short enough."""
    if len(text) < 2 or num_tokens([text])[0] <= limit:
        return [text]
    middle = len(text) // 2
    first_parts = _halves(text[:middle], num_tokens, limit)
    second_parts = _halves(text[middle:], num_tokens, limit)
    return first_parts + second_parts

"""Write `mtformer/text/compose.tsv`, the rule file of `tokenizer.normalization: compose`, from Unicode's data.

python scripts/normalization_rules.py [--check]

The rules are for SentencePiece: a line has the code points of a sequence and those that replace it. At each position of
a text the longest sequence that matches is replaced, and the result is not searched again. The rules

- compose: a sequence becomes its canonical composition (NFC) if that is shorter and replaces no character by another.
  NFC itself does more: it lengthens some characters (Bengali U+09DF, Devanagari U+0958), replaces others (U+212B, and
  1,002 compatibility ideographs), and reorders marks (Hebrew points). Text in NFC never matches.
- delete control characters, except those that are white space, which become a space; SentencePiece then joins runs of
  spaces. U+2581 becomes a space too, because SentencePiece writes spaces that way.

The package `unicodedata2` has the data of the newest version of Unicode; without it, those of this Python are used.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

RULES = Path(__file__).parents[1] / "mtformer" / "text" / "compose.tsv"
SPACE, DELETED = " ", ""
SENTENCEPIECE_SPACE = "\u2581"
CONTROL = "Cc"
WHITE_SPACE = "\t\n\v\f\r\x85"
"""Control characters with the property White_Space."""
CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code <= 0xDFFF]
ARABIC_MARKS = [chr(code) for code in (*range(0x64B, 0x656), 0x670)]
"""Short vowels, shadda, sukun and the marks of alef; not the marks of recitation."""
LATIN_MARKS_BELOW = [chr(code) for code in (*range(0x323, 0x32B), 0x32D, *range(0x32F, 0x333))]
"""Marks below a letter in the orthographies of Yoruba, Nuer, Marshallese, Mixtec and others, and in ISO 15919."""
MARKS_BETWEEN = {"ARABIC": (ARABIC_MARKS, 2), "LATIN": (LATIN_MARKS_BELOW, 1)}
"""Marks that occur between a letter and the mark that it is composed with, and their maximum number, by script.

Decomposed Arabic has short vowels between alef and hamza; decomposed Latin text has a mark below a letter before the
accent above it.
"""


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def spellings(composite: str) -> Iterator[str]:
    """Yield the sequences whose composition is one character: fully or partly decomposed, marks in any valid order."""
    first, *others = nfd(composite)
    for order in set(itertools.permutations(others)):
        for num_composed in range(len(order)):
            start = nfc(first + "".join(order[:num_composed]))
            spelling = start + "".join(order[num_composed:])
            if len(start) == 1 and nfc(spelling) == composite:
                yield spelling


def with_marks_between(letter: str, mark: str) -> Iterator[tuple[str, str]]:
    """Yield sequences and their compositions, with other marks between a letter and the mark composed with it."""
    script = unicodedata.name(letter).split()[0]
    marks, longest = MARKS_BETWEEN.get(script, ([], 0))
    for count in range(1, longest + 1):
        for between in itertools.permutations(marks, count):
            sequence = letter + "".join(between) + mark
            composition = nfc(sequence)
            is_composed_with_mark = composition[0] == nfc(letter + mark) != nfc(letter + between[0])
            if is_composed_with_mark and len(composition) == len(sequence) - 1:
                yield sequence, composition


def rules() -> dict[str, str]:
    """Return the replacement of each sequence."""
    # SentencePiece has no rules for NUL, which readers and `translate` remove.
    found = {character: DELETED for character in CHARACTERS[1:] if unicodedata.category(character) == CONTROL}
    found |= dict.fromkeys((*WHITE_SPACE, SENTENCEPIECE_SPACE), SPACE)
    composites = [character for character in CHARACTERS if nfc(character) == character != nfd(character)]
    for composite in composites:
        found |= dict.fromkeys(spellings(composite), composite)
    for composite in composites:
        parts = nfd(composite)
        if len(parts) == 2 and unicodedata.combining(parts[1]):
            found |= with_marks_between(*parts)
    return found


def code_points(text: str) -> str:
    return " ".join(f"{ord(character):X}" for character in text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the file instead of writing it")
    arguments = parser.parse_args()

    lines = [f"{code_points(sequence)}\t{code_points(result)}\n" for sequence, result in sorted(rules().items())]
    text = "".join(lines)
    if not arguments.check:
        RULES.write_text(text, encoding="ascii", newline="\n")
    elif RULES.read_text(encoding="ascii") != text:
        raise SystemExit(f"{RULES}: differs from the rules of Unicode {unicodedata.unidata_version}")
    print(f"{len(lines):,} rules, Unicode {unicodedata.unidata_version}, {len(text):,} bytes: {RULES}")


if __name__ == "__main__":
    main()

"""Numbers in words: whether a text spells out a number, in the languages of number_words.tsv."""

import functools
import unicodedata
from collections.abc import Iterable
from importlib import resources

import regex

from mtformer.config.languages import base_code

FIRST = 13
"""First number of the table. Smaller ones are spelled out in most texts, and are not looked up."""

LAST = 99
"""Last number of the table."""

BETWEEN_LETTERS = regex.compile(r"[\W_\u0640\u200c\u200d]+")
"""Characters that are no letters and no marks of letters, the Arabic sign that makes words longer, and joiners."""

Forms = dict[int, tuple[str, ...]]
"""Forms of each number of the table in some languages."""


@functools.cache
def forms_of(languages: tuple[str, ...]) -> Forms:
    """Return the forms of the numbers in some languages; languages that the table lacks have none."""
    codes = set(map(base_code, languages))
    forms: dict[int, list[str]] = {number: [] for number in range(FIRST, LAST + 1)}
    for code, row in _rows():
        if code in codes:
            for number, forms_of_number in enumerate(row.split(" "), start=FIRST):
                forms[number] += forms_of_number.split("|")
    return {number: tuple(forms_of_number) for number, forms_of_number in forms.items()}


def letters_of(line: str) -> str:
    """Return the letters of a line in lower case, as in the forms of the table."""
    return BETWEEN_LETTERS.sub("", unicodedata.normalize("NFKC", line).casefold())


def spells(letters: str, number: int, forms: Forms) -> bool:
    """Return True if a line contains the last two digits of a number in words: 37 or 1937 in `thirty-seven`.

    Args:
        letters: letters of the line, from `letters_of`.
        number: a number; words for numbers whose last two digits are below 13 are not recognized.
        forms: forms of the numbers in the language of the line, from `forms_of`.
    """
    words = forms.get(number % 100, ())
    return any(word in letters for word in words)


def _rows() -> Iterable[tuple[str, str]]:
    """Yield the language code and the forms of each row of the table."""
    file = resources.files(__package__).joinpath("number_words.tsv")
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            code, _, row = line.partition("\t")
            yield code, row

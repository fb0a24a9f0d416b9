"""Upper case and title case of lines."""

import re
from collections.abc import Callable

FIRST_LETTER = re.compile(r"(?<!\S)[^\w\s]*\w")
"""The first letter of a word, and punctuation before it."""
MIN_WORDS_IN_CAPITALS = 2
"""Minimum number of words of several letters in a line in capitals; a single one may be an abbreviation."""
MIN_WORDS_IN_TITLE_CASE = 5
"""Minimum number of words of a line in title case; fewer may be a name, or a sentence in German."""


def title_case(text: str) -> str:
    """Capitalize each word."""
    return FIRST_LETTER.sub(lambda match: match[0].title(), text)


def case_of(text: str) -> Callable[[str], str] | None:
    """Return `str.upper` or `title_case` if all letters or words of a text in any script have this case, else None."""
    words = []
    for word in text.split():
        letters = "".join(filter(str.isalpha, word))
        if letters:
            words.append(letters)

    # Each letter, because `text.isupper()` ignores scripts without case.
    all_letters = "".join(words)
    if all(map(str.isupper, all_letters)):
        num_long_words = sum(len(word) > 1 for word in words)
        return str.upper if num_long_words >= MIN_WORDS_IN_CAPITALS else None

    have_capitals = all(word[0].isupper() for word in words)
    if not have_capitals or len(words) < MIN_WORDS_IN_TITLE_CASE:
        return None
    return title_case if text == title_case(text.lower()) else None

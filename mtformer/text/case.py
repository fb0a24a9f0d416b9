"""Upper case and title case of lines."""

import re
from collections.abc import Callable


def title_case(text: str) -> str:
    """Capitalize each word."""
    return re.sub(r"(?<!\S)[^\w\s]*\w", lambda match: match[0].title(), text)


def case_of(text: str) -> Callable[[str], str] | None:
    """Return `str.upper` or `title_case` if all letters or words of a text in any script have this case, else None."""
    letters = [[letter for letter in word if letter.isalpha()] for word in text.split()]
    words = list(filter(None, letters))
    if all(letter.isupper() for word in words for letter in word):  # `text.isupper()` ignores scripts without case
        return str.upper if sum(len(word) > 1 for word in words) > 1 else None
    is_title = all(word[0].isupper() for word in words) and text == title_case(text.lower())
    return title_case if is_title and len(words) > 4 else None  # fewer may be a name, or a sentence in German

"""Upper case, title case, lower case and sentence case of lines, by the rules of their language.

Python's methods follow Unicode's default mappings. The exceptions of languages are those of Unicode's SpecialCasing.txt
(Turkish, Azeri and Lithuanian), of CLDR's transforms el-Upper and nl-Title, of ICU (the Armenian ligature), and of the
uppercase transform in CSS Text Level 3 (Irish prefixes), as browsers implement it. Two rules hold in all languages,
because the script determines them: Greek capitals have no accents, and Georgian letters (Mkhedruli) stay as they are,
because their capitals (Mtavruli) are not used to begin sentences or in titles, and rarely otherwise.
"""

from collections.abc import Callable
from functools import lru_cache
from unicodedata import normalize

import regex

from mtformer.config.languages import base_code

Change = Callable[[str, str], str]
"""Function of (text, language code) that returns the text in another case."""

MIN_WORDS_IN_CAPITALS = 2
"""Minimum number of words of several letters in a line in capitals; a single one may be an abbreviation."""
MIN_WORDS_IN_TITLE_CASE = 5
"""Minimum number of words of a line in title case; fewer may be a name, or a sentence in German."""

# ---- Turkish, Azeri and languages with the same alphabet ------------------------------------------------------------

TURKIC = frozenset(("az", "crh", "gag", "tr"))
"""Languages in which i is İ in capitals, and ı is I."""
DOTTED_CAPITAL = regex.compile(r"İ|I\u0307")
"""Capital of i, composed or decomposed."""

# ---- Lithuanian -----------------------------------------------------------------------------------------------------

LITHUANIAN = "lt"
BETWEEN = r"[\p{M}--[\p{Canonical_Combining_Class=0}\p{Canonical_Combining_Class=230}]]*"
"""Marks that may stand between a letter and the mark above it."""
DOT_ABOVE = "\u0307"
"""Dot of i, j and į, which Lithuanian writes only below another mark, and capitals do not have."""
DOT_OF_LETTER = regex.compile(rf"(?<=\p{{Soft_Dotted}}{BETWEEN}){DOT_ABOVE}", regex.V1)
CAPITAL_BELOW_MARK = regex.compile(rf"[IJĮ](?={BETWEEN}\p{{Canonical_Combining_Class=230}})", regex.V1)
"""Capital that gets a dot in lower case, because a mark is above it."""
CAPITALS_WITH_MARKS = str.maketrans({"Ì": "i\u0307\u0300", "Í": "i\u0307\u0301", "Ĩ": "i\u0307\u0303"})

# ---- Greek ----------------------------------------------------------------------------------------------------------

GREEK_WORD = regex.compile(r"[\p{Greek}&&\p{L}][\p{Greek}\p{M}]*", regex.V1)
GREEK_VOWELS = frozenset("ΑΕΗΙΟΥΩ")
GREEK_ACCENTS = frozenset("\u0300\u0301\u0302\u0303\u0311\u0342")
"""Accents, and marks that look like the circumflex."""
GREEK_BREATHINGS = frozenset("\u0304\u0306\u0313\u0314\u0343")
"""Breathings and marks of length, which capitals do not have either."""
DIALYTIKA = "\u0308"
"""Mark of a vowel that is not part of a diphthong."""
IOTA_SUBSCRIPT = "\u0345"
"""Mark that becomes a letter in capitals."""
OR = "Η"
"""Capital of ή (or), the only word that keeps its accent, which distinguishes it from an article."""

# ---- Irish ----------------------------------------------------------------------------------------------------------

IRISH = "ga"
IRISH_WORD_START = r"(?<![\p{L}\p{M}\-\u2010\u2011])"
IRISH_PREFIX = (
    "(?:bh(?=[fF])|b(?=[pP])|d(?=[tT])|g(?=[cC])|m(?=[bB])|n(?=[dDgG])|t(?=[sS][lnraeiouáéíóúLNRAEIOUÁÉÍÓÚ])"
    "|[hnt](?=[AEIOUÁÉÍÓÚ]))"
)
"""Letters that grammar puts before the first letter of a word, and that stay in lower case."""
IRISH_HYPHEN = regex.compile(rf"({IRISH_WORD_START}[nt])[-\u2010\u2011]([aeiouáéíóú])")
"""Prefix of a vowel in lower case; there is no hyphen before a capital."""
IRISH_CAPITAL = regex.compile(rf"({IRISH_WORD_START}[nt])(?=[AEIOUÁÉÍÓÚ])")
"""Prefix of a vowel that is a capital."""

# ---- other languages ------------------------------------------------------------------------------------------------

GEORGIAN = r"[\u10d0-\u10fa\u10fd-\u10ff]+"
"""Georgian letters (Mkhedruli)."""
MTAVRULI = regex.compile(r"[\u1c90-\u1cba\u1cbd-\u1cbf]")
"""Georgian capital."""
KEPT = regex.compile(f"({GEORGIAN})")
"""Letters that stay in lower case in capitals."""
KEPT_IN_IRISH = regex.compile(f"({GEORGIAN}|{IRISH_WORD_START}{IRISH_PREFIX})")
ARMENIAN = "hy"
"""Eastern Armenian; Western Armenian (hyw) follows Unicode's default."""
ARMENIAN_LIGATURE = "և"
FIRST_LETTER = regex.compile(r"(?<!\S)([^\w\s]*)(\w\p{M}*)")
"""The first letter of a word, and punctuation before it."""
FIRST_LETTERS = {
    "nl": regex.compile(r"(?<!\S)([^\w\s]*)(ij(?!\p{M})|íj\u0301|i\u0301j\u0301|\w\p{M}*)", regex.IGNORECASE),
    IRISH: regex.compile(rf"(?<!\S)([^\w\s]*{IRISH_PREFIX}?)(\w\p{{M}}*)"),
}
"""The same in Dutch, where ij is a letter, and in Irish, where a prefix is before the first letter."""


def upper_case(text: str, language: str = "") -> str:
    """Return a text in capitals; the language code may be unknown (empty)."""
    language = base_code(language)
    if language in TURKIC:
        text = text.replace("i", "İ")
    elif language == LITHUANIAN:
        text = _without_dots(text)
    elif language == ARMENIAN:
        text = text.replace(ARMENIAN_LIGATURE, "ԵՎ")
    elif language == IRISH:
        text = IRISH_HYPHEN.sub(_without_hyphen, text)

    text = GREEK_WORD.sub(lambda match: _greek_capitals(match[0]), text)
    kept = KEPT_IN_IRISH if language == IRISH else KEPT
    parts = kept.split(text)
    parts[::2] = [part.upper() for part in parts[::2]]  # the others are kept
    return "".join(parts)


def upper_case_with_mtavruli(text: str, language: str = "") -> str:
    """Return a text in capitals, also those of Georgian."""
    return regex.sub(GEORGIAN, lambda match: match[0].upper(), upper_case(text, language))


def lower_case(text: str, language: str = "") -> str:
    """Return a text in lower case; the language code may be unknown (empty)."""
    language = base_code(language)
    if language in TURKIC:
        text = DOTTED_CAPITAL.sub("i", text).replace("I", "ı")
    elif language == LITHUANIAN:
        text = CAPITAL_BELOW_MARK.sub(_with_dot, text.translate(CAPITALS_WITH_MARKS))
    elif language == IRISH:
        text = IRISH_CAPITAL.sub(r"\1-", text)
    return text.lower()


def title_case(text: str, language: str = "") -> str:
    """Return a text with a capital at the beginning of each word; the language code may be unknown (empty)."""
    language = base_code(language)
    if language == IRISH:
        text = IRISH_HYPHEN.sub(_without_hyphen, text)
    first_letter = FIRST_LETTERS.get(language, FIRST_LETTER)

    def capitalized(match: "regex.Match[str]") -> str:
        return match[1] + _capital(match[2], language)

    return first_letter.sub(capitalized, text)


def capitalize(sentence: str, language: str = "") -> str:
    """Return a sentence in lower case, except for its first letter, unless punctuation is before it."""
    lower = lower_case(sentence, language)
    first_word, *rest = regex.split(r"(?<=\S)(?=\s)", lower, maxsplit=1)
    if not first_word[:1].isalpha():
        return lower
    return "".join([title_case(first_word, language), *rest])


def case_of(text: str, language: str = "") -> Change | None:
    """Return the function that gives a text its case, or None.

    That is `upper_case` or `title_case` if all letters or words of the text, in any script, have this case; Georgian
    capitals are only used for a text that has them.

    Args:
        text: a line of text.
        language: its language code, which may be unknown (empty).
    """
    language = base_code(language)
    words = []
    for word in text.split():
        letters = "".join(filter(str.isalpha, word))
        if letters:
            words.append(_without_prefix(letters) if language == IRISH else letters)

    # Each letter, because `text.isupper()` ignores scripts without case.
    all_letters = "".join(words)
    if all(map(str.isupper, all_letters)):
        num_long_words = sum(len(word) > 1 for word in words)
        if num_long_words < MIN_WORDS_IN_CAPITALS:
            return None
        return upper_case_with_mtavruli if MTAVRULI.search(text) else upper_case

    have_capitals = all(word[0].istitle() for word in words)
    if not have_capitals or len(words) < MIN_WORDS_IN_TITLE_CASE:
        return None
    return title_case if text == title_case(lower_case(text, language), language) else None


def _capital(letter: str, language: str) -> str:
    """Return the capital of a letter at the beginning of a word, with its marks; it may be a digraph such as ǅ."""
    if "j" in letter[1:].lower():  # the Dutch ij
        return letter.upper()
    if language in TURKIC:
        letter = letter.replace("i", "İ")
    elif language == LITHUANIAN:
        letter = _without_dots(letter)
    elif language == ARMENIAN:
        letter = letter.replace(ARMENIAN_LIGATURE, "Եվ")
    return letter[:1].title() + letter[1:]


def _without_hyphen(match: "regex.Match[str]") -> str:
    """Return an Irish prefix and the capital of the vowel after it."""
    return match[1] + match[2].upper()


def _without_prefix(letters: str) -> str:
    """Return the letters of an Irish word without its prefix."""
    return regex.sub(rf"^{IRISH_PREFIX}", "", letters)


def _without_dots(text: str) -> str:
    """Return a Lithuanian text without the dots below other marks, composed."""
    return normalize("NFC", DOT_OF_LETTER.sub("", text))


def _with_dot(match: "regex.Match[str]") -> str:
    return match[0].lower() + DOT_ABOVE


@lru_cache(maxsize=10_000)
def _greek_capitals(word: str) -> str:
    """Return the capitals of a Greek word, as CLDR's el-Upper.

    Accents are removed. If a vowel loses the accent that showed that it forms no diphthong with the next one, that one
    gets a dialytika.
    """
    clusters = regex.findall(r"\P{M}\p{M}*", normalize("NFD", word))
    capitals = ""
    is_after_accent = False
    """True if the letter before is a vowel that lost its accent."""
    for cluster in clusters:
        capital = cluster[0].upper()
        marks = cluster[1:]
        has_accent = not GREEK_ACCENTS.isdisjoint(marks)
        needs_dialytika = is_after_accent and capital in "ΙΥ"
        has_dialytika = DIALYTIKA in marks or needs_dialytika
        is_after_accent = capital in GREEK_VOWELS and has_accent and not has_dialytika

        removed = GREEK_ACCENTS | GREEK_BREATHINGS | {DIALYTIKA, IOTA_SUBSCRIPT}
        capitals += capital
        if has_dialytika:
            capitals += DIALYTIKA
        if len(clusters) == 1 and capital == OR and has_accent and IOTA_SUBSCRIPT not in marks:
            capitals += "\u0301"
        capitals += "".join(mark for mark in marks if mark not in removed)
        capitals += "Ι" * marks.count(IOTA_SUBSCRIPT)
    return normalize("NFC", capitals)

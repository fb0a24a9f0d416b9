"""Whole words: where a term may begin and end in a text, in any script.

Words begin and end as in Unicode Standard Annex 29, so `3` is not a word of `3.5`, and a vowel sign belongs to the
letter before it. In four cases terms need other rules:

- Scripts without spaces: a term in such a script is found anywhere, because finding words there needs a dictionary, and
  a letter of such a script never belongs to a word in another script.
- Latin letters beside another script: prefixes and suffixes are attached to them, as in Korean `Python을`.
- Apostrophes: `eau` is found in `l'eau`, and `Yahoo` in `Yahoo's`, which are single words for Unicode.
- Punctuation at the edge of a term: for Unicode, words end before and after most punctuation. `C++` is not found in
  `C++11`, nor `#1` in `A#1`.
"""

from collections.abc import Sequence
from functools import lru_cache

import regex

from mtformer.text.characters import AFTER_UNSPACED, IS_UNSPACED_LETTER, UNSPACED

MARK = r"(?:(?!\p{Variation_Selector})[\p{Mark}\p{Grapheme_Extend}])"
"""A character that changes the letter before it, such as a vowel sign; variation selectors only change its shape."""
APOSTROPHE = "['’]"
"""The typed apostrophe, and the one that Unicode recommends; the modifier letter apostrophe (U+02BC) is a letter."""
ELIDING = r"[\p{Latin}\p{Greek}]"
"""Letters of scripts in which an apostrophe separates words, as in French, Italian, English and Turkish. In Ukrainian
and Hebrew it belongs to the word."""
SPACED = rf"(?:(?!{UNSPACED}|\p{{Tibetan}})[\p{{Alphabetic}}\p{{Nd}}])"
"""A letter or digit of a script with spaces."""

AFTER_APOSTROPHE = rf"(?<={ELIDING}{APOSTROPHE})(?={ELIDING})(?<!n{APOSTROPHE}(?=t\b))"
"""Position after an apostrophe that separates words. `n't` belongs to the word: `t` is not found in `can't`."""
BEFORE_APOSTROPHE = rf"(?<={ELIDING})(?={APOSTROPHE}{ELIDING})(?!(?<=n){APOSTROPHE}t\b)"
"""Position before such an apostrophe: `can` is not found in `can't`."""

NEXT_TO_TIBETAN = r"(?<=\p{Tibetan})(?!\p{Tibetan})|(?<!\p{Tibetan})(?=\p{Tibetan})"
"""In Tibetan, which has no spaces either, a mark ends each syllable, so terms are not found inside of syllables."""

OTHER_LETTER = r"(?:(?![\p{Latin}\p{Greek}\p{Common}\p{Inherited}])\p{L})"
"""A letter of a script that does not share words with Latin letters; Greek letters do, as in μm."""
BESIDE_LATIN = rf"(?<=\p{{Latin}}[\p{{Mark}}\p{{Nd}}]*)(?={OTHER_LETTER})|(?<={OTHER_LETTER}\p{{Mark}}*)(?=\p{{Latin}})"
"""Position between a word in Latin letters and a prefix or suffix in another script, as in `Python을`."""

BETWEEN_WORDS = rf"\b|(?={UNSPACED})|{AFTER_UNSPACED}|{NEXT_TO_TIBETAN}|{BESIDE_LATIN}"
"""Position between two words of any scripts."""
BEFORE_LETTER = rf"(?:{BETWEEN_WORDS}|{AFTER_APOSTROPHE})"
"""Border before a term that begins with a letter or digit."""
AFTER_LETTER = rf"(?:{BETWEEN_WORDS}|{BEFORE_APOSTROPHE})(?!{MARK})"
"""Border after a term that ends with a letter or digit."""
BEFORE_PUNCTUATION = rf"\b(?<!{SPACED}{MARK}*)"
"""Border before a term that begins with another character."""
AFTER_PUNCTUATION = rf"(?!{SPACED})"
"""Border after a term that ends with another character."""
IS_LETTER = regex.compile(rf"[\p{{Alphabetic}}\p{{Mark}}\p{{N}}_]|{UNSPACED}")
"""A character whose borders are those of letters."""
LETTER = regex.compile(r"\p{L}")
HANGUL = regex.compile(r"[\p{Hangul}&&\p{L}]", regex.V1)
HAN = regex.compile(r"[\p{Han}&&\p{L}]", regex.V1)
KANA = regex.compile(r"[[\p{Hiragana}\p{Katakana}]&&\p{L}]", regex.V1)
KANA_SHARE = 0.2
"""Share of kana in the Han characters and kana of a text above which it is Japanese; a Chinese text may quote some."""
NUM_SAMPLED_LINES = 1000
"""Number of lines whose letters show the script of a text."""
INVISIBLE = regex.compile(r"[\p{Z}\p{Cc}\p{Cf}]*")
"""White space, control characters and characters without width."""


def lacks_spaces(lines: Sequence[str]) -> bool | None:
    """Return True if most letters belong to scripts without spaces between words; None for a text without letters."""
    text = "".join(lines[:NUM_SAMPLED_LINES])
    num_letters = len(LETTER.findall(text))
    if not num_letters:
        return None
    return 2 * len(IS_UNSPACED_LETTER.findall(text)) > num_letters


def likely_language(lines: Sequence[str]) -> str:
    """Return the language of a text whose script determines it: ko, ja or zh; otherwise an empty string.

    The language of the scripts Hang, Jpan and Hani is that of likelySubtags in CLDR 47.
    """
    text = "".join(lines[:NUM_SAMPLED_LINES])
    num_letters = len(LETTER.findall(text))
    num_hangul = len(HANGUL.findall(text))
    num_han = len(HAN.findall(text))
    num_kana = len(KANA.findall(text))

    if 2 * num_hangul > num_letters:
        return "ko"
    if 2 * (num_han + num_kana) <= num_letters:
        return ""
    return "ja" if num_kana > KANA_SHARE * (num_han + num_kana) else "zh"


def is_blank(text: str) -> bool:
    """Return True if a text has only white space, control characters and characters without width, such as U+200B."""
    return INVISIBLE.fullmatch(text) is not None


@lru_cache(maxsize=10_000)
def whole_words(term: str, *, ignore_case: bool = False) -> regex.Pattern[str]:
    """Return a pattern that finds a term as whole words."""
    start = BEFORE_LETTER if IS_LETTER.match(term[:1]) else BEFORE_PUNCTUATION
    end = AFTER_LETTER if IS_LETTER.match(term[-1:]) else AFTER_PUNCTUATION
    escaped = regex.escape(term, special_only=True, literal_spaces=True)
    flags = regex.WORD
    if ignore_case:
        flags |= regex.IGNORECASE
    return regex.compile(start + escaped + end, flags)

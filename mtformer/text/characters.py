"""Classes of characters for patterns, in all scripts.

They are derived from properties of Unicode: the script of a character (also Script_Extensions), its General_Category,
Line_Break (Unicode Standard Annex 14), East_Asian_Width, Sentence_Terminal, Terminal_Punctuation and Quotation_Mark.
What no property says has its own constant here, with its source. Classes in double brackets require `regex.V1`.
"""

import regex

# ---- letters --------------------------------------------------------------------------------------------------------

UNSPACED = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Word_Break=Katakana}\p{Yi}\p{Tangut}\p{Nushu}"
    r"\p{Khitan_Small_Script}\p{Line_Break=Complex_Context}\p{Line_Break=Aksara}\p{Line_Break=Aksara_Start}]"
)
"""Letters of scripts without spaces between words, except Tibetan: those of Chinese, Japanese and Yi, and those with
the Line_Break SA (Thai, Lao, Khmer, Burmese and others), AK or AS (Javanese, Balinese and others)."""

WITHOUT_SPACES = rf"{UNSPACED[:-1]}\p{{Tibetan}}]"
"""Characters of all scripts without spaces between words; these are the scripts of
`mtformer.config.languages.UNSPACED_SCRIPTS`. In Tibetan, a mark ends each syllable."""

MARK = r"[\p{Mark}\p{Grapheme_Extend}]"
"""A character that belongs to the letter before it, such as a vowel sign."""

LETTER_OR_DIGIT = r"[\p{L}\p{M}\p{N}]"
"""A letter, a mark of a letter, or a digit. Python's `isalnum` lacks the marks, and so most vowels of many scripts."""

AFTER_UNSPACED = rf"(?<={UNSPACED}{MARK}*)"
"""Position after a letter of `UNSPACED`, with its marks."""

AFTER_WITHOUT_SPACES = rf"(?<={WITHOUT_SPACES}{MARK}*)"
"""Position after a letter of a script without spaces between words, with its marks."""

WIDE = r"[\p{East_Asian_Width=Wide}\p{East_Asian_Width=Fullwidth}\p{East_Asian_Width=Halfwidth}]"
"""Characters of Chinese, Japanese, Korean and Yi, with their punctuation."""

JOINED = (
    rf"[[{WIDE}&&[\p{{scx=Han}}\p{{scx=Hiragana}}\p{{scx=Katakana}}\p{{scx=Bopomofo}}\p{{scx=Yi}}\p{{Tangut}}"
    r"\p{Nushu}\p{Khitan_Small_Script}\p{East_Asian_Width=Fullwidth}\p{East_Asian_Width=Halfwidth}]]--\p{Hangul}]"
)
"""Characters of Chinese, Japanese and Yi and their punctuation, next to which there are no spaces. Other scripts
without spaces between words, such as Thai, Khmer and Tibetan, have spaces between sentences."""

# ---- punctuation ----------------------------------------------------------------------------------------------------

CLOSING = "\\p{Close_Punctuation}\\p{Final_Punctuation}\"'＂＇"
"""Contents of a class: quotation marks and brackets that close."""

OPENING = "\\p{Open_Punctuation}\\p{Initial_Punctuation}\"'＂＇"
"""Contents of a class: quotation marks and brackets that open."""

LOW_QUOTES = "‚„⹂〝〞〟"
"""Quotation_Mark characters that are Open_Punctuation or Close_Punctuation too, but are no brackets; corner brackets
such as 「 are brackets."""

COMMAS = "\u104a\ua9c8\u1b5e\u1735\uaaf0"
"""Sentence_Terminal marks of one stroke that are used like commas, because a mark of two strokes is the full stop: in
Burmese ၊ and ။, Javanese ꧈ and ꧉, Balinese ᭞ and ᭟, Philippine scripts ᜵ and ᜶, Meetei Mayek ꫰ and ꯫. No property of
Unicode distinguishes them; see chapters 13, 16 and 17 of the Unicode Standard."""

STOPS = rf"[\p{{Sentence_Terminal}}…\u0df4--[{COMMAS}]]"
"""Marks that end sentences. The ellipsis and the Sinhala kunddaliya lack the property."""

UNSPACED_STOPS = (
    rf"[{STOPS}&&[{WIDE}\p{{Myanmar}}\p{{Khmer}}\p{{Tai_Tham}}\p{{Ahom}}\p{{Javanese}}\p{{Balinese}}\p{{Cham}}]]"
)
"""Marks of scripts without spaces between words: those of Chinese and Japanese, and those whose letters have the
Line_Break SA, AK or AS."""

BREAKING_STOPS = rf"[{STOPS}&&[\p{{Line_Break=Break_After}}\p{{Ethiopic}}؟։]]"
"""Marks such as the danda, which never occur inside words, so a space after them may be missing."""

SHADS = r"[\u0f0d-\u0f11\u0f14]"
"""Marks at the end of Tibetan phrases (`tibetan_shad` of Unicode document L2/05-073)."""

TWO_WORDSPACES = r"፡\s?፡"
"""Ethiopic full stop, as it is often typed."""

GREEK_QUESTION = r"(?<=\p{Greek}\p{M}*)[;\u037e]"
"""Greek question mark, which is typed as a semicolon."""

TYPED_STOPS = r"(?<=\p{Armenian}):|(?<=\p{Ethiopic})::"
"""Colons that are typed for the full stop in Armenian and Ethiopic."""

WORD_END = r"[\u0f0b\u1361]"
"""Marks that separate Tibetan syllables (tsheg) and Ethiopic words, without a space."""

QUESTIONS = "?՞؟፧᥅⁇⁈⁉⳺⳻⸮⹔꘏꛷꫱𑅃︖﹖？"
"""Sentence_Terminal marks with QUESTION in their names, and those of Meetei Mayek and Armenian; the last one
is inside a word."""

EXCLAMATIONS = "!՜߹᥄‼‽⹓︕﹗！"
"""Other such marks with EXCLAMATION or INTERROBANG in their names, and the Armenian one."""

FULL_STOPS = rf"[[[\p{{Sentence_Terminal}}\u0df4]{SHADS}]--[{COMMAS}{QUESTIONS}{EXCLAMATIONS}\u2024]]"
"""Marks that end statements; the one dot leader is a part of an ellipsis."""

DOUBLE_QUOTES = '"“”„‟⹂«»「」『』﹁﹂﹃﹄｢｣〝〞〟＂'
"""Quotation_Mark characters without single quotation marks, one of which is the apostrophe."""

CLAUSE_MARKS = rf"[[\p{{Terminal_Punctuation}}--[\p{{Sentence_Terminal}}\p{{Tibetan}}፡]]{COMMAS}]"
"""Marks at the end of clauses. The Ethiopic wordspace, which is Terminal_Punctuation too, only separates words."""

PUNCTUATION = r"[[\p{P}\p{Sc}\p{Sm}\p{Sk}]--[\p{Emoji_Modifier}\p{Word_Break=Katakana}]]"
"""Punctuation, and signs of currencies and mathematics; other symbols, such as emoji, are used like words."""

SEPARATOR = rf"[[\p{{Terminal_Punctuation}}--[!,.:;?]]\p{{Line_Break=Break_Both}}…[{JOINED}&&\p{{P}}]]"
"""Punctuation that never occurs inside words: marks of single scripts, long dashes and the ellipsis."""

PLANES_END = 0x20000
"""First code point after the two planes with punctuation."""

# ---- compiled classes -----------------------------------------------------------------------------------------------

IS_JOINED = regex.compile(JOINED, regex.V1)
IS_MARK = regex.compile(MARK)
IS_HANGUL = regex.compile(r"\p{Hangul}")
IS_IDEOGRAPH = regex.compile(rf"[{JOINED}&&\p{{L}}]", regex.V1)
"""A letter of Chinese, Japanese or Yi."""
IS_UNSPACED_LETTER = regex.compile(rf"[{WITHOUT_SPACES}&&\p{{L}}]", regex.V1)
IS_UNMARKED = regex.compile(
    r"[[\p{Line_Break=Complex_Context}&&\p{L}]--[\p{Myanmar}\p{Khmer}\p{Tai_Tham}\p{Ahom}]]", regex.V1
)
"""A letter of Thai, Lao, and other scripts of this kind without Sentence_Terminal marks of their own: the end of a
sentence is not marked."""
LETTERS_OR_DIGITS = regex.compile(rf"{LETTER_OR_DIGIT}+")
IS_ENDING = regex.compile(
    rf"[[\p{{Terminal_Punctuation}}\p{{Close_Punctuation}}\p{{Final_Punctuation}}…]--[{LOW_QUOTES}፡]]", regex.V1
)
"""Punctuation at the end of a sentence, clause, quotation or bracket."""
FINAL_STOP = regex.compile(rf"(?:{TWO_WORDSPACES}|{TYPED_STOPS}|{FULL_STOPS})\Z", regex.V1)
"""A full stop at the end of a text."""


def all_characters(class_of_characters: str) -> str:
    """Return the characters of a class in the first two planes of Unicode, which contain all punctuation."""
    text = "".join(map(chr, range(PLANES_END)))
    return "".join(regex.findall(class_of_characters, text, regex.V1))


def letters_and_digits(text: str) -> str:
    """Return the letters, with their marks, and the digits of a text."""
    return "".join(LETTERS_OR_DIGITS.findall(text))

"""Style of a text: whether it is tokenized, lowercased, decomposed or in another script than usual text.

A model learns the style of its training text. It reads other text badly, and writes the same style. The style is
measured on many lines (`StyleCounts`), from which follow the signs that usual text lacks (`Sign`). In usual text,
punctuation follows a word directly, words of scripts without spaces follow each other directly, and lines have capital
letters if their script has them. French spaces before `! ? ; :` are no sign, because only commas and full stops count.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple

import regex

from mtformer.enums import StrEnum
from mtformer.text.characters import WITHOUT_SPACES

# ---- what is counted ------------------------------------------------------------------------------------------------

WORD_END = r"[\p{L}\p{M}\p{N}\p{Pe}\p{Pf}\"'%]"
"""Character that ends a word, a number, a bracket or a quotation."""
STOP = r"(?:[,.](?=\s|$)|[،۔、。，．｡､])"
"""A comma or full stop; those in numbers and abbreviations such as 1,000 and U.S. have no space after them.

Marks before which some languages write spaces are left out: `! ? ; :` (French), the danda and khan (Hindi, Khmer).
"""
ATTACHED_STOP = regex.compile(rf"{STOP}(?<={WORD_END}.)")
"""A comma or full stop directly after a word."""
SPACED_STOP = regex.compile(rf"{STOP}(?<={WORD_END}\s.)")
"""A comma or full stop after a word and a space."""
CLITIC = r"(?:n['’]t|['’](?:re|ve|ll))(?![\p{L}\p{M}])"
"""The second part of an English contraction, as the Penn Treebank splits it; `'s` is also a Dutch and Gaelic word."""
CONTRACTION = regex.compile(rf"(?<=\p{{Latin}}){CLITIC}", regex.IGNORECASE)
"""End of a contraction such as `don't`."""
SPLIT_CONTRACTION = regex.compile(rf"(?<=\p{{Latin}}\s){CLITIC}", regex.IGNORECASE)
"""End of a split contraction such as `do n't`."""
SUBWORD = regex.compile(r"\S@@(?=\s|$)|▁|￭|\S</w>(?=\s|$)|(?<=\S\s)##[\p{L}\p{N}]")
"""Mark of subword-nmt, SentencePiece, OpenNMT or WordPiece."""
JOINER = regex.compile(r"(?<!\S)@[-–,./:]@(?!\S)")
"""Mark of Moses for a sign between two parts of a word, as in `well @-@ known`."""
ESCAPE = regex.compile(r"&(?:apos|quot|amp|lt|gt|bar|#91|#93|#124);")
"""Escape of Moses for a character that it uses itself."""

UNSPACED = rf"[{WITHOUT_SPACES}--\p{{Tai_Viet}}]"
"""Characters of scripts without spaces between words; in Tai Viet, spaces have become usual."""
UNSPACED_LETTER = regex.compile(rf"[{UNSPACED}&&\p{{L}}]", regex.V1)
"""Letter of such a script."""
GAP = regex.compile(rf"\s(?<=[{UNSPACED}&&[\p{{L}}\p{{M}}]]\s|་\s)\s{{0,3}}(?=[{UNSPACED}&&\p{{L}}])", regex.V1)
"""Space between two words of such a script; a Tibetan syllable ends with a mark.

The number of spaces is bounded, so that the time for a line of spaces is linear in its length.
"""

SIMPLE_CASE = r"[\p{Georgian}\p{Cherokee}\p{Coptic}\p{Glagolitic}]"
"""Scripts in which usual text has letters of one case only, although Unicode has two."""
CAPITAL = regex.compile(rf"[[\p{{Lu}}\p{{Lt}}]--{SIMPLE_CASE}]", regex.V1)
"""Capital letter of a script with two cases."""
SMALL_LETTER = regex.compile(rf"[\p{{Ll}}--{SIMPLE_CASE}]", regex.V1)
"""Small letter of a script with two cases."""
MIN_CASED_WORDS = 4
"""Minimum number of words of a line whose case counts; fewer may be an entry of a dictionary, or a name."""
FULL_WIDTH = regex.compile("[\uff21-\uff3a\uff41-\uff5a]")
"""Full-width Latin letter."""
NO_ASCII = re.compile("[^\\x00-\\x7f]")
"""Character outside of ASCII."""
NO_ASCII_LETTERS = bytes(byte for byte in range(128) if not chr(byte).isalpha())
"""ASCII characters that are no letters; letters of ASCII are counted together, because that is fast."""
SUBWORD_STARTS = ("@@", "▁", "￭", "</w>", "##")
"""Texts of which each mark of subwords contains one; finding them is faster than `SUBWORD`."""


class Letter(NamedTuple):
    """Properties of a letter."""

    script: str
    is_capital: bool
    is_small: bool
    is_unspaced: bool
    """True if its script has no spaces between words."""
    is_full_width: bool


@cache
def letter_of(character: str) -> Letter | None:
    """Return the properties of a letter; None for other characters.

    The script is the first word of the letter's name in Unicode, such as Latin, Hiragana or Cjk.
    """
    if not character.isalpha():
        return None
    is_full_width = FULL_WIDTH.match(character) is not None
    usual_form = unicodedata.normalize("NFKC", character)[0] if is_full_width else character
    name = unicodedata.name(usual_form, "")
    return Letter(
        script=name.split(" ")[0].capitalize(),
        is_capital=CAPITAL.match(character) is not None,
        is_small=SMALL_LETTER.match(character) is not None,
        is_unspaced=UNSPACED_LETTER.match(character) is not None,
        is_full_width=is_full_width,
    )


@dataclass
class StyleCounts:
    """Counts of lines; those of several texts can be added."""

    lines: int = 0
    """Number of lines that are not blank."""
    letters: int = 0
    stops: int = 0
    """Number of commas and full stops."""
    spaced_stops: int = 0
    """Number of commas and full stops after a space."""
    contractions: int = 0
    """Number of English contractions, split or not."""
    split_contractions: int = 0
    subword_lines: int = 0
    """Number of lines with a mark of subwords."""
    joiner_lines: int = 0
    """Number of lines with a mark of Moses between parts of a word."""
    escape_lines: int = 0
    """Number of lines with an escape of Moses."""
    unspaced_letters: int = 0
    """Number of letters of scripts without spaces between words."""
    gaps: int = 0
    """Number of spaces between words of such scripts."""
    cased_lines: int = 0
    """Number of longer lines in scripts with two cases."""
    small_lines: int = 0
    """Number of these lines without a capital."""
    capital_lines: int = 0
    """Number of these lines without a small letter."""
    accented_lines: int = 0
    """Number of lines that differ in the Unicode normalization forms NFC and NFD."""
    decomposed_lines: int = 0
    """Number of lines that are not in NFC."""
    full_width_letters: int = 0
    """Number of full-width Latin letters."""
    scripts: Counter[str] = field(default_factory=Counter)
    """Number of letters of each script."""

    @classmethod
    def of_lines(cls, lines: Iterable[str]) -> "StyleCounts":
        """Return the counts of some lines."""
        counts = cls()
        for line in lines:
            counts.add_line(line)
        return counts

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "StyleCounts":
        """Restore counts from the result of `to_dict`; raise TypeError or ValueError for anything else."""
        scripts = {str(name): int(count) for name, count in dict(values["scripts"]).items()}
        numbers = {item.name: int(values[item.name]) for item in fields(cls) if item.name != "scripts"}
        return cls(**numbers, scripts=Counter(scripts))

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**vars(self), "scripts": dict(self.scripts)}

    def __add__(self, counts: "StyleCounts") -> "StyleCounts":
        sums = {item.name: getattr(self, item.name) + getattr(counts, item.name) for item in fields(self)}
        return StyleCounts(**sums)

    @property
    def num_tokenized(self) -> int:
        """Number of signs of tokenization."""
        in_words = self.spaced_stops + self.split_contractions + self.gaps
        return in_words + self.subword_lines + self.joiner_lines + self.escape_lines

    def add_line(self, line: str) -> None:
        """Count a line."""
        if not line.strip():
            return
        self.lines += 1
        self._add_letters(line)
        self._add_punctuation(line)
        self._add_marks(line)
        if not line.isascii():
            self.gaps += len(GAP.findall(line))
            self._add_forms(line)

    def _add_letters(self, line: str) -> None:
        ascii_letters = line.encode("ascii", "ignore").translate(None, delete=NO_ASCII_LETTERS)
        num_letters = len(ascii_letters)
        num_cased = num_letters
        has_capital = num_letters > 0 and not ascii_letters.islower()
        has_small = num_letters > 0 and not ascii_letters.isupper()
        if num_letters:
            self.scripts["Latin"] += num_letters

        for character, count in Counter(NO_ASCII.findall(line)).items():
            letter = letter_of(character)
            if letter is None:
                continue
            num_letters += count
            self.scripts[letter.script] += count
            has_capital |= letter.is_capital
            has_small |= letter.is_small
            if letter.is_capital or letter.is_small:
                num_cased += count
            if letter.is_unspaced:
                self.unspaced_letters += count
            if letter.is_full_width:
                self.full_width_letters += count

        self.letters += num_letters
        is_cased = 2 * num_cased > num_letters
        if is_cased and len(line.split()) >= MIN_CASED_WORDS:
            self.cased_lines += 1
            self.small_lines += not has_capital
            self.capital_lines += not has_small

    def _add_punctuation(self, line: str) -> None:
        num_spaced = len(SPACED_STOP.findall(line))
        self.spaced_stops += num_spaced
        self.stops += num_spaced + len(ATTACHED_STOP.findall(line))
        if "'" in line or "’" in line:
            num_split = len(SPLIT_CONTRACTION.findall(line))
            self.split_contractions += num_split
            self.contractions += num_split + len(CONTRACTION.findall(line))

    def _add_marks(self, line: str) -> None:
        if any(start in line for start in SUBWORD_STARTS):
            self.subword_lines += SUBWORD.search(line) is not None
        if "@" in line:
            self.joiner_lines += JOINER.search(line) is not None
        if "&" in line:
            self.escape_lines += ESCAPE.search(line) is not None

    def _add_forms(self, line: str) -> None:
        is_decomposed = len(unicodedata.normalize("NFC", line)) < len(line)
        is_composed = len(unicodedata.normalize("NFD", line)) > len(line)
        self.accented_lines += is_decomposed or is_composed
        self.decomposed_lines += is_decomposed


# ---- signs ----------------------------------------------------------------------------------------------------------


MIN_SPACED = 0.8
"""Minimum share of spaced commas and full stops, or of split contractions, in tokenized text."""
MIN_GAPS = 0.2
"""Minimum number of spaces per letter in tokenized text of a script without spaces."""
MIN_GAPS_BURMESE = 0.35
"""The same in Burmese script, which has spaces between phrases and marks instead of many letters."""
MIN_MARKED = 0.05
"""Minimum share of lines with marks of subwords or escapes in tokenized text; web pages leave a few escapes."""
MIN_JOINED = 0.01
"""Minimum share of lines with joined signs in tokenized text; usual text has none."""
MIN_ONE_CASE = 0.9
"""Minimum share of lines in one case in a text of this case."""
MIN_FORM = 0.5
"""Minimum share of decomposed or full-width letters in a text of this form."""
MIN_COUNT = 3
"""Number of places that must show a sign; one `&amp;` in 20 lines is none."""
MIN_STOPS = 10
"""Number of commas and full stops, or of contractions, below which a text is not judged by them."""
MIN_LETTERS = 100
"""Number of letters below which a text is not judged by them."""
MIN_MARKED_LINES = 20
"""Number of lines below which a text is not judged by marks of subwords and escapes."""
MIN_JOINED_LINES = 100
"""Number of lines below which a text is not judged by joined signs."""
MIN_CASED_LINES = 10
"""Number of lines below which a text is not judged by its case, or by decomposed letters."""


class Sign(StrEnum):
    """Property of a text that usual text lacks."""

    SPACED_STOPS = "spaces before commas and full stops"
    SPACED_WORDS = "spaces between words"
    SPLIT_CONTRACTIONS = "split contractions (do n't)"
    SUBWORDS = "marks of subwords (@@, ▁)"
    JOINERS = "marks between parts of words (@-@)"
    ESCAPES = "escapes (&apos;, &amp;)"
    SMALL = "only small letters"
    CAPITALS = "only capital letters"
    DECOMPOSED = "decomposed characters (NFD)"
    FULL_WIDTH = "full-width Latin letters"


TOKENIZED = (
    Sign.SPACED_STOPS,
    Sign.SPACED_WORDS,
    Sign.SPLIT_CONTRACTIONS,
    Sign.SUBWORDS,
    Sign.JOINERS,
    Sign.ESCAPES,
)
"""Signs of tokenized text."""
CASE = (Sign.SMALL, Sign.CAPITALS)
"""Signs of text in one case."""


EVIDENCE = {
    Sign.SPACED_STOPS: "{:.0f} % of commas and full stops follow a space",
    Sign.SPACED_WORDS: "{:.0f} spaces per 100 letters of a script without spaces",
    Sign.SPLIT_CONTRACTIONS: "{:.0f} % of contractions are split (do n't)",
    Sign.SUBWORDS: "{:.0f} % of lines have marks of subwords (@@, ▁)",
    Sign.JOINERS: "{:.0f} % of lines have marks between parts of words (@-@)",
    Sign.ESCAPES: "{:.0f} % of lines have escapes (&apos;, &amp;)",
    Sign.SMALL: "{:.0f} % of lines have no capital",
    Sign.CAPITALS: "{:.0f} % of lines have only capitals",
    Sign.DECOMPOSED: "{:.0f} % of lines with accents are decomposed (NFD)",
    Sign.FULL_WIDTH: "{:.0f} % of Latin letters are full-width",
}
"""Share of each sign in words, with a place for its percentage."""


@dataclass(frozen=True)
class Share:
    """Share of the places in a text that show a sign, among those that could."""

    count: int
    total: int
    min_share: float
    """Share from which on the text has the sign."""
    min_total: int
    """Number of places below which nothing is known."""

    @property
    def value(self) -> float:
        """The share."""
        return self.count / max(1, self.total)

    @property
    def is_known(self) -> bool:
        """True if the text has enough places."""
        return self.total >= self.min_total

    @property
    def is_sign(self) -> bool:
        """True if the text has the sign."""
        return self.is_known and self.count >= MIN_COUNT and self.value >= self.min_share


def shares(counts: StyleCounts) -> dict[Sign, Share]:
    """Return the share of each sign.

    The limits lie between the shares of usual and of tokenized text in 15 treebanks of Universal Dependencies and 528
    translations of the Universal Declaration of Human Rights: commas and full stops after spaces 0 to 10 % (in three
    translations 43 to 69 %) and 95 to 100 %; spaces per letter 0 to 0.07 (in Burmese script to 0.14, and more in simple
    sentences) and 0.27 to 0.5. Marks of tokenization do not occur in usual text.
    """
    is_burmese = 2 * counts.scripts["Myanmar"] > counts.unspaced_letters
    min_gaps = MIN_GAPS_BURMESE if is_burmese else MIN_GAPS
    return {
        Sign.SPACED_STOPS: Share(counts.spaced_stops, counts.stops, MIN_SPACED, MIN_STOPS),
        Sign.SPACED_WORDS: Share(counts.gaps, counts.unspaced_letters, min_gaps, MIN_LETTERS),
        Sign.SPLIT_CONTRACTIONS: Share(counts.split_contractions, counts.contractions, MIN_SPACED, MIN_STOPS),
        Sign.SUBWORDS: Share(counts.subword_lines, counts.lines, MIN_MARKED, MIN_MARKED_LINES),
        Sign.JOINERS: Share(counts.joiner_lines, counts.lines, MIN_JOINED, MIN_JOINED_LINES),
        Sign.ESCAPES: Share(counts.escape_lines, counts.lines, MIN_MARKED, MIN_MARKED_LINES),
        Sign.SMALL: Share(counts.small_lines, counts.cased_lines, MIN_ONE_CASE, MIN_CASED_LINES),
        Sign.CAPITALS: Share(counts.capital_lines, counts.cased_lines, MIN_ONE_CASE, MIN_CASED_LINES),
        Sign.DECOMPOSED: Share(counts.decomposed_lines, counts.accented_lines, MIN_FORM, MIN_CASED_LINES),
        Sign.FULL_WIDTH: Share(counts.full_width_letters, counts.scripts["Latin"], MIN_FORM, MIN_LETTERS),
    }


def signs_of(counts: StyleCounts) -> dict[Sign, str]:
    """Return the signs of a text, each with its share in words."""
    signs: dict[Sign, str] = {}
    for sign, share in shares(counts).items():
        if share.is_sign:
            signs[sign] = EVIDENCE[sign].format(100 * share.value)
    return signs


# ---- comparison -----------------------------------------------------------------------------------------------------

DIFFERENCE = 4
"""Minimum factor between the shares of a sign in two texts that differ."""
MIN_EXPECTED = 8
"""Number of occurrences of a sign that a text must have if it is like the training text, for their absence to count."""
KNOWN_SCRIPT = 0.005
"""Minimum share of a script in the letters of a training text that knows the script."""
MAX_SCRIPTS = 3
"""Maximum number of scripts in a message."""
OTHER_SCRIPT = 0.5
"""Minimum share of letters in unknown scripts in a text that is unlike the training text."""


class Difference(StrEnum):
    """Kind of difference between a text and the training text, as a message with places for both."""

    MISSING = "the training text has {names}, {text} does not"
    ADDED = "{text} has {names}, the training text does not"
    SCRIPT = "most letters of {text} are {names}, those of the training text are not"


def differences(text: StyleCounts, training: StyleCounts, *, ignores_case: bool = False) -> dict[str, Difference]:
    """Return how a text differs from the training text, by the sign or the names of the scripts.

    Args:
        text: counts of the text.
        training: counts of the training text in the same language.
        ignores_case: the model accepts any case, because noise changed that of its training text.
    """
    unknown = _unknown_scripts(text, training)
    if unknown:  # other signs of text in another script mean nothing
        return {_names(unknown): Difference.SCRIPT}

    found: dict[str, Difference] = {}
    shares_of_training = shares(training)
    for sign, share in shares(text).items():
        if ignores_case and sign in CASE:
            continue
        trained = shares_of_training[sign]
        if _lacks(share, trained):
            found[sign] = Difference.MISSING
        elif _adds(share, trained) and sign != Sign.CAPITALS:  # translated in lower case if capitals are unknown
            found[sign] = Difference.ADDED
    return found


def describe_differences(found: Mapping[str, Difference], text: str) -> str:
    """Return differences in words; `text` names the text, as `the input`."""
    parts: list[str] = []
    for kind in Difference:
        names = [name for name, kind_of_name in found.items() if kind_of_name == kind]
        if names:
            parts.append(kind.format(names=" and ".join(names), text=text))
    return ", and ".join(parts)


def _lacks(share: Share, trained: Share) -> bool:
    """Return True if the training text has a sign that a text lacks."""
    is_expected = trained.value * share.total >= MIN_EXPECTED
    is_rare = share.value * DIFFERENCE < trained.value
    return trained.is_sign and share.is_known and is_expected and is_rare


def _adds(share: Share, trained: Share) -> bool:
    """Return True if a text has a sign that the training text lacks."""
    is_rare = trained.value * DIFFERENCE < share.value
    return share.is_sign and trained.is_known and is_rare


def _unknown_scripts(text: StyleCounts, training: StyleCounts) -> list[str]:
    """Return the scripts of a text that the training text lacks, if most letters are in these scripts."""
    if min(text.letters, training.letters) < MIN_LETTERS:
        return []
    unknown = [name for name in text.scripts if training.scripts[name] < KNOWN_SCRIPT * training.letters]
    num_unknown = sum(text.scripts[name] for name in unknown)
    return unknown if num_unknown > OTHER_SCRIPT * text.letters else []


def _names(scripts: Sequence[str]) -> str:
    names = ["Chinese" if name == "Cjk" else name for name in scripts]
    return " and ".join(names[:MAX_SCRIPTS])


# ---- style of the training text -------------------------------------------------------------------------------------

STYLE_FORMAT = 1
"""Version of the format of `TrainingStyle.to_dict`."""


@dataclass(frozen=True)
class TrainingStyle:
    """Style of the text on which a model was trained, as the model sees it, by language."""

    src: dict[str, StyleCounts] = field(default_factory=dict)
    tgt: dict[str, StyleCounts] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainingStyle | None":
        """Restore the result of `to_dict`; None for another format. Raise an error if the values are damaged."""
        if values["format"] != STYLE_FORMAT:
            return None
        src = {language: StyleCounts.from_dict(counts) for language, counts in values["src"].items()}
        tgt = {language: StyleCounts.from_dict(counts) for language, counts in values["tgt"].items()}
        return cls(src, tgt)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object."""
        src = {language: counts.to_dict() for language, counts in self.src.items()}
        tgt = {language: counts.to_dict() for language, counts in self.tgt.items()}
        return {"format": STYLE_FORMAT, "src": src, "tgt": tgt}

    def add(self, languages: tuple[str, str], src_lines: Sequence[str], tgt_lines: Sequence[str]) -> None:
        """Count pairs in these languages."""
        src_lang, tgt_lang = languages
        self.src[src_lang] = self.src.get(src_lang, StyleCounts()) + StyleCounts.of_lines(src_lines)
        self.tgt[tgt_lang] = self.tgt.get(tgt_lang, StyleCounts()) + StyleCounts.of_lines(tgt_lines)

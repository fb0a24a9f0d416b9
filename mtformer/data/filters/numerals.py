"""Write the numerals of all scripts with ASCII digits, so that their values can be compared.

Most scripts have ten digits. Others have signs for tens, hundreds and larger units, which are added and multiplied:
፳፻፰ is 20 times 100 plus 8, 三十七 is 3 times 10 plus 7, and 3億5600万 is 3 times 10^8 plus 5600 times 10^4.
"""

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal

import regex

NUMBER = r"\d{1,18}(?:[.,]\d{1,18})*"
"""Digits with separators: a decimal number, or several numbers as in a date."""

GROUPED = re.compile(r"[ .,'’\u00a0\u202f](?<=\d.)(?<!\d{4}.)(?=\d{3}(?!\d))")
"""Thousands separators, as in 1,000, 1.000 and 1'000. The pattern starts with the separator, which is fastest."""

SEPARATORS = {"٫": ".", "٬": ",", "，": ",", "．": "."}
"""Decimal and thousands separators of Arabic digits, the full-width ones, and the usual ones."""

OTHER_DIGIT = re.compile(r"[^\D0-9]")
"""A digit that is not ASCII."""

ALL_CHARACTERS = "".join(map(chr, [*range(0x80, 0xD800), *range(0xE000, 0x20000)]))
"""The characters of all scripts, without ASCII and rare Chinese characters."""


def _ranges(character_class: str) -> str:
    """Return the characters of a class of `regex` as ranges for a class of `re`, which is searched faster."""
    runs = regex.findall(f"{character_class}+", ALL_CHARACTERS, regex.V1)
    return "".join(run if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


NUMERAL = r"[[\p{No}\p{Nl}]--[\p{Script=Common}\p{Script=Han}\p{Script=Latin}]]"
"""Class of the numerals of scripts other than Chinese and Latin."""

NUMERALS = _ranges(NUMERAL)
"""Numerals of scripts that are neither digits nor letters, such as Ethiopic ፳ or Tamil ௲."""

HAN_NUMERALS = _ranges(r"[\p{Script=Han}&&\p{Numeric_Type=Numeric}]")
"""Chinese characters with a value, which may also be a part of a word: 一 of 一般 (generally)."""

SINGLE_NUMERAL = re.compile(
    "[" + _ranges(r"[[\p{Script=Common}\p{Script=Latin}]&&[\p{Numeric_Type=Digit}\p{Numeric_Type=Numeric}]]") + "]"
)
"""A numeral that is a number of its own, such as ① or Ⅷ."""

UNIT_NAMES = {
    100: "백",
    10**3: "千 천 thousand हजार हज़ार हज़ार হাজার હજાર ਹਜ਼ਾਰ ਹਜ਼ਾਰ ہزار ஆயிரம் వేల ಸಾವಿರ ആയിരം",
    10**4: "万 萬 만 หมื่น ໝື່ນ ម៉ឺន သောင်း",
    10**5: "十万 十萬 แสน ແສນ សែន သိန်း lakhs lakh लाख लाखौं লাখ লক্ষ লাখের લાખ ਲੱਖ لاکھ லட்சம் లక్షల లక్ష ಲಕ್ಷ ലക്ഷം",
    10**6: "百万 百萬",
    10**7: "千万 千萬 crores crore करोड़ करोड़ करोड कोटी কোটি કરોડ ਕਰੋੜ کروڑ கோடி కోట్ల కోటి ಕೋಟಿ കോടി",
    10**8: "億 亿 억",
    10**9: "十億 十亿 अरब अर्ब ارب",
    10**10: "百億 百亿",
    10**12: "兆 조",
}
"""Names of units after a number, mostly such as other languages do not have: 3億 is 300 million, 5 lakh is 500,000.

They are the names of these powers of ten in languages of East and South Asia (Unicode CLDR, rbnf)."""

UNITS: dict[str, int] = {}
"""Values of the units by name."""
for _value_of_unit, _names in UNIT_NAMES.items():
    UNITS |= dict.fromkeys(_names.split(), _value_of_unit)

UNIT = "(?:" + "|".join(sorted(UNITS, key=len, reverse=True)) + ")"
"""A unit after a number."""

FIRST_OF_UNITS = "".join(unit[0] for unit in UNITS if not unit.isascii())
"""First characters of the units except lakh and crore."""

WITH_UNIT = re.compile(rf"\d[多余餘]? ?{UNIT}")
"""A number with a unit, which another language may write with other digits: 1.4 billion for 14億."""

WITH_UNITS = rf"{NUMBER}[多余餘]?(?: ?{UNIT})+"
"""A number with units, as in 5천만, five times a thousand times ten thousand, and in 550多万, more than 5.5 million."""

WITH_NUMERALS = rf"\d{{0,18}}[{NUMERALS}](?:\d{{0,18}}[{NUMERALS}])*\d{{0,18}}"
"""Numerals, possibly with digits between them, as in Tamil ௨௲௧௰, 2 times 1000 plus 1 times 10."""

RUN = re.compile(rf"{WITH_UNITS}(?: ?{WITH_UNITS})*(?:(?:(?<=[천만억조]) )?{NUMBER})?|{WITH_NUMERALS}")
"""Numbers, units and numerals that are one number."""

PART_OF_RUN = re.compile("[" + _ranges(rf"[{NUMERAL}&&[\u0080-\uffff]]") + FIRST_OF_UNITS + "\U00010100-\U0001efff]")
"""A character of every such number except those with lakh and crore, or one of a rare script; it is searched faster."""

HAN_RUN = re.compile(f"[{HAN_NUMERALS}]{{1,20}}")
"""Chinese characters that may be a number."""

TOKEN = re.compile(f"{NUMBER}|{UNIT}|[{NUMERALS}]|[{HAN_NUMERALS}]")
"""A part of a number."""

MULTIPLIERS = frozenset(10**exponent for exponent in range(1, 13) if exponent != 11)
"""Values of the numerals and units that multiply the number before them."""

LARGEST = 10**18
"""Upper limit of values; larger ones are not compared."""

HEBREW_NUMERAL = re.compile(r"(?<![א-ת])(?P<first>[א-ת]{1,6})[\"״](?P<last>[א-ת])(?![א-ת])")
"""Hebrew letters as a number, with a sign before the last one: תשפ״ו is 786, or the year 5786."""

HEBREW_LETTERS = "אבגדהוזחטיכלמנסעפצקרשת"
"""Letters of the Hebrew alphabet with the values 1 to 9, 10 to 90, and 100 to 400."""

HEBREW_VALUES = (*range(1, 10), *range(10, 100, 10), *range(100, 500, 100))
"""Values of these letters."""

HEBREW_MILLENNIUM = 5000
"""Years that Hebrew letters leave out."""


def has_unit(line: str) -> bool:
    """Return True if a line has a number with a unit that other languages may lack: 1.4 billion for 14億."""
    return _may_have_run(line) and WITH_UNIT.search(line) is not None


def in_ascii(line: str) -> str:
    """Return a line with ASCII digits and separators, and with digits for numerals and units."""
    if not line.isascii():
        for separator, ascii_separator in SEPARATORS.items():
            line = line.replace(separator, ascii_separator)
        line = OTHER_DIGIT.sub(lambda match: str(unicodedata.decimal(match[0])), line)
    if _may_have_run(line):
        line = RUN.sub(lambda match: _in_digits(match[0]), line)
    return line


def _may_have_run(line: str) -> bool:
    """Return False if a line has neither numerals nor units, which takes less time than to look for numbers."""
    if "lakh" in line or "crore" in line:
        return True
    return not line.isascii() and PART_OF_RUN.search(line) is not None


def possible_values(line: str) -> set[int]:
    """Return the values of the characters that may be numbers or not: Chinese characters, ①, and Hebrew letters."""
    numbers: set[int] = set()
    if line.isascii():
        return numbers

    for match in HAN_RUN.finditer(line):
        numbers.add(han_value(match[0]))
    for match in SINGLE_NUMERAL.finditer(line):
        numbers.add(int(unicodedata.numeric(match[0])))
    for match in HEBREW_NUMERAL.finditer(line):
        letters = match["first"] + match["last"]
        for numeral in (letters, letters[1:]):  # the first letter may be a preposition
            number = _hebrew_value(numeral)
            numbers |= {number, number + HEBREW_MILLENNIUM}
    return numbers


def han_value(characters: str) -> int:
    """Return the value of Chinese characters: 37 for 三十七."""
    return int(_value(characters))


def _hebrew_value(letters: str) -> int:
    """Return the sum of the values of Hebrew letters; final forms of letters have none."""
    return sum(HEBREW_VALUES[HEBREW_LETTERS.index(letter)] for letter in letters if letter in HEBREW_LETTERS)


def _in_digits(run: str) -> str:
    """Return a number, which consists of digits, numerals and units, in digits."""
    value = _value(TOKEN.findall(GROUPED.sub("", run)))
    if value >= LARGEST:
        return run
    return f"{value.normalize():f}"


def _value(tokens: Iterable[str]) -> Decimal:
    """Return the value of a number that consists of digits, numerals and units.

    A multiplier, such as 万 (10^4), multiplies the smaller numbers just before it, or is added if there are none. Other
    numerals are added, except for neighboring ones below 10, which are digits: 二〇二六 is 2026.
    """
    terms = [Decimal(0)]
    follows_digit = False
    for token in tokens:
        is_written_in_digits = token[0].isdecimal()
        value = _decimal(token) if is_written_in_digits else _numeral_value(token)
        is_digit = value < 10 and not is_written_in_digits
        if value in MULTIPLIERS and not is_written_in_digits:
            multiplied = Decimal(0)
            while len(terms) > 1 and terms[-1] < value:
                multiplied += terms.pop()
            terms.append((multiplied or 1) * value)
        elif is_digit and follows_digit:
            terms[-1] = 10 * terms[-1] + value
        else:
            terms.append(value)
        follows_digit = is_digit
    return sum(terms, Decimal(0))


def _numeral_value(token: str) -> Decimal:
    """Return the value of a unit or numeral."""
    if token in UNITS:
        return Decimal(UNITS[token])
    # `regex` may know characters of a later version of Unicode than `unicodedata`.
    return Decimal(str(unicodedata.numeric(token, 0.0)))


def _decimal(token: str) -> Decimal:
    """Return the value of digits; the last separator is a decimal point if it is the only one."""
    parts = re.split("[.,]", token)
    if len(parts) == 2:
        return Decimal(".".join(parts))
    return Decimal("".join(parts))

"""Language codes and names."""

import difflib
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Annotated

from pydantic import AfterValidator

UNSPACED_SCRIPTS = {
    "ahom": "aho",
    "bali": "kaw",
    "batk": "btd btm",
    "bopo": "hmj hmq",
    "brah": "kho pka pmh psu xtq",
    "cham": "cjm",
    "gran": "oty",
    "hanb": "",
    "hani": "how oko swi zch zeh zgb zgm zgn zhd zlj zln zlq zqe zyg zyn zzj",
    "hans": "cdo cjy cnp csp czh gan hak hsn lzh nan wuu zh",
    "hant": "ltc yue",
    "hira": "",
    "hrkt": "",
    "java": "osi tes",
    "jpan": "ams ja yoi",
    "kana": "ain ryu",
    "kawi": "",
    "khmr": "brb km krr krv okz pcb rka smu tpu xhm",
    "kits": "zkt",
    "lana": "cuu kkh nod",
    "laoo": "alk brv kjg kuf lbo lo ncq ngt pho sct sqq sss tth tto",
    "maka": "",
    "mymr": (
        "aio blk bwe csh dnu dnv hpo int jkm kht kjp ksu ksw kvq kvt kxf kxk mnw mwt my obr omx pce phk pll "
        "pwo pyx rbb rki rmz shn tco tjl tvn"
    ),
    "nshu": "",
    "tale": "tdd thi",
    "talu": "khb",
    "tang": "txg",
    "tavt": "blt soa tyr",
    "thai": (
        "bzi cbn cog kdt khf kjt kxm lcp lwl lwm mkm mlf mpz mra nyl nyw pht phu prt pww skb sou th thm tts ugo urk yoy"
    ),
    "tibt": (
        "adx bfu bkk bo bro cgk cna dka dre dz dzl ght goe jda jya kbg khg kjz kkf lbj lkh luk lya muk neh "
        "npb ole otb sbu sgt sip spt tcn tgf tsj xkf zau"
    ),
    "yiii": "ii nos nsd nsf nsv nty smh yig yiv ysd ysn ysp",
}
"""ISO 15924 codes of the scripts without spaces between words, with the languages that are usually written in them.

The scripts are those whose letters have the Line_Break AK, AS, ID or SA (Unicode Standard Annex 14), and the Tibetan
script, in which a mark ends each syllable. The usual scripts of languages are those of likelySubtags in CLDR 47,
without zhx, which is a group of languages.
"""
WITHOUT_SPACES = frozenset(" ".join(UNSPACED_SCRIPTS.values()).split())
"""Languages whose words are not separated by spaces in their usual script."""
SCRIPT_LENGTH = 4
"""Number of letters of the code of a script."""
SCRIPTS_OF_THOUSANDS = {
    "egyp": "egy",
    "hanb": "",
    "hang": "jje okm",
    "hani": UNSPACED_SCRIPTS["hani"],
    "hans": UNSPACED_SCRIPTS["hans"],
    "hant": UNSPACED_SCRIPTS["hant"],
    "jpan": UNSPACED_SCRIPTS["jpan"],
    "kore": "ko",
    "tang": UNSPACED_SCRIPTS["tang"],
    "xsux": "akk",
    "yiii": UNSPACED_SCRIPTS["yiii"],
}
"""ISO 15924 codes of the scripts with more than 1,000 characters, with the languages that are usually written in them,
as in `UNSPACED_SCRIPTS`: Chinese characters, Hangul syllables, Yi syllables, Tangut, hieroglyphs and cuneiform."""
WITH_THOUSANDS = frozenset(" ".join(SCRIPTS_OF_THOUSANDS.values()).split())
"""Languages with more than 1,000 characters in their usual script."""


def _read_table() -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield the two-letter code, the three-letter codes and the names of each language."""
    file = resources.files(__package__).joinpath("languages.tsv")
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            code, long_codes, name, *more_names = line.split("\t")
            one_word_names = " ".join(more_names).split()
            yield code, long_codes.split(), [name, *one_word_names]


NAMES: dict[str, list[str]] = {}
"""Names of each two-letter code, starting with the English name."""
TWO_LETTERS: dict[str, str] = {}
"""Two-letter code of each three-letter code that has one."""
for _code, _long_codes, _names in _read_table():
    NAMES[_code] = _names
    TWO_LETTERS |= dict.fromkeys(_long_codes, _code)


def base_code(language: str) -> str:
    """Return the part of a language code before `-` or `_`, with two letters if possible: pt for pt-BR and por_Latn."""
    base = re.split("[-_]", language.lower())[0]
    return TWO_LETTERS.get(base, base)


def script_code(language: str) -> str:
    """Return the ISO 15924 code of the script in a language code, such as latn for sr-Latn; empty without one."""
    for subtag in re.split("[-_]", language.lower())[1:]:
        if len(subtag) == SCRIPT_LENGTH and subtag.isalpha():
            return subtag
    return ""


def has_spaces(language: str) -> bool:
    """Return False for a language whose words are not separated by spaces in its script, or in its usual one."""
    script = script_code(language)
    if script:
        return script not in UNSPACED_SCRIPTS
    return base_code(language) not in WITHOUT_SPACES


def has_many_characters(language: str) -> bool:
    """Return True for a language with thousands of characters in its script, or in its usual one.

    Some characters of such a script are too rare for a vocabulary, and others are numerals, as in 二十五.
    """
    script = script_code(language)
    if script:
        return script in SCRIPTS_OF_THOUSANDS
    return base_code(language) in WITH_THOUSANDS


def language_name(code: str) -> str:
    """Return the English name of a language, with the part of the code after `-` or `_` in parentheses."""
    _, *variant = re.split("[-_]", code, maxsplit=1)
    names = NAMES.get(base_code(code))
    if names is None:
        return code
    return f"{names[0]} ({variant[0]})" if variant else names[0]


def is_language(code: str) -> bool:
    """Return True for a language code; any three letters are accepted, because thousands of such codes exist."""
    if re.fullmatch("[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*", code) is None:
        return False
    base = base_code(code)
    return len(base) == 3 or base in NAMES


@cache
def _codes_of_names() -> dict[str, str]:
    """Return the code of each name of a language, in lower case."""
    codes: dict[str, str] = {}
    for code, names in NAMES.items():
        codes |= {name.lower(): code for name in names}
    return codes


def code_of_name(name: str) -> str | None:
    """Return the code of a language by a name, such as German or Deutsch, or by a country code that is no language."""
    return _codes_of_names().get(name.lower())


def _check_language(code: str) -> str:
    if is_language(code):
        return code

    hint = ""
    similar_names = difflib.get_close_matches(code.lower(), _codes_of_names(), n=1, cutoff=0.75)
    if similar_names:
        suggestion = _codes_of_names()[similar_names[0]]
        hint = f"; did you mean {suggestion} ({language_name(suggestion)})?"
    raise ValueError(f"must be an ISO 639 code, such as de, nds or pt-BR, not {code!r:.40}{hint}")


def _check_pair(pair: str) -> str:
    codes = pair.split(" ")
    if len(codes) != 2:
        raise ValueError(f"must be two language codes, such as 'en de', not {pair!r:.40}")
    return " ".join(map(_check_language, codes))


LanguagePair = Annotated[str, AfterValidator(_check_pair)]
"""Source and target language codes, separated by a space."""
Language = Annotated[str, AfterValidator(_check_language)]
"""A language code such as de, pt-BR or zho_Hans. Two-letter codes must exist, because filters, BLEU tokenizers and
names depend on them; any three letters are accepted."""

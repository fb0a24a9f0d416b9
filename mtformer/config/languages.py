"""Language codes and names."""

import difflib
import re
from importlib import resources
from typing import Annotated

from pydantic import AfterValidator

WITHOUT_SPACES = frozenset(["bo", "dz", "ja", "khb", "km", "lo", "lzh", "my", "nod", "th", "wuu", "yue", "zh"])
"""Languages whose words are not separated by spaces."""
MANY_CHARACTERS = frozenset(["ja", "ko", "lzh", "wuu", "yue", "zh"])
"""Languages with thousands of characters; they often write numbers with characters (二十五), or count years by eras."""
_TABLE = resources.files(__package__).joinpath("languages.tsv").read_text(encoding="utf-8")
_ROWS = [line.split("\t") for line in _TABLE.splitlines() if not line.startswith("#")]
NAMES = {code: [name, *" ".join(others).split()] for code, _, name, *others in _ROWS}
"""Names of each two-letter code, starting with the English name."""
TWO_LETTERS = {long: code for code, longs, *_ in _ROWS for long in longs.split()}
"""Two-letter code of each three-letter code that has one."""


def base_code(language: str) -> str:
    """Return the part of a language code before `-` or `_`, with two letters if possible: pt for pt-BR and por_Latn."""
    base = re.split("[-_]", language.lower())[0]
    return TWO_LETTERS.get(base, base)


def language_name(code: str) -> str:
    """Return the English name of a language, with the part of the code after `-` or `_` in parentheses."""
    _, *rest = re.split("[-_]", code, maxsplit=1)
    names = NAMES.get(base_code(code))
    return code if names is None else f"{names[0]} ({rest[0]})" if rest else names[0]


def is_language(code: str) -> bool:
    """Return True for a language code; any three letters are accepted, because thousands of such codes exist."""
    is_code = re.fullmatch("[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*", code) is not None
    return is_code and (len(base_code(code)) == 3 or base_code(code) in NAMES)


def _check_language(code: str) -> str:
    if is_language(code):
        return code
    codes = {name.lower(): one for one, names in NAMES.items() for name in names}
    nearest = [codes[name] for name in difflib.get_close_matches(code.lower(), codes, n=1, cutoff=0.75)]
    hint = f"; did you mean {nearest[0]} ({language_name(nearest[0])})?" if nearest else ""
    raise ValueError(f"must be an ISO 639 code, such as de, nds or pt-BR, not {code!r:.40}{hint}")


def _check_pair(pair: str) -> str:
    if len(pair.split(" ")) != 2:
        raise ValueError(f"must be two language codes, such as 'en de', not {pair!r:.40}")
    return " ".join(map(_check_language, pair.split(" ")))


LanguagePair = Annotated[str, AfterValidator(_check_pair)]
Language = Annotated[str, AfterValidator(_check_language)]
"""A language code such as de, pt-BR or zho_Hans. Two-letter codes must exist, because filters, BLEU tokenizers and
names depend on them; any three letters are accepted."""

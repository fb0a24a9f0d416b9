"""Language checks of lines, by common function words (Grefenstette 1995) and by the identifier py3langid.

Function words need no model and are fast. py3langid is an optional dependency, imported on first use; its model is a
NumPy archive in the package, which is read without pickle.
"""

import importlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from mtformer.config.languages import base_code
from mtformer.errors import ConfigError

SAME_WORDS = {"no": "nb", "nn": "nb", "bs": "hr", "sh": "hr", "ms": "id"}
"""Languages with nearly the same function words."""

IDENTIFIER_CODES = {"nb": "no", "iw": "he", "sh": "hr", "in": "id"}
"""Language codes that differ in py3langid."""

CLOSE = (
    "af de fy gsw lb li nds nl",
    "en pcm sco",
    "da fo nb nn no sv",
    "an ast ca es ext gl oc pt",
    "it lij vec",
    "cs sk",
    "bs hr sh sl sr",
    "bg mk",
    "be ru uk",
    "ltg lv",
    "id jv ms",
    "az crh tk tr",
    "ba kk ky tt",
    "uz uzs",
    "fa tg",
    "hi mr ne",
    "wuu yue zh",
    "ar ary arz",
    "ku sdh",
    "xh zu",
    "nso st",
)
"""Groups of closely related languages, which the identifier confuses on short lines."""

LETTERS = re.compile(r"[^\W\d_]+")
"""A word without digits and underscores."""

NEEDED = 2
"""Minimum number of function words of a third language for a line to be foreign."""

NEEDED_OF_PARTNER = 3
"""Minimum number of function words of the other side's language for a line to be foreign."""


class WordCheck:
    """Detects lines of one side that are in another language; `partner` is the language of the other side.

    If the language has no list of function words, no line is foreign.
    """

    def __init__(self, language: str, partner: str) -> None:
        words = words_of(language)
        relatives = _words("relatives").get(base_code(language), frozenset())
        self.own_words = words | relatives
        """Function words of the language and its relatives."""
        self._partner_words = words_of(partner)
        self._partner_code = _code(partner)
        self._related: set[str] = set()
        """Languages that have many function words in common with the language."""
        for code, language_words in _words("words").items():
            if _share_words(language_words, words):
                self._related.add(code)

    def is_foreign(self, line: str, other_line: str) -> bool:
        """Return True if a line has function words of another language, but none of the expected language.

        Words that also occur in `other_line`, the line on the other side, are treated as names, except in untranslated
        lines, which are recognized by function words of the language of the other side.
        """
        line = unicodedata.normalize("NFC", line)
        other_line = unicodedata.normalize("NFC", other_line)
        if not self.own_words:
            return False
        if not self.own_words.isdisjoint(line.lower().split()):  # faster than the search for words below
            return False
        words = set(LETTERS.findall(line.lower()))
        if not self.own_words.isdisjoint(words):
            return False

        num_partner_words = len(words & self._partner_words)
        if num_partner_words >= NEEDED_OF_PARTNER and self._partner_code not in self._related:
            return True

        words -= set(LETTERS.findall(other_line.lower()))
        languages = _languages_of_words()
        counts: Counter[str] = Counter()
        for word in words:
            counts.update(languages.get(word, ()))
        third_languages = counts.keys() - self._related
        return any(counts[code] >= NEEDED for code in third_languages)


def words_of(language: str) -> frozenset[str]:
    """Return the function words of a language code such as de or pt-BR; empty if there is no list."""
    return _words("words").get(_code(language), frozenset())


def _share_words(words: frozenset[str], other_words: frozenset[str]) -> bool:
    """Return True if more than a third of the words are among the other words."""
    return len(words & other_words) > len(words) / 3


@cache
def table() -> dict[str, dict[str, str]]:
    """Return the contents of languages.yaml."""
    file = resources.files(__package__).joinpath("languages.yaml")
    contents: dict[str, dict[str, str]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return contents


def confidences(language: str) -> Callable[[Sequence[str]], NDArray[np.float64]]:
    """Return a function that computes py3langid's probability that lines are in a language or a close relative.

    The probability is 1 if py3langid does not support the language. Raises ConfigError if it is not installed.
    """
    identifier = _identifier()
    if identifier is None:
        remedy = "pip install 'mtformer[langid]', or set it to 0"
        raise ConfigError(f"data.filters.min_language_confidence needs py3langid: {remedy}")
    code = _code(language, IDENTIFIER_CODES)
    if code not in identifier.labels:
        return lambda lines: np.ones(len(lines))

    accepted_codes = {code}
    for group in CLOSE:
        if code in group.split():
            accepted_codes.update(group.split())

    def identify(lines: Sequence[str]) -> NDArray[np.float64]:
        confidence = np.empty(len(lines))
        for row, line in enumerate(lines):
            ranking = identifier.rank(line)
            shares = [share for label, share in ranking if label in accepted_codes]
            confidence[row] = sum(shares)
        return confidence

    return identify


def probabilities(text: str, languages: Sequence[str]) -> list[float] | None:
    """Return py3langid's probabilities of the given languages, assuming that the text is in one of them.

    Return None if py3langid is not installed or does not support all of the languages, or all probabilities are 0.
    """
    identifier = _identifier()
    if identifier is None:
        return None
    codes = [_code(language, IDENTIFIER_CODES) for language in languages]
    if not set(codes).issubset(identifier.labels):
        return None

    shares = dict(identifier.rank(text))
    total = sum(shares[code] for code in codes)
    if not total:
        return None
    return [shares[code] / total for code in codes]


@cache
def _identifier() -> Any:
    """Load py3langid's identifier, which takes a second; return None if it is not installed."""
    try:
        langid = importlib.import_module("py3langid.langid")
    except ImportError:
        return None
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def _code(language: str, replacements: Mapping[str, str] = SAME_WORDS) -> str:
    """Return the base code of a language, or the code that replaces it."""
    code = base_code(language)
    return replacements.get(code, code)


@cache
def _words(key: str) -> dict[str, frozenset[str]]:
    """Return the function words of each language (`words`), or those of its close relatives (`relatives`)."""
    words: dict[str, frozenset[str]] = {}
    for code, entry in table().items():
        if key in entry:
            words[code] = frozenset(entry[key].split())
    return words


@cache
def _languages_of_words() -> dict[str, list[str]]:
    """Return the languages of each function word, except single letters, which occur in too many languages."""
    languages: dict[str, list[str]] = {}
    for code, words in _words("words").items():
        for word in words:
            if len(word) > 1:
                languages.setdefault(word, []).append(code)
    return languages

"""Which language a line is in, as the package `lingua` says: an extra, imported only when it is asked for."""

import importlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtformer.errors import ConfigError

OPTION = "data.filters.min_language_confidence"
SAME = {"no": "nb", "iw": "he", "sh": "hr", "in": "id", "fil": "tl"}
"""Codes that lingua calls by another."""

Confidences = Callable[[Sequence[str]], NDArray[np.float64]]


def confidences(language: str) -> Confidences:
    """A function that gives the probability, by lingua, that each of some lines is in a language.

    Args:
        language: its code; what follows `-` or `_` does not count.

    Raises:
        ConfigError: without lingua, or for a language that it does not know.
    """
    lingua = _lingua()
    code = re.split("[-_]", language.lower())[0]
    code = SAME.get(code, code).upper()
    try:
        kinds = lingua.IsoCode639_1 if len(code) == 2 else lingua.IsoCode639_3
        convert = lingua.Language.from_iso_code_639_1 if len(code) == 2 else lingua.Language.from_iso_code_639_3
        known = convert(kinds.from_str(code))
    except ValueError as error:
        raise ConfigError(f"{OPTION}: lingua does not know the language '{language}'; set it to 0") from error

    def ask(lines: Sequence[str]) -> NDArray[np.float64]:
        return np.array(_detector().compute_language_confidence_in_parallel(list(lines), known), dtype=np.float64)

    return ask


def _lingua() -> Any:
    try:
        return importlib.import_module("lingua")
    except ImportError as error:
        raise ConfigError(
            f"{OPTION} needs a package that is not here: pip install 'mtformer[langid]', or set it to 0"
        ) from error


@cache
def _detector() -> Any:
    """Its models take 20 s and a gigabyte to load, once a process."""
    return _lingua().LanguageDetectorBuilder.from_all_languages().build()

"""Closed sets of strings: their base class, and the decoding backends, which the command line and the search share."""

from enum import Enum


class StrEnum(str, Enum):
    """Enumeration of strings; `str` and f-strings return the value of a member.

    Python 3.10 has no `enum.StrEnum`.
    """

    __str__ = str.__str__


class Backend(StrEnum):
    """Decoding backend, as named by `--backend` and `Translator.load`."""

    MTFORMER = "mtformer"
    """Our own search with PyTorch."""
    CTRANSLATE2 = "ctranslate2"
    """The search of CTranslate2."""

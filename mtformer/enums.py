"""Base class of closed sets of strings."""

from enum import Enum


class StrEnum(str, Enum):
    """Enumeration of strings; `str` and f-strings return the value of a member.

    Python 3.10 has no `enum.StrEnum`.
    """

    __str__ = str.__str__

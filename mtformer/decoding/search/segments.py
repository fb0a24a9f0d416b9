"""Segments: what a decoding backend searches translations for."""

from collections.abc import Sequence
from dataclasses import dataclass

Phrase = tuple[int, ...]
"""Ids of a phrase that a translation must contain."""


@dataclass(frozen=True)
class Segment:
    """Unit of search: a line, or a part of a line that was split."""

    source: Sequence[int]
    """Source ids, ending with eos."""
    line: int = 0
    """Number of its line in the user's input, which determines the seed of its samples."""
    prefix: Sequence[int] = ()
    """Ids of the required beginning of its translation."""
    prefix_pieces: Sequence[str] = ()
    required: Sequence[Phrase] = ()
    """Ids of phrases that its translation must contain."""
    text: str = ""
    continues_word: bool = False
    """True if no space separates it from the previous segment."""

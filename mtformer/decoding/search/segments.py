"""Segments: the input of a search."""

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
    """Pieces of the prefix as the user wrote it; an unknown piece has the id of the unknown token."""
    required: Sequence[Phrase] = ()
    """Ids of phrases that its translation must contain."""
    text: str = ""
    """Source text."""
    continues_word: bool = False
    """True if no space separates it from the previous segment."""

    @property
    def num_required_tokens(self) -> int:
        """Number of tokens that its translation needs for the prefix and the required phrases."""
        return len(self.prefix) + sum(map(len, self.required))

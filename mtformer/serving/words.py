"""Translations as the page shows them: words, each with the source pieces that it looked at."""

from collections.abc import Iterable, Sequence
from typing import Any

from mtformer.decoding.phrases import BYTE_PIECE, SPACE, piece_bytes
from mtformer.decoding.sentences import UNSPACED
from mtformer.decoding.translation import Attention, Translation

LEAST_WEIGHT = 0.01
"""Below which attention is not worth showing."""


def shown_line(translation: Translation, n_best: int) -> dict[str, Any]:
    """The source pieces, and the translations with their words.

    Args:
        translation: with attention.
        n_best: how many of its n best are shown.
    """
    some = [translation, *translation.alternatives][:n_best]
    pieces = translation.attention.src_pieces if translation.attention is not None else []
    places = _units(pieces, joins_words=False)
    return {
        "source": [_written(pieces[start:end]) for start, end in places],
        "hypotheses": [
            {"text": one.text, "score": round(one.score, 4), "flags": list(one.flags), "words": _words(one, places)}
            for one in some
        ],
    }


def _words(translation: Translation, src_units: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """Text and [number of a unit of the source, weight] of each word; the weights are the mean over its pieces."""
    attention = translation.attention
    if attention is None:
        return []
    unit_of = {place: number for number, (start, end) in enumerate(src_units) for place in range(start, end)}
    words = []
    for start, end in _units(attention.tgt_pieces, joins_words=True):
        sums: dict[int, float] = {}
        for place, weight in _weights(attention, range(start, end)):
            sums[unit_of[place]] = sums.get(unit_of[place], 0.0) + weight / (end - start)
        looked = [[number, round(weight, 3)] for number, weight in sums.items() if weight >= LEAST_WEIGHT]
        words.append({"text": _written(attention.tgt_pieces[start:end]), "attention": looked})
    return words


def _weights(attention: Attention, rows: Iterable[int]) -> Iterable[tuple[int, float]]:
    for row in rows:
        yield from enumerate(attention.weights[row], start=attention.src_starts[row])


def _units(pieces: Sequence[str], joins_words: bool) -> list[tuple[int, int]]:
    """Start and end of what is shown as one: the bytes of a letter; with `joins_words` also the pieces of a word."""
    units: list[tuple[int, int]] = []
    for place, piece in enumerate(pieces):
        before = pieces[place - 1] if place else SPACE
        is_byte = BYTE_PIECE.fullmatch(piece) is not None and BYTE_PIECE.fullmatch(before) is not None
        goes_on = joins_words and not piece.startswith(SPACE) and not UNSPACED.search(before + piece)
        if units and (is_byte or goes_on or before == SPACE):
            units[-1] = (units[-1][0], place + 1)
        else:
            units.append((place, place + 1))
    return units


def _written(pieces: Sequence[str]) -> str:
    """What pieces write, a space before them included."""
    return b"".join(map(piece_bytes, pieces)).decode("utf-8", "replace")

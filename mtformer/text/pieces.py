"""Parse a SentencePiece model: its pieces with scores and types, and the model type.

SentencePiece's Python module does not report which pieces are user-defined or whether the model is unigram or BPE.
The file is a protocol buffer (`ModelProto`): field 1 occurs once per piece (subfields: 1 text, 2 score, 3 type), and
field 2 holds the training settings (subfield 3: model type).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

NORMAL, USER_DEFINED, BYTE = 1, 4, 6
UNIGRAM, BPE = 1, 2
SPACE = "▁"
"""SentencePiece's symbol for a space."""


class Piece(NamedTuple):
    """Entry of a SentencePiece model."""

    text: str
    score: float
    """Log-probability (unigram), or the negative rank of the merge (BPE)."""
    kind: int = NORMAL


def read_pieces(model: bytes) -> tuple[int, list[Piece]]:
    """Return the model type and the pieces, sorted by id, of a `.model` file that SentencePiece has validated."""
    model_type, pieces = UNIGRAM, list[Piece]()
    for number, value in message_fields(model):
        if number == 1:
            entry = dict(message_fields(value))
            score = struct.unpack("<f", entry[2])[0] if 2 in entry else 0.0
            kind = _varint(entry[3], 0)[0] if 3 in entry else NORMAL
            pieces.append(Piece(entry[1].decode("utf-8"), score, kind))
        elif number == 2:
            settings = dict(message_fields(value))
            model_type = _varint(settings[3], 0)[0] if 3 in settings else UNIGRAM
    return model_type, pieces


def message_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and raw value of each field of a protocol buffer message."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        start = position
        if key & 7 == 0:
            position = _varint(message, position)[1]
        elif key & 7 == 2:
            length, start = _varint(message, position)
            position = start + length
        else:
            position += {1: 8, 5: 4}[key & 7]
        yield key >> 3, message[start:position]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length integer (seven bits per byte) and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position

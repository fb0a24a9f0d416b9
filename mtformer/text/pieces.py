"""Parse a SentencePiece model: its pieces with scores and types, and the model type.

SentencePiece's Python module does not report which pieces are user-defined or whether the model is unigram or BPE.
The file is a protocol buffer (`ModelProto`): field 1 occurs once per piece (subfields: 1 text, 2 score, 3 type), and
field 2 holds the training settings (subfield 3: model type).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

NORMAL, USER_DEFINED, BYTE = 1, 4, 6
UNIGRAM, BPE = 1, 2
SPACE = "▁"
"""SentencePiece's symbol for a space."""


@dataclass
class Pieces:
    """Pieces of a model by type, with their ids as values."""

    kind: int = UNIGRAM
    normal: dict[str, int] = field(default_factory=dict)
    user: dict[str, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    """Ids by byte value; empty without byte fallback."""
    scores: list[float] = field(default_factory=list)
    """Scores by id: log-probability (unigram), or the negative rank of the merge (BPE)."""


def read_pieces(model: bytes) -> Pieces:
    """Parse the bytes of a `.model` file that SentencePiece has already validated."""
    pieces = Pieces()
    for number, value in message_fields(model):
        if number == 1:
            entry = dict(message_fields(value))
            text, piece = entry[1].decode("utf-8"), len(pieces.scores)
            pieces.scores.append(struct.unpack("<f", entry[2])[0] if 2 in entry else 0.0)
            kind = _varint(entry[3], 0)[0] if 3 in entry else NORMAL
            if kind == NORMAL:
                pieces.normal[text] = piece
            elif kind == USER_DEFINED:
                pieces.user[text] = piece
            elif kind == BYTE:
                pieces.bytes[int(text[3:-1], 16)] = piece  # such as <0x41>
        elif number == 2:
            settings = dict(message_fields(value))
            pieces.kind = _varint(settings[3], 0)[0] if 3 in settings else UNIGRAM
    return pieces


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

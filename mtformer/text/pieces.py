"""Contents of a SentencePiece model, read from its bytes: pieces with scores and types, and the type of the model.

SentencePiece's Python module shows neither which pieces are user-defined nor whether the model is unigram or BPE.
The file is a protocol buffer (`ModelProto`): field 1 repeated is a piece (1 text, 2 score, 3 type), field 2 the
settings of its training (3 type of model).
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

NORMAL, USER_DEFINED, BYTE = 1, 4, 6
UNIGRAM, BPE = 1, 2
SPACE = "▁"
"""Space in a piece, as SentencePiece writes it."""


@dataclass
class Pieces:
    """The pieces by type; values are ids."""

    kind: int = UNIGRAM
    normal: dict[str, int] = field(default_factory=dict)
    user: dict[str, int] = field(default_factory=dict)
    bytes: dict[int, int] = field(default_factory=dict)
    """By value of the byte; empty without byte fallback."""
    scores: list[float] = field(default_factory=list)
    """By id: log-probability (unigram), or minus the rank of the merge (BPE)."""

    @property
    def keep_to_words(self) -> bool:
        """True if no piece contains an inner space, so that words are segmented independently."""
        return not any(SPACE in piece[1:] for piece in self.normal)


def read_pieces(model: bytes) -> Pieces:
    """Read the bytes of a `.model` file that SentencePiece has already loaded."""
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
                pieces.bytes[int(text[3:-1], 16)] = piece  # written <0x41>
        elif number == 2:
            settings = dict(message_fields(value))
            pieces.kind = _varint(settings[3], 0)[0] if 3 in settings else UNIGRAM
    return pieces


def message_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and raw value of each field of a protocol buffer message."""
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
    """Return a number of seven bits per byte, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value, position

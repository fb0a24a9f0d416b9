"""Reading and changing SentencePiece model files.

SentencePiece's Python module neither reports which pieces are user-defined nor changes their types, so its files are
parsed here. They are protocol buffers (`ModelProto`): field 1 occurs once per piece (subfields: 1 text, 2 score,
3 type), field 2 holds the training settings, and field 3 the normalization (subfield 3: add a space at the beginning).
"""

import struct
from collections.abc import Collection, Iterator

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of pieces
PIECES, TRAINER, NORMALIZER = 1, 2, 3
"""Fields of a model."""
TEXT, SCORE, KIND = 1, 2, 3
"""Fields of a piece."""
ADD_DUMMY_PREFIX = 3
"""Field of the normalization."""


def with_control_pieces(model: bytes, texts: Collection[str]) -> bytes:
    """Return the model with these pieces as control symbols, which are never found in text."""
    beginnings = tuple(field(TEXT, text) for text in texts)
    message = bytearray()
    for number, value in message_fields(model):
        is_listed = number == PIECES and value.startswith(beginnings)  # the text is the first field
        # If a field occurs more than once, the last value is used.
        changed = value + field(KIND, CONTROL) if is_listed else value
        message += field(number, changed)
    return bytes(message)


def without_first_space(model: bytes) -> bytes:
    """Return the model without the space that SentencePiece adds at the beginning of a text."""
    # The concatenation of two messages is the first one with the values of the second.
    return model + field(NORMALIZER, field(ADD_DUMMY_PREFIX, 0))


def message_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and raw value of each field of a protocol buffer message."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        start = position
        if key & 7 == 0:
            position = _read_varint(message, position)[1]
        elif key & 7 == 2:
            length, start = _read_varint(message, position)
            position = start + length
        else:
            position += {1: 8, 5: 4}[key & 7]
        yield key >> 3, message[start:position]


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length integer (see `_varint`) and the position after it."""
    end = next(i for i in range(position, len(data)) if data[i] < 128) + 1
    return sum((byte & 127) << 7 * i for i, byte in enumerate(data[position:end])), end


def field(number: int, value: int | float | str | bytes) -> bytes:
    """Return a field of a protocol buffer message."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Return a varint: seven bits per byte, lowest bits first; the eighth bit is set in all bytes except the last."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)

"""Reading and writing of protocol buffer messages, the format of SentencePiece models.

A `ModelProto` has field 1 for each piece (subfields: 1 text, 2 score, 3 type), field 2 with the settings of training
(subfield 3: model type), and field 3 with those of normalization (subfields: 2 compiled rules, 6 path of a rule file).
"""

import struct
from collections.abc import Iterator


def message_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and raw value of each field of a message."""
    for number, value, _ in _fields(message):
        yield number, value


def without_subfield(message: bytes, number: int, subfield: int) -> bytes:
    """Return a message without a subfield of field `number`, which is itself a message."""
    parts = []
    for key, value, encoded in _fields(message):
        if key == number:
            kept = [inner for inner_key, _, inner in _fields(value) if inner_key != subfield]
            encoded = field(number, b"".join(kept))
        parts.append(encoded)
    return b"".join(parts)


def set_subfield(message: bytes, number: int, subfield: int, value: int | float | str | bytes) -> bytes:
    """Return a message with this value in a subfield of field `number`, which is itself a message."""
    parts = []
    for key, contents, encoded in _fields(without_subfield(message, number, subfield)):
        parts.append(field(key, field(subfield, value) + contents) if key == number else encoded)
    return b"".join(parts)


def _fields(message: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the number, the raw value and the whole encoding of each field."""
    position = 0
    while position < len(message):
        beginning = position
        key, position = _read_varint(message, position)
        start = position
        if key & 7 == 0:
            position = _read_varint(message, position)[1]
        elif key & 7 == 2:
            length, start = _read_varint(message, position)
            position = start + length
        else:
            position += {1: 8, 5: 4}[key & 7]
        yield key >> 3, message[start:position], message[beginning:position]


def field(number: int, value: int | float | str | bytes) -> bytes:
    """Return a field with this number."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length integer (see `_varint`) and the position after it."""
    end = next(i for i in range(position, len(data)) if data[i] < 128) + 1
    return sum((byte & 127) << 7 * i for i, byte in enumerate(data[position:end])), end


def _varint(value: int) -> bytes:
    """Return a varint: seven bits per byte, lowest bits first; the eighth bit is set in all bytes except the last."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)

"""Reading and writing of protocol buffer messages, the format of SentencePiece models.

A `ModelProto` has field 1 for each piece (subfields: 1 text, 2 score, 3 type), field 2 with the settings of training
(subfield 3: model type), and field 3 with those of normalization (subfields: 2 compiled rules, 6 path of a rule file).
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

VARINT = 0
"""Wire type of an integer of variable length."""
EIGHT_BYTES = 1
"""Wire type of a value of 8 bytes."""
LENGTH_DELIMITED = 2
"""Wire type of a string or a message, which begins with its length."""
FOUR_BYTES = 5
"""Wire type of a value of 4 bytes, such as a float."""
SIZES = {EIGHT_BYTES: 8, FOUR_BYTES: 4}
"""Number of bytes of each wire type of fixed size."""
MAX_VARINT_BYTES = 10
"""Maximum number of bytes of a varint, which has at most 64 bits."""


class Field(NamedTuple):
    """A field of a message."""

    number: int
    wire_type: int
    value: bytes
    """Its value without wire type and length."""
    encoding: bytes
    """The whole field, as it is in the message."""


def message_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and raw value of each field of a message; raise ValueError if it is damaged."""
    for part in fields(message):
        yield part.number, part.value


def without_subfield(message: bytes, number: int, subfield: int) -> bytes:
    """Return a message without a subfield.

    Args:
        message: the message.
        number: number of a field of the message, which is itself a message.
        subfield: number of the subfield to remove from it.
    """
    parts = []
    for part in fields(message):
        if part.number == number:
            kept = [inner.encoding for inner in fields(part.value) if inner.number != subfield]
            changed_field = field(number, b"".join(kept))
            parts.append(changed_field)
        else:
            parts.append(part.encoding)
    return b"".join(parts)


def set_subfield(message: bytes, number: int, subfield: int, value: int | float | str | bytes) -> bytes:
    """Return a message with a new value of a subfield; a message without the field stays the same.

    Args:
        message: the message.
        number: see `without_subfield`.
        subfield: number of the subfield to add or replace.
        value: new value of the subfield.
    """
    parts = []
    for part in fields(without_subfield(message, number, subfield)):
        if part.number == number:
            new_subfield = field(subfield, value)
            changed_field = field(number, new_subfield + part.value)
            parts.append(changed_field)
        else:
            parts.append(part.encoding)
    return b"".join(parts)


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of a message.

    A field begins with a varint (see `_varint`): its number in the upper bits, the wire type in the lowest three.
    Raise ValueError if the message is truncated, or has a wire type that SentencePiece does not use, such as a group.
    """
    position = 0
    while position < len(message):
        start = position
        key, value_start = _read_varint(message, position)
        wire_type = key & 7
        if wire_type == VARINT:
            _, position = _read_varint(message, value_start)
        elif wire_type == LENGTH_DELIMITED:
            length, value_start = _read_varint(message, value_start)
            position = value_start + length
        elif wire_type in SIZES:
            position = value_start + SIZES[wire_type]
        else:
            raise ValueError(f"a field has wire type {wire_type}")
        if position > len(message):
            raise ValueError("the last field is truncated")
        number = key >> 3
        yield Field(number, wire_type, value=message[value_start:position], encoding=message[start:position])


def field(number: int, value: int | float | str | bytes) -> bytes:
    """Return the encoding of a field with this number."""
    if isinstance(value, int):
        return _key(number, VARINT) + _varint(value)
    if isinstance(value, float):
        return _key(number, FOUR_BYTES) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return _key(number, LENGTH_DELIMITED) + _varint(len(data)) + data


def _key(number: int, wire_type: int) -> bytes:
    """Return the beginning of a field."""
    return _varint(number << 3 | wire_type)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a variable-length integer (see `_varint`) and the position after it; raise ValueError if it is damaged."""
    value = 0
    for index in range(position, min(len(data), position + MAX_VARINT_BYTES)):
        byte = data[index]
        value += (byte & 127) << 7 * (index - position)
        if byte < 128:
            return value, index + 1
    raise ValueError("an integer is truncated")


def _varint(value: int) -> bytes:
    """Return a varint: seven bits per byte, lowest bits first; the eighth bit is set in all bytes except the last."""
    if value < 128:
        return bytes([value])
    lowest_bits = value & 127
    return bytes([lowest_bits | 128]) + _varint(value >> 7)

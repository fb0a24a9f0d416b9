"""Changes to SentencePiece models, which SentencePiece's Python module does not support."""

from collections.abc import Collection

from mtformer.text.protobuf import field, message_fields, set_subfield

PIECES = 1
"""Field of a model: a piece."""
NORMALIZER = 3
"""Field of a model: the settings of its normalization."""
TEXT = 1
"""Field of a piece: its text."""
KIND = 3
"""Field of a piece: its type."""
CONTROL = 3
"""Type of a control symbol."""
ADD_DUMMY_PREFIX = 3
"""Field of the normalization: add a space at the beginning of a text."""


def with_control_pieces(model: bytes, texts: Collection[str]) -> bytes:
    """Return the model with these pieces as control symbols, which are never found in text."""
    beginnings = tuple(field(TEXT, text) for text in texts)
    parts = []
    for number, value in message_fields(model):
        if number == PIECES and value.startswith(beginnings):  # the text is the first field
            # If a field occurs more than once, the last value is used.
            value += field(KIND, CONTROL)
        parts.append(field(number, value))
    return b"".join(parts)


def without_first_space(model: bytes) -> bytes:
    """Return the model without the space that SentencePiece adds at the beginning of a text."""
    return set_subfield(model, NORMALIZER, ADD_DUMMY_PREFIX, 0)

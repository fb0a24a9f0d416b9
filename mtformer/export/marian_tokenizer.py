"""Conversion of the tokenizer files of a Marian model to SentencePiece models with our ids.

Marian has two SentencePiece models, which only segment text, and a shared vocabulary, `vocab.json`, with the ids of all
pieces. Our tokenizers take their vocabularies from SentencePiece models, so two with the same segmentation are built:

- The source model has the pieces of source.spm. The text of a piece determines its embedding; a piece that is not in
  vocab.json is unk. Marian also looks up text unknown to source.spm in vocab.json, so pieces of vocab.json that consist
  only of characters unknown to source.spm are added. (In Marian, a sequence of such characters that is not a piece of
  vocab.json becomes a single unk; here, each character is looked up.)
- The target model has the pieces of vocab.json; those missing in target.spm can only be generated.

A language code at the beginning of a line, such as `>>de<<`, and the space that SentencePiece adds form one piece.

SentencePiece's Python module does not report which pieces are user-defined or whether the model is unigram, so its
files are parsed here (see `mtformer.text.protobuf`).
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from mtformer.errors import CheckpointError
from mtformer.export.huggingface import LANGUAGE_CODE
from mtformer.text.protobuf import field, message_fields
from mtformer.text.tokenizer import SPACE, Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # types of pieces in a SentencePiece model
UNIGRAM = 1  # type of a SentencePiece model
PIECES, TRAINER = 1, 2
COPIED = {3: "normalizer_spec", 5: "denormalizer_spec"}


class Piece(NamedTuple):
    """Entry of a SentencePiece model."""

    text: str
    score: float
    """Log-probability."""
    kind: int


class SpecialRows(NamedTuple):
    """Rows of Marian's special tokens in the embeddings (ids in vocab.json), in the order of our special ids."""

    pad: int
    unk: int
    start: int
    """Start token of the decoder."""
    eos: int


class Side(NamedTuple):
    """A serialized SentencePiece model, and the row in Marian's embeddings for each of its ids."""

    model: bytes
    rows: list[int]


def source_side(path: Path, spm: bytes, vocabulary: Mapping[str, int], special: SpecialRows) -> Side:
    """Return the SentencePiece model of the source, given source.spm and the rows by piece from vocab.json.

    Raise CheckpointError if source.spm is not a SentencePiece model of type unigram.
    """
    entries = _pieces(path, spm)
    taken = {entry.text for entry in entries}
    words = {text: row for text, row in vocabulary.items() if row not in special}
    lowest = min((entry.score for entry in entries if entry.kind == NORMAL), default=0.0)
    entries += [Piece(text, lowest, NORMAL) for text in _foreign(words, entries)]
    codes = {SPACE + text: text for text in words if LANGUAGE_CODE.fullmatch(text)}
    entries += [Piece(text, 0.0, USER_DEFINED) for text in codes if text not in taken]
    rows = [vocabulary.get(codes.get(entry.text, entry.text), special.unk) for entry in entries]
    return Side(_build(path, spm, entries, vocabulary, special), [*special, *rows])


def target_side(path: Path, spm: bytes, vocabulary: Mapping[str, int], special: SpecialRows) -> Side:
    """Return the SentencePiece model of the target; for errors see `source_side`.

    Unknown pieces are decoded to empty text, as by `MarianTokenizer` if it skips special tokens.
    """
    pieces = {piece.text: piece for piece in _pieces(path, spm)}
    if not all(text in vocabulary for text, piece in pieces.items() if piece.kind == BYTE):
        raise CheckpointError(f"{path}: uses byte fallback, but vocab.json does not contain all byte pieces")
    processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
    controls = {text for text in vocabulary if processor.IsControl(processor.PieceToId(text))}
    texts = sorted((text for text, row in vocabulary.items() if row not in special), key=vocabulary.__getitem__)
    rows = [vocabulary[text] for text in texts]
    entries = [pieces.get(text, Piece(text, 0.0, CONTROL if text in controls else UNUSED)) for text in texts]
    return Side(_build(path, spm, entries, vocabulary, special, unk_surface=""), [*special, *rows])


def _pieces(path: Path, spm: bytes) -> list[Piece]:
    """Return all pieces except special ones, sorted by id."""
    try:
        is_loaded = bool(spm) and sentencepiece.SentencePieceProcessor().LoadFromSerializedProto(spm)
    except RuntimeError:
        is_loaded = False
    if not is_loaded:
        raise CheckpointError(f"{path}: not a SentencePiece model, or damaged; copy it again")
    pieces = []
    for number, value in message_fields(spm):
        if number in (PIECES, TRAINER):
            entry = {2: bytes(4), 3: b"\1", **dict(message_fields(value))}  # with the defaults of the format
            kind = entry[3][0]
        if number == PIECES:
            pieces.append(Piece(entry[1].decode("utf-8"), struct.unpack("<f", entry[2])[0], kind))
        elif number == TRAINER and kind != UNIGRAM:
            raise CheckpointError(f"{path}: not a unigram model; other SentencePiece models cannot be imported")
    return [piece for piece in pieces if piece.kind in (NORMAL, USER_DEFINED, BYTE)]


def _foreign(vocabulary: Mapping[str, int], pieces: Sequence[Piece]) -> list[str]:
    """Return the pieces that consist only of characters unknown to the SentencePiece model; none with byte fallback."""
    if any(piece.kind == BYTE for piece in pieces):
        return []
    alphabet = {character for piece in pieces for character in piece.text}
    return [text for text in vocabulary if text and alphabet.isdisjoint(text) and not LANGUAGE_CODE.fullmatch(text)]


def _build(
    path: Path,
    spm: bytes,
    entries: Sequence[Piece],
    vocabulary: Mapping[str, int],
    special: SpecialRows,
    unk_surface: str | None = None,
) -> bytes:
    """Return a model with our special pieces, the given entries, and the settings of `spm`."""
    text_of = {row: text for text, row in vocabulary.items()}
    pad, unk, start, eos = (text_of[row] for row in special)
    bos = start if special.start not in (special.pad, special.unk, special.eos) else "<s>"
    taken = {*vocabulary, *(entry.text for entry in entries)} - {start}
    while bos in taken:
        bos = f"<{bos}>"
    specials = [Piece(pad, 0.0, CONTROL), Piece(unk, 0.0, UNKNOWN), Piece(bos, 0.0, CONTROL), Piece(eos, 0.0, CONTROL)]
    pieces = (field(1, one.text) + field(2, one.score) + field(3, one.kind) for one in (*specials, *entries))
    message = b"".join(field(PIECES, piece) for piece in pieces)
    settings: dict[int, int | str] = {4: len(specials) + len(entries), 40: 1, 41: 2, 42: 3, 43: 0}
    settings |= {45: unk, 46: bos, 47: eos, 48: pad}
    if unk_surface is not None:
        settings[44] = unk_surface
    for number, value in message_fields(spm):
        if number == TRAINER:
            # If a field occurs more than once, the last value is used.
            value += b"".join(field(key, setting) for key, setting in settings.items())
        if number == TRAINER or number in COPIED:
            message += field(number, value)
    Tokenizer(message, f"conversion of {path}")
    return message

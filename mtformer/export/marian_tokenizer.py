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
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from mtformer.errors import CheckpointError
from mtformer.export.huggingface import LANGUAGE_CODE
from mtformer.formatting import printable
from mtformer.text.protobuf import field, message_fields
from mtformer.text.tokenizer import BOS, EOS, PAD, SPACE, UNK, Tokenizer


class ModelField(IntEnum):
    """Numbers of the fields of a SentencePiece model."""

    PIECES = 1
    TRAINER = 2
    NORMALIZER = 3
    DENORMALIZER = 5


class PieceField(IntEnum):
    """Numbers of the fields of a piece."""

    TEXT = 1
    SCORE = 2
    KIND = 3


class TrainerField(IntEnum):
    """Numbers of the fields of the training settings."""

    MODEL_TYPE = 3
    VOCAB_SIZE = 4
    UNK_ID = 40
    BOS_ID = 41
    EOS_ID = 42
    PAD_ID = 43
    UNK_SURFACE = 44
    UNK_PIECE = 45
    BOS_PIECE = 46
    EOS_PIECE = 47
    PAD_PIECE = 48


COPIED = (ModelField.NORMALIZER, ModelField.DENORMALIZER)
"""Fields that are copied unchanged."""
FLOAT_BYTES = 4
"""Size of a serialized score."""
PIECE_DEFAULTS: dict[int, bytes] = {
    PieceField.TEXT: b"",
    PieceField.SCORE: bytes(FLOAT_BYTES),
    PieceField.KIND: b"\1",
}
"""Serialized values of fields that a piece does not have: no text, score 0, a normal piece."""
PIECE_LENGTH = 40
"""Maximum number of characters of a piece in a message."""
UNIGRAM = 1
"""Value of `TrainerField.MODEL_TYPE`, and its default."""


class PieceKind(IntEnum):
    """Types of pieces in a SentencePiece model."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SEGMENTING_KINDS = (PieceKind.NORMAL, PieceKind.USER_DEFINED, PieceKind.BYTE)
"""Types of the pieces into which text is segmented."""


class Piece(NamedTuple):
    """Entry of a SentencePiece model."""

    text: str
    score: float
    """Log-probability."""
    kind: int
    """A `PieceKind`."""


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
    """Return the tokenizer of the source.

    Args:
        path: source.spm, for errors.
        spm: its contents.
        vocabulary: row of each piece in Marian's embeddings, from vocab.json.
        special: rows of the special tokens.

    Raise CheckpointError if source.spm is not a SentencePiece model of type unigram.
    """
    entries = _read_pieces(path, spm)
    present = {entry.text for entry in entries}
    ordinary = {text: row for text, row in vocabulary.items() if row not in special}

    normal_scores = [entry.score for entry in entries if entry.kind == PieceKind.NORMAL]
    lowest_score = min(normal_scores, default=0.0)
    foreign_texts = _foreign_pieces(ordinary, entries)
    entries += [Piece(text, lowest_score, PieceKind.NORMAL) for text in foreign_texts]

    language_codes = {SPACE + text: text for text in ordinary if LANGUAGE_CODE.fullmatch(text)}
    """Spelling in vocab.json of each language code, by its text with the space that SentencePiece adds."""
    missing_codes = [text for text in language_codes if text not in present]
    entries += [Piece(text, 0.0, PieceKind.USER_DEFINED) for text in missing_codes]

    rows: list[int] = [*special]
    for entry in entries:
        text = language_codes.get(entry.text, entry.text)
        rows.append(vocabulary.get(text, special.unk))
    model = _build_model(path, spm, entries, vocabulary, special)
    return Side(model, rows)


def target_side(path: Path, spm: bytes, vocabulary: Mapping[str, int], special: SpecialRows) -> Side:
    """Return the tokenizer of the target.

    Unknown pieces are decoded to empty text, as by `MarianTokenizer` if it skips special tokens.

    Args:
        path: target.spm, for errors.
        spm: its contents.
        vocabulary: see `source_side`.
        special: see `source_side`.

    Raise CheckpointError if target.spm is not a SentencePiece model of type unigram, or vocab.json lacks some of
    its byte pieces.
    """
    pieces = {piece.text: piece for piece in _read_pieces(path, spm)}
    byte_pieces = {text for text, piece in pieces.items() if piece.kind == PieceKind.BYTE}
    if not byte_pieces <= vocabulary.keys():
        problem = "uses byte fallback, but vocab.json does not contain all byte pieces"
        raise CheckpointError(f"{path}: {problem}; copy both files again")

    processor = sentencepiece.SentencePieceProcessor(model_proto=spm)
    rows: list[int] = [*special]
    entries = []
    for text in sorted(vocabulary, key=vocabulary.__getitem__):
        row = vocabulary[text]
        if row in special:
            continue
        is_control = processor.IsControl(processor.PieceToId(text))
        kind = PieceKind.CONTROL if is_control else PieceKind.UNUSED
        only_generated = Piece(text, 0.0, kind)  # the segmentation never returns a piece of this kind
        entries.append(pieces.get(text, only_generated))
        rows.append(row)

    model = _build_model(path, spm, entries, vocabulary, special, unk_surface="")
    return Side(model, rows)


def _read_pieces(path: Path, spm: bytes) -> list[Piece]:
    """Return all pieces except special ones, sorted by id."""
    if not _is_loadable(spm):
        raise CheckpointError(f"{path}: not a SentencePiece model, or damaged; copy it again")

    pieces = []
    try:
        for number, message in message_fields(spm):
            if number == ModelField.PIECES:
                pieces.append(_parse_piece(message))
            elif number == ModelField.TRAINER and not _is_unigram(message):
                raise CheckpointError(f"{path}: not a unigram model; other SentencePiece models cannot be imported")
    except ValueError as error:
        raise CheckpointError(
            f"{path}: damaged, or not written by SentencePiece ({error}); copy the file again"
        ) from error
    return [piece for piece in pieces if piece.kind in SEGMENTING_KINDS]


def _is_unigram(trainer_message: bytes) -> bool:
    """Return True if the training settings of a model are those of a unigram model."""
    settings = dict(message_fields(trainer_message))
    model_type = settings.get(TrainerField.MODEL_TYPE)
    return model_type is None or model_type == bytes([UNIGRAM])


def _is_loadable(spm: bytes) -> bool:
    """Return True if SentencePiece can load a serialized model."""
    if not spm:
        return False
    processor = sentencepiece.SentencePieceProcessor()
    try:
        return bool(processor.LoadFromSerializedProto(spm))
    except RuntimeError:
        return False


def _parse_piece(message: bytes) -> Piece:
    """Return the piece in a message; raise ValueError if a field is missing or damaged."""
    values = {**PIECE_DEFAULTS, **dict(message_fields(message))}
    text = values[PieceField.TEXT].decode("utf-8")
    score_bytes = values[PieceField.SCORE]
    kind_bytes = values[PieceField.KIND]
    if len(score_bytes) != FLOAT_BYTES or len(kind_bytes) != 1:
        raise ValueError(f"piece {printable(text, PIECE_LENGTH)} has a field of another type")
    [score] = struct.unpack("<f", score_bytes)
    return Piece(text, score, kind_bytes[0])


def _foreign_pieces(vocabulary: Mapping[str, int], pieces: Sequence[Piece]) -> list[str]:
    """Return the pieces that consist only of characters unknown to the SentencePiece model; none with byte fallback."""
    has_byte_fallback = any(piece.kind == PieceKind.BYTE for piece in pieces)
    if has_byte_fallback:
        return []
    alphabet = set(chain.from_iterable(piece.text for piece in pieces))
    foreign_texts = [text for text in vocabulary if text and alphabet.isdisjoint(text)]
    return [text for text in foreign_texts if not LANGUAGE_CODE.fullmatch(text)]


def _build_model(
    path: Path,
    spm: bytes,
    entries: Sequence[Piece],
    vocabulary: Mapping[str, int],
    special: SpecialRows,
    unk_surface: str | None = None,
) -> bytes:
    """Return a model with our special pieces, the given entries, and the settings of `spm`."""
    special_pieces = _special_pieces(entries, vocabulary, special)
    pad, unk, bos, eos = special_pieces
    all_pieces = [*special_pieces, *entries]
    piece_messages = map(_serialize_piece, all_pieces)
    model = b"".join(field(ModelField.PIECES, message) for message in piece_messages)

    settings: dict[int, int | str] = {
        TrainerField.VOCAB_SIZE: len(all_pieces),
        TrainerField.UNK_ID: UNK,
        TrainerField.BOS_ID: BOS,
        TrainerField.EOS_ID: EOS,
        TrainerField.PAD_ID: PAD,
        TrainerField.UNK_PIECE: unk.text,
        TrainerField.BOS_PIECE: bos.text,
        TrainerField.EOS_PIECE: eos.text,
        TrainerField.PAD_PIECE: pad.text,
    }
    if unk_surface is not None:
        settings[TrainerField.UNK_SURFACE] = unk_surface

    for number, value in message_fields(spm):
        if number == ModelField.TRAINER:
            # If a field occurs more than once, the last value is used.
            new_settings = b"".join(field(key, setting) for key, setting in settings.items())
            model += field(number, value + new_settings)
        elif number in COPIED:
            model += field(number, value)
    Tokenizer(model, f"conversion of {path}")  # raises an error for a wrong conversion
    return model


def _special_pieces(entries: Sequence[Piece], vocabulary: Mapping[str, int], special: SpecialRows) -> list[Piece]:
    """Return our special pieces, in the order of their ids.

    Our bos is Marian's start token. If that is its pad, unk or eos, bos is a piece that the vocabulary does not have.
    """
    text_of = {row: text for text, row in vocabulary.items()}
    start = text_of[special.start]
    has_start_token = special.start not in (special.pad, special.unk, special.eos)
    bos = start if has_start_token else "<s>"

    texts = {entry.text for entry in entries}
    taken_texts = texts.union(vocabulary) - {start}
    while bos in taken_texts:
        bos = f"<{bos}>"

    return [
        Piece(text_of[special.pad], 0.0, PieceKind.CONTROL),
        Piece(text_of[special.unk], 0.0, PieceKind.UNKNOWN),
        Piece(bos, 0.0, PieceKind.CONTROL),
        Piece(text_of[special.eos], 0.0, PieceKind.CONTROL),
    ]


def _serialize_piece(piece: Piece) -> bytes:
    return (
        field(PieceField.TEXT, piece.text)
        + field(PieceField.SCORE, piece.score)
        + field(PieceField.KIND, int(piece.kind))
    )

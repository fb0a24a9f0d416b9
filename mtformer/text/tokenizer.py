"""SentencePiece tokenizers: convert text to ids and back. Special ids are the same in all models."""

import copy
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from mtformer.errors import DataError
from mtformer.files import atomic_folder, read_bytes
from mtformer.text.model_file import with_control_pieces, without_first_space
from mtformer.text.normalization import RULES, Normalizer

PAD = 0
"""Id of padding."""
UNK = 1
"""Id of an unknown piece."""
BOS = 2
"""Id of the beginning of a sentence."""
EOS = 3
"""Id of the end of a sentence."""
SPECIAL_IDS = {"pad": PAD, "unk": UNK, "bos": BOS, "eos": EOS}
"""Special ids by their names in SentencePiece."""
CONTROL_IDS = frozenset((PAD, BOS, EOS))
"""Special ids, which have no text."""
JOINT = "joint.model"
"""Name of the file of a joint vocabulary."""
SRC = "src.model"
"""Name of the file of a source vocabulary."""
TGT = "tgt.model"
"""Name of the file of a target vocabulary."""
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
"""Piece for a single byte, with `tokenizer.byte_fallback`."""
SPACE = "▁"
"""SentencePiece's symbol for a space."""


class Tokenizer:
    """One SentencePiece model.

    Tags are control symbols: text never contains them, a text such as `<2de>` is encoded as ordinary characters, and
    decoding skips them. In new models they have this type. In a model of version 0.3 or of another program they may be
    user-defined symbols, which SentencePiece finds in text; `with_tags` makes them control symbols.

    `normalizer` has the changes that the tokenizer makes to text.

    Args:
        model: contents of a `.model` file.
        name: name in error messages.
        rules: contents of the rule file of its normalization, which is copied with it; the model has them too.

    Raise DataError if `model` is not a SentencePiece model, or its special ids are not pad 0, unk 1, bos 2, eos 3.
    """

    def __init__(self, model: bytes, name: str = "tokenizer", rules: bytes | None = None) -> None:
        self.model = model
        self.rules = rules
        self.name = name
        try:
            self._processor = _processor(model)
            self.normalizer = Normalizer.of_model(model)
            self.vocabulary()
        except (RuntimeError, ValueError) as error:  # ValueError: a field is damaged, or a piece is not UTF-8
            raise DataError(f"{name}: not a SentencePiece model, or damaged; train it or copy it again") from error
        ids = {special: getattr(self._processor, f"{special}_id")() for special in SPECIAL_IDS}
        if ids != SPECIAL_IDS:
            problem = f"its special ids are {_listed(ids, ' ')}, but must be {_listed(SPECIAL_IDS, ' ')}"
            options = _listed(SPECIAL_IDS, "_id=")
            remedy = f"train it with `mtformer tokenizer train`, or with SentencePiece's {options}"
            raise DataError(f"{name}: {problem}; {remedy}")

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a `.model` file; raise DataError if it is missing, damaged, or has other special ids."""
        rule_file = Path(path).with_name(RULES)
        try:
            rules = read_bytes(rule_file) if rule_file.is_file() else None
            return cls(read_bytes(path), str(path), rules)
        except OSError as error:
            raise DataError(f"{path}: the tokenizer cannot be read: {error.strerror}; check the path") from error

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the model as hexadecimal digits."""
        return hashlib.sha256(self.model).hexdigest()

    @cached_property
    def model_sha256(self) -> str:
        """SHA-256 of `model`, which differs from `sha256` if `with_tags` changed the types of pieces."""
        return hashlib.sha256(self.model).hexdigest()

    def with_tags(self, tags: Collection[str]) -> "Tokenizer":
        """Return the tokenizer with these pieces, if it has them, as control symbols.

        `sha256` remains that of the file, by which runs recognize their tokenizer.
        """
        tags_in_text = [tag for tag in dict.fromkeys(tags) if self._is_found_in_text(tag)]
        if not tags_in_text:
            return self

        tokenizer = copy.copy(self)
        for cached_value in ("model_sha256", "tag_ids", "_joining_processor"):
            vars(tokenizer).pop(cached_value, None)
        tokenizer.sha256 = self.sha256
        tokenizer.model = with_control_pieces(self.model, tags_in_text)
        tokenizer._processor = _processor(tokenizer.model)
        return tokenizer

    def _is_found_in_text(self, piece: str) -> bool:
        """Return True if the tokenizer has a piece that is no control symbol."""
        number = self.piece_id(piece)
        return number != UNK and not self._processor.IsControl(number)

    @cached_property
    def tag_ids(self) -> list[int]:
        """Ids of the tags: all control symbols except pad, bos and eos."""
        return [number for number in range(self.vocab_size) if self._is_tag(number)]

    def _is_tag(self, number: int) -> bool:
        return number not in CONTROL_IDS and bool(self._processor.IsControl(number))

    @property
    def vocab_size(self) -> int:
        """Number of pieces, including special ones; ids are 0 to vocab_size - 1."""
        return int(self._processor.GetPieceSize())

    def encode(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of each line, without bos or eos; blank lines give empty lists."""
        if not lines:
            return []
        return self._processor.EncodeAsIds(list(lines), num_threads=num_threads)

    def encode_within(self, text: str) -> list[int]:
        """Return the ids of a text that follows other text without a space."""
        return list(self._joining_processor.EncodeAsIds(text))

    @cached_property
    def _joining_processor(self) -> sentencepiece.SentencePieceProcessor:
        return _processor(without_first_space(self.model))

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each list of ids; pad, bos and eos are skipped, and unk becomes ` ⁇ `."""
        ids_of_text = [_without_control_ids(line) for line in ids]
        if not ids_of_text:
            return []
        return self._processor.DecodeIds(ids_of_text)

    def pieces(self, line: str) -> list[str]:
        """Return the pieces of a line as text; unknown characters are copied."""
        return list(self._processor.EncodeAsPieces(line))

    def id_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the piece of each id."""
        return [self._processor.IdToPiece(number) for number in ids]

    def piece_id(self, piece: str) -> int:
        """Return the id of a piece; the id of unk if the piece does not exist."""
        return int(self._processor.PieceToId(piece))

    def decode_pieces(self, pieces: Sequence[str]) -> str:
        """Join pieces and return the text.

        A run of unknown characters is one piece, which may be spelled like a tag; it is text, like all pieces of text.
        """
        spelled_pieces = list(self._spelled(pieces))
        return str(self._processor.DecodePieces(spelled_pieces))

    def _spelled(self, pieces: Sequence[str]) -> Iterator[str]:
        """Yield the pieces, and the characters of a piece that is spelled like a tag."""
        for piece in pieces:
            if self._is_tag(self.piece_id(piece)):
                yield from piece
            else:
                yield piece

    def vocabulary(self) -> list[str]:
        """Return all pieces in the order of their ids."""
        return self.id_pieces(range(self.vocab_size))


def _listed(ids: Mapping[str, int], separator: str) -> str:
    """Return special ids with their names, for a message."""
    return ", ".join(f"{name}{separator}{number}" for name, number in ids.items())


def _without_control_ids(ids: Sequence[int]) -> list[int]:
    return [number for number in ids if number not in CONTROL_IDS]


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    """Load a model; raise RuntimeError if it is damaged."""
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


class TokenizerPair(NamedTuple):
    """Source and target tokenizers; both are the same object if the vocabulary is joint."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def joint(self) -> bool:
        """True if both sides share one tokenizer."""
        return self.src is self.tgt

    def equals(self, other: "TokenizerPair") -> bool:
        """Return True if the tokenizers come from the same files, or are equal because tags became control symbols."""
        file_hashes = [tokenizer.sha256 for tokenizer in self]
        other_file_hashes = [tokenizer.sha256 for tokenizer in other]
        if file_hashes == other_file_hashes:
            return True
        model_hashes = [tokenizer.model_sha256 for tokenizer in self]
        other_model_hashes = [tokenizer.model_sha256 for tokenizer in other]
        return model_hashes == other_model_hashes

    def with_tags(self, tags: Collection[str]) -> "TokenizerPair":
        """Return the tokenizers with these pieces as control symbols; see `Tokenizer.with_tags`."""
        if not tags:
            return self
        src = self.src.with_tags(tags)
        tgt = src if self.joint else self.tgt.with_tags(tags)
        return TokenizerPair(src, tgt)

    @classmethod
    def load(cls, folder: str | Path) -> "TokenizerPair":
        """Read `joint.model`, or `src.model` and `tgt.model`; raise DataError if they are missing."""
        joint_file = Path(folder, JOINT)
        src_file = Path(folder, SRC)
        tgt_file = Path(folder, TGT)
        if joint_file.is_file():
            joint = Tokenizer.load(joint_file)
            return cls(joint, joint)
        if not src_file.is_file() or not tgt_file.is_file():
            problem = f"no tokenizer found (neither {JOINT} nor both {SRC} and {TGT})"
            raise DataError(f"{Path(folder)}: {problem}; give a folder with these files, such as `tokenizer` of a run")
        return cls(Tokenizer.load(src_file), Tokenizer.load(tgt_file))

    def save(self, folder: str | Path) -> None:
        """Write the folder atomically, replacing an existing one."""
        models = {SRC: self.src, TGT: self.tgt}
        if self.joint:
            models = {JOINT: self.src}
        with atomic_folder(Path(folder)) as temporary:
            for name, tokenizer in models.items():
                (temporary / name).write_bytes(tokenizer.model)
            self.save_rules(temporary)

    def save_rules(self, folder: Path) -> None:
        """Write a copy of the rule file of the normalization, if there is one."""
        for tokenizer in self:
            if tokenizer.rules is not None:
                (folder / RULES).write_bytes(tokenizer.rules)

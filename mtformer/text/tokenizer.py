"""SentencePiece tokenizers: convert text to ids and back. Special ids are the same in all models."""

import copy
import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from mtformer.errors import DataError
from mtformer.files import atomic_folder, read_bytes
from mtformer.text.model_file import with_control_pieces, without_first_space
from mtformer.text.normalization import RULES, Normalizer

PAD, UNK, BOS, EOS = 0, 1, 2, 3
CONTROL_IDS = frozenset((PAD, BOS, EOS))
JOINT, SRC, TGT = "joint.model", "src.model", "tgt.model"
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
SPACE = "▁"  # SentencePiece's symbol for a space


class Tokenizer:
    """One SentencePiece model, given as the bytes of a `.model` file; `name` is used in error messages.

    Tags are control symbols: text never contains them, a text such as `<2de>` is encoded as ordinary characters, and
    decoding skips them. In new models they have this type. In a model of version 0.3 or of another program they may be
    user-defined symbols, which SentencePiece finds in text; `with_tags` makes them control symbols.

    `rules` are the contents of the rule file of its normalization, which is copied with it; the model has them too.

    Raise DataError if `model` is not a SentencePiece model, or its special ids are not pad 0, unk 1, bos 2, eos 3.
    """

    def __init__(self, model: bytes, name: str = "tokenizer", rules: bytes | None = None) -> None:
        self.model = model
        self.rules = rules
        self.name = name
        try:
            self._processor = _processor(model)
        except RuntimeError as error:
            raise DataError(f"{name}: not a SentencePiece model, or damaged; train it or copy it again") from error
        ids = tuple(getattr(self._processor, f"{special}_id")() for special in ("pad", "unk", "bos", "eos"))
        if ids != (PAD, UNK, BOS, EOS):
            what = f"its special ids are pad {ids[0]}, unk {ids[1]}, bos {ids[2]}, eos {ids[3]}"
            remedy = "train it with `mtformer tokenizer train`, or with SentencePiece's"
            options = "pad_id=0, unk_id=1, bos_id=2, eos_id=3"
            raise DataError(f"{name}: {what}, but must be pad 0, unk 1, bos 2, eos 3; {remedy} {options}")

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a `.model` file; raise DataError if it is missing, damaged, or has other special ids."""
        rules = Path(path).with_name(RULES)
        try:
            return cls(read_bytes(path), str(path), read_bytes(rules) if rules.is_file() else None)
        except OSError as error:
            raise DataError(f"{path}: the tokenizer cannot be read: {error.strerror}") from error

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the model as hexadecimal digits."""
        return hashlib.sha256(self.model).hexdigest()

    @cached_property
    def normalizer(self) -> Normalizer:
        """Changes that the tokenizer makes to text."""
        return Normalizer.of_model(self.model)

    @cached_property
    def model_sha256(self) -> str:
        """SHA-256 of `model`, which differs from `sha256` if `with_tags` changed the types of pieces."""
        return hashlib.sha256(self.model).hexdigest()

    def with_tags(self, tags: Collection[str]) -> "Tokenizer":
        """Return the tokenizer with these pieces, if it has them, as control symbols.

        `sha256` remains that of the file, by which runs recognize their tokenizer.
        """
        ids = {tag: self.piece_id(tag) for tag in tags}
        found = [tag for tag, number in ids.items() if number != UNK and not self._processor.IsControl(number)]
        if not found:
            return self
        other = copy.copy(self)
        for name in ("model_sha256", "tag_ids", "_joining_processor"):
            vars(other).pop(name, None)
        other.sha256 = self.sha256
        other.model = with_control_pieces(self.model, found)
        other._processor = _processor(other.model)
        return other

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
        return self._processor.EncodeAsIds(list(lines), num_threads=num_threads) if lines else []

    def encode_within(self, text: str) -> list[int]:
        """Return the ids of a text that follows other text without a space."""
        return list(self._joining_processor.EncodeAsIds(text))

    @cached_property
    def _joining_processor(self) -> sentencepiece.SentencePieceProcessor:
        return _processor(without_first_space(self.model))

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each list of ids; pad, bos and eos are skipped, and unk becomes ` ⁇ `."""
        kept = [[piece for piece in line if piece not in CONTROL_IDS] for line in ids]
        return self._processor.DecodeIds(kept) if kept else []

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
        return str(self._processor.DecodePieces(list(self._spelled(pieces))))

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
        have_same_files = [one.sha256 for one in self] == [one.sha256 for one in other]
        return have_same_files or [one.model_sha256 for one in self] == [one.model_sha256 for one in other]

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
        folder = Path(folder)
        if (folder / JOINT).is_file():
            joint = Tokenizer.load(folder / JOINT)
            return cls(joint, joint)
        if not (folder / SRC).is_file() or not (folder / TGT).is_file():
            raise DataError(f"{folder}: no tokenizer found (neither {JOINT} nor both {SRC} and {TGT})")
        return cls(Tokenizer.load(folder / SRC), Tokenizer.load(folder / TGT))

    def save(self, folder: str | Path) -> None:
        """Write the folder atomically, replacing an existing one."""
        models = {JOINT: self.src} if self.joint else {SRC: self.src, TGT: self.tgt}
        with atomic_folder(Path(folder)) as temporary:
            for name, tokenizer in models.items():
                (temporary / name).write_bytes(tokenizer.model)
            self.save_rules(temporary)

    def save_rules(self, folder: Path) -> None:
        """Write a copy of the rule file of the normalization, if there is one."""
        for tokenizer in self:
            if tokenizer.rules is not None:
                (folder / RULES).write_bytes(tokenizer.rules)

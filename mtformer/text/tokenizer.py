"""SentencePiece tokenizers: convert text to ids and back. Special ids are the same in all models."""

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from mtformer.errors import DataError
from mtformer.files import atomic_folder, read_bytes
from mtformer.text.normalization import RULES, Normalizer

PAD, UNK, BOS, EOS = 0, 1, 2, 3
CONTROL_IDS = frozenset((PAD, BOS, EOS))
JOINT, SRC, TGT = "joint.model", "src.model", "tgt.model"
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
SPACE = "▁"  # SentencePiece's symbol for a space


class Tokenizer:
    """One SentencePiece model, given as the bytes of a `.model` file; `name` is used in error messages.

    `rules` are the contents of the rule file of its normalization, which is copied with it; the model has them too.

    Raise DataError if `model` is not a SentencePiece model, or its special ids are not pad 0, unk 1, bos 2, eos 3.
    """

    def __init__(self, model: bytes, name: str = "tokenizer", rules: bytes | None = None) -> None:
        self.model = model
        self.rules = rules
        self.name = name
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
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

    @property
    def vocab_size(self) -> int:
        """Number of pieces, including special ones; ids are 0 to vocab_size - 1."""
        return int(self._processor.GetPieceSize())

    def encode(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of each line, without bos or eos; blank lines give empty lists."""
        return self._processor.EncodeAsIds(list(lines), num_threads=num_threads) if lines else []

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
        """Join pieces and return the text."""
        return str(self._processor.DecodePieces(list(pieces)))

    def vocabulary(self) -> list[str]:
        """Return all pieces in the order of their ids."""
        return self.id_pieces(range(self.vocab_size))


class TokenizerPair(NamedTuple):
    """Source and target tokenizers; both are the same object if the vocabulary is joint."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def joint(self) -> bool:
        """True if both sides share one tokenizer."""
        return self.src is self.tgt

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

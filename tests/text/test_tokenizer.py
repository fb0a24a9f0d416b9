"""Encoding, decoding, and invalid models."""

import io
import pickle
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import sentencepiece

from mtformer.errors import DataError
from mtformer.text.protobuf import field, message_fields, set_subfield
from mtformer.text.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, TokenizerPair

UNUSUAL = ["", "  ", "tab\tand\x0bbreak", "\u2028", "\x00", "漢字", "a" * 3000, "<s> </s> <pad>", "the  old   man"]


def test_encoding_and_decoding(tokenizer: Tokenizer, lines: list[str]) -> None:
    ids = tokenizer.encode(lines, num_threads=3)
    assert ids == [tokenizer.encode([line])[0] for line in lines]
    assert tokenizer.decode(ids) == lines
    assert tokenizer.decode([[BOS, *ids[0][:2], PAD, *ids[0][2:], EOS, PAD]]) == lines[:1]


def test_unusual_lines(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode(UNUSUAL)
    assert len(encoded) == len(tokenizer.decode(encoded)) == len(UNUSUAL)
    assert encoded[0] == encoded[1] == []
    assert {PAD, BOS, EOS}.isdisjoint(chain.from_iterable(encoded))
    assert tokenizer.encode([]) == tokenizer.decode([]) == []
    assert tokenizer.decode([[], []]) == ["", ""]


def test_consecutive_unknown_characters_are_one_id(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(["old 漢字 man"])[0]
    assert ids.count(UNK) == 1
    assert tokenizer.decode([ids])[0].replace("\u2047", "?") == "old  ?  man"


def test_byte_fallback(byte_tokenizer: Tokenizer) -> None:
    text = "old 漢字 ☃ man"
    ids = byte_tokenizer.encode([text])[0]
    assert UNK not in ids
    assert byte_tokenizer.decode([ids]) == [text]


def test_joined_pieces_equal_the_line(tokenizer: Tokenizer, lines: list[str]) -> None:
    pieces = tokenizer.pieces(lines[0])
    vocabulary = tokenizer.vocabulary()
    assert [vocabulary.index(piece) for piece in pieces] == tokenizer.encode(lines[:1])[0]
    assert tokenizer.decode_pieces(pieces) == lines[0]


def test_special_pieces_have_their_ids(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocabulary()[: EOS + 1] == ["<pad>", "<unk>", "<s>", "</s>"]
    assert len(tokenizer.vocabulary()) == tokenizer.vocab_size


def test_a_model_with_other_special_ids_is_an_error(tmp_path: Path, lines: list[str]) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=100, minloglevel=2
    )
    (tmp_path / "foreign.model").write_bytes(model.getvalue())
    with pytest.raises(DataError, match=r"foreign.model: its special ids are pad -1, unk 0, bos 1, eos 2") as error:
        Tokenizer.load(tmp_path / "foreign.model")
    assert "\n" not in str(error.value)


def test_damaged_and_missing_models_are_errors(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for content in (b"", b"not a model at all", b"\x0a\x05", tokenizer.model[: len(tokenizer.model) // 2]):
        (tmp_path / "x.model").write_bytes(content)
        with pytest.raises(DataError, match=r"x.model: not a SentencePiece model|x.model: its special ids"):
            Tokenizer.load(tmp_path / "x.model")
    with pytest.raises(DataError, match=r"none.model: the tokenizer cannot be read: No such file"):
        Tokenizer.load(tmp_path / "none.model")
    with pytest.raises(DataError, match=r"no tokenizer found \(neither joint.model nor both src.model and tgt.model\)"):
        TokenizerPair.load(tmp_path)


CRAFTED: dict[str, Callable[[bytes], bytes]] = {
    "group": lambda model: model + b"\x0b\x08\x01\x0c",
    "group of an unknown field": lambda model: model + b"\xc3\x3e\xc4\x3e",
    "integer in place of a message": lambda model: model + field(2, 7),
    "integer in place of the normalization": lambda model: model + field(3, 7),
    "piece that is not UTF-8": lambda model: model + field(1, field(1, b"\xff\xfe") + field(2, -9.0)),
    "name of the normalization that is not UTF-8": lambda model: set_subfield(model, 3, 1, b"\xff"),
    "group in the normalization": lambda model: model + field(3, b"\x0b\x0c"),
    "length beyond the end": lambda model: model + b"\x0a\xff\xff\xff\xff\x07",
    "endless integer": lambda model: model + b"\x0a" + b"\xff" * 40,
    "cut in a length": lambda model: model + b"\x0a\xff",
    "no end": lambda model: model[:-1],
}
"""Changes of a model that SentencePiece refuses, or reads although its fields are damaged."""


@pytest.mark.parametrize("craft", CRAFTED.values(), ids=CRAFTED)
def test_crafted_models_are_refused(craft: Callable[[bytes], bytes], tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"^x: not a SentencePiece model, or damaged; train it or copy it again$"):
        Tokenizer(craft(tokenizer.model), "x")


def test_a_model_without_normalization_does_not_change_text(tokenizer: Tokenizer) -> None:
    """A model has fields 1 (pieces), 2 (training) and 3 (normalization)."""
    without = b"".join(field(number, value) for number, value in message_fields(tokenizer.model) if number != 3)
    assert Tokenizer(without).normalizer.name == ""


def test_pickling_does_not_change_a_tokenizer(tokenizer: Tokenizer, lines: list[str]) -> None:
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.sha256 == tokenizer.sha256
    assert copy.encode(lines) == tokenizer.encode(lines)


def test_joint_and_separate_pairs_are_saved_and_loaded(
    tmp_path: Path, tokenizer: Tokenizer, byte_tokenizer: Tokenizer
) -> None:
    TokenizerPair(tokenizer, byte_tokenizer).save(tmp_path / "run")
    separate = TokenizerPair.load(tmp_path / "run")
    assert not separate.joint
    assert (separate.src.sha256, separate.tgt.sha256) == (tokenizer.sha256, byte_tokenizer.sha256)
    TokenizerPair(tokenizer, tokenizer).save(tmp_path / "run")
    joint = TokenizerPair.load(tmp_path / "run")
    assert joint.joint
    assert joint.src.sha256 == tokenizer.sha256
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["joint.model"]

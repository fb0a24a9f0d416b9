"""Tests of the automaton: it finds the same phrases as Python's `in`, for any segmentation of the text."""

import io
import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import sentencepiece
from hypothesis import given, strategies
from toy import random_lines

from mtformer.decoding.constraints import FOUND, automaton, over_vocabulary
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import BOS, CONTROL_IDS, EOS, PAD, UNK, Tokenizer, TokenizerPair, piece_bytes


def first_end(next_Sx: npt.NDArray[np.int32], symbols: Sequence[int]) -> int | None:
    """Return the number of symbols after which the first phrase is complete, or None."""
    state = 0
    for number, symbol in enumerate(symbols, start=1):
        state = int(next_Sx[state, symbol])
        if state == FOUND:
            return number
    return None


def plain_first_end(phrases: Sequence[bytes], parts: Sequence[bytes]) -> int | None:
    for number in range(1, len(parts) + 1):
        if any(phrase in b"".join(parts[:number]) for phrase in phrases):
            return number
    return None


def words(letters: str) -> strategies.SearchStrategy[bytes]:
    """Return a strategy for text of a few letters, so that phrases overlap, share prefixes and contain each other."""
    return strategies.text(letters, min_size=1, max_size=5).map(str.encode)


@pytest.mark.parametrize("letters", ["ab", "abc", "aö京🚂 "])
def test_automaton_finds_the_same_phrases_as_python_in_any_segmentation(letters: str) -> None:
    """Pieces may end within a multi-byte character."""

    @given(strategies.lists(words(letters), min_size=1), strategies.lists(words(letters)), strategies.data())
    def holds(phrases: list[bytes], texts: list[bytes], data: strategies.DataObject) -> None:
        text = b"".join(texts)
        cuts = sorted(data.draw(strategies.sets(strategies.integers(0, len(text)))))
        parts = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        next_Sb = automaton(phrases)
        assert first_end(next_Sb, text) == plain_first_end(phrases, [bytes([byte]) for byte in text])
        vocabulary = list(dict.fromkeys([*parts, b"", b"unused"]))
        next_SV = over_vocabulary(next_Sb, vocabulary)
        assert first_end(next_SV, [vocabulary.index(part) for part in parts]) == plain_first_end(phrases, parts)

    holds()


def test_empty_pieces_do_not_change_the_state() -> None:
    next_SV = over_vocabulary(automaton([b"abc"]), [b"", b"ab", b"c"])
    assert next_SV[:, 0].tolist() == list(range(3)), "every state maps to itself"
    assert first_end(next_SV, [1, 0, 0, 2]) == 4
    assert over_vocabulary(automaton([b"abc"]), [b"", b""]).tolist() == [[i, i] for i in range(3)]


def test_piece_bytes() -> None:
    assert piece_bytes("▁Haus") == b" Haus"
    assert piece_bytes("▁") == b" "
    assert piece_bytes("a▁b") == b"a b"
    assert piece_bytes("<0xC3>") + piece_bytes("<0xB6>") == "ö".encode()
    assert piece_bytes("<0xc3>") == b"<0xc3>", "only upper-case digits denote a byte"
    assert piece_bytes("</s>", is_control=True) == b""


def assert_pieces_concatenate_to_the_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    pieces = [piece_bytes(piece, number in CONTROL_IDS) for number, piece in enumerate(tokenizer.vocabulary())]
    joined = b"".join(pieces[number] for number in ids).decode()
    assert tokenizer.decode([ids])[0].lstrip(" ") == joined.lstrip(" "), "more than leading spaces differs"


def test_piece_bytes_concatenate_to_the_decoded_text(run: RunDir) -> None:
    tokenizer, rng = TokenizerPair.load(run.tokenizer).tgt, random.Random(2)
    for _ in range(200):
        assert_pieces_concatenate_to_the_text(tokenizer, rng.choices(range(tokenizer.vocab_size), k=rng.randint(1, 12)))


def test_byte_pieces_concatenate_to_the_decoded_text() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(random_lines(200, seed=0)),
        model_writer=model,
        vocab_size=400,
        byte_fallback=True,
        hard_vocab_limit=False,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
    )
    tokenizer = Tokenizer(model.getvalue())
    (ids,) = tokenizer.encode(["der hund größer 東京 🚂 im park"])
    assert sum(piece.startswith("<0x") for piece in tokenizer.id_pieces(ids)) >= 10
    assert_pieces_concatenate_to_the_text(tokenizer, ids)

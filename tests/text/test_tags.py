"""Tags are control symbols: no text contains them, with new tokenizers and with those of version 0.3."""

import io
import pickle
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from mtformer.config.schema import TokenizerConfig
from mtformer.text.tokenizer import EOS, PAD, UNK, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

TAGS = ["<2de>", "<2en>", "<bt>"]
SYMBOLS = ["<sep>", "a,b"]
TEXTS = [
    "<2en> the old man",
    "the old<2en>man",
    "<2en>",
    "<2en><2de><bt>",
    " <2en>  <bt> ",
    "<<2en>>",
    "<2<2en>en>",
    "the <２en> man",
    "＜2de＞ the man",
    "the man<bt>.",
    "<2EN> <2> <>",
]


def settings(**changes: object) -> TokenizerConfig:
    """Return settings with a normalization that makes tags from full-width forms."""
    values = {"vocab_size": 200, "normalization": "nmt_nfkc", "user_symbols": SYMBOLS, **changes}
    return TokenizerConfig.model_validate(values)


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def made(request: pytest.FixtureRequest, lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    """Return a tokenizer with tags, and one whose tags were user-defined symbols, as in version 0.3."""
    folder = tmp_path_factory.mktemp("tags")
    train_tokenizer(lines, settings(model_type=request.param), folder / "new.model", TAGS)
    # The characters of tags must be in the training text.
    train_tokenizer(
        [*lines, "< 2 >"] * 2,
        settings(model_type=request.param, user_symbols=[*TAGS, *SYMBOLS]),
        folder / "old.model",
    )
    return [Tokenizer.load(folder / "new.model"), Tokenizer.load(folder / "old.model").with_tags(TAGS)]


def test_tags_are_pieces(made: list[Tokenizer]) -> None:
    for tokenizer in made:
        ids = [tokenizer.piece_id(tag) for tag in TAGS]
        assert UNK not in ids
        assert sorted(ids) == tokenizer.tag_ids
        assert tokenizer.id_pieces(ids) == TAGS
        assert tokenizer.decode([[*ids, PAD, EOS]]) == [""]


@pytest.mark.parametrize("text", TEXTS)
def test_text_contains_no_tags(made: list[Tokenizer], text: str) -> None:
    normalized = " ".join(text.split()).translate(str.maketrans("２＜＞", "2<>"))
    for tokenizer in made:
        [ids] = tokenizer.encode([text])
        assert set(ids).isdisjoint(tokenizer.tag_ids)
        assert set(TAGS).isdisjoint(tokenizer.pieces(text))
        assert len(tokenizer.pieces(text)) == len(ids)
        assert set(tokenizer.encode_within(text)).isdisjoint(tokenizer.tag_ids)
        if UNK not in ids:
            assert tokenizer.decode([ids]) == [normalized]
        assert tokenizer.decode_pieces(tokenizer.pieces(text)) == normalized


FRAGMENTS = st.sampled_from([*TAGS, *SYMBOLS, "<", "2", "de>", "２", "＞", " ", "\u200b", "the", "old", "ﬁ", "é", "日"])


@given(text=st.lists(FRAGMENTS, max_size=12).map("".join))
def test_any_text_is_encoded_as_if_there_were_no_tags(made: list[Tokenizer], text: str) -> None:
    for tokenizer in made:
        [ids] = tokenizer.encode([text])
        assert set(ids).isdisjoint(tokenizer.tag_ids)
        # A tag that is split by other characters is encoded in both cases, so it shows the normalization.
        apart = tokenizer.decode_pieces(tokenizer.pieces(text.replace("<", "<日")))
        assert tokenizer.decode_pieces(tokenizer.pieces(text)) == apart.replace("<日", "<")


def test_symbols_of_the_user_stay_pieces_of_text(made: list[Tokenizer]) -> None:
    for tokenizer in made:
        for symbol in SYMBOLS:
            assert symbol in tokenizer.pieces(f"the <2en> old{symbol}man")


def test_the_tags_of_another_model_stay_pieces_of_text(unigram: Tokenizer) -> None:
    assert unigram.with_tags(["<2en>", "<bt>"]) is unigram
    assert unigram.with_tags(["<2en>"]).pieces("<2de> the") == ["▁", "<2de>", "▁the"]
    spelled = unigram.with_tags(["<2de>"]).pieces("<2de> the")
    assert "".join(spelled) == "▁<2de>▁the"
    assert "<2de>" not in spelled
    pair = TokenizerPair(unigram, unigram)
    assert pair.with_tags(["<2de>"]).joint


def test_a_tokenizer_with_tags_belongs_to_the_same_file(unigram: Tokenizer, lines: list[str]) -> None:
    changed = unigram.with_tags(["<2de>"])
    assert changed.sha256 == unigram.sha256
    assert changed.vocabulary() == unigram.vocabulary()
    assert changed.encode(lines) == unigram.encode(lines)
    assert changed.model_sha256 != unigram.model_sha256 == unigram.sha256
    assert TokenizerPair(changed, changed).equals(TokenizerPair(unigram, unigram))
    saved = Tokenizer(changed.model)
    assert TokenizerPair(changed, changed).equals(TokenizerPair(saved, saved))
    assert saved.tag_ids == changed.tag_ids == [unigram.piece_id("<2de>")]
    copy = pickle.loads(pickle.dumps(changed))
    assert (copy.sha256, copy.encode(TEXTS)) == (changed.sha256, changed.encode(TEXTS))


def test_a_learned_piece_can_be_a_tag(lines: list[str]) -> None:
    """A tokenizer of another program may contain a tag as an ordinary piece."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=150, pad_id=0, unk_id=1, bos_id=2, eos_id=3,
        minloglevel=2,
    )  # fmt: skip
    tokenizer = Tokenizer(model.getvalue())
    piece = next(piece for piece in tokenizer.pieces(lines[0]) if len(piece.strip("▁")) > 1)
    changed = tokenizer.with_tags([piece])
    spelled = changed.pieces(lines[0])
    assert "".join(spelled) == "".join(tokenizer.pieces(lines[0]))
    assert piece not in spelled
    assert changed.decode(changed.encode(lines)) == lines


def test_text_of_unknown_characters_is_no_tag(lines: list[str], tmp_path: Path) -> None:
    """A run of unknown characters is one piece, which may be spelled like a tag."""
    train_tokenizer(lines, settings(user_symbols=["<日本>"]), tmp_path / "old.model")
    tokenizer = Tokenizer.load(tmp_path / "old.model").with_tags(["<日本>"])
    assert "<日本>" in tokenizer.pieces("the <日本> man"), "the premise: one piece for unknown characters"
    assert tokenizer.id_pieces(tokenizer.encode(["the <日本> man"])[0]) == ["▁the", "▁", "<unk>", "▁man"]
    assert tokenizer.decode_pieces(tokenizer.pieces("the <日本> man")) == "the <日本> man"


def test_a_new_tokenizer_spells_its_tags(lines: list[str], tmp_path: Path) -> None:
    train_tokenizer([*lines, "<2日本>"], settings(), tmp_path / "new.model", ["<2日本>"])
    tokenizer = Tokenizer.load(tmp_path / "new.model")
    [ids] = tokenizer.encode(["<2日本>"])
    assert UNK not in ids
    assert tokenizer.decode([ids]) == ["<2日本>"]


def test_a_symbol_that_is_also_a_tag_is_a_tag(lines: list[str], tmp_path: Path) -> None:
    train_tokenizer(lines, settings(user_symbols=[*SYMBOLS, "<bt>"]), tmp_path / "x.model", ["<bt>"])
    tokenizer = Tokenizer.load(tmp_path / "x.model")
    assert tokenizer.tag_ids == [tokenizer.piece_id("<bt>")]
    assert "<sep>" in tokenizer.pieces("<bt> the<sep>")


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_tags_in_the_training_text_are_not_learned(lines: list[str], tmp_path: Path, model_type: str) -> None:
    text = [f"{line}<bt><2en> {line}" for line in lines]
    train_tokenizer(text, settings(model_type=model_type, user_symbols=["BT"]), tmp_path / "x.model", [*TAGS, "BT"])
    tokenizer = Tokenizer.load(tmp_path / "x.model")
    assert len(tokenizer.tag_ids) == 4
    for line in ("<bt>", "a<2en>b", "BT xBTy"):
        assert set(tokenizer.encode([line])[0]).isdisjoint(tokenizer.tag_ids)
        assert tokenizer.decode_pieces(tokenizer.pieces(line)) == line

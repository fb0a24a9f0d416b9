"""`mtformer attention`: words on the terminal, heat maps, numbers."""

import json
import logging
from pathlib import Path

import matplotlib.image
import pytest
import torch
from matplotlib import font_manager
from program import invoke
from typer.testing import Result

from mtformer.decoding.attention_maps import AttentionMaps, attention_maps
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError
from mtformer.report.attention import draw, save_picture
from mtformer.text.tokenizer import TokenizerPair

SENTENCE = "The man sleeps in the small house."


@pytest.fixture
def run(trained: tuple[Path, Result]) -> Path:
    """The finished run, which no test here changes: one decoder layer, two heads."""
    return trained[0]


def attention(run: Path, *options: object) -> Result:
    result = invoke("attention", run, *options)
    assert result.exit_code == 0, result.stderr
    return result


def some_maps(tgt_pieces: list[str], num_heads: int = 3) -> AttentionMaps:
    """Random ones of two layers over four source pieces."""
    torch.manual_seed(0)
    sizes = ((4, 4), (len(tgt_pieces), len(tgt_pieces)), (len(tgt_pieces), 4))
    weights = [torch.randn(2, num_heads, *size).softmax(dim=-1) for size in sizes]
    return AttentionMaps("a bc", "x", ["▁a", "▁b", "c", "</s>"], tgt_pieces, *weights)


def test_each_target_word_has_the_source_word_that_it_is_aligned_with(run: Path) -> None:
    result = attention(run, SENTENCE, "--translation", "Der Mann schläft im Haus.")
    translation, blank, *rows = result.stdout.splitlines()
    assert (translation, blank, result.stderr) == ("Der Mann schläft im Haus.", "", "")
    maps = attention_maps(Translator.load(run, device="cpu"), SENTENCE, "Der Mann schläft im Haus.")
    src, tgt = maps.source.split(), maps.translation.split()
    assert [row.split()[:2] for row in rows] == [[tgt[t], src[s]] for s, t in maps.alignment]
    for row in rows:
        shares = [int(word.rstrip("%")) for word in row.split() if word.endswith("%")]
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) <= 101
        assert all(share >= 10 for share in shares[1:])
    assert any(row.count("%") > 1 for row in rows)
    assert len({row.index(word) for row in rows for word in [row.split()[1]]}) == 1, "columns"


def test_layer_and_head_choose(run: Path) -> None:
    words = (run, SENTENCE, "--translation", "Der Mann schläft im Haus.")
    shown = [attention(*words, "--head", head, "--layer", 1).stdout for head in (1, 2)]
    assert shown[0] != shown[1]
    assert attention(*words, "--layer", 1).stdout == attention(*words).stdout


@pytest.mark.parametrize("texts", [(SENTENCE, "--translation", ""), ("\u200b", "--translation", "Haus")])
def test_an_empty_text_is_told(run: Path, texts: tuple[str, ...]) -> None:
    result = attention(run, *texts)
    assert (result.stdout, result.stderr) == ("", "source or translation is empty: there is nothing to align\n")


def test_without_spaces_each_piece_is_a_word(run: Path) -> None:
    rows = attention(run, "The house.", "--translation", "犬Haushund").stdout.splitlines()[2:]
    pieces = [piece.strip("▁") for piece in TokenizerPair.load(run / "tokenizer").tgt.pieces("犬Haushund")]
    assert [row.split()[0] for row in rows] == [piece for piece in pieces if piece]
    assert len(rows) > 1, "pieces, not words"
    assert len({len(row[: row.index(row.split()[1])]) + ("犬" in row) for row in rows}) == 1, "it is two columns wide"


def test_json_has_everything(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "maps.json"
    result = attention(run, SENTENCE, "--out", out)
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == f"written: {out}"
    found = json.loads(out.read_text(encoding="utf-8"))
    maps = attention_maps(Translator.load(run, device="cpu"), SENTENCE)
    assert [found[name] for name in ("source", "translation", "src_pieces", "tgt_pieces", "decoder_keys")] == [
        maps.source, maps.translation, maps.src_pieces, maps.tgt_pieces, maps.decoder_keys
    ]  # fmt: skip
    assert [tuple(pair) for pair in found["alignment"]] == maps.alignment
    for name, weights in (("encoder", maps.encoder_LHSS), ("decoder", maps.decoder_LHTT), ("cross", maps.cross_LHTS)):
        torch.testing.assert_close(torch.tensor(found[name]), weights, rtol=0, atol=1e-5)


def test_png_is_a_picture_of_the_last_layer(run: Path, tmp_path: Path) -> None:
    whole, one = tmp_path / "maps.png", tmp_path / "one.png"
    attention(run, SENTENCE, "--out", whole)
    attention(run, SENTENCE, "--out", one, "--head", 2)
    pictures = [matplotlib.image.imread(path) for path in (whole, one)]
    assert pictures[0].shape[1] > pictures[1].shape[1] > 300
    assert all(picture[..., :3].std() > 0.05 for picture in pictures), "not blank"


def test_each_head_is_a_heat_map_with_its_pieces() -> None:
    maps = some_maps(["▁$x$", "▁y", "</s>"])
    figure = draw(maps, 1, None)
    shown = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in shown] == ["head 1", "head 2", "head 3"]
    for axes, weights_TS in zip(shown, maps.cross_LHTS[1], strict=True):
        assert torch.equal(torch.tensor(axes.images[0].get_array()), weights_TS)
    below, left = [axes.get_xticklabels() for axes in shown[1:]], [shown[n].get_yticklabels() for n in (0, 2)]
    for labels, pieces in (*((of, maps.src_pieces) for of in below), *((of, maps.tgt_pieces) for of in left)):
        assert [label.get_text() for label in labels] == pieces
        assert {(label.get_fontsize(), label.get_parse_math()) for label in labels} == {(9, False)}
    assert [axes.get_title() for axes in draw(maps, 0, 2).axes if axes.images] == ["head 3"]


def test_letters_that_no_font_has_are_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [font for font in font_manager.fontManager.ttflist if "matplotlib" in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    with caplog.at_level(logging.WARNING):
        save_picture(some_maps(["▁東京", "▁で", "</s>"]), 0, None, tmp_path / "maps.png")
    assert [record.getMessage() for record in caplog.records if record.name == "mtformer"] == [
        "no installed font draws 東京で: boxes in the picture; install a font that has them, such as Noto Sans"
    ]
    assert not list(recwarn)
    caplog.clear()
    save_picture(some_maps(["▁Äß", "▁𝔄", "</s>"]), 0, None, tmp_path / "maps.png")
    assert not caplog.records, "a letter of another installed font"


def test_a_picture_has_bounds() -> None:
    with pytest.raises(ConfigError, match=r"choose one with --head, or write JSON"):
        draw(some_maps(["x"] * 150), 0, None)
    with pytest.raises(ConfigError, match=r"inches; write JSON"):
        draw(some_maps(["x"] * 300), 0, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((SENTENCE, "--out", "maps.pdf"), "--out maps.pdf: the name of a picture ends in .png"),
        ((SENTENCE, "--out", "maps.json", "--head", "1"), "JSON has all layers and heads"),
        ((SENTENCE, "--layer", "2"), "--layer 2: the decoder has layers 1 to 1"),
        ((SENTENCE, "--head", "3"), "--head 3: the decoder has heads 1 to 2"),
        ((SENTENCE, "--to", "fr"), "this model does not translate to 'fr'"),
        ((" ",), "the sentence is blank"),
        (("word " * 400,), "tokens; the model has positions for 300"),
    ],
)
def test_mistakes_are_one_line(run: Path, arguments: tuple[str, ...], told: str) -> None:
    result = invoke("attention", run, *arguments, "--translation", "x")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert told in result.stderr

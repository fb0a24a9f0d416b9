"""Attention files: the picture, and errors in all formats; tests/cli tests the files written for a run."""

import logging
from pathlib import Path
from typing import cast

import pytest
import torch
from matplotlib import font_manager

from mtformer.decoding.attention_maps import AttentionMaps
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError
from mtformer.report import attention
from mtformer.report.attention import AttentionFile, draw


def some_maps(tgt_pieces: list[str], num_heads: int = 3) -> AttentionMaps:
    """Return random maps of two layers over four source tokens."""
    torch.manual_seed(0)
    sizes = ((4, 4), (len(tgt_pieces), len(tgt_pieces)), (len(tgt_pieces), 4))
    weights = [torch.randn(2, num_heads, *size).softmax(dim=-1) for size in sizes]
    return AttentionMaps("a bc", "x", ["▁a", "▁b", "c", "</s>"], tgt_pieces, ["<s>", *tgt_pieces[:-1]], *weights)


def written(path: Path, maps: AttentionMaps) -> None:
    file = AttentionFile(path)
    file.maps.append((1, maps))
    file.write()


def test_each_head_has_a_heat_map_labeled_with_tokens() -> None:
    maps = some_maps(["▁$x$", "▁y", "</s>"])
    figure = draw(maps)
    shown = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in shown] == ["head 1", "head 2", "head 3"]
    for axes, weights_TS in zip(shown, maps.cross_LHTS[1], strict=True):
        assert torch.equal(torch.tensor(axes.images[0].get_array()), weights_TS)
    below, left = [axes.get_xticklabels() for axes in shown[1:]], [shown[n].get_yticklabels() for n in (0, 2)]
    for labels, pieces in (*((of, maps.src_pieces) for of in below), *((of, maps.tgt_pieces) for of in left)):
        assert [label.get_text() for label in labels] == pieces
        assert {(label.get_fontsize(), label.get_parse_math()) for label in labels} == {(9, False)}


def test_letters_that_no_font_has_are_reported_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [font for font in font_manager.fontManager.ttflist if "matplotlib" in font.fname]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    with caplog.at_level(logging.WARNING):
        written(tmp_path / "maps.png", some_maps(["▁東京", "▁で", "</s>"]))
    assert [record.getMessage() for record in caplog.records if record.name == "mtformer"] == [
        "no installed font has 東京で; the picture shows boxes instead; install a font such as Noto Sans"
    ]
    assert not list(recwarn)
    caplog.clear()
    written(tmp_path / "maps.png", some_maps(["▁Äß", "▁𝔄", "</s>"]))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], (
        "a letter of another installed font"
    )


@pytest.mark.parametrize(("file", "num_pieces", "message"), [
    ("maps.pdf", 1, "unknown format; use .json, .html or .png"),
    ("maps.png", 300, "inches; write .json or .html"),
])  # fmt: skip
def test_user_errors(tmp_path: Path, file: str, num_pieces: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        written(tmp_path / file, some_maps(["x"] * num_pieces))
    assert not (tmp_path / file).exists()


def test_a_file_has_a_maximum_number_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attention_maps", lambda *_: some_maps(["x"]))
    picture, translator = AttentionFile(tmp_path / "maps.png"), cast(Translator, None)
    picture.add(translator, 1, " ", "")
    with pytest.raises(ConfigError, match="every line is blank"):
        picture.write()
    picture.add(translator, 2, "a", "b")
    with pytest.raises(ConfigError, match=r"more than 1 non-blank lines; translate fewer lines, or write \.json"):
        picture.add(translator, 3, "c", "d")
    assert [number for number, _ in picture.maps] == [2]

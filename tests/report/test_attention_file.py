"""Errors of attention files; tests/cli tests the files written for a run."""

from pathlib import Path
from typing import cast

import pytest
import torch

from mtformer.decoding.attention_maps import AttentionMaps
from mtformer.decoding.translator import Translator
from mtformer.errors import ConfigError
from mtformer.report import attention
from mtformer.report.attention import AttentionFile


def some_maps(tgt_pieces: list[str], num_heads: int = 3) -> AttentionMaps:
    """Return random maps of two layers over four source tokens."""
    torch.manual_seed(0)
    sizes = ((4, 4), (len(tgt_pieces), len(tgt_pieces)), (len(tgt_pieces), 4))
    weights = [torch.randn(2, num_heads, *size).softmax(dim=-1) for size in sizes]
    return AttentionMaps("a bc", "x", ["▁a", "▁b", "c", "</s>"], tgt_pieces, ["<s>", *tgt_pieces[:-1]], *weights)


def test_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown format; use \.json or \.html"):
        AttentionFile(tmp_path / "maps.pdf")


def test_a_file_has_a_maximum_number_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "attention_maps", lambda *_: some_maps(["x"]))
    monkeypatch.setattr(attention, "MAX_LINES", {".html": 1})
    page, translator = AttentionFile(tmp_path / "maps.html"), cast(Translator, None)
    page.add(translator, 1, " ", "")
    with pytest.raises(ConfigError, match="every line is blank"):
        page.write()
    page.add(translator, 2, "a", "b")
    with pytest.raises(ConfigError, match=r"more than 1 non-blank lines; translate fewer lines, or write \.json"):
        page.add(translator, 3, "c", "d")
    assert [number for number, _ in page.maps] == [2]

"""Choice of the sentences for which maps are shown; test_run_report.py tests the drawn maps."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small_run import PAIRS, begin_run, write_history

from mtformer.decoding.attention_maps import AttentionMaps
from mtformer.decoding.translator import Translator
from mtformer.experiment.runs import RunContents
from mtformer.report import attention
from mtformer.report.attention import MAX_SENTENCES, MAX_WORDS, choose, map_values, page_maps
from mtformer.report.sentences import Sentence
from mtformer.run_dir import RunDir


def made_maps(source: str, language: str | None = None) -> AttentionMaps:
    """Return maps of two layers and three heads over four source and three target tokens."""
    src, tgt = ["▁a", "▁b", "</script>", "</s>"], ["▁x", "y", "</s>"]
    shapes = [(2, 3, len(src), len(src)), (2, 3, len(tgt), len(tgt)), (2, 3, len(tgt), len(src))]
    encoder, decoder, cross = (torch.rand(shape).softmax(dim=-1) for shape in shapes)
    return AttentionMaps(source, f"translated {language}", src, tgt, ["<s>", *tgt[:-1]], encoder, decoder, cross)


@pytest.fixture
def read(tmp_path: Path) -> RunContents:
    run = begin_run(tmp_path / "run")
    write_history(run)
    return RunContents(run.path, "run")


def test_short_test_sentences_or_dev_samples_are_chosen(read: RunContents) -> None:
    sentences = [Sentence(f"s {n}", "r", "h", float(n), "de") for n in range(101)]
    sentences[100] = Sentence("word " * (MAX_WORDS + 1), "r", "h", 100.0, "de")
    chosen = choose({"set": sentences, "other": sentences[:3]}, read)
    assert len(chosen) == MAX_SENTENCES
    assert (chosen[0], chosen[-1]) == (("set, chrF2++ 99.0", "s 99", "de"), ("set, chrF2++ 0.0", "s 0", "de"))
    assert len(choose({"set": sentences[:1]}, read)) == 1
    assert choose({"set": sentences[100:]}, read) == [("dev", src, None) for src, _ in PAIRS[:2]]


def test_at_least_one_map_is_shown_and_more_if_they_fit(read: RunContents, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def maps(_: object, source: str) -> AttentionMaps:
        asked.append(source)
        return made_maps(source)

    monkeypatch.setattr(attention, "attention_maps", maps)
    assert page_maps(read, {}, 1) == []  # no checkpoint
    monkeypatch.setattr(RunDir, "steps", lambda _: [4])
    monkeypatch.setattr(Translator, "load", lambda *_, **__: SimpleNamespace(into=lambda _: None))
    sentences = {"set": [Sentence(f"s{n}", "r", "h", float(n), "de") for n in range(5)]}
    weights = 6 * (16 + 9 + 12)
    assert len(page_maps(read, sentences, 3 * weights)) == 3
    assert asked == ["s4", "s3", "s2", "s1"]
    assert [one["source"] for one in page_maps(read, sentences, 1)] == ["s4"]


def test_weights_in_the_page_are_whole_percentages_by_layer_and_head() -> None:
    one = made_maps("</script>")
    found = map_values("<b>", one)
    assert found["source"] == "</script>"
    assert found["maps"]["decoder"]["keys"] == ["<s>", "▁x", "y"]
    assert found["maps"]["cross"]["keys"] == one.src_pieces
    for kind, weights in (("cross", one.cross_LHTS), ("encoder", one.encoder_LHSS), ("decoder", one.decoder_LHTT)):
        expected = (100 * weights).round().int().flatten(2).tolist()
        assert found["maps"][kind]["weights"] == expected

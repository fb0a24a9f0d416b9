"""Tests of `Translator`: one translation per line, for any content."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from toy import random_lines

from mtformer.config.schema import DecodingConfig
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.search import transformer_engine as module
from mtformer.decoding.search.steps import SearchBatch
from mtformer.decoding.translator import Translator, override
from mtformer.errors import CheckpointError, ConfigError, DeviceError
from mtformer.files import write_checksums
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import BOS, EOS


@pytest.fixture
def translator(run: RunDir) -> Translator:
    return Translator.load(run.path, device="cpu", precision="fp32")


def texts(translator: Translator, lines: list[str], **settings: int) -> list[str]:
    return [translation.text for translation in translator.translate(lines, **settings)]


def scores_without_cache(translator: Translator, lines: list[str], translations: list[Translation]) -> list[float]:
    """Return the log-probability per token of each line, computed with a single decoder pass and without batching."""
    model, found = translator.models[0], []
    for line, translation in zip(lines, translations, strict=True):
        src_BS = torch.tensor([[*translator.tokenizers.src.encode([line])[0], EOS]])
        tgt_BT = torch.tensor([[BOS, *translation.tokens, EOS]])
        with torch.inference_mode():
            hidden_BTD = model(src_BS, torch.tensor([src_BS.size(1)]), tgt_BT[:, :-1])
            log_prob_BTV = model.project(hidden_BTD).log_softmax(-1)
        found.append(log_prob_BTV.gather(2, tgt_BT[:, 1:, None]).mean().item())
    return found


@pytest.mark.parametrize("beam_size", [1, 4])
def test_scores_equal_those_of_the_model_without_a_cache(run: RunDir, translator: Translator, beam_size: int) -> None:
    """In bf16 they are equal up to rounding."""
    lines = random_lines(40, seed=1)
    translations = translator.translate(lines, beam_size=beam_size, beam_tokens=100_000)
    assert len({len(t.tokens) for t in translations}) > 5, "sentences should end at different steps"
    expected = scores_without_cache(translator, lines, translations)
    assert [t.score for t in translations] == pytest.approx(expected, rel=1e-4)
    narrow = Translator.load(run.path, device="cpu", precision="bf16")
    assert narrow.engine.dtype == "bf16"
    translations = narrow.translate(lines, beam_size=beam_size)
    exact = scores_without_cache(translator, lines, translations)
    assert sum(t.score for t in translations) == pytest.approx(sum(exact), rel=0.05)


def test_blank_lines_remain_blank(translator: Translator) -> None:
    lines = ["", "der hund", "   ", "\t", "die katze", "", "\u3000", "\u00a0 \u200b", "\ufeff"]
    found = translator.translate(lines)
    has_text = [False, True, False, False, True, False, False, False, False]
    assert [bool(translation.tokens) for translation in found] == has_text
    assert [t.text for t in found if not t.tokens] == [""] * 7
    assert (found[0].score, found[0].tokens) == (0.0, [])
    assert translator.translate([]) == []


def test_unusual_characters_are_accepted(translator: Translator) -> None:
    strange = [
        "a\rb",
        "a\x00b",
        "der\u2028hund",
        "zwei\nzeilen",
        "東京 🚂 ☃",
        "\x00",
        "\u2028",
        "half a pair \ud800",
        "﷽",
    ]
    found = texts(translator, strange)
    assert len(found) == len(strange)
    assert not any(character in text for text in found for character in "\n\r\x00\u2028\u2029\x85")
    assert found[5] == found[6] == ""
    assert texts(translator, ["der\u2028hund"]) == texts(translator, ["der hund"])


def test_translations_contain_no_line_breaks(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translator.tokenizers.tgt, "decode", lambda ids: ["a\nb\r\nc\u2028d\x00"] * len(ids))
    assert texts(translator, ["der hund"]) == ["a b c d"]


def test_default_settings_are_those_of_the_run(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = random_lines(20, seed=3)
    by_default = texts(translator, lines)
    assert by_default == texts(translator, lines, beam_size=3, length_penalty=1.0)
    assert by_default != texts(translator, lines, beam_size=1)
    longest = [len(t.tokens) for t in translator.translate(lines, min_length_ratio=2.0, max_length_ratio=2.0)]
    sources = translator.tokenizers.src.encode(lines)
    assert all(2 * len(ids) <= n <= 2 * len(ids) + 10 for ids, n in zip(sources, longest, strict=True))


def test_a_whole_section_replaces_settings_that_it_does_not_have(translator: Translator) -> None:
    changed = translator.with_decoding(keep="numbers", max_length=7)
    assert changed.with_decoding(DecodingConfig(beam_size=1)).decoding == DecodingConfig(beam_size=1)


def test_settings_out_of_range_raise_one_line_errors(translator: Translator) -> None:
    with pytest.raises(ConfigError, match=r"decoding: beam_size: must be at least 1 and at most 1000, not 0"):
        translator.translate(["der hund"], beam_size=0)
    with pytest.raises(ConfigError, match=r"decoding: min_length_ratio 3.0 is above max_length_ratio 2.0"):
        override(translator.decoding, min_length_ratio=3.0)
    with pytest.raises(ConfigError, match=r"^decoding: beam_sze: unknown key; did you mean 'beam_size'\?"):
        translator.translate(["der hund"], beam_sze=3)


def test_training_mode_is_restored(translator: Translator) -> None:
    expected = texts(translator, ["der hund läuft"])
    translator.models[0].train()
    assert texts(translator, ["der hund läuft"]) == expected
    assert translator.models[0].training


def test_progress_counts_every_line(translator: Translator) -> None:
    counts: list[int] = []
    translator.translate(["", *random_lines(30, seed=4)], beam_tokens=60, progress=counts.append)
    assert sum(counts) == 31
    assert len(counts) > 5


def test_the_batch_is_halved_if_memory_runs_out(
    translator: Translator, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines, whole, capacity = random_lines(20, seed=5), module.beam_search, 6
    expected = texts(translator, lines)

    def short_of_memory(models: Any, batch: SearchBatch, *more: Any) -> object:
        if batch.src_BS.size(0) > capacity:
            raise torch.OutOfMemoryError
        return whole(models, batch, *more)

    monkeypatch.setattr(module, "beam_search", short_of_memory)
    with caplog.at_level(logging.WARNING, "mtformer"):
        assert texts(translator, lines, beam_tokens=100_000) == expected
    assert "out of memory with 20 sentences; continuing with 10" in caplog.text
    capacity = 0
    with pytest.raises(DeviceError, match="out of memory on a single sentence"):
        translator.translate(["der hund"])

    def short_on_the_cpu(*arguments: Any, **named: Any) -> object:
        raise RuntimeError(message)

    monkeypatch.setattr(module, "beam_search", short_on_the_cpu)
    message = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 10000000000 bytes."
    with pytest.raises(DeviceError, match="on a single sentence; use a smaller beam_size or max_length_ratio"):
        translator.translate(["der hund"])
    message = "another error"
    with pytest.raises(RuntimeError, match="another error"):
        translator.translate(["der hund"])


def test_too_many_hypotheses_are_rejected(translator: Translator) -> None:
    for settings in ({"beam_size": 100_000}, {"sampling": True, "n_best": 100_000}, {"mbr_samples": 100_000}):
        with pytest.raises(ConfigError, match="at most 1000, not 100000"):
            translator.translate(["der hund"], **settings)


def test_damaged_or_mismatched_weights_raise_one_line_errors(run: RunDir, tmp_path: Path) -> None:
    copy = RunDir(shutil.copytree(run.path, tmp_path / "copy"))
    whole = copy.bundle_weights.read_bytes()
    copy.bundle_weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="truncated or changed since it was saved") as caught:
        Translator.load(copy.path, device="cpu")
    assert str(copy.bundle_weights) in str(caught.value)
    assert "\n" not in str(caught.value)
    copy.bundle_weights.write_bytes(whole)
    copy.config.write_text(copy.config.read_text().replace("d_ff: 64", "d_ff: 48"))
    write_checksums(copy.path)
    with pytest.raises(CheckpointError, match=r"feed_forward.*\[64.*\[48"):
        Translator.load(copy.path, device="cpu")


def test_a_missing_gpu_raises_device_error(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="device 'cuda'"):
        Translator.load(run.path, device="cuda")

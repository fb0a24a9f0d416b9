"""Tests of the Hugging Face export: logits, translations and ids equal ours."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from learning import teach
from peer import load_peer
from small import Make, config_of, random_lines, write_bundle
from torch import Tensor
from typer.testing import CliRunner

from mtformer.cli.app import app
from mtformer.config.loading import dump_config, load_config
from mtformer.decoding.search.inference import pad
from mtformer.decoding.translator import Translator
from mtformer.errors import CheckpointError, ConfigError, DataError
from mtformer.export import bundle, huggingface
from mtformer.export.bundle import export
from mtformer.files import write_checksums
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import BOS, EOS, PAD, TokenizerPair

SUPPORTED: list[dict[str, Any]] = [
    {"norm_position": "pre"},
    {"norm_position": "pre", "activation": "gelu", "output_bias": True, "num_kv_heads": 4},
    {"norm_position": "post"},
    {"norm_position": "post", "activation": "silu", "output_bias": True},
    {"norm_position": "post", "tie_embeddings": "output"},
    {"norm_position": "post", "tie_embeddings": "none", "activation": "gelu"},
]
LINES = [
    *random_lines(30, seed=2),
    "Öl und ein  Hund ",
    "liest </s> das <unk> buch",
    "<pad>",
    "♞ frau ♞♞",
    "Zwei sind ﬁne, １２: \u200bim\u00a0park…",
]


def set_decoding(run: RunDir, **values: object) -> None:
    config = load_config(run.config).config
    decoding = config.decoding.model_copy(update=values)
    run.config.write_text(dump_config(config.model_copy(update={"decoding": decoding})), encoding="utf-8")
    write_checksums(run.path)


@pytest.mark.parametrize("options", SUPPORTED, ids=str)
def test_logits_are_equal(options: dict[str, Any], make_random: Make, tmp_path: Path) -> None:
    """The source has padding. In float64, the only remaining difference is the order of summation."""
    model, tokenizers = make_random(**options)
    export(write_bundle(tmp_path / "run", model, tokenizers), tmp_path / "out", None, "huggingface")
    peer = load_peer(tmp_path / "out")
    src_BS, src_lengths_B = pad([[*ids, EOS] for ids in tokenizers.src.encode(LINES)], torch.device("cpu"))
    tgt_BT, _ = pad([[BOS, *ids] for ids in tokenizers.tgt.encode(LINES[::-1])], torch.device("cpu"))
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-11)):
        model.to(dtype)
        with torch.no_grad():
            ours_BTV = model.project(model(src_BS, src_lengths_B, tgt_BT))
        peer.model.to(dtype)
        difference = (ours_BTV - peer.logits(src_BS, tgt_BT)).abs().max()
        assert difference <= tolerance * ours_BTV.abs().max()
    model.float()


@pytest.mark.parametrize(
    "options", [{"norm_position": "pre"}, {"norm_position": "post", "activation": "silu"}], ids=str
)
def test_translations_are_equal(options: dict[str, Any], joint: TokenizerPair, tmp_path: Path) -> None:
    """`transformers` uses only the exported folder, and ends translations that reach the length limit differently."""
    torch.manual_seed(1)
    config = config_of(**options, output_bias=True, num_decoder_layers=2, dropout=0.0)
    model = Transformer(config.model, joint.src.vocab_size, joint.tgt.vocab_size)
    lines, longest = random_lines(200, seed=5), 40
    sources = [[*ids, EOS] for ids in joint.src.encode(lines)]
    targets = [[BOS, *ids, EOS] for ids in joint.tgt.encode(lines)]

    def logits(src_BS: Tensor, tgt_BT: Tensor) -> Tensor:
        return model.project(model(src_BS, (src_BS != PAD).sum(dim=1), tgt_BT))

    teach(model.parameters(), logits, sources, targets, PAD)
    with torch.no_grad():
        model.output_bias[[PAD, BOS]] += 8.0  # makes excluded tokens likely
    run, short = write_bundle(tmp_path / "run", model, joint), [line for line in lines if len(line.split()) < 5][:30]
    rules: dict[str, Any] = {"no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "min_length": 6}
    for number, (beam_size, given) in enumerate(((1, {}), (4, {}), (4, rules))):
        set_decoding(run, beam_size=beam_size, max_length=longest, max_length_ratio=99.0, **given)
        export(run, tmp_path / f"out{number}", None, "huggingface")
        ours = Translator.load(run.path).translate(short)
        theirs = load_peer(tmp_path / f"out{number}").translate(short)
        whole = [number for number, one in enumerate(ours) if len(one.tokens) < longest]
        assert len({ours[number].text for number in whole}) > 20
        assert [ours[number].text for number in whole] == [theirs[number][0] for number in whole]
        if beam_size > 1 and not given:  # our scores do not include the penalty
            scores = [theirs[number][1] for number in whole]
            assert [ours[number].score for number in whole] == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize("tie", ["all", "output"])
def test_ids_of_lines_are_equal(tie: str, make_random: Make, tmp_path: Path) -> None:
    """Covers source and target, including text that looks like special pieces, and unknown characters."""
    model, tokenizers = make_random(norm_position="post", tie_embeddings=tie)
    export(write_bundle(tmp_path / "run", model, tokenizers), tmp_path / "out", None, "huggingface")
    tokenizer = load_peer(tmp_path / "out").tokenizer
    assert tokenizer(LINES)["input_ids"] == [[*ids, EOS] for ids in tokenizers.src.encode(LINES)]
    targets = tokenizers.tgt.encode(LINES)
    assert tokenizer(text_target=LINES)["input_ids"] == [[*ids, EOS] for ids in targets]
    known = random_lines(30, seed=4)
    again = tokenizer.batch_decode(tokenizer(text_target=known)["input_ids"], skip_special_tokens=True)
    assert again == tokenizers.tgt.decode(tokenizers.tgt.encode(known))


def test_search_settings(make_random: Make, tmp_path: Path) -> None:
    run = write_bundle(tmp_path / "run", *make_random())
    set_decoding(run, beam_size=7, length_penalty=0.6, early_stopping="certain", max_length=33)
    export(run, tmp_path / "out", None, "huggingface")
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert settings == {
        "num_beams": 7,
        "length_penalty": 0.6,
        "early_stopping": "never",
        "max_length": 35,
        "min_length": 1,
        "no_repeat_ngram_size": 0,
        "repetition_penalty": 1.0,
        "bad_words_ids": [[PAD], [BOS]],
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": EOS,
    }
    for key, value in (("sampling", True), ("mbr_samples", 4), ("min_length_ratio", 0.5), ("keep", "numbers")):
        set_decoding(run, **{"beam_size": 7, "sampling": False, "mbr_samples": 0, "min_length_ratio": 0.0, key: value})
        with pytest.raises(ConfigError, match=rf"decoding.{key} .*: not supported by Hugging Face Transformers; set "):
            export(run, tmp_path / "other", None, "huggingface")
    set_decoding(run, beam_size=1, keep=None, repetition_penalty=1.2)
    with pytest.raises(
        ConfigError, match=r"decoding.repetition_penalty 1.2: not supported by Hugging Face Transformers; set 1.0 or "
    ):
        export(run, tmp_path / "greedy", None, "huggingface")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"norm": "rmsnorm"},
            "model.norm 'rmsnorm': not supported by Hugging Face Transformers; train with 'layernorm', or",
        ),
        (
            {"activation": "swiglu"},
            "model.activation 'swiglu': not supported by Hugging Face Transformers; train with 'relu'",
        ),
        ({"activation": "geglu"}, "model.activation 'geglu': not supported by Hugging Face"),
        (
            {"positions": "rotary"},
            "model.positions 'rotary': not supported by Hugging Face Transformers; train with 'sinusoidal', or use "
            "--format bundle, ctranslate2 or argos",
        ),
        ({"positions": "learned"}, "model.positions 'learned': not supported by Hugging Face"),
        ({"num_kv_heads": 2}, "model.num_kv_heads 2: not supported by Hugging Face"),
        (
            {"tie_embeddings": "output"},
            "model.tie_embeddings 'output': not supported by Hugging Face .*; train with 'all' or norm_position: post",
        ),
    ],
)
def test_unsupported_settings_are_named(options: dict[str, Any], line: str, make_random: Make, tmp_path: Path) -> None:
    run = write_bundle(tmp_path / "run", *make_random(**options))
    with pytest.raises(ConfigError, match=rf"^{line}[^\n]*$"):
        export(run, tmp_path / "out", None, "huggingface")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_symbol_that_looks_like_a_language_code_raises_config_error(
    make_random: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizers = make_random()
    monkeypatch.setattr(huggingface.TokenizerPair, "load", lambda folder: _with_code(tokenizers))
    with pytest.raises(ConfigError, match=r"tokenizer.user_symbols '>>de<<' cannot be exported to Hugging Face"):
        export(write_bundle(tmp_path / "run", model, tokenizers), tmp_path / "out", None, "huggingface")


def _with_code(tokenizers: TokenizerPair) -> TokenizerPair:
    class WithCode:
        vocab_size = tokenizers.src.vocab_size

        def vocabulary(self) -> list[str]:
            return [*tokenizers.src.vocabulary()[:-1], ">>de<<"]

    return TokenizerPair(WithCode(), WithCode())  # type: ignore[arg-type]  # only the vocabulary is used


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_parameter_without_a_name_in_hugging_face_is_refused(norm_position: str, make_random: Make) -> None:
    model, _ = make_random(norm_position=norm_position)
    model = copy.deepcopy(model)
    model.encoder[0].register_parameter("scale", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(ConfigError, match=r"^parameter encoder\.0\.scale of the model: Hugging Face's .* has no such"):
        huggingface.to_tensors(model)


def test_exports_are_atomic(make_random: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_bundle(tmp_path / "run", *make_random())

    def fail(folder: Path) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(bundle, "write_checksums", fail)
        with pytest.raises(DataError, match="out: cannot be written: disk full; free some space"):
            export(run, tmp_path / "out", None, "huggingface")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="already exists"):
        export(run, tmp_path / "out", None, "huggingface")


def test_export_from_the_command_line(make_random: Make, tmp_path: Path) -> None:
    run = write_bundle(tmp_path / "run", *make_random())
    result = CliRunner().invoke(app, ["export", str(run.path), "--format", "huggingface"])
    assert (result.exit_code, result.stdout) == (0, f"{run.path / 'huggingface'}\n"), result.stderr
    assert sorted(path.name for path in (run.path / "huggingface").iterdir()) == [
        "README.md",
        "checksums.json",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "source.spm",
        "target.spm",
        "tokenizer_config.json",
        "vocab.json",
    ]
    card = (run.path / "huggingface" / "README.md").read_text()
    assert "## Training data\n\n- `secret.tsv`\n\n" in card
    assert "/somewhere" not in card

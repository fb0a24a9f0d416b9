"""Tests of the CTranslate2 export and backend: scores and translations equal ours."""

import copy
import itertools
import json
import os
import random
import re
import shutil
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import ctranslate2
import pytest
import torch
from safetensors.torch import load_file, save_file
from small import Make, random_lines, train_tokenizer
from torch import nn
from typer.testing import CliRunner, Result

from mtformer.cli.app import app
from mtformer.config.loading import load_config
from mtformer.config.schema import DecodingConfig, ModelConfig
from mtformer.decoding.ctranslate2 import conversion
from mtformer.decoding.ctranslate2.conversion import to_spec
from mtformer.decoding.ctranslate2.engine import CTranslate2Engine, _Search
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.search.engine import Engine
from mtformer.decoding.search.hypotheses import Hypothesis
from mtformer.decoding.search.segments import Segment
from mtformer.decoding.translator import Translator
from mtformer.errors import CheckpointError, ConfigError, DataError, DeviceError
from mtformer.export import bundle as module
from mtformer.export.bundle import export
from mtformer.files import write_checksums
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.text.tags import Target
from mtformer.text.tokenizer import BOS, EOS, PAD, TokenizerPair

OPTIONS: dict[str, tuple[Any, ...]] = {
    "norm_position": ("pre", "post"),
    "norm": ("layernorm", "rmsnorm"),
    "activation": get_args(ModelConfig.model_fields["activation"].annotation),
    "positions": ("sinusoidal", "learned", "rotary"),
    "num_kv_heads": (None, 1, 2, 4),
    "tie_embeddings": ("all", "output", "none"),
    "output_bias": (False, True),
}
TRAINED: list[dict[str, Any]] = [
    {},
    {"norm_position": "post", "activation": "silu", "output_bias": True},
    {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary", "num_kv_heads": 2, "tie_embeddings": "output"},
    {"norm_position": "post", "norm": "rmsnorm", "activation": "geglu", "positions": "learned", "num_kv_heads": 1,
     "tie_embeddings": "none"},
]  # fmt: skip
LINES = random_lines(40, seed=1)
EXPORTED = [
    *("README.md", "checksums.json", "config.json", "config.yaml", "model.bin", "shared_vocabulary.json", "tokenizer")
]


def both(model: Transformer, tokenizers: TokenizerPair, folder: Path) -> tuple[Translator, Translator]:
    """Return translators for the model itself and for its float32 export."""
    folder.mkdir()
    spec = to_spec(model, tokenizers)
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    library = ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=2, intra_threads=1)
    engine = CTranslate2Engine(library, tokenizers, model.config.max_positions)
    decoding = DecodingConfig(early_stopping="ended")  # both searches stop in the same way
    return Translator([model], tokenizers, decoding), Translator(engine, tokenizers, decoding)


def load_exported(path: Path, device: str = "cpu", precision: str | None = None) -> Translator:
    return Translator.load(path, device=device, precision=precision, backend="ctranslate2")


def search(engine: Engine, segment: Segment, settings: DecodingConfig) -> Hypothesis:
    """Return the best hypothesis for a segment."""
    [[n_best]] = engine.search([[segment]], settings)
    return n_best[0]


def with_bias(model: Transformer, token: int, by: float) -> Transformer:
    """Return a copy of the model with the bias of one token changed."""
    other = copy.deepcopy(model)
    assert other.output_bias is not None
    other.output_bias.data[token] += by
    return other


def invoke(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def n_best_scores(translations: list[Translation]) -> list[float]:
    return [each.score for one in translations for each in (one, *one.alternatives)]


def test_the_default_stops_later_than_ended(make_trained: Make, tmp_path: Path) -> None:
    """With `auto`, both searches return hypotheses with scores that are at least those of `ended`."""
    for translator in both(*make_trained(), tmp_path / "it"):
        ended = translator.translate(LINES, early_stopping="ended")
        auto = translator.translate(LINES, early_stopping="auto")
        pairs = list(zip(auto, ended, strict=True))
        assert all(one.score >= other.score - 1e-5 for one, other in pairs)
        assert any(one.score > other.score + 1e-3 for one, other in pairs), "equal searches would test nothing"


# ---- equal scores ----------------------------------------------------------------------------------------------------


def test_these_tests_cover_all_model_options() -> None:
    """A new option must be exported or rejected by name, and then added here."""
    sizes = {"d_model", "num_heads", "d_ff", "num_encoder_layers", "num_decoder_layers", "max_positions"}
    for_training = {"dropout", "attention_dropout", "activation_dropout", "layer_drop"}
    assert set(ModelConfig.model_fields) == sizes | for_training | set(OPTIONS)


@pytest.mark.parametrize("positions", OPTIONS["positions"])
def test_scores_are_equal_for_all_options(make_random: Make, tmp_path: Path, positions: str) -> None:
    combinations = list(itertools.product(*({**OPTIONS, "positions": (positions,)}).values()))
    chosen = random.Random(0).sample(combinations, 24)
    for place, values in enumerate(({**OPTIONS, "positions": (positions,)}).values()):
        assert {some[place] for some in chosen} == set(values), "an option is not covered"
    for number, values in enumerate(chosen):
        options = dict(zip(OPTIONS, values, strict=True))
        own, other = both(*make_random(**options), tmp_path / str(number))
        expected = own.score(LINES[:8], LINES[8:16])
        for ours, theirs in zip(expected, other.score(LINES[:8], LINES[8:16]), strict=True):
            assert ours is not None
            assert theirs is not None
            assert theirs.pieces == ours.pieces
            assert theirs.token_log_probabilities == pytest.approx(ours.token_log_probabilities, abs=1e-4), options


def test_unusual_model_sizes(make_random: Make, tmp_path: Path) -> None:
    odd: dict[str, Any] = {"d_model": 33, "num_heads": 3, "d_ff": 41, "num_decoder_layers": 1, "positions": "learned"}
    for number, options in enumerate((odd, {"num_heads": 1}, {"d_ff": 1})):
        own, other = both(*make_random(**options), tmp_path / str(number))
        expected = [one.token_log_probabilities for one in own.score(LINES, LINES[::-1]) if one]
        assert [one.token_log_probabilities for one in other.score(LINES, LINES[::-1]) if one] == [
            pytest.approx(each, abs=1e-4) for each in expected
        ]


def test_text_of_the_maximum_length(make_random: Make, tmp_path: Path) -> None:
    own, other = both(*make_random(max_positions=1200, positions="rotary"), tmp_path / "it")
    tokens = own.tokenizers.src.encode([" ".join(LINES * 9)])[0]
    sources, targets = [[*tokens[:1199], EOS]], [tokens[-1199:]]
    assert len(targets[0]) == 1199
    assert other.engine.score(sources, targets)[0] == pytest.approx(own.engine.score(sources, targets)[0], abs=1e-4)
    settings = DecodingConfig(beam_size=1, max_length=20)
    whole, cut = Segment(sources[0]), Segment([*tokens[:1023], EOS])
    expected, shorter = (search(own.engine, segment, settings) for segment in (whole, cut))
    found = search(other.engine, whole, settings)
    assert found.tokens == expected.tokens
    assert found.log_probability == pytest.approx(expected.log_probability, abs=1e-4)
    assert abs(shorter.log_probability - expected.log_probability) > 1e-3, "truncation would not be detected"
    (ours,), (theirs,) = [one.engine.attention(sources, targets) for one in (own, other)]
    assert torch.allclose(theirs, ours, atol=1e-5)


# ---- equal translations ----------------------------------------------------------------------------------------------


def test_an_error_of_the_library_is_a_user_error() -> None:
    """CTranslate2 finds a GPU without the CUDA libraries that it needs, and reports it only with the result."""
    future = Future[Any]()
    future.set_exception(RuntimeError("Library libcublas.so.12 is not found or cannot be loaded"))
    with pytest.raises(DeviceError, match=r"CTranslate2: Library libcublas\.so\.12 .* use another device"):
        _Search(Segment([EOS], 0), 0, 1, future).hypotheses({}, DecodingConfig())


@pytest.mark.parametrize("options", TRAINED, ids=lambda options: "-".join(map(str, options.values())) or "default")
def test_translations_are_equal(make_trained: Make, tmp_path: Path, options: dict[str, Any]) -> None:
    own, other = both(*make_trained(**options), tmp_path / "it")
    own.models[0].eval()
    lines = LINES[:24]
    assert len({one.text for one in own.translate(lines)}) > 5, "equal translations would test nothing"
    for settings in (
        {},
        {"beam_size": 1},
        {"length_penalty": 0.0},
        {"n_best": 5},
        {"beam_size": 2, "length_penalty": 0.6},
        {"max_length": 4},
    ):
        ours, theirs = own.translate(lines, **settings), other.translate(lines, **settings, token_scores=True)
        assert [one.tokens for one in theirs] == [one.tokens for one in ours], settings
        assert n_best_scores(theirs) == pytest.approx(n_best_scores(ours), abs=1e-4), settings
        assert [one.flags for one in theirs] == [one.flags for one in ours], settings
        assert [one.log_probability for one in theirs] == pytest.approx([one.log_probability for one in ours], abs=1e-4)
        for one, another in zip(theirs, ours, strict=True):
            assert one.token_log_probabilities == pytest.approx(another.token_log_probabilities, abs=1e-4)
    for one in other.translate(lines, beam_size=1):
        assert not one.token_log_probabilities or "length limit" in one.flags, "token scores need a second pass"


def test_each_sentence_has_its_own_length_limit(make_trained: Make, tmp_path: Path) -> None:
    model, tokenizers = make_trained(**TRAINED[1])
    own, other = both(with_bias(model, EOS, -8.0), tokenizers, tmp_path / "it")
    settings: dict[str, Any] = {"max_length_ratio": 0.5, "n_best": 5, "beam_tokens": 100_000}
    ours, theirs = own.translate(LINES, **settings), other.translate(LINES, **settings)
    assert sum("length limit" in one.flags for one in ours) > 20, "the limit was rarely reached, so it was not tested"
    assert len({len(one.tokens) for one in ours}) > 4
    assert [one.tokens for one in theirs] == [one.tokens for one in ours]
    assert n_best_scores(theirs) == pytest.approx(n_best_scores(ours), abs=1e-4)
    assert [one.flags for one in theirs] == [one.flags for one in ours]


def test_pad_and_bos_are_never_generated(make_random: Make, tmp_path: Path) -> None:
    model, tokenizers = make_random(output_bias=True)
    biased = with_bias(with_bias(model, PAD, 6.0), BOS, 6.0)
    for translations in (one.translate(LINES, n_best=5) for one in both(biased, tokenizers, tmp_path / "it")):
        tokens = [token for one in translations for each in (one, *one.alternatives) for token in each.tokens]
        assert len(tokens) > 100
        assert not {PAD, BOS} & set(tokens)


def test_settings_that_ctranslate2_implements_differently_have_an_effect(make_trained: Make, tmp_path: Path) -> None:
    _, other = both(*make_trained(), tmp_path / "it")
    longer = other.translate(LINES, min_length=7, max_length=9)
    assert {len(one.tokens) for one in longer} <= {7, 8, 9}
    unlike = other.translate(LINES, no_repeat_ngram_size=1)
    assert all(len(set(one.tokens)) == len(one.tokens) for one in unlike)
    assert any(len(set(one.tokens)) < len(one.tokens) for one in other.translate(LINES))
    penalized = other.translate(LINES, repetition_penalty=5.0)
    assert sum(len(set(one.tokens)) < len(one.tokens) for one in penalized) == 0


@pytest.mark.parametrize("beam_size", [1, 5])
def test_translations_begin_with_their_prefixes(make_trained: Make, tmp_path: Path, beam_size: int) -> None:
    own, other = both(*make_trained(), tmp_path / "it")
    prefixes = [("", "die katze", "ein rot und blau")[i % 3] for i in range(len(LINES))]
    ours = own.translate(LINES, prefixes=prefixes, beam_size=beam_size)
    theirs = other.translate(LINES, prefixes=prefixes, beam_size=beam_size)
    assert all(one.text.startswith(prefix) for one, prefix in zip(theirs, prefixes, strict=True))
    is_same = [one.tokens == another.tokens for one, another in zip(theirs, ours, strict=True)]
    assert all(is_same) if beam_size == 1 else sum(is_same) > 30
    for one, another, same in zip(theirs, ours, is_same, strict=True):
        assert not same or one.score == pytest.approx(another.score, abs=1e-4)


def test_a_prefix_does_not_affect_other_sentences(make_trained: Make, tmp_path: Path) -> None:
    model, tokenizers = make_trained(**TRAINED[1])
    _, other = both(with_bias(model, EOS, 2.0), tokenizers, tmp_path / "it")
    settings: dict[str, Any] = {"n_best": 5, "length_penalty": 0.0, "beam_tokens": 100_000}
    prefixes = [("", "die katze")[i % 2] for i in range(len(LINES))]
    mixed, plain = other.translate(LINES, prefixes=prefixes, **settings), other.translate(LINES, **settings)
    assert any(each.tokens == [] for one in plain[::2] for each in one.alternatives), (
        "there are no empty hypotheses, so nothing was tested"
    )
    for one, another in zip(mixed[::2], plain[::2], strict=True):
        assert [each.tokens for each in one.alternatives] == [each.tokens for each in another.alternatives]


def test_a_prefix_can_be_the_whole_translation(make_trained: Make, tmp_path: Path) -> None:
    own, other = both(*make_trained(), tmp_path / "it")
    prefix = "ein rot und blau"
    tokens = own.tokenizers.tgt.encode([prefix])[0]
    for beam_size in (1, 5):
        (full,) = other.translate([LINES[0]], prefixes=[prefix], max_length=1, beam_size=beam_size)
        assert full.tokens == tokens
    for one in other.translate(LINES, prefixes=[prefix] * len(LINES), max_length=len(tokens) + 1, n_best=5):
        assert one.alternatives
        assert all(each.tokens[: len(tokens)] == tokens and PAD not in each.tokens for each in one.alternatives)


def test_attention_is_equal(make_trained: Make, tmp_path: Path) -> None:
    own, other = both(*make_trained(), tmp_path / "it")
    sources = [[*ids, EOS] for ids in own.tokenizers.src.encode(LINES)]
    targets = [[], *own.tokenizers.tgt.encode(LINES[:0:-1])]
    for ours, theirs in zip(
        own.engine.attention(sources, targets), other.engine.attention(sources, targets), strict=True
    ):
        assert theirs.shape == ours.shape
        assert torch.allclose(theirs, ours, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"sampling": True}, "sampling.*not supported by CTranslate2"),
        ({"mbr_samples": 4}, "mbr_samples.*not supported by CTranslate2"),
        (
            {"early_stopping": "certain"},
            "early_stopping 'certain': not supported by CTranslate2; set 'auto' or 'ended'",
        ),
        ({"required": [["hund"]]}, "required phrases.*not supported by CTranslate2"),
    ],
)
def test_unsupported_settings_raise_config_error(
    make_trained: Make, tmp_path: Path, settings: dict[str, Any], what: str
) -> None:
    _, other = both(*make_trained(), tmp_path / "it")
    with pytest.raises(ConfigError, match=what) as caught:
        other.translate(["der hund"], **settings)
    assert "\n" not in str(caught.value)
    assert other.translate(["der hund"], early_stopping="estimate", beam_size=1)


@pytest.mark.parametrize(("key", "values"), OPTIONS.items())
def test_the_parameters_of_all_options_are_known(make_random: Make, key: str, values: tuple[Any, ...]) -> None:
    for value in values:
        model, _ = make_random(**{key: value})
        names = [name for name, _ in model.named_parameters()]
        assert [name for name in names if not conversion.PARAMETERS.fullmatch(name)] == []


def test_a_parameter_that_is_not_converted_is_refused(
    make_random: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizers = make_random()

    class WithScale(Transformer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.encoder[0].register_parameter("scale", nn.Parameter(torch.ones(1)))

    monkeypatch.setattr(conversion, "Transformer", WithScale)
    monkeypatch.setattr(conversion, "load_weights", lambda *_: None)
    with pytest.raises(ConfigError, match=r"^parameter encoder\.0\.scale of the model: .* does not support it; use "):
        conversion.write_model(tmp_path, [], model.config, tokenizers)
    assert list(tmp_path.iterdir()) == []


# ---- the export ------------------------------------------------------------------------------------------------------


def test_quantization_does_not_modify_the_weights(make_trained: Make, bundle: RunDir, tmp_path: Path) -> None:
    model, tokenizers = make_trained()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    spec = to_spec(model, tokenizers)
    spec.validate()
    spec.optimize("int8")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name
    weights = bundle.bundle_weights.read_bytes()
    export(bundle, tmp_path / "int8", None, "ctranslate2", "int8")
    assert bundle.bundle_weights.read_bytes() == weights


def test_loading_keeps_the_number_of_pytorch_threads(bundle: RunDir, tmp_path: Path) -> None:
    export(bundle, tmp_path / "ct2", None, "ctranslate2", None)
    torch.set_num_threads(2)
    load_exported(tmp_path / "ct2", "cpu").translate(LINES[:2])
    assert torch.get_num_threads() == 2


def test_quantized_exports_are_small_and_accurate(bundle: RunDir, tmp_path: Path) -> None:
    own = Translator.load(bundle.path, device="cpu")
    expected = [one.log_probability for one in own.score(LINES, LINES) if one]
    sizes = {}
    for kind in (None, *ctranslate2.specs.model_spec.ACCEPTED_MODEL_TYPES):
        target = tmp_path / str(kind)
        export(bundle, target, None, "ctranslate2", kind)
        assert sorted(path.name for path in target.iterdir()) == EXPORTED
        sizes[kind] = (target / "model.bin").stat().st_size
        other = load_exported(target, "cpu")
        # On processors without VNNI instructions, int8 is less exact, which random weights show more than trained ones.
        rel = 0.3 if other.engine.dtype.startswith("int8") else 0.1
        found = [one.log_probability for one in other.score(LINES, LINES) if one]
        assert found == pytest.approx(expected, rel=rel, abs=0.3)
    assert sizes["float32"] == sizes[None]
    assert sizes["float16"] == sizes["bfloat16"] < 0.6 * sizes[None]
    assert sizes["int8"] < 0.5 * sizes[None]
    assert load_exported(tmp_path / "int8", "cpu").engine.dtype.startswith("int8")
    assert load_exported(tmp_path / "int8", "cpu", "fp32").engine.dtype == "fp32"


def test_an_unknown_quantization_raises_config_error(bundle: RunDir, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantization 'int4': not supported by CTranslate2; use int8, "):
        export(bundle, tmp_path / "it", None, "ctranslate2", "int4")
    assert not (tmp_path / "it").exists()


def test_a_full_disk_during_the_conversion_names_the_cache(
    bundle: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")  # like the library, without a file name

    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("mtformer.decoding.ctranslate2.conversion.write_model", fail)
    message = (
        rf"^{tmp_path}/cache/ctranslate2/\w+: the converted model cannot be written: No space left on device; "
        "free some space, or set MTFORMER_CACHE to another folder$"
    )
    with pytest.raises(DataError, match=message):
        Translator.load(bundle.path, backend="ctranslate2")
    assert not list((tmp_path / "cache" / "ctranslate2").glob(".*tmp*"))


def test_exports_are_atomic(bundle: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exports").mkdir()
    target = tmp_path / "exports" / "it"

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write_companions", fail)
        with pytest.raises(DataError, match="it: cannot be written: No space left on device; free some space"):
            export(bundle, target, None, "ctranslate2", None)
    assert list(target.parent.iterdir()) == []
    export(bundle, target, None, "ctranslate2", None)
    config = load_config(bundle.config).config
    assert "secret" in str(config.training.init_from)
    without_paths = {"data.train": [], "training.init_from": None}
    assert load_config(target / "config.yaml").config == config.with_values(without_paths)
    with pytest.raises(CheckpointError, match="already exists"):
        export(bundle, target, None, "ctranslate2", None)


def test_different_names_of_a_special_piece_raise_config_error(
    make_random: Make, joint: TokenizerPair, tmp_path: Path
) -> None:
    other = train_tokenizer(tmp_path, "tgt", 75, eos_piece="<end>")
    model, _ = make_random(tie_embeddings="none")
    with pytest.raises(ConfigError, match="special piece '</s>' of the source is '<end>' in the target"):
        to_spec(model, TokenizerPair(joint.src, other))


def test_special_pieces_with_other_names_are_exported(make_random: Make, tmp_path: Path) -> None:
    names = {"unk_piece": "[unk]", "bos_piece": "[bos]", "eos_piece": "[eos]", "pad_piece": "[pad]"}
    tokenizer = train_tokenizer(tmp_path, "joint", 90, **names)
    model, _ = make_random()
    own, other = both(model, TokenizerPair(tokenizer, tokenizer), tmp_path / "it")
    ours, theirs = own.score(["der 東 hund"], ["die 京 katze"])[0], other.score(["der 東 hund"], ["die 京 katze"])[0]
    assert ours is not None
    assert theirs is not None
    assert theirs.token_log_probabilities == pytest.approx(ours.token_log_probabilities, abs=1e-4)
    assert other.translate(["der hund"], beam_size=1)[0].tokens == own.translate(["der hund"], beam_size=1)[0].tokens


def test_a_missing_library_raises_config_error(bundle: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    for call in (
        lambda: export(bundle, tmp_path / "it", None, "ctranslate2", None),
        lambda: load_exported(bundle.path),
    ):
        remedy = r"to install it: pip install 'mtformer\[ctranslate2\]'"
        with pytest.raises(ConfigError, match=f"CTranslate2 is not installed; {remedy}"):
            call()


def test_folders_and_settings_that_cannot_be_loaded_raise_errors(
    bundle: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "it"
    export(bundle, target, None, "ctranslate2", None)
    with pytest.raises(DeviceError, match="precision 'fp8': CTranslate2 does not support it on cpu; use auto, fp32, "):
        load_exported(target, "cpu", "fp8")
    with pytest.raises(DeviceError, match="device 'tpu'"):
        load_exported(target, "tpu")
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 0)
    with pytest.raises(DeviceError, match="CTranslate2 finds no such device; use auto, cpu"):
        load_exported(target, "cuda")
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"float32", "int8"})
    with pytest.raises(DeviceError, match="'bf16': CTranslate2 does not support it on cpu; use auto, fp32, int8"):
        load_exported(target, "cpu", "bf16")
    model = (target / "model.bin").read_bytes()
    (target / "model.bin").write_bytes(model[: len(model) // 2])
    write_checksums(target)
    with pytest.raises(CheckpointError, match=f"{target}: cannot be loaded") as caught:
        load_exported(target, "cpu")
    assert "\n" not in str(caught.value)


# ---- the command line ------------------------------------------------------------------------------------------------


def test_export_and_translate_from_the_command_line(bundle: RunDir, tmp_path: Path) -> None:
    target, text = tmp_path / "it", "".join(f"{line}\n" for line in ["", *LINES])
    result = invoke("export", bundle.path, "--format", "ctranslate2", "--output", target)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{target}\n"
    options = ("--n-best", 2, "--early-stopping", "ended")  # both searches stop in the same way
    expected = invoke("translate", bundle.path, *options, stdin=text)
    found = invoke("translate", target, *options, stdin=text)  # the folder determines the backend
    assert found.exit_code == 0, found.stderr
    texts = [[line.split(" ||| ")[:2] for line in one.stdout.splitlines()] for one in (found, expected)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2 * len(LINES) + 1
    result = invoke("export", bundle.path, "--format", "ctranslate2", "--quantization", "int8")
    assert result.exit_code == 0, result.stderr
    assert load_exported(bundle.path / "ctranslate2", "cpu").engine.dtype.startswith("int8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "RUN", "--quantization", "int8"), "--quantization requires --format ctranslate2"),
        (("export", "RUN", "--format", "huggingface", "--quantization", "int8"), "--quantization requires --format"),
        (("translate", "RUN", "RUN", "--backend", "ctranslate2"), "only one model at a time; give one run"),
        (
            ("translate", "RUN", "--backend", "ctranslate2", "--checkpoint", "last"),
            "no checkpoint 'last'; a bundle has",
        ),
        (
            ("eval", "RUN", "--precision", "int8", "--sample", "--src", __file__, "--ref", __file__),
            "decoding.sampling true: not supported by CTranslate2; set false, or use --backend mtformer",
        ),
        (
            ("serve", "RUN", "--backend", "ctranslate2", "--port", "0", "--mbr-samples", "4"),
            "decoding.mbr_samples 4: not supported by CTranslate2; set 0",
        ),
        (
            ("translate", "RUN", "--backend", "mtformer", "--precision", "int8", "--device", "cpu"),
            "needs CTranslate2: use --backend ctranslate2",
        ),
    ],
)
def test_user_errors_are_one_line(bundle: RunDir, arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*(bundle.path if argument == "RUN" else argument for argument in arguments))
    assert result.exit_code == 2
    assert result.stderr.count("error: ") == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr


# ---- conversion of runs on first use --------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of converted models."""
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ctranslate2"


def folders(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir())


def test_a_run_is_converted_once(
    bundle: RunDir, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in bundle.path.rglob("*"))
    own = Translator.load(bundle.path, device="cpu")
    expected = [one.text for one in own.translate(LINES, early_stopping="ended")]
    with caplog.at_level("INFO"):
        for _ in range(2):
            translator = Translator.load(bundle.path, device="cpu", backend="ctranslate2")
            assert [one.text for one in translator.translate(LINES, early_stopping="ended")] == expected
    assert caplog.text.count("once for these weights") == 1
    assert translator.engine.dtype == "fp32"
    assert translator.weights == [bundle.bundle_weights]
    assert sorted(path.name for path in bundle.path.rglob("*")) == before, "a run directory may be read-only"
    [folder] = folders(cache)
    with monkeypatch.context() as patch:
        patch.setattr(ctranslate2, "__version__", "5.0")
        Translator.load(bundle.path, device="cpu", precision="int8")
    assert len(folders(cache)) == 2, "another version of the library may use another format"
    os.utime(folder, (0, 0))
    save_file({name: weight * 1.01 for name, weight in load_file(bundle.bundle_weights).items()}, bundle.bundle_weights)
    write_checksums(bundle.path)
    assert Translator.load(bundle.path, device="cpu", precision="int8").engine.dtype.startswith("int8")
    assert len(folders(cache)) == 2, "a new model was added, and one unused for a long time was deleted"
    assert folder not in folders(cache)


def test_a_damaged_conversion_is_repeated(bundle: RunDir, cache: Path) -> None:
    def load() -> Translator:
        return Translator.load(bundle.path, device="cpu", precision="int8")

    load()
    [folder] = folders(cache)
    whole = (folder / "model.bin").read_bytes()
    for damage in (lambda path: path.write_bytes(whole[:-9]), Path.unlink):
        damage(folder / "model.bin")
        load()
        assert (folder / "model.bin").read_bytes() == whole
    shutil.rmtree(folder)
    with ThreadPoolExecutor(2) as pool:
        both_loaded = list(pool.map(lambda _: load(), range(2)))
    assert [one.engine.dtype for one in both_loaded] == [both_loaded[0].engine.dtype] * 2
    assert folders(cache) == [folder]


def test_int8_on_a_cpu_uses_ctranslate2(bundle: RunDir, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    found = invoke("translate", bundle.path, "--device", "cpu", "--precision", "int8", "--json", stdin=text)
    assert found.exit_code == 0, found.stderr
    for line in found.stdout.splitlines():
        one = json.loads(line)
        assert len(one["token_log_probabilities"]) == one["length"], "JSON output includes a value for each token"
    assert len(folders(cache)) == 1
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    missing = invoke("translate", bundle.path, "--device", "cpu", "--precision", "int8", stdin=text)
    assert missing.exit_code == 2
    assert missing.stderr == "error: CTranslate2 is not installed; to install it: pip install 'mtformer[ctranslate2]'\n"


def test_a_language_tag_as_start_token_is_rejected_before_conversion(bundle: RunDir, cache: Path) -> None:
    bundle.config.write_text(re.sub("language_tags: .*", "language_tags: target", bundle.config.read_text()))
    write_checksums(bundle.path)
    with pytest.raises(ConfigError, match=r"data\.language_tags 'target': not supported by CTranslate2"):
        Translator.load(bundle.path, backend="ctranslate2")
    assert not cache.exists()


@pytest.mark.parametrize("beam_size", [1, 4])
def test_excluded_ids_are_never_generated(make_random: Make, tmp_path: Path, beam_size: int) -> None:
    """The tags of a model are excluded, even if the model has learned to generate them."""
    model, tokenizers = make_random(output_bias=True)
    model = with_bias(with_bias(model, 7, 9.0), 8, 9.0)
    own, other = both(model, tokenizers, tmp_path / "it")
    for translator in (own, other):
        settings = {"beam_size": beam_size, "max_length": 12}
        found = translator.translate(LINES, **settings)
        assert all({7, 8} & {*one.tokens} for one in found), "the premise: these ids are the most likely ones"
        translator.engine = translator.engine.with_target(Target(excluded=[7, 8]))
        found = translator.translate(LINES, **settings)
        assert all({7, 8}.isdisjoint(one.tokens) for one in found)
        assert any(one.tokens for one in found)

"""Lossless import of a Hugging Face Marian folder, as published for OPUS-MT, as a bundle."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors.torch import save
from torch import Tensor

from mtformer.config.languages import is_language
from mtformer.config.loading import dump_config
from mtformer.config.schema import NORMALIZATIONS, Config
from mtformer.errors import CheckpointError, explain_write_errors
from mtformer.export.huggingface import tensor_names
from mtformer.export.marian_tokenizer import SpecialRows, source_side, target_side
from mtformer.files import CHECKSUMS, atomic_folder, parse_json, read_bytes, read_meta, verify, write_checksums
from mtformer.model.positions import sinusoid
from mtformer.model.transformer import Transformer
from mtformer.run_dir import FINETUNE_CONFIG, RunDir
from mtformer.templating import render
from mtformer.text.normalization import Normalizer
from mtformer.text.tokenizer import BOS, PAD, SRC, TGT
from mtformer.weights import read_weights, require_finite

FOLDER = "the model needs config.json, vocab.json, source.spm, target.spm, and model.safetensors or pytorch_model.bin"
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 12),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 16),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4096),
    **dict.fromkeys(("d_model", "max_position_embeddings"), 1024),
    **dict.fromkeys(("attention_dropout", "activation_dropout"), 0.0),
    **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), 58100),
    "activation_function": "gelu",
    "dropout": 0.1,
    "eos_token_id": 0,
    "scale_embedding": False,
}
"""Defaults for settings that are missing in config.json."""
ONLY: dict[str, Any] = {
    "model_type": "marian",
    **dict.fromkeys(("scale_embedding", "share_encoder_decoder_embeddings", "tie_word_embeddings"), True),
    **dict.fromkeys(("normalize_before", "normalize_embedding", "add_final_layer_norm"), False),
    "static_position_embeddings": True,
}
"""Settings for which only one value can be imported. It is also the default, except for the first two."""
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
"""Our names for activations, by Marian's names."""
EMBEDDINGS = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)
"""Names of the shared embedding matrix; a file contains some of them, depending on the version that wrote it."""
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
BIAS = "final_logits_bias"


def import_marian(source: Path, target: Path) -> None:
    """Write a bundle that gives the same translations as the Marian folder, and in it a config for fine-tuning.

    Source and target get separate vocabularies, so their embeddings are no longer tied. The decoder starts with bos,
    which has the embedding of Marian's start token (its pad). Marian never generates this token, so its bias is -inf.
    Raise CheckpointError if the target exists, or a file is missing, damaged, or has an unsupported setting.
    """
    if target.exists():
        raise CheckpointError(f"{target}: already exists; choose another folder")
    if (source / CHECKSUMS).exists():  # the folder was written by `mtformer export`
        try:
            verify(source, *read_meta(source, CHECKSUMS)["sha256"], listing=CHECKSUMS)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; if the change is intentional, delete {source / CHECKSUMS}") from error
    settings = _read_settings(source / "config.json")
    vocabulary = _read_vocabulary(source / "vocab.json")
    special = _special_rows(source, settings, vocabulary)
    sides = {
        SRC: source_side(path := source / "source.spm", _read(path), vocabulary, special),
        TGT: target_side(path := source / "target.spm", _read(path), vocabulary, special),
    }
    search = _read_json(source / "generation_config.json") if (source / "generation_config.json").exists() else settings
    config = _config(source, settings, search, len(sides[TGT].rows), _normalization(sides[SRC].model))
    weights = _weights(source, config, len(vocabulary), sides[SRC].rows, sides[TGT].rows)
    if special.start in (special.pad, special.unk, special.eos):
        weights["output_bias"][BOS] = -torch.inf
    if search.get("renormalize_logits") and [special.pad] in (search.get("bad_words_ids") or ()):
        weights["output_bias"][PAD] = -torch.inf
    with explain_write_errors(f"{target}:", "name another folder"), atomic_folder(target) as folder:
        inside = RunDir(folder)
        inside.tokenizer.mkdir()
        for name, side in sides.items():
            (inside.tokenizer / name).write_bytes(side.model)
        inside.bundle_weights.write_bytes(save(weights))
        inside.config.write_text(dump_config(config), encoding="utf-8")
        write_checksums(folder)
        finetune = render("finetune.yaml", data=config.data, bundle=os.path.abspath(target))
        (folder / FINETUNE_CONFIG).write_text(finetune, encoding="utf-8")  # has no checksum, because users complete it


def _read(path: Path) -> bytes:
    """Return the contents of a file; raise CheckpointError if it cannot be read."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; {FOLDER}") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = parse_json(_read(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({error}); copy it again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: not a JSON object; copy it again")
    return values


def _read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in config.json, with defaults; raise CheckpointError for the first unsupported one."""
    settings = {**DEFAULTS, **_read_json(path)}
    for key, value in ONLY.items():
        if settings.get(key, None if key == "model_type" else value) != value:
            raise CheckpointError(f"{path}: {key} {settings.get(key)!r} cannot be imported; it must be {value!r}")
    for what in ("attention_heads", "ffn_dim"):
        pair = settings[f"encoder_{what}"], settings[f"decoder_{what}"]
        if pair[0] != pair[1]:
            raise CheckpointError(f"{path}: {what} is {pair[0]} in the encoder but {pair[1]} in the decoder")
    if settings["activation_function"] not in ACTIVATIONS:
        what = f"activation_function {settings['activation_function']!r} cannot be imported"
        raise CheckpointError(f"{path}: {what}; it must be one of {', '.join(ACTIVATIONS)}")
    return settings


def _read_vocabulary(path: Path) -> dict[str, int]:
    vocabulary = _read_json(path)
    if sorted(map(str, vocabulary.values())) != sorted(map(str, range(len(vocabulary)))):
        raise CheckpointError(f"{path}: its ids must be the numbers from 0 to {len(vocabulary) - 1}, each once")
    return {text: int(row) for text, row in vocabulary.items()}


def _special_rows(source: Path, settings: Mapping[str, Any], vocabulary: Mapping[str, int]) -> SpecialRows:
    for key, text in (("pad_token_id", "<pad>"), ("eos_token_id", "</s>")):
        if text not in vocabulary or vocabulary[text] != settings[key]:
            what = f"{settings[key]} in config.json, but '{text}' is {vocabulary.get(text)} in vocab.json"
            raise CheckpointError(f"{source}: {key} is {what}")
    start = settings["decoder_start_token_id"]
    if start not in vocabulary.values():
        raise CheckpointError(f"{source}: decoder_start_token_id {start} of config.json is not an id in vocab.json")
    if "<unk>" not in vocabulary:
        raise CheckpointError(f"{source}: vocab.json has no '<unk>'")
    return SpecialRows(vocabulary["<pad>"], vocabulary["<unk>"], start, vocabulary["</s>"])


def _normalization(model: bytes) -> str:
    """Return the name of the normalization of a model; that of most Marian models if it has rules of its own."""
    name = Normalizer.of_model(model).name
    return name if name in NORMALIZATIONS else "nmt_nfkc"


def _config(
    source: Path, settings: Mapping[str, Any], search: Mapping[str, Any], vocab_size: int, normalization: str
) -> Config:
    languages = source / "tokenizer_config.json"
    names = _read_json(languages) if languages.exists() else {}
    found = [str(names.get(key)) for key in ("source_lang", "target_lang")]  # may be a language group, such as ROMANCE
    src_lang, tgt_lang = (code if is_language(code) else "und" for code in found)  # undetermined
    decoding: dict[str, Any] = {
        "beam_size": search.get("num_beams") or 1,
        "length_penalty": search.get("length_penalty", 1.0),
        "early_stopping": {True: "ended", "never": "certain"}.get(search.get("early_stopping"), "estimate"),
        "min_length": max(0, (search.get("min_length") or 0) - 1),  # without the decoder's start token
        "no_repeat_ngram_size": search.get("no_repeat_ngram_size") or 0,
        "repetition_penalty": search.get("repetition_penalty") or 1.0,
    }
    if search.get("max_length"):  # includes the decoder's start token and eos; Marian has no other limit
        decoding["max_length"] = max(1, search["max_length"] - 2)
        decoding["max_length_ratio"] = float(decoding["max_length"])
    tree = {
        "data": {
            "src_lang": src_lang,
            "tgt_lang": tgt_lang,
            "filters": {"max_tokens": settings["max_position_embeddings"] - 1},
        },
        "tokenizer": {"joint": False, "vocab_size": vocab_size, "normalization": normalization},
        "model": {
            "num_heads": settings["encoder_attention_heads"],
            "d_ff": settings["encoder_ffn_dim"],
            "num_encoder_layers": settings["encoder_layers"],
            "num_decoder_layers": settings["decoder_layers"],
            **{key: settings[key] for key in ("d_model", "dropout", "attention_dropout", "activation_dropout")},
            "norm_position": "post",
            "activation": ACTIVATIONS[settings["activation_function"]],
            "max_positions": settings["max_position_embeddings"],
            "tie_embeddings": "output",
            "output_bias": True,
        },
        "decoding": decoding,
    }
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{source}: config.json cannot be imported: {where} {first['msg']}") from error


def _weights(
    source: Path, config: Config, num_rows: int, src_rows: list[int], tgt_rows: list[int]
) -> dict[str, Tensor]:
    path, theirs = _read_tensors(source)
    shared = _embeddings(path, theirs, num_rows)
    _check_positions(path, theirs, config.model.max_positions, config.model.d_model)
    bias_V = theirs.pop(BIAS, shared.new_zeros(num_rows)).flatten()
    if len(bias_V) != num_rows:
        raise CheckpointError(f"{path}: {BIAS} has {len(bias_V)} values, but vocab.json has {num_rows} pieces")
    weights = {"src_embedding": shared[src_rows], "tgt_embedding": shared[tgt_rows], "output_bias": bias_V[tgt_rows]}
    for name, parts in tensor_names(config.model):
        for part in parts:
            if part not in theirs:
                raise CheckpointError(f"{path}: {part} is missing; config.json requires it")
        weights[name] = torch.cat([theirs.pop(part) for part in parts])
    for name in theirs:
        raise CheckpointError(f"{path}: unexpected tensor {name}; models with it cannot be imported")
    with torch.device("meta"):
        model = Transformer(config.model, len(src_rows), len(tgt_rows))
    for name, parameter in model.named_parameters():
        if parameter.shape != weights[name].shape:
            shapes = f"{list(weights[name].shape)} in the file but {list(parameter.shape)} according to config.json"
            raise CheckpointError(f"{path}: {name} is {shapes}")
    return weights


def _read_tensors(source: Path) -> tuple[Path, dict[str, Tensor]]:
    """Return the path of the weights and the tensors in it; loading cannot execute code."""
    path = source / "model.safetensors"
    if path.exists():
        tensors: Any = read_weights(path)
    else:
        path = source / "pytorch_model.bin"
        if not path.exists():
            raise CheckpointError(f"{source}: neither model.safetensors nor pytorch_model.bin exists; {FOLDER}")
        try:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # pickle, zipfile and torch raise exceptions of many types
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise CheckpointError(f"{path}: cannot be loaded as weights without executing code ({reason})") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise CheckpointError(f"{path}: not a dictionary of tensors")
    require_finite(path, tensors)
    return path, {name: tensor.float() for name, tensor in tensors.items()}


def _embeddings(path: Path, theirs: dict[str, Tensor], num_rows: int) -> Tensor:
    """Return the shared embedding matrix (V, D), which has several names."""
    found = {name: theirs.pop(name) for name in EMBEDDINGS if name in theirs}
    if not found:
        raise CheckpointError(f"{path}: {EMBEDDINGS[0]} is missing")
    first, *others = found.items()
    for name, tensor in others:
        if not torch.equal(tensor, first[1]):
            raise CheckpointError(f"{path}: {name} differs from {first[0]}; only shared embeddings can be imported")
    if len(first[1]) != num_rows:
        raise CheckpointError(f"{path}: {first[0]} has {len(first[1])} rows, but vocab.json has {num_rows} pieces")
    return first[1]


def _check_positions(path: Path, theirs: dict[str, Tensor], num_positions: int, D: int) -> None:
    """Raise CheckpointError if the file contains positions other than our sinusoids."""
    table = sinusoid(num_positions, D)
    for name in POSITIONS:
        found = theirs.pop(name, table)
        if found.shape != table.shape or not torch.allclose(found, table, rtol=0.0, atol=1e-3):
            raise CheckpointError(f"{path}: {name} is not a table of sinusoids; other positions cannot be imported")

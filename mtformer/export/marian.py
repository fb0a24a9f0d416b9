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
from mtformer.config.validation import first_message
from mtformer.errors import CheckpointError, explain_write_errors
from mtformer.export.huggingface import tensor_names
from mtformer.export.marian_settings import (
    ACTIVATIONS,
    REQUIRED_FILES,
    ModelSettings,
    SearchSettings,
    read_file,
    read_model_settings,
    read_object,
    read_search_settings,
    read_vocabulary,
)
from mtformer.export.marian_tokenizer import Side, SpecialRows, source_side, target_side
from mtformer.files import CHECKSUMS, atomic_folder, require_file, verify_all, write_checksums
from mtformer.formatting import printable
from mtformer.model.positions import sinusoid
from mtformer.model.transformer import Transformer
from mtformer.run_dir import FINETUNE_CONFIG, RunDir
from mtformer.templating import render
from mtformer.text.normalization import Normalizer
from mtformer.text.tokenizer import BOS, PAD, SRC, TGT
from mtformer.weights import REASON_LENGTH, read_weights, require_finite, shown_name

EARLY_STOPPING = {True: "ended", "never": "certain"}
"""Our `early_stopping` for values in Hugging Face; the others are `estimate`."""
EMBEDDINGS = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)
"""Names of the shared embedding matrix; a file contains some of them, depending on the version that wrote it."""
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Names of the tables of positions, which a file may contain."""
BIAS = "final_logits_bias"
"""Name of the bias of the output, which a file may contain."""


def import_marian(source: Path, target: Path) -> None:
    """Write a bundle that gives the same translations as the Marian folder, and in it a config for fine-tuning.

    Source and target get separate vocabularies, so their embeddings are no longer tied. The decoder starts with bos,
    which has the embedding of Marian's start token (its pad). Marian never generates this token, so its bias is -inf.
    Raise CheckpointError if the target exists, or a file is missing, damaged, or has an unsupported setting.
    """
    if target.exists():
        raise CheckpointError(f"{target}: already exists; choose another folder, or delete it")
    _verify_export(source)

    settings = read_model_settings(source / "config.json")
    vocabulary = read_vocabulary(source / "vocab.json")
    special = _special_rows(source, settings, vocabulary)
    src_path = source / "source.spm"
    tgt_path = source / "target.spm"
    src_side = source_side(src_path, read_file(src_path), vocabulary, special)
    tgt_side = target_side(tgt_path, read_file(tgt_path), vocabulary, special)

    search = read_search_settings(source)
    config = _config(source, settings, search, src_side, tgt_side)
    weights = _weights(source, config, len(vocabulary), src_side.rows, tgt_side.rows)
    _exclude_tokens(weights["output_bias"], special, search)

    with explain_write_errors(f"{target}:", "name another folder"), atomic_folder(target) as folder:
        bundle = RunDir(folder)
        bundle.tokenizer.mkdir()
        (bundle.tokenizer / SRC).write_bytes(src_side.model)
        (bundle.tokenizer / TGT).write_bytes(tgt_side.model)
        bundle.bundle_weights.write_bytes(save(weights))
        bundle.config.write_text(dump_config(config), encoding="utf-8")
        write_checksums(folder)
        finetune = render("finetune.yaml", data=config.data, bundle=os.path.abspath(target))
        (folder / FINETUNE_CONFIG).write_text(finetune, encoding="utf-8")  # has no checksum, because users complete it


def _verify_export(source: Path) -> None:
    """Raise CheckpointError if the folder was written by `mtformer export` and has changed since then."""
    checksums = source / CHECKSUMS
    if not checksums.exists():
        return
    try:
        verify_all(source, CHECKSUMS)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; if the change is intentional, delete {checksums}") from error


def _exclude_tokens(output_bias_V: Tensor, special: SpecialRows, search: SearchSettings) -> None:
    """Set the bias of special tokens that Marian never generates to -inf, in place."""
    has_start_token = special.start not in (special.pad, special.unk, special.eos)
    if not has_start_token:
        output_bias_V[BOS] = -torch.inf
    excluded_pieces = search.bad_words_ids or ()
    if search.renormalize_logits and [special.pad] in excluded_pieces:
        output_bias_V[PAD] = -torch.inf


def _special_rows(source: Path, settings: ModelSettings, vocabulary: Mapping[str, int]) -> SpecialRows:
    """Return the rows of special tokens; raise CheckpointError if config.json and vocab.json contradict each other."""
    for key, text in (("pad_token_id", "<pad>"), ("eos_token_id", "</s>")):
        row = vocabulary.get(text)
        expected_row = getattr(settings, key)
        if row != expected_row:
            problem = f"{key} is {expected_row} in config.json, but '{text}' is {row} in vocab.json"
            raise CheckpointError(f"{source}: {problem}; copy both files again")
    start = settings.decoder_start_token_id
    if start >= len(vocabulary):
        raise CheckpointError(
            f"{source}: decoder_start_token_id {start} of config.json is not an id in vocab.json; copy both files again"
        )
    if "<unk>" not in vocabulary:
        raise CheckpointError(f"{source}: vocab.json has no '<unk>'; copy the file again")
    return SpecialRows(vocabulary["<pad>"], vocabulary["<unk>"], start, vocabulary["</s>"])


def _normalization(model: bytes) -> str:
    """Return the name of the normalization of a model; that of most Marian models if it has rules of its own."""
    normalizer = Normalizer.of_model(model)
    name = normalizer.name
    return name if name in NORMALIZATIONS else "nmt_nfkc"


def _config(source: Path, settings: ModelSettings, search: SearchSettings, src_side: Side, tgt_side: Side) -> Config:
    """Return the config of the bundle.

    Args:
        source: the Marian folder.
        settings: settings of its model.
        search: settings of its search.
        src_side: converted tokenizer of the source.
        tgt_side: converted tokenizer of the target.
    """
    src_lang, tgt_lang = _languages(source)
    max_tokens = settings.max_position_embeddings - 1
    data = {"src_lang": src_lang, "tgt_lang": tgt_lang, "filters": {"max_tokens": max_tokens}}
    tokenizer = {
        "joint": False,
        "vocab_size": len(tgt_side.rows),
        "normalization": _normalization(src_side.model),
    }
    sections = {
        "data": data,
        "tokenizer": tokenizer,
        "model": _model_settings(settings),
        "decoding": _search_settings(search),
    }

    try:
        return Config.model_validate(sections)
    except ValidationError as error:
        first_error = error.errors()[0]
        key = ".".join(map(str, first_error["loc"]))
        message = first_message(error)
        raise CheckpointError(f"{source}: config.json cannot be imported: {key} {message}") from error


def _languages(source: Path) -> tuple[str, str]:
    """Return the language codes of source and target; `und` (undetermined) if unknown, or a group such as ROMANCE."""
    path = source / "tokenizer_config.json"
    tokenizer_config = read_object(path) if path.exists() else {}
    src_lang = _language_or_und(tokenizer_config.get("source_lang"))
    tgt_lang = _language_or_und(tokenizer_config.get("target_lang"))
    return src_lang, tgt_lang


def _language_or_und(value: object) -> str:
    code = str(value)
    return code if is_language(code) else "und"


def _model_settings(settings: ModelSettings) -> dict[str, Any]:
    """Return the `model` section."""
    return {
        "d_model": settings.d_model,
        "num_heads": settings.encoder_attention_heads,
        "d_ff": settings.encoder_ffn_dim,
        "num_encoder_layers": settings.encoder_layers,
        "num_decoder_layers": settings.decoder_layers,
        "dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "activation_dropout": settings.activation_dropout,
        "norm_position": "post",
        "activation": ACTIVATIONS[settings.activation_function],
        "max_positions": settings.max_position_embeddings,
        "tie_embeddings": "output",
        "output_bias": True,
    }


def _search_settings(search: SearchSettings) -> dict[str, Any]:
    """Return the `decoding` section; lengths in Marian include the decoder's start token."""
    min_length = search.min_length or 0
    length_penalty = 1.0 if search.length_penalty is None else search.length_penalty
    decoding: dict[str, Any] = {
        "beam_size": search.num_beams or 1,
        "length_penalty": length_penalty,
        "early_stopping": EARLY_STOPPING.get(search.early_stopping, "estimate"),
        "min_length": max(0, min_length - 1),
        "no_repeat_ngram_size": search.no_repeat_ngram_size or 0,
        "repetition_penalty": search.repetition_penalty or 1.0,
    }
    if search.max_length:
        max_length = max(1, search.max_length - 2)  # without the start token and eos
        decoding["max_length"] = max_length
        # Marian has no limit in proportion to the source, so this one never applies before `max_length`.
        decoding["max_length_ratio"] = float(max_length)
    return decoding


def _weights(
    source: Path, config: Config, vocab_size: int, src_rows: list[int], tgt_rows: list[int]
) -> dict[str, Tensor]:
    """Return the weights of our model.

    Args:
        source: the Marian folder.
        config: config of the bundle.
        vocab_size: size of Marian's shared vocabulary.
        src_rows: row in Marian's embeddings of each piece of the source tokenizer.
        tgt_rows: row in Marian's embeddings of each piece of the target tokenizer.
    """
    path, tensors = _read_tensors(source)
    shared_VD = _embeddings(path, tensors, vocab_size, config.model.d_model)
    _check_positions(path, tensors, config.model.max_positions, config.model.d_model)
    no_bias_V = shared_VD.new_zeros(vocab_size)
    bias_V = tensors.pop(BIAS, no_bias_V).flatten()
    if len(bias_V) != vocab_size:
        problem = f"{BIAS} has {len(bias_V)} values, but vocab.json has {vocab_size} pieces"
        raise CheckpointError(f"{path}: {problem}; copy both files again")

    weights = {
        "src_embedding": shared_VD[src_rows],
        "tgt_embedding": shared_VD[tgt_rows],
        "output_bias": bias_V[tgt_rows],
    }
    with torch.device("meta"):
        model = Transformer(config.model, len(src_rows), len(tgt_rows))
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for name, their_names in tensor_names(config.model):
        weights[name] = _join(path, tensors, their_names, shapes[name])
    for name in tensors:  # those that are left
        raise CheckpointError(f"{path}: unexpected tensor {shown_name(name)}; models with it cannot be imported")
    return weights


def _join(path: Path, tensors: dict[str, Tensor], names: list[str], shape: torch.Size) -> Tensor:
    """Remove tensors from `tensors` and return their concatenation, which has the given shape."""
    num_rows, *widths = shape
    part_shape = [num_rows // len(names), *widths]
    for name in names:
        if name not in tensors:
            raise CheckpointError(f"{path}: {name} is missing, but config.json requires it; copy both files again")
        _require_shape(path, name, tensors[name], part_shape)
    return torch.cat([tensors.pop(name) for name in names])


def _require_shape(path: Path, name: str, tensor: Tensor, expected: list[int]) -> None:
    """Raise CheckpointError if a tensor has another shape than in our model."""
    in_file = list(tensor.shape)
    if in_file != expected:
        raise CheckpointError(
            f"{path}: {name} is {in_file} in the file but {expected} according to config.json; copy both files again"
        )


def _read_tensors(source: Path) -> tuple[Path, dict[str, Tensor]]:
    """Return the path of the weights and the tensors in it; loading cannot execute code."""
    path = source / "model.safetensors"
    if path.exists():
        tensors: Any = read_weights(path)
    else:
        path = source / "pytorch_model.bin"
        tensors = _load_pickle(path)
    if not _is_dictionary_of_tensors(tensors):
        raise CheckpointError(f"{path}: not a dictionary of tensors; copy it again")
    require_finite(path, tensors)
    return path, {name: tensor.float() for name, tensor in tensors.items()}


def _is_dictionary_of_tensors(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in value.items())


def _load_pickle(path: Path) -> Any:
    """Return the contents of a file written by `torch.save`; raise CheckpointError if it could execute code."""
    if not path.exists():
        raise CheckpointError(f"{path.parent}: neither model.safetensors nor {path.name} exists; {REQUIRED_FILES}")
    try:
        require_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zipfile and torch raise exceptions of many types
        reason = printable(str(error) or type(error).__name__, REASON_LENGTH)
        raise CheckpointError(
            f"{path}: cannot be loaded as weights without executing code ({reason}); use a model with model.safetensors"
        ) from error


def _embeddings(path: Path, tensors: dict[str, Tensor], vocab_size: int, D: int) -> Tensor:
    """Remove the shared embedding matrix (V, D), which has several names, from `tensors`, and return it."""
    copies = {name: tensors.pop(name) for name in EMBEDDINGS if name in tensors}
    if not copies:
        raise CheckpointError(f"{path}: {EMBEDDINGS[0]} is missing; copy the file again")

    (first_name, shared_VD), *other_copies = copies.items()
    for name, tensor in other_copies:
        if not torch.equal(tensor, shared_VD):
            raise CheckpointError(f"{path}: {name} differs from {first_name}; only shared embeddings can be imported")
    if shared_VD.dim() == 2 and len(shared_VD) != vocab_size:
        problem = f"{first_name} has {len(shared_VD)} rows, but vocab.json has {vocab_size} pieces"
        raise CheckpointError(f"{path}: {problem}; copy both files again")
    _require_shape(path, first_name, shared_VD, [vocab_size, D])
    return shared_VD


def _check_positions(path: Path, tensors: dict[str, Tensor], num_positions: int, D: int) -> None:
    """Remove the tables of positions; raise CheckpointError if they are other positions than our sinusoids."""
    expected = sinusoid(num_positions, D)
    for name in POSITIONS:
        table = tensors.pop(name, expected)
        is_sinusoid = table.shape == expected.shape and torch.allclose(table, expected, rtol=0.0, atol=1e-3)
        if not is_sinusoid:
            raise CheckpointError(f"{path}: {name} is not a table of sinusoids; other positions cannot be imported")

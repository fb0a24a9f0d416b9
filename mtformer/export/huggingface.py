"""Lossless export to a Hugging Face folder that `transformers` loads.

Post-norm models become a `MarianMTModel`, pre-norm models a `PegasusForConditionalGeneration`; with `MarianTokenizer`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import save
from torch import Tensor

from mtformer.config.schema import Config, ModelConfig
from mtformer.errors import ConfigError
from mtformer.files import write_json
from mtformer.model.positions import sinusoid
from mtformer.model.transformer import Transformer
from mtformer.text.tokenizer import BOS, EOS, PAD, SPACE, UNK, TokenizerPair
from mtformer.weights import load_weights

STOPPING: dict[str, bool | str] = {"auto": False, "ended": True, "estimate": False, "certain": "never"}
"""`early_stopping` in Hugging Face for each of our values."""
CLASSES = {"post": ("marian", "MarianMTModel"), "pre": ("pegasus", "PegasusForConditionalGeneration")}
"""Model type and class for each position of the norms."""
LANGUAGE_CODE = re.compile(r">>((?!<<).)+<<")
"""Text at the beginning of a line that `MarianTokenizer` looks up as a single piece."""
IDS = {
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": EOS,
}
"""Ids of special pieces, in the config of the model and of `generate`."""
ATTENTIONS = {
    "encoder": {"self_attention": "self_attn"},
    "decoder": {"self_attention": "self_attn", "cross_attention": "encoder_attn"},
}
"""Hugging Face's names of our attention modules."""
LEAVES = ("weight", "bias")
"""Names of the parameters of linear layers and norms."""
OUTER_PARAMETERS = {"src_embedding", "tgt_embedding", "output", "output_bias"}
"""Our names of the parameters outside the layers that `to_tensors` writes."""


def write_huggingface(folder: Path, config: Config, tokenizers: TokenizerPair, weights: Sequence[Path]) -> None:
    """Write the files of a folder for `AutoModelForSeq2SeqLM` and `AutoTokenizer`.

    Args:
        folder: an existing folder.
        config: config of the run, which `require_export` has accepted.
        tokenizers: tokenizers of the run.
        weights: weight files; their mean is written.

    Raise ConfigError if `transformers` has no class for a parameter of the model or a piece of the tokenizer.
    """
    src_vocabulary = _vocabulary(tokenizers, "src")
    tgt_vocabulary = _vocabulary(tokenizers, "tgt")
    src_vocab_size = len(src_vocabulary)
    tgt_vocab_size = len(tgt_vocabulary)
    is_joint = src_vocabulary == tgt_vocabulary

    model = Transformer(config.model, src_vocab_size, tgt_vocab_size)
    load_weights(model, *weights)
    contents = save(to_tensors(model), {"format": "pt"})
    (folder / "model.safetensors").write_bytes(contents)

    files = {
        "config": _model_config(config.model, src_vocab_size, tgt_vocab_size),
        "generation_config": _generation_config(config, tokenizers.tgt.tag_ids),
        "tokenizer_config": _tokenizer_config(config, list(src_vocabulary), is_joint),
        "vocab": src_vocabulary,
    }
    if not is_joint:
        files["target_vocab"] = tgt_vocabulary
    for name, values in files.items():
        write_json(folder / f"{name}.json", values, indent=2)

    (folder / "source.spm").write_bytes(tokenizers.src.model)
    (folder / "target.spm").write_bytes(tokenizers.tgt.model)
    tokenizers.save_rules(folder)


def tensor_names(config: ModelConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield our name for each layer parameter, and the names of the Hugging Face tensors that it concatenates."""
    sides = (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers))
    for side, num_layers in sides:
        for number in range(num_layers):
            our_layer = f"{side}.{number}"
            their_layer = f"model.{side}.layers.{number}"
            for our_module, their_modules in _layer_modules(side):
                for leaf in LEAVES:
                    their_names = [f"{their_layer}.{module}.{leaf}" for module in their_modules]
                    yield f"{our_layer}.{our_module}.{leaf}", their_names
        if config.norm_position == "pre":
            for leaf in LEAVES:
                yield f"{side}_norm.{leaf}", [f"model.{side}.layer_norm.{leaf}"]


def _layer_modules(side: str) -> Iterator[tuple[str, list[str]]]:
    """Yield our name for each module of a layer, and the names of the Hugging Face modules that it concatenates."""
    for ours, theirs in ATTENTIONS[side].items():
        yield f"{ours}.in_projection", [f"{theirs}.q_proj", f"{theirs}.k_proj", f"{theirs}.v_proj"]
        yield f"{ours}.out_projection", [f"{theirs}.out_proj"]
        yield f"{ours}_residual.norm", [f"{theirs}_layer_norm"]
    yield "feed_forward.expand", ["fc1"]
    yield "feed_forward.contract", ["fc2"]
    yield "feed_forward_residual.norm", ["final_layer_norm"]


def to_tensors(model: Transformer) -> dict[str, Tensor]:
    """Return the weights under their Hugging Face names; tied weights occur once.

    Raise ConfigError if the model has a parameter that the Hugging Face class has not.
    """
    config = model.config
    parameters = dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}

    for name, their_names in tensor_names(config):
        parts = parameters.pop(name).chunk(len(their_names))
        tensors.update(zip(their_names, parts, strict=True))

    if config.tie_embeddings == "all":
        tensors["model.shared.weight"] = model.tgt_embedding
    else:
        tensors["model.encoder.embed_tokens.weight"] = model.src_embedding
        tensors["model.decoder.embed_tokens.weight"] = model.tgt_embedding
    if config.tie_embeddings == "none":
        tensors["lm_head.weight"] = model.output
    no_bias_V = model.output.new_zeros(len(model.output))
    bias_V = model.output_bias if model.output_bias is not None else no_bias_V
    tensors["final_logits_bias"] = bias_V.unsqueeze(0)

    unsupported = parameters.keys() - OUTER_PARAMETERS
    for name in unsupported:
        _, class_name = CLASSES[config.norm_position]
        problem = f"Hugging Face's {class_name} has no such parameter"
        raise ConfigError(f"parameter {name} of the model: {problem}; use another --format")

    if config.norm_position == "pre":  # computed by the Marian class, but loaded by the Pegasus class
        positions = sinusoid(config.max_positions, config.d_model)
        tensors["model.encoder.embed_positions.weight"] = positions
        tensors["model.decoder.embed_positions.weight"] = positions.clone()
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}


def _vocabulary(tokenizers: TokenizerPair, side: Literal["src", "tgt"]) -> dict[str, int]:
    """Return the id of each piece, spelled as `MarianTokenizer` looks it up.

    `MarianTokenizer` adds no space before a language code, so the codes of imported models are written without
    SentencePiece's space (see `mtformer.export.marian_tokenizer`).
    """
    tokenizer = tokenizers.src if side == "src" else tokenizers.tgt
    vocabulary: dict[str, int] = {}
    for number, piece in enumerate(tokenizer.vocabulary()):
        if side == "src" and LANGUAGE_CODE.fullmatch(piece):
            reason = "MarianTokenizer treats it as a language code at the beginning of a line"
            problem = f"tokenizer.user_symbols '{piece}' cannot be exported to Hugging Face, because {reason}"
            raise ConfigError(f"{problem}; train with a symbol in another format")
        without_space = piece.removeprefix(SPACE)
        is_code = LANGUAGE_CODE.fullmatch(without_space) is not None
        name = without_space if is_code else piece
        vocabulary[name] = number
    return vocabulary


def _model_config(config: ModelConfig, src_vocab_size: int, tgt_vocab_size: int) -> dict[str, Any]:
    """Return the contents of config.json."""
    model_type, class_name = CLASSES[config.norm_position]
    values: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": model_type,
        "is_encoder_decoder": True,
        "encoder_layers": config.num_encoder_layers,
        "encoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_layers": config.num_decoder_layers,
        "decoder_attention_heads": config.num_heads,
        "decoder_ffn_dim": config.d_ff,
        "d_model": config.d_model,
        "num_hidden_layers": config.num_encoder_layers,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "max_position_embeddings": config.max_positions,
        "scale_embedding": True,
        "vocab_size": src_vocab_size,
        "tie_word_embeddings": config.tie_embeddings != "none",
        "dtype": "float32",
        "unk_token_id": UNK,
        **IDS,
    }

    if model_type == "marian":
        values["decoder_vocab_size"] = tgt_vocab_size
        values["share_encoder_decoder_embeddings"] = config.tie_embeddings == "all"
    return values


def _generation_config(config: Config, tag_ids: Sequence[int]) -> dict[str, Any]:
    """Return the search settings; `max_length` includes the decoder's start token and eos."""
    decoding = config.decoding
    model_limit = config.model.max_positions - 1
    max_length = min(decoding.max_length or model_limit, model_limit)
    never_generated = (PAD, BOS, *tag_ids)
    return {
        "num_beams": decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "early_stopping": STOPPING[decoding.early_stopping],
        "max_length": max_length + 2,
        "min_length": decoding.min_length + 1,
        "no_repeat_ngram_size": decoding.no_repeat_ngram_size,
        "repetition_penalty": decoding.repetition_penalty,
        "bad_words_ids": [[number] for number in never_generated],
        **IDS,
    }


def _tokenizer_config(config: Config, pieces: list[str], is_joint: bool) -> dict[str, Any]:
    """Return the contents of tokenizer_config.json."""
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.src_lang,
        "target_lang": config.data.tgt_lang,
        "unk_token": pieces[UNK],
        "eos_token": pieces[EOS],
        "pad_token": pieces[PAD],
        "separate_vocabs": not is_joint,
        "model_max_length": config.model.max_positions,
        "split_special_tokens": True,  # special tokens in the input are plain text
        "clean_up_tokenization_spaces": False,
    }
